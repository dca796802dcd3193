/**
 * Entry of the Web Worker: starts Pyodide with the inpage wheel and passes messages to `inpage.worker`.
 *
 * The first message is the request `boot {runtimeURL}`, answered when Python listens; what arrives meanwhile waits. Three
 * methods are answered here, all others in Python: `boot`, its notifications `part {name, value, error}`, by which the page
 * sends what it has got ready meanwhile, and `requests`, which lists what this worker has fetched.
 */

/** @typedef {{jsonrpc: "2.0", id?: number, method?: string, params?: any, result?: any, error?: object}} Message */
/** @typedef {{table: {length: number, exported: number[], wrappers: string}, addresses: Record<string, number>, side: {memory: number, table: number}}} Links  See src/runtime/snapshot.mjs. */
/** @typedef {{head: Uint8Array, memory: number, runs: {offset: number, bytes: Uint8Array}[], files: {path: string, bytes: Uint8Array}[]}} Snapshot */

/** @type {Message[]} */
const waiting = [];
/** Kept, as the engine forgets what nobody holds. @type {WebAssembly.Module[]} */
const kernels = [];
/** @type {Set<string>} */
const fetched = new Set();

/** The id of the first request, which this worker prepares while Python starts. @type {number | undefined} */
let first;

/** @type {(message: Message) => void} */
let receive = (message) => {
  receive = (later) => {
    waiting.push(later);
    if (later.method === "create" && first === undefined) begin(later);
  };
  void boot(message);
};

/**
 * What the page reads ahead from the store for the first request, while Python starts: see `readAhead` in inpage.js. Python
 * takes the bytes in the place of the store's, once, with the same checks.
 */
class ReadAhead {
  #isOver = false;
  /** Where what the request reads is noted, and its hash. @type {{cache: string, note: string, request: string} | undefined} */
  #noted;
  /** Lengths of the store's entries that the request has to do with, 0 where there is none. @type {Map<string, number>} */
  #entries = new Map();
  /** What is read, empty where there is none. @type {Map<string, PromiseWithResolvers<ArrayBuffer | undefined>>} */
  #early = new Map();

  /** The page is going to read these. @param {{urls: string[], cache: string, note: string, request: string}} ahead */
  expect({ urls, ...noted }) {
    this.#noted = noted;
    this.#early = new Map(urls.map((url) => [url, Promise.withResolvers()]));
  }

  /** The page has read one, or could not. @param {{url: string, bytes?: ArrayBuffer}} entry */
  receive({ url, bytes }) {
    this.#early.get(url)?.resolve(bytes);
  }

