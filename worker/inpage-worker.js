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
    const wheels = fetchWheels(runtime);
    wheels.catch(() => {}); // seen below
    const pyodide = await startPython(runtime);
    report("packages", 50);
    install(pyodide, await wheels);
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

/**
 * Pyodide, from the memory snapshot beside it where there is one that fits, else the plain way, which takes ten times
 * as long.
 * @param {string} runtime
 */
async function startPython(runtime) {
  const load = (/** @type {string} */ name) => import(/* webpackIgnore: true */ new URL(name, runtime).href);
  const start = fetch(new URL("inpage-snapshot.bin.gz", runtime)).catch(() => undefined);
  const snapshot = start.then((response) => (response?.ok ? unpack(response) : new Uint8Array()));
  snapshot.catch(() => {}); // seen below, or not needed
  const [response, { loadPyodide }, { default: createModule }] = await Promise.all([
    start,
    load("pyodide.mjs"),
    load("pyodide.asm.mjs"),
  ]);
  if (!response?.ok) return loadPyodide({ indexURL: runtime });
  try {
    return await wake(snapshot, runtime, loadPyodide, createModule);
  } catch (error) {
    console.warn(`inpage starts without its snapshot: ${reason(error)}`);
    return loadPyodide({ indexURL: runtime });
  }
}

/**
 * Pyodide with the memory of a snapshot. It refuses one of another build of it, and Python one of another wheel.
 * @param {Promise<Uint8Array>} snapshot
 * @param {string} runtime
 * @param {(options: object) => Promise<any>} loadPyodide
 * @param {(settings: object) => Promise<any>} createModule
 */
async function wake(snapshot, runtime, loadPyodide, createModule) {
  const createPyodideModule = async (/** @type {object} */ settings) => {
    const [module, bytes] = await Promise.all([createModule(settings), snapshot]);
    module._emscripten_resize_heap(bytes.byteLength); // Pyodide would restore no more than what it starts with
    return module;
  };
  const pyodide = await loadPyodide({ indexURL: runtime, _loadSnapshot: snapshot, createPyodideModule });
  if (pyodide.pyimport("inpage.snapshot").resume(pyodide.lockfile.packages.inpage.sha256)) return pyodide;
  throw new Error("it is of another inpage wheel");
}

/** The bytes of the snapshot; some servers' responses are unpacked on the way. @param {Response} response */
async function unpack(response) {
  const [body, copy] = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body).tee();
  const reader = copy.getReader();
  const { value: start } = await reader.read();
  void reader.cancel();
  const packed = start?.[0] === 0x1f && start[1] === 0x8b;
  const bytes = packed ? body.pipeThrough(new DecompressionStream("gzip")) : body;
  return new Uint8Array(await new Response(bytes).arrayBuffer());
}

/**
 * Files of inpage's wheel and of those it needs. Unpacked here, as Python would take a second for it at this time.
 * @param {string} runtime
 */
async function fetchWheels(runtime) {
  const response = await fetch(new URL("pyodide-lock.json", runtime));
  if (!response.ok) throw new Error(`${response.url} answers ${response.status}`);
  const { packages } = await response.json();
  const names = ["inpage", ...packages.inpage.depends];
  return (await Promise.all(names.map((name) => fetchWheel(runtime, packages[name])))).flat();
}

/** @param {string} runtime @param {{file_name: string, sha256: string}} wheel */
async function fetchWheel(runtime, { file_name, sha256 }) {
  const digest = (sha256.match(/../g) ?? []).map((byte) => parseInt(byte, 16));
  const integrity = `sha256-${btoa(String.fromCharCode(...digest))}`;
  const response = await fetch(new URL(file_name, runtime), { integrity });
  if (!response.ok) throw new Error(`${response.url} answers ${response.status}`);
  return unzip(await response.arrayBuffer());
}

/** Names and bytes of the files in a zip archive without a comment, as wheels are. @param {ArrayBuffer} archive */
function unzip(archive) {
  const view = new DataView(archive);
  const short = (/** @type {number} */ at) => view.getUint16(at, true);
  const long = (/** @type {number} */ at) => view.getUint32(at, true);
  const end = archive.byteLength - 22;
  if (long(end) !== 0x06054b50) throw new Error("a wheel is no zip archive");
  const files = [];
  for (let count = short(end + 10), at = long(end + 16); count > 0; count--) {
    const name = new TextDecoder().decode(new Uint8Array(archive, at + 46, short(at + 28)));
    const local = long(at + 42);
    const data = new Uint8Array(archive, local + 30 + short(local + 26) + short(local + 28), long(at + 20));
    files.push(inflate(data, short(at + 10)).then((bytes) => ({ name, bytes })));
    at += 46 + short(at + 28) + short(at + 30) + short(at + 32);
  }
  return Promise.all(files);
}

/** @param {Uint8Array<ArrayBuffer>} data @param {number} method  0: stored, 8: deflated */
async function inflate(data, method) {
  if (method === 0) return data;
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @param {any} pyodide @param {{name: string, bytes: Uint8Array}[]} files */
function install({ FS, runPython }, files) {
  const folder = runPython("import sysconfig; sysconfig.get_path('purelib')");
  for (const { name, bytes } of files) {
    const path = `${folder}/${name}`;
    FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    FS.writeFile(path, bytes);
  }
  runPython("import importlib; importlib.invalidate_caches()");
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
