/**
 * Entry of the Web Worker: starts Pyodide with the inpage wheel and passes messages to `inpage.worker`.
 *
 * The first message is the request `boot {runtimeURL, keep}`, answered when Python listens; what arrives meanwhile waits. Two
 * methods are answered here, all others in Python: `boot`, and `requests`, which lists what this worker has fetched.
 */

/** @typedef {{jsonrpc: "2.0", id?: number, method?: string, params?: any, result?: any, error?: object}} Message */
/** @typedef {{head: Uint8Array, memory: number, table: Record<string, number>, runs: {offset: number, bytes: Uint8Array}[], files: {path: string, bytes: Uint8Array}[]}} Snapshot */
/** @typedef {{cache: Cache, request: string}} Notes  The store's cache, and the hash of the first request. */

/** Name of the cache of what is unpacked of the runtime. */
const KEPT = "inpage-runtime";
/** Bytes that are read ahead at most. */
const AHEAD = 64 << 20;
/** Where the store's cache has what the last visit's first request took from it. */
const NOTE = "/?inpage-ahead";

/** @type {Message[]} */
const waiting = [];
/** Kept, as the engine forgets what nobody holds. @type {WebAssembly.Module[]} */
const kernels = [];
/** @type {Set<string>} */
const fetched = new Set();

/** @type {(message: Message) => void} */
let receive = (message) => {
  receive = (later) => {
    waiting.push(later);
    if (later.method === "create") readAhead.begin(later);
  };
  void boot(message);
};

/**
 * Reads what the first request is going to take from the store, while Python starts: the entries that the same request had
 * to do with on an earlier visit. It fetches nothing. Python takes the bytes in the place of the store's, once, with the
 * same checks.
 */
class ReadAhead {
  /** @type {number | undefined} */
  #id;
  #isOver = false;
  /** Where it is noted what the request reads, and under which hash. @type {Promise<Notes | undefined>} */
  #notes = Promise.resolve(undefined);
  /** Lengths of the store's entries that the request has to do with, 0 where there is none. @type {Map<string, number>} */
  #entries = new Map();
  /** What was read, empty where there is none. @type {Map<string, Promise<ArrayBuffer | undefined>>} */
  #early = new Map();

  /** @param {Message} request */
  begin({ id, params }) {
    if (this.#id !== undefined || !params?.settings?.use_browser_cache) return;
    this.#id = id;
    this.#notes = this.#start(params).catch(() => undefined); // without Cache Storage
  }

  /** @param {any} params */
  async #start(params) {
    const cache = await caches.open(params.settings.cache_name);
    const request = await hash(new TextEncoder().encode(JSON.stringify(params)));
    const noted = await (await cache.match(NOTE))?.json();
    let left = AHEAD;
    for (const [url, size] of noted?.request === request ? /** @type {[string, number][]} */ (noted.entries) : []) {
      if ((left -= size) < 0) break;
      const bytes = cache.match(url).then((found) => found?.arrayBuffer() ?? new ArrayBuffer());
      this.#early.set(url, bytes.catch(() => undefined));
    }
    return { cache, request };
  }

