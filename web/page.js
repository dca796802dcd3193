/** What the pages of the demo have in common: facts, progress, the count of requests, and the theme. */

import { InpageError, requests } from "./inpage.js";

/** @template {HTMLElement} T @param {string} id @returns {T} */
export const element = (id) => /** @type {T} */ (document.getElementById(id));

/** @type {HTMLProgressElement} */ const progressBar = element("progress");

/** @param {unknown} error */
export const isAborted = (error) => error instanceof InpageError && error.code === "aborted";

// What the page says

/** @param {number} percent @param {string} label */
export function showProgress(percent, label) {
  const work = element("work");
  work.hidden = false;
  work.classList.remove("failed");
  progressBar.hidden = false;
  progressBar.value = percent;
  element("progress-label").textContent = label;
}

/** @param {unknown} error */
export function showError(error) {
  const message = isAborted(error) ? "Stopped." : error instanceof Error ? error.message : String(error);
  showProgress(0, message);
  progressBar.hidden = true;
  element("work").classList.toggle("failed", !isAborted(error));
  announce(message);
}

/** @param {string} id @param {string} value @param {string} note */
export function showFact(id, value, note) {
  element(id).textContent = value;
  element(`${id}-note`).textContent = note;
}

/** @param {string} text */
export function announce(text) {
  element("status").textContent = text;
}

/** @param {number} milliseconds */
export const seconds = (milliseconds) => `${(milliseconds / 1000).toFixed(1)} s`;
/** @param {number} bytes */
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

/**
 * Load a model, and say how far it is and where it comes from.
 * @template T
 * @param {string} unloaded  What is said of a model that is not loaded.
 * @param {(progress_callback: (event: import("./inpage.js").ProgressEvent) => void) => Promise<T>} load
 */
export async function showLoading(unloaded, load) {
  const started = performance.now();
  let source = "loaded";
  try {
    const loaded = await load((event) => {
      if (event.status === "boot") {
        showFact("model", "Starting Python", "in a worker of this page");
        showProgress(event.progress / 5, "Starting Python …");
      } else if (event.status === "progress_total") {
        const [doing, from] = event.cached ? ["Loading", "from this browser’s cache"] : ["Downloading", "to keep in this browser"];
        source = event.cached ? "from this browser’s cache" : "downloaded and kept";
        showFact("model", doing, from);
        showProgress(20 + 0.8 * event.progress, `Model: ${megabytes(event.loaded)} of ${megabytes(event.total)} MB, ${from}`);
      }
    });
    showFact("model", "Ready", `${source} in ${seconds(performance.now() - started)}`);
    return loaded;
  } catch (error) {
    showFact("model", "Not loaded", unloaded);
    throw error;
  }
}

// Requests

/** @type {Set<string>}  What this page has fetched. */
const fetched = new Set();
new PerformanceObserver((list) => list.getEntries().forEach(({ name }) => fetched.add(name))).observe({
  type: "resource",
  buffered: true,
});

/** Count what page and worker have fetched from other hosts. */
export async function countRequests() {
  const all = [...new Set([...fetched, ...(await requests().catch(() => []))])].map((url) => new URL(url));
  const foreign = all.filter((url) => url.protocol.startsWith("http") && url.origin !== location.origin);
  element("foreign").textContent = String(foreign.length);
  element("foreign").classList.toggle("bad", foreign.length > 0);
  const hosts = [...new Set(foreign.map(({ host }) => host))];
  if (all.length) element("foreign-note").textContent = hosts.join(", ") || `of ${all.length}, in page and worker`;
}

// Theme

const THEME = "inpage-demo-theme";

/** Take up the theme of the last visit, and let it be switched. @param {() => void} changed */
export function startTheme(changed = () => {}) {
  const button = element("theme");
  const show = () => {
    const theme = localStorage.getItem(THEME);
    if (theme) document.documentElement.dataset.theme = theme;
    const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    button.textContent = dark ? "Light" : "Dark";
    button.ariaLabel = `Switch to ${dark ? "light" : "dark"} colours`;
    changed();
  };
  button.addEventListener("click", () => {
    localStorage.setItem(THEME, button.textContent === "Dark" ? "dark" : "light");
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}