  /**
   * The bytes [start, stop) of an entry, if it was read ahead, none if it does not exist; once, up to its end.
   * @param {string} url @param {number} start @param {number} [stop]
   */
  async take(url, start, stop) {
    const bytes = await this.#early.get(url)?.promise;
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
   * The request is answered: let go of what nobody took, and note what the next visit should read.
   * @param {boolean} isDone  Whether it succeeded.
   */
  end(isDone) {
    this.#isOver = true;
    for (const { resolve } of this.#early.values()) resolve(undefined);
    this.#early.clear();
    const entries = [...this.#entries];
    this.#entries.clear();
    if (isDone && this.#noted) void this.#write(this.#noted, entries).catch(() => {});
  }

  /** @param {{cache: string, note: string, request: string}} noted @param {[string, number][]} entries */
  async #write({ cache, note, request }, entries) {
    await (await caches.open(cache)).put(note, new Response(JSON.stringify({ request, entries })));
  }
}

/** Dtypes of which a repository may have a file of its own. */
const OFFERED = ["fp16", "q8g", "q8", "q4z", "q4"];

/**
 * Asks the host for the files that the first request begins with, while Python starts, where the store has nothing of the
 * model. Python takes a response in the place of its own request, if that would be the same.
 */
class Prefetch {
  /** By method, address and range. @type {Map<string, {response: Promise<Response | undefined>, abort: AbortController}>} */
  #asked = new Map();

  /** @param {any} params  Of a request `create`. */
  async begin({ name, args, kwargs, settings }) {
    const isPipeline = name === "pipeline";
    const folder = folderOf(args[isPipeline ? 1 : 0], settings);
    const special = ["token", "revision", "subfolder", "local_files_only"].some((option) => option in kwargs);
    if (!folder || special || (await isStored(`${folder}config.json`, settings))) return;
    const ask = (/** @type {string} */ method, /** @type {string} */ file, range = "") =>
      this.#ask(method, folder + file, range, settings.use_browser_cache);
    void ask("GET", "config.json");
    if (isPipeline || name.startsWith("AutoTokenizer.")) {
      for (const file of ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]) void ask("GET", file);
    }
    if (name.startsWith("AutoTokenizer.") || name.startsWith("AutoConfig.")) return;
    const offered = OFFERED.includes(kwargs.dtype) ? [`model.${kwargs.dtype}.safetensors`] : [];
    for (const file of [...offered, "model.safetensors"]) {
      if (!(await ask("HEAD", file, "bytes=0-"))?.ok) continue;
      void ask("GET", file, "bytes=0-65535");
      void ask("GET", file, "bytes=0-");
      break;
    }
  }

  /** @param {string} method @param {string} url @param {string} range @param {boolean} isKept */
  #ask(method, url, range, isKept) {
    const abort = new AbortController();
    /** @type {RequestInit} */
    const options = { method, headers: range ? { Range: range } : {}, signal: abort.signal };
    const response = fetch(url, isKept ? { ...options, cache: "no-store" } : options).then(
      (response) => (response.ok || response.status === 404 ? response : undefined), // others may pass, and are tried again
      () => undefined,
    );
    this.#asked.set(`${method} ${url} ${range}`, { response, abort });
    return response;
  }

  /** The response to a request, once, and what aborts it. @param {string} method @param {string} url @param {string} range */
  async take(method, url, range) {
    const key = `${method} ${url} ${range}`;
    const asked = this.#asked.get(key);
    this.#asked.delete(key);
    const response = await asked?.response;
    return response && { response, abort: asked?.abort };
  }

  /** Let go of what nobody took. */
  end() {
    for (const { abort } of this.#asked.values()) abort.abort();
    this.#asked.clear();
  }
}

/**
 * The address of a model's folder, where it is plain: a URL, or a hub's id if there are no local models.
 * @param {any} model @param {any} settings
 */
function folderOf(model, { allow_local_models, allow_remote_models, remote_host, remote_path_template }) {
  if (typeof model !== "string" || !allow_remote_models) return undefined;
  if (/^https?:/.test(model)) return `${model.replace(/\/+$/, "")}/`;
  if (allow_local_models || !/^[\w.-]+(\/[\w.-]+)?$/.test(model)) return undefined;
  const path = remote_path_template.replace("{model}", model).replace("{revision}", "main");
  return `${remote_host.replace(/\/+$/, "")}/${path.replace(/\/+$/, "")}/`;
}

/** Whether the store knows a file. @param {string} url @param {any} settings */
async function isStored(url, { use_browser_cache, cache_name }) {
  if (!use_browser_cache) return false;
  const cache = await globalThis.caches?.open(cache_name).catch(() => undefined);
  return (await cache?.match(`${url}?inpage=manifest`)) !== undefined;
}

const readAhead = new ReadAhead();
const prefetch = new Prefetch();

/** Prepare the first request. @param {Message} request */
function begin({ id, params }) {
  first = id;
  prefetch.begin(params).catch(() => {}); // Python tells what is wrong with it
}

/** If this answers the first request: end what prepared it. @param {Message} answer */
function end({ id, result }) {
  if (id === undefined || id !== first) return;
  readAhead.end(result !== undefined);
  prefetch.end();
}

/** What the page gets ready: the lock file, Pyodide's program, and, if a snapshot is listed, that and the side module. */
const parts = {
  lock: /** @type {PromiseWithResolvers<any>} */ (Promise.withResolvers()),
  program: /** @type {PromiseWithResolvers<WebAssembly.Module>} */ (Promise.withResolvers()),
  tokenizers: /** @type {PromiseWithResolvers<WebAssembly.Module>} */ (Promise.withResolvers()),
  snapshot: /** @type {PromiseWithResolvers<ArrayBuffer>} */ (Promise.withResolvers()),
};
for (const { promise } of Object.values(parts)) promise.catch(() => {}); // seen where it is awaited

globalThis.onmessage = (/** @type {MessageEvent<Message>} */ { data }) => {
  if (data.method !== "part") return receive(data);
  const { name, value, error } = data.params;
  if (name === "ahead") return readAhead.expect(value);
  if (name === "entry") return readAhead.receive(value);
  const part = parts[/** @type {keyof typeof parts} */ (name)];
  if (error) part.reject(new Error(error));
  else part.resolve(value);
};

new PerformanceObserver((list) => {
  for (const { name } of list.getEntries()) fetched.add(name);
}).observe({ type: "resource", buffered: true });

/** @param {Message} message */
async function boot({ id, method, params }) {
  const { runtimeURL: runtime } = params ?? {};
  const report = (/** @type {string} */ name, /** @type {number} */ progress) =>
    post({ jsonrpc: "2.0", method: "progress", params: { id, event: { status: "boot", name, progress } } });
  try {
    if (method !== "boot" || !runtime) throw new Error("the first message must be boot {runtimeURL}");
    report("pyodide", 0);
    const pyodide = await startPython(runtime);
    report("inpage", 90);
    Object.assign(globalThis, { pyodide, kernels, readAhead, prefetch }); // the last two for Python, the others for the console
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
 */
async function startPython(runtime) {
  compileKernels(runtime);
  const load = (/** @type {string} */ name) => import(/* webpackIgnore: true */ new URL(name, runtime).href);
  const script = load("pyodide.asm.mjs");
  script.catch(() => {}); // seen below
  const { loadPyodide } = await load("pyodide.mjs");
  const options = { indexURL: runtime, packageBaseUrl: runtime, lockFileContents: parts.lock.promise };
  const { snapshot: listed } = await parts.lock.promise;
  try {
    if (listed) return await wake(loadPyodide, options, script, listed);
  } catch (error) {
    console.warn(`inpage starts without its snapshot: ${reason(error)}`);
    await globalThis.caches?.delete("inpage-runtime").catch(() => {}); // a kept one may be damaged
  }
  await parts.program.promise; // Pyodide would wait for ever for one that cannot be had
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

/**
 * Pyodide with the memory and the files of a snapshot. It refuses one of another build of it, and Python one of other
 * wheels than those of the lock file.
 * @param {(options: object) => Promise<any>} loadPyodide
 * @param {object} options
 * @param {Promise<any>} script
 * @param {{head: number, links: Links}} listed
 */
async function wake(loadPyodide, options, script, listed) {
  // Pyodide starts WebAssembly once it has the snapshot. It gets the head, which it checks, filled while that starts,
  // and finds the memory already there.
  const checked = new Uint8Array(listed.head);
  const createPyodideModule = async (/** @type {{instantiateWasm: Function}} */ settings) => {
    const { default: createModule } = await script;
    /** @type {any} */
    let imports;
    const module = await new Promise((resolve, reject) => {
      settings.instantiateWasm = (/** @type {any} */ given, /** @type {Function} */ receive) => {
        imports = given;
        instantiate(imports, listed.links).then(({ instance, program }) => receive(instance, program), reject);
        return {};
      };
      createModule(settings).then(resolve, reject);
    });
    const used = module.HEAPU8.length;
    const { head, memory, runs, files } = unpack(await parts.snapshot.promise);
    checked.set(head);
    module._emscripten_resize_heap(memory);
    instantiateSide(await parts.tokenizers.promise, imports, listed.links);
    const trampoline = trampolineOf(module).slice();
    restore(module.HEAPU8, used, runs);
    trampolineOf(module).set(trampoline);
    install(module.FS, files);
    return module;
  };
  // Pyodide takes this as a sign not to fetch the program, which the page does, and nothing for the standard library, which
  // the snapshot's files have.
  const sign = Object.assign(globalThis, { WasmOffsetConverter: null });
  const starting = loadPyodide({ ...options, stdLibURL: "data:,", _loadSnapshot: checked, createPyodideModule });
  const pyodide = await starting.finally(() => Reflect.deleteProperty(sign, "WasmOffsetConverter"));
  const { inpage, ...others } = pyodide.lockfile.packages;
  const wheels = [inpage, ...inpage.depends.map((/** @type {string} */ name) => others[name])];
  if (pyodide.pyimport("inpage.snapshot").resume(wheels.map(({ sha256 }) => sha256).join(" "))) return pyodide;
  throw new Error("it is of other wheels");
}

/**
 * Start Pyodide's WebAssembly, with the two functions that Pyodide itself adds to the imports.
 * @param {any} imports
 * @param {Links} links
 */
async function instantiate(imports, links) {
  const error = Symbol("error");
  imports.env.Jsv_GetError_import = () => error;
  imports.env.JsvError_Check = (/** @type {unknown} */ value) => value === error;
  const program = await parts.program.promise;
  const instance = await WebAssembly.instantiate(program, imports);
  fillTable(instance, imports, links);
  return { instance, program };
}

/**
 * Fill Pyodide's table of functions as it was when the snapshot was made, whose memory refers to places in it. Pyodide
 * finds all addresses given and leaves it as it is: it would go through thousands of functions one by one and, in WebKit,
 * where a function of a table is not the same object as among the exports, give them other places.
 * @param {WebAssembly.Instance} instance
 * @param {any} imports
 * @param {Links} links
 */
function fillTable({ exports }, imports, { table: { length, exported, wrappers }, addresses }) {
  const table = /** @type {WebAssembly.Table} */ (exports.__indirect_function_table);
  const globals = imports["GOT.func"];
  const start = table.length;
  table.grow(length - start);
  const functions = Object.entries(exports).filter(([, value]) => typeof value === "function");
  for (const [at, [name, value]] of functions.entries()) {
    const index = exported[at];
    if (index < 0) continue;
    globals[name].value = index;
    if (index >= start) table.set(index, value);
  }
  for (const [name, address] of Object.entries(addresses)) globals[name].value = address;
  const module = new WebAssembly.Module(Uint8Array.from(atob(wrappers), (c) => c.charCodeAt(0)));
  new WebAssembly.Instance(module, { env: { ...imports.env, __indirect_function_table: table } });
}

/**
 * Start the side module where it was when the snapshot was made, which has the memory that its initialisation left.
 * @param {WebAssembly.Module} module
 * @param {any} imports  Of Pyodide, which are also all that it exports.
 * @param {Links} links
 */
function instantiateSide(module, imports, { side }) {
  const get = (/** @type {Record<string, any>} */ env, /** @type {string} */ name) =>
    env[name] ?? ((/** @type {any[]} */ ...values) => /** @type {Function} */ (exports[name])(...values));
  const env = new Proxy({ ...imports.env, __memory_base: side.memory, __table_base: side.table }, { get });
  const { exports } = new WebAssembly.Instance(module, { ...imports, env });
}

/**
 * Where Python's memory has the function that calls others of any signature, which not every engine has.
 * @param {any} module
 */
function trampolineOf({ HEAPU8, __PyRuntime, __PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET }) {
  const offset = new DataView(HEAPU8.buffer).getInt32(__PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET, true);
  return HEAPU8.subarray(__PyRuntime + offset, __PyRuntime + offset + 4);
}

/**
 * @param {Uint8Array} memory
 * @param {number} used  What lies behind is zero, or of the side module, whose blocks the snapshot has too.
 * @param {Snapshot["runs"]} runs
 */
function restore(memory, used, runs) {
  let end = 0;
  for (const { offset, bytes } of runs) {
    memory.fill(0, end, Math.min(offset, used)).set(bytes, offset);
    end = offset + bytes.length;
  }
  memory.fill(0, end, used);
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
 * What a snapshot consists of, as build_wheels.py packs it: the length of a JSON header, the header, and then the bytes
 * that it lists: Pyodide's own header, those of memory (all else is zero), and those of files.
 * @param {ArrayBuffer} packed
 * @returns {Snapshot}
 */
function unpack(packed) {
  const length = new DataView(packed).getUint32(0, true);
  const { head, memory, runs, files } = JSON.parse(new TextDecoder().decode(new Uint8Array(packed, 4, length)));
  let at = 4 + length;
  const next = (/** @type {number} */ size) => new Uint8Array(packed, (at += size) - size, size);
  return {
    head: next(head),
    memory,
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

/** @param {Message | string} message  A text is that of a notification in JSON. */
function post(message) {
  if (typeof message === "string") return globalThis.postMessage(message);
  end(message);
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