  /**
   * The bytes [start, stop) of an entry, if it was read ahead, none if it does not exist; once, up to its end.
   * @param {string} url @param {number} start @param {number} [stop]
   */
  async take(url, start, stop) {
    const bytes = await this.#early.get(url);
    if (!bytes || bytes.byteLength < start || !this.#early.has(url)) return undefined;
    const end = Math.min(stop ?? bytes.byteLength, bytes.byteLength);
    this.note(url, bytes.byteLength, end < bytes.byteLength);
    return new Uint8Array(bytes, start, end - start);
  }

  /** An entry of the store has `size` bytes now, 0 if there is none. @param {string} url @param {number} size */
  note(url, size, isUnchanged = false) {
    if (this.#isOver) return;
    if (!isUnchanged) this.#early.delete(url);
    this.#entries.set(url, size && Math.max(size, this.#entries.get(url) ?? 0));
  }

  /**
   * If this answers the request: let go of what nobody took, and note what the next visit should read.
   * @param {Message} answer
   */
  end({ id, result }) {
    if (id === undefined || id !== this.#id || this.#isOver) return;
    this.#isOver = true;
    this.#early.clear();
    const entries = [...this.#entries];
    this.#entries.clear();
    if (result === undefined) return;
    const note = (/** @type {Notes | undefined} */ notes) =>
      notes?.cache.put(NOTE, new Response(JSON.stringify({ request: notes.request, entries })));
    void this.#notes.then(note).catch(() => {});
  }
}

const readAhead = new ReadAhead();

globalThis.onmessage = (/** @type {MessageEvent<Message>} */ { data }) => receive(data);

new PerformanceObserver((list) => {
  for (const { name } of list.getEntries()) fetched.add(name);
}).observe({ type: "resource", buffered: true });

/** @param {Message} message */
async function boot({ id, method, params }) {
  const { runtimeURL: runtime, keep } = params ?? {};
  const report = (/** @type {string} */ name, /** @type {number} */ progress) =>
    post({ jsonrpc: "2.0", method: "progress", params: { id, event: { status: "boot", name, progress } } });
  try {
    if (method !== "boot" || !runtime) throw new Error("the first message must be boot {runtimeURL}");
    report("pyodide", 0);
    const pyodide = await startPython(runtime, keep);
    report("inpage", 90);
    Object.assign(globalThis, { pyodide, kernels, readAhead }); // the last for Python, the others for the console
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
 * Pyodide with inpage, from the snapshot beside it where there is one that fits, else the plain way, which takes ten
 * times as long.
 * @param {string} runtime
 * @param {boolean} keep  Whether the snapshot may be kept, unpacked, in the browser's storage.
 */
async function startPython(runtime, keep) {
  compileKernels(runtime);
  const lock = fetchLock(runtime);
  const load = (/** @type {string} */ name) => import(/* webpackIgnore: true */ new URL(name, runtime).href);
  const script = load("pyodide.asm.mjs");
  const snapshot = lock.then(({ snapshot }) => snapshot && openSnapshot(runtime, snapshot, keep));
  for (const early of [lock, script, snapshot]) early.catch(() => {}); // seen below
  const { loadPyodide } = await load("pyodide.mjs");
  const options = { indexURL: runtime, packageBaseUrl: runtime, lockFileContents: lock };
  const { snapshot: listed } = await lock;
  try {
    if (listed) return await wake(loadPyodide, options, { script, snapshot, head: listed.head });
  } catch (error) {
    console.warn(`inpage starts without its snapshot: ${reason(error)}`);
    await globalThis.caches?.delete(KEPT).catch(() => {}); // a kept one may be damaged
  }
  const pyodide = await loadPyodide(options);
  await pyodide.loadPackage("inpage", { messageCallback: () => {} });
  return pyodide;
}

/**
 * Compile kernels while Python starts, by streaming, so that the browser keeps the machine code for the next visit. When
 * Python brings the same bytes from its wheel, the engine has them compiled.
 * @param {string} runtime
 */
function compileKernels(runtime) {
  const threads = crossOriginIsolated && navigator.hardwareConcurrency >= 4; // what Python starts by default
  for (const name of threads ? ["relaxed", "relaxed_threads"] : ["relaxed"]) {
    const module = WebAssembly.compileStreaming(fetch(new URL(`inpage-${name}.wasm`, runtime)));
    module.then((compiled) => kernels.push(compiled)).catch(() => {}); // Python compiles them then, or others
  }
}

/** @param {string} runtime */
async function fetchLock(runtime) {
  const response = await fetch(new URL("pyodide-lock.json", runtime));
  if (!response.ok) throw new Error(`${response.url} answers ${response.status}`);
  return response.json();
}

/**
 * Pyodide with the memory and the files of a snapshot. It refuses one of another build of it, and Python one of other
 * wheels than those of the lock file.
 * @param {(options: object) => Promise<any>} loadPyodide
 * @param {object} options
 * @param {{script: Promise<any>, snapshot: Promise<Snapshot>, head: number}} parts
 */
async function wake(loadPyodide, options, { script, snapshot, head }) {
  // Pyodide starts WebAssembly once it has the snapshot. It gets the head, which it checks, filled while that starts,
  // and finds the memory already there.
  const checked = new Uint8Array(head);
  const createPyodideModule = async (/** @type {{instantiateWasm: Function}} */ settings) => {
    const { default: createModule } = await script;
    if (!tablesKeepIdentity()) placeExports(settings, snapshot);
    const [module, { head, memory, runs, files }] = await Promise.all([createModule(settings), snapshot]);
    checked.set(head);
    module._emscripten_resize_heap(memory);
    const trampoline = trampolineOf(module).slice();
    restore(module.HEAPU8.subarray(0, memory), runs);
    trampolineOf(module).set(trampoline);
    install(module.FS, files);
    return module;
  };
  const pyodide = await loadPyodide({ ...options, _loadSnapshot: checked, createPyodideModule });
  const { inpage, ...others } = pyodide.lockfile.packages;
  const wheels = [inpage, ...inpage.depends.map((/** @type {string} */ name) => others[name])];
  if (pyodide.pyimport("inpage.snapshot").resume(wheels.map(({ sha256 }) => sha256).join(" "))) return pyodide;
  throw new Error("it is of other wheels");
}

/** Whether a function is the same object in a table as among its module's exports, as it should be, and is not in WebKit. */
function tablesKeepIdentity() {
  // (module (func (export "f")) (table (export "t") 1 funcref) (elem (i32.const 0) 0))
  const code =
    "\0asm\x01\0\0\0" + "\x01\x04\x01\x60\0\0" + "\x03\x02\x01\0" + "\x04\x04\x01\x70\0\x01" +
    "\x07\x09\x02\x01t\x01\0\x01f\0\0" + "\x09\x07\x01\0\x41\0\x0b\x01\0" + "\x0a\x04\x01\x02\0\x0b";
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(Uint8Array.from(code, (c) => c.charCodeAt(0))));
  return /** @type {WebAssembly.Table} */ (exports.t).get(0) === exports.f;
}

/**
 * Put Pyodide's exports into the function table, where the snapshot has them. Pyodide, which would not find them there,
 * would give them and all that follow other places than the snapshot's memory refers to.
 * @param {{instantiateWasm: Function}} settings
 * @param {Promise<Snapshot>} snapshot
 */
function placeExports(settings, snapshot) {
  const { instantiateWasm } = settings;
  settings.instantiateWasm = (/** @type {object} */ imports, /** @type {Function} */ receive) =>
    instantiateWasm(imports, async (/** @type {{exports: any}} */ instance, /** @type {WebAssembly.Module} */ module) => {
      const { table } = await snapshot;
      const { __indirect_function_table: functions, ...exports } = instance.exports;
      for (const [name, index] of Object.entries(table)) functions.set(index, exports[name]);
      receive(instance, module);
    });
}

/**
 * Where Python's memory has the function that calls others of any signature, which not every engine has.
 * @param {any} module
 */
function trampolineOf({ HEAPU8, __PyRuntime, __PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET }) {
  const offset = new DataView(HEAPU8.buffer).getInt32(__PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET, true);
  return HEAPU8.subarray(__PyRuntime + offset, __PyRuntime + offset + 4);
}

/** @param {Uint8Array} memory @param {Snapshot["runs"]} runs */
function restore(memory, runs) {
  let end = 0;
  for (const { offset, bytes } of runs) {
    memory.fill(0, end, offset).set(bytes, offset);
    end = offset + bytes.length;
  }
  memory.fill(0, end);
}

/** @param {any} FS @param {Snapshot["files"]} files */
function install(FS, files) {
  let last = "";
  for (const { path, bytes } of files) {
    const folder = path.slice(0, path.lastIndexOf("/"));
    if (folder !== last) FS.mkdirTree((last = folder));
    FS.writeFile(path, bytes);
  }
}

/**
 * The parts of the snapshot that the lock file lists, as an earlier visit unpacked it or as it lies beside it.
 * @param {string} runtime
 * @param {{file_name: string, sha256: string}} listed  The hash is that of the unpacked file.
 * @param {boolean} keep
 */
async function openSnapshot(runtime, { file_name, sha256 }, keep) {
  const url = new URL(file_name, runtime).href;
  const cache = keep ? await globalThis.caches?.open(KEPT).catch(() => undefined) : undefined;
  const kept = await cache?.match(`${url}?${sha256}`);
  if (kept) return parts(await (await kept.blob()).arrayBuffer()); // of a blob: twice as fast
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${response.url} answers ${response.status}`);
  const unpacked = await unpack(response);
  if (cache) void keepSnapshot(cache, `${url}?${sha256}`, unpacked, sha256).catch(() => {}); // it costs the next visit time
  return parts(unpacked);
}

/** @param {Cache} cache @param {string} key @param {ArrayBuffer} unpacked @param {string} sha256 */
async function keepSnapshot(cache, key, unpacked, sha256) {
  if ((await hash(unpacked)) !== sha256) return;
  await cache.delete(key, { ignoreSearch: true }); // an earlier one
  await cache.put(key, new Response(unpacked));
}

/** SHA-256 in hexadecimal digits. @param {BufferSource} data */
async function hash(data) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The unpacked bytes of the snapshot; some servers' responses are unpacked on the way. @param {Response} response */
async function unpack(response) {
  const [body, copy] = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body).tee();
  const reader = copy.getReader();
  const { value: start } = await reader.read();
  void reader.cancel();
  const packed = start?.[0] === 0x1f && start[1] === 0x8b;
  const bytes = packed ? body.pipeThrough(new DecompressionStream("gzip")) : body;
  return new Response(bytes).arrayBuffer();
}

/**
 * What a snapshot consists of, as build_wheels.py packs it: the length of a JSON header, the header, and then the bytes
 * that it lists: Pyodide's own header, those of memory (all else is zero), and those of files.
 * @param {ArrayBuffer} unpacked
 * @returns {Snapshot}
 */
function parts(unpacked) {
  const length = new DataView(unpacked).getUint32(0, true);
  const { head, memory, table, runs, files } = JSON.parse(new TextDecoder().decode(new Uint8Array(unpacked, 4, length)));
  let at = 4 + length;
  const next = (/** @type {number} */ size) => new Uint8Array(unpacked, (at += size) - size, size);
  return {
    head: next(head),
    memory,
    table,
    runs: runs.map((/** @type {[number, number]} */ [offset, size]) => ({ offset, bytes: next(size) })),
    files: files.map((/** @type {[string, number]} */ [path, size]) => ({ path, bytes: next(size) })),
  };
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
  readAhead.end(message);
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
