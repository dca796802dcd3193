/**
 * Service worker of `isolation.js`: adds the headers that isolate a page to documents and workers. Everything else goes
 * past it, so that downloads cost nothing more.
 */

/** @typedef {Event & {waitUntil: (done: Promise<unknown>) => void}} Extendable */
/** @typedef {Event & {request: Request, respondWith: (response: Promise<Response>) => void}} Fetch */

const scope = /** @type {any} */ (globalThis);
const ISOLATED = ["document", "iframe", "worker", "sharedworker"];

scope.addEventListener("install", () => scope.skipWaiting());
scope.addEventListener("activate", (/** @type {Extendable} */ event) => event.waitUntil(scope.clients.claim()));
scope.addEventListener("fetch", (/** @type {Fetch} */ event) => {
  if (ISOLATED.includes(event.request.destination)) event.respondWith(isolate(event.request));
});

/** @param {Request} request */
async function isolate(request) {
  const response = await fetch(request);
  if (response.status === 0) return response; // a redirect, which the browser follows
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  const { body, status, statusText } = response;
  return new Response(body, { status, statusText, headers });
}
