/**
 * Entry of the Web Worker: starts Pyodide with the inpage wheel and passes messages to `inpage.worker`.
 *
 * The first message is the request `boot {runtimeURL}`, answered when Python listens; what arrives meanwhile waits. Two
 * methods are answered here, all others in Python: `boot`, and `requests`, which lists what this worker has fetched.
 */

/** @typedef {{jsonrpc: "2.0", id?: number, method?: string, params?: any, result?: any, error?: object}} Message */

/** @type {Message[]} */
const waiting = [];
/** @type {Set<string>} */
const fetched = new Set();

/** @type {(message: Message) => void} */
let receive = (message) => {
  receive = (later) => waiting.push(later);
  void boot(message);
};

globalThis.onmessage = (/** @type {MessageEvent<Message>} */ { data }) => receive(data);

new PerformanceObserver((list) => {
  for (const { name } of list.getEntries()) fetched.add(name);
}).observe({ type: "resource", buffered: true });

/** @param {Message} message */
async function boot({ id, method, params }) {
  const runtime = params?.runtimeURL;
  const report = (/** @type {string} */ name, /** @type {number} */ progress) =>
    post({ jsonrpc: "2.0", method: "progress", params: { id, event: { status: "boot", name, progress } } });
  try {
    if (method !== "boot" || !runtime) throw new Error("the first message must be boot {runtimeURL}");
    report("pyodide", 0);
    const { loadPyodide } = await import(/* webpackIgnore: true */ new URL("pyodide.mjs", runtime).href);
    report("packages", 20);
    const pyodide = await loadPyodide({ indexURL: runtime, packages: ["inpage"] });
    report("inpage", 90);
    Object.assign(globalThis, { pyodide }); // for the console
    const answer = pyodide.pyimport("inpage.worker").connect(post);
    receive = (message) => dispatch(message, answer);
    report("ready", 100);
    post({ jsonrpc: "2.0", id, result: { pyodide: pyodide.version } });
    waiting.splice(0).forEach(receive);
  } catch (error) {
    fail(id, "worker", `The Python runtime could not be started from ${runtime}: ${reason(error)}`, {
      hint: "Serve the folder that build_wheels.py makes (dist/runtime), and set env.runtimeURL to its URL.",
    });
  }
}

/** @param {Message} message @param {(message: Message) => void} answer */
function dispatch(message, answer) {
  try {
    if (message.method === "requests") post({ jsonrpc: "2.0", id: message.id, result: [...fetched] });
    else answer(message);
  } catch (error) {
    fail(message.id, "internal", reason(error));
  }
}

/** @param {Message} message */
function post(message) {
  globalThis.postMessage(message, { transfer: [...buffers(message)] });
}

/** @param {number | undefined} id @param {string} code @param {string} message */
function fail(id, code, message, { hint = "", details = {} } = {}) {
  const error = { code, name: "WorkerError", message: `${message} ${hint}`.trim(), hint, details };
  post({ jsonrpc: "2.0", id, error });
}

/** @param {unknown} error */
function reason(error) {
  return error instanceof Error ? error.message : String(error);
}

/**
 * The buffers below a message. Python made them for it, so they move to the page without a copy.
 * @param {any} value
 * @param {Set<ArrayBuffer>} found
 */
function buffers(value, found = new Set()) {
  if (ArrayBuffer.isView(value)) found.add(/** @type {ArrayBuffer} */ (value.buffer));
  else if (value !== null && typeof value === "object") for (const item of Object.values(value)) buffers(item, found);
  return found;
}
