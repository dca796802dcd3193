/**
 * The page's client of inpage: names and values as in `inpage.d.ts`, work done in a Web Worker.
 *
 * One worker serves the page. It starts with the first call; `terminate()` ends it and frees everything at once.
 */

const PROTOCOL = 1;
const HANDLE = Symbol("inpage.handle");

/** @typedef {import("./inpage.d.ts").ProgressEvent} ProgressEvent */
/** @typedef {{signal?: AbortSignal, progress?: (event: ProgressEvent) => void}} Options */
/** @typedef {{resolve: (value: any) => void, reject: (error: any) => void, progress?: Options["progress"]}} Waiter */
/** @typedef {{code: string, message: string, hint?: string, details?: Record<string, unknown>}} ErrorFields */

export class InpageError extends Error {
  /** @param {ErrorFields} fields */
  constructor({ code, message, hint = "", details = {} }) {
    super(message);
    this.name = code === "aborted" ? "AbortError" : "InpageError";
    this.code = code;
    this.hint = hint;
    this.details = details;
  }
}

/** @param {string} code @param {string} message @param {string} hint @param {Record<string, unknown>} [details] */
const failure = (code, message, hint = "", details = {}) =>
  new InpageError({ code, message: `${message} ${hint}`.trim(), hint, details });

// Settings

const here = import.meta.url;
const SETTINGS = {
  workerURL: new URL("inpage-worker.js", here).href,
  runtimeURL: new URL("runtime/", here).href,
  allowLocalModels: false,
  allowRemoteModels: true,
  localModelPath: "/models/",
  remoteHost: "https://huggingface.co/",
  remotePathTemplate: "{model}/resolve/{revision}/",
  useBrowserCache: true,
  cacheName: "inpage",
  wasm: strict(
    "env.wasm",
    {
      numThreads: /** @type {number | null} */ (null),
      variant: /** @type {string | null} */ (null),
      maxMemory: /** @type {number | null} */ (null),
    },
    { numThreads: "number", variant: "string", maxMemory: "number" },
  ),
};

/** @type {typeof import("./inpage.d.ts").env} */
export const env = strict("env", SETTINGS);

/**
 * An object whose unknown names raise, for reading and for writing, and values of another type. A group of settings is
 * changed by another object's.
 * @template {Record<string, any>} T
 * @param {string} title
 * @param {T} fields
 * @param {Record<string, string>} [nullable]  The types of fields that may be null.
 * @returns {T}
 */
function strict(title, fields, nullable = {}) {
  const check = (/** @type {string | symbol} */ name) => {
    if (typeof name === "symbol" || name in fields) return;
    throw failure("config", `${title} has no setting "${name}".`, `It has: ${Object.keys(fields).join(", ")}.`);
  };
  const set = (/** @type {Record<string, any>} */ target, /** @type {any} */ name, /** @type {any} */ value) => {
    check(name);
    if (value instanceof URL) value = value.href;
    const kind = nullable[name] ?? typeof target[name];
    if (typeof value !== kind && !(name in nullable && value == null)) {
      throw failure("config", `${title}.${name} takes a ${kind}, not ${JSON.stringify(value)}.`);
    }
    if (kind === "object") Object.assign(target[name], value);
    else target[name] = value;
    return true;
  };
  return /** @type {T} */ (new Proxy(fields, { get: (target, name) => (check(name), Reflect.get(target, name)), set }));
}

/** The settings that Python has, in its spelling; addresses are relative to the page, not to the worker. */
function settings() {
  const { workerURL, runtimeURL, wasm, ...rest } = SETTINGS;
  const absolute = {
    localModelPath: absoluteURL(rest.localModelPath),
    remoteHost: absoluteURL(rest.remoteHost),
  };
  return snakeCase({ ...rest, ...absolute, wasm: snakeCase({ ...wasm }) });
}

/** @param {string} url  An address as the page means it. */
const absoluteURL = (url) => new URL(url, globalThis.document?.baseURI ?? location.href).href;

/** @param {object} fields */
const snakeCase = (fields) =>
  Object.fromEntries(
    Object.entries(fields).map(([name, value]) => [name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`), value ?? null]),
  );

// Values

const ARRAYS = { float32: Float32Array, int32: Int32Array };
const DTYPES = { ...ARRAYS, float64: Float64Array, int64: BigInt64Array, int16: Int16Array, int8: Int8Array, uint8: Uint8Array };

export class Tensor {
  /**
   * @param {string} type
   * @param {any} data
   * @param {readonly number[]} dims
   */
  constructor(type, data, dims) {
    const kind = DTYPES[/** @type {keyof typeof DTYPES} */ (type)];
    const size = dims.reduce((product, dim) => product * dim, 1);
    if (!kind) throw failure("input", `There are no ${type} tensors.`, `Types are: ${Object.keys(DTYPES).join(", ")}.`);
    if (data.length !== size) {
      throw failure("input", `A tensor of dims [${dims}] has ${size} elements, but the data has ${data.length}.`);
    }
    this.type = type;
    this.dims = [...dims];
    this.data = data instanceof kind ? data : /** @type {any} */ (kind).from(data);
    this.size = size;
  }

  item() {
    if (this.size !== 1) throw failure("input", `item() needs one element; this tensor has dims [${this.dims}].`);
    return this.data[0];
  }

  tolist() {
    /** @type {any[]} */
    let list = Array.from(this.data);
    if (!this.dims.length) return list[0];
    for (let axis = this.dims.length - 1; axis > 0; axis--) {
      const width = this.dims[axis];
      const rows = this.dims.slice(0, axis).reduce((product, dim) => product * dim, 1);
      list = Array.from({ length: rows }, (_, row) => list.slice(row * width, (row + 1) * width));
    }
    return list;
  }
}

/** @param {any} value @returns {value is Record<string, any>} */
const isPlain = (value) =>
  value !== null && typeof value === "object" && [Object.prototype, null].includes(Object.getPrototypeOf(value));

/**
 * A value as messages have it; fields that are undefined are left out. Typed arrays are copied into `transfer`, so that the caller's stay whole.
 * @param {any} value
 * @param {ArrayBuffer[]} transfer
 * @returns {any}
 */
function encode(value, transfer) {
  if (value === null) return undefined;
  if (value[HANDLE]) return { $type: "handle", handle: value[HANDLE] };
  if (value instanceof Tensor) {
    return { $type: "tensor", dtype: value.type, dims: value.dims, data: encode(value.data, transfer) };
  }
  if (Array.isArray(value)) return value.map((item) => encode(item ?? null, transfer));
  if (isPlain(value)) return mapValues(defined(value), (item) => encode(item, transfer));
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
    const copy = /** @type {Uint8Array<ArrayBuffer>} */ (value).slice();
    transfer.push(copy.buffer);
    return copy;
  }
  if (["string", "number", "boolean", "bigint"].includes(typeof value)) return value;
  const kind = value.constructor?.name ?? typeof value;
  throw failure("input", `A ${kind} cannot be sent to the worker.`, "Send plain values, typed arrays or tensors.");
}

/** @param {Record<string, any>} fields */
const defined = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));

/** @param {Record<string, any>} fields @param {(value: any) => any} change */
const mapValues = (fields, change) =>
  Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, change(value)]));

/**
 * A value of a message as the page has it: tensors, and objects that call the worker.
 * @param {any} value
 * @param {Connection} connection
 * @returns {any}
 */
function decode(value, connection) {
  if (value === undefined) return null;
  if (Array.isArray(value)) return value.map((item) => decode(item, connection));
  if (!isPlain(value)) return value;
  if (value.$type === "tensor") return new Tensor(value.dtype, value.data, value.dims);
  if (value.$type === "handle") return remoteObject(/** @type {any} */ (value), connection);
  return mapValues(value, (item) => decode(item, connection));
}

/**
 * The page's stand-in for an object in the worker.
 * @param {{handle: number, callable: boolean, methods: string[], attributes: string[]}} description
 * @param {Connection} connection
 */
function remoteObject({ handle, callable, methods, attributes }, connection) {
  const call = (/** @type {string | undefined} */ method) => (/** @type {any[]} */ ...args) =>
    connection.invoke("call", { handle, method }, method === "load_adapter" ? args.map(place) : args);
  /** @type {any} */
  const object = callable ? call(undefined) : {};
  /** @type {Promise<void> | undefined} */
  let disposal;
  const dispose = () => (disposal ??= connection.ended ? Promise.resolve() : connection.request("dispose", { handle }));
  const define = (/** @type {PropertyKey} */ name, /** @type {PropertyDescriptor} */ property) =>
    Object.defineProperty(object, name, { configurable: true, ...property });

  for (const attribute of attributes) define(attribute, { get: () => connection.request("get", { handle, attribute }) });
  for (const method of methods) define(method, { value: call(method), enumerable: true });
  define("dispose", { value: dispose, enumerable: true });
  define(HANDLE, { value: handle });
  return object;
}

// The worker

class Connection {
  /** @type {Map<number, Waiter>} */
  #waiting = new Map();
  #last = 0;
  #worker;
  /** Settled when the worker has what it starts from; undefined once something is read ahead. @type {Promise<any> | undefined} */
  #started;
  /** @type {InpageError | undefined}  Why it has ended. */
  ended;

  constructor() {
    const url = absoluteURL(env.workerURL);
    this.#worker = new Worker(sameOrigin(url), { type: "module", name: "inpage" });
    this.#worker.onmessage = ({ data }) => this.#receive(typeof data === "string" ? JSON.parse(data) : data);
    this.#worker.onerror = (event) => {
      event.preventDefault();
      const hint = "Serve worker/inpage-worker.js, and set env.workerURL to its URL.";
      this.end(failure("worker", `The worker ${url} stopped: ${event.message || "it could not be loaded"}.`, hint));
    };
    const boot = { runtimeURL: absoluteURL(env.runtimeURL) };
    const progress = (/** @type {ProgressEvent} */ event) => {
      for (const waiter of this.#waiting.values()) if (waiter.progress !== progress) waiter.progress?.(event);
    };
    for (const start of [this.request("boot", boot, { progress }), this.request("hello", { protocol: PROTOCOL })]) {
      start.catch((error) => this.end(error));
    }
    const parts = runtimeParts(boot.runtimeURL, env.useBrowserCache);
    for (const [name, part] of Object.entries(parts)) {
      part.then(
        (value) => this.#send("part", { name, value }, value instanceof ArrayBuffer ? [value] : []),
        (error) => this.#send("part", { name, error: String(error) }),
      );
    }
    this.#started = Promise.allSettled(Object.values(parts));
  }

  /** @param {string} method @param {object} params @param {Transferable[]} [transfer] */
  #send(method, params, transfer = []) {
    this.#worker.postMessage({ jsonrpc: "2.0", method, params }, transfer);
  }

  /**
   * Call something in the worker. A trailing plain object in `args` has the named arguments, and `signal` and
   * `progress_callback`, which stay here.
   * @param {"create" | "call"} method
   * @param {object} params
   * @param {any[]} args
   */
  async invoke(method, params, args) {
    const last = args.at(-1);
    const named = isPlain(last) && !(HANDLE in last);
    const { signal, progress_callback: progress, ...kwargs } = named ? last : {};
    const positional = named ? args.slice(0, -1) : args;
    return this.request(method, { ...params, args: positional, kwargs }, { signal, progress });
  }

  /**
   * @param {string} method
   * @param {Record<string, any>} params
   * @param {Options} options
   * @returns {Promise<any>}
   */
  async request(method, params, { signal, progress } = {}) {
    if (this.ended) throw failure("disposed", `The object is gone: ${this.ended.message}`, "Create it again.");
    if (progress != null && typeof progress !== "function") {
      throw failure("input", `progress_callback is a function of an event, not a ${typeof progress}.`);
    }
    if (signal != null && typeof signal.addEventListener !== "function") {
      throw failure("input", `signal is an AbortSignal, not a ${typeof signal}.`);
    }
    if (signal?.aborted) throw aborted(signal);
    const id = ++this.#last;
    /** @type {ArrayBuffer[]} */
    const transfer = [];
    const message = { jsonrpc: "2.0", id, method, params: encode(params, transfer) };
    if (progress) message.params.progress = true;
    this.#worker.postMessage(message, transfer);
    if (method === "create" && env.useBrowserCache) this.#readAhead(message.params);

    const abort = () => this.#abort(id, /** @type {AbortSignal} */ (signal));
    signal?.addEventListener("abort", abort);
    try {
      return await new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject, progress }));
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  /** Read for the first request what it took from the store on an earlier visit. @param {Record<string, any>} params */
  #readAhead(params) {
    const started = this.#started;
    this.#started = undefined;
    const send = (/** @type {string} */ name, /** @type {object} */ value, /** @type {Transferable[]} */ transfer = []) =>
      this.#send("part", { name, value }, transfer);
    if (started) void readAhead(params, started, send).catch(() => {}); // the worker reads by itself then
  }

  /** @param {InpageError} error  Why it ends, given to all who wait. */
  end(error) {
    if (this.ended) return;
    this.ended = error;
    this.#worker.terminate();
    if (current === this) current = undefined;
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }

  /** @param {any} message */
  #receive({ id, method, params, result, error }) {
    if (method === "progress") {
      this.#waiting.get(params.id)?.progress?.(decode(params.event, this));
      return;
    }
    const waiter = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error) waiter?.reject(new InpageError(error));
    else waiter?.resolve(decode(result, this));
  }

  /** @param {number} id @param {AbortSignal} signal */
  #abort(id, signal) {
    this.#send("abort", { id });
    this.#waiting.get(id)?.reject(aborted(signal));
    this.#waiting.set(id, { resolve: disposeOf, reject: () => {} });
  }
}

/** @param {AbortSignal} signal */
const aborted = (signal) => failure("aborted", "The request was aborted.", "", { reason: signal.reason });

/** Objects in a result that came too late. @param {any} value */
function disposeOf(value) {
  if (value?.[HANDLE]) value.dispose();
  else if (Array.isArray(value) || isPlain(value)) Object.values(value).forEach(disposeOf);
}

/** A worker's script must be of the page's origin; one from elsewhere is imported by a script that is. @param {string} url */
function sameOrigin(url) {
  if (new URL(url).origin === location.origin) return url;
  return URL.createObjectURL(new Blob([`import ${JSON.stringify(url)};`], { type: "text/javascript" }));
}

// What the page gets of the runtime while the worker starts

/** Name of the cache of what is unpacked of the runtime. */
const KEPT = "inpage-runtime";

/**
 * The lock file, the programs of Pyodide and of tokenizers, and the unpacked snapshot; the latter two only if the lock file
 * lists a snapshot.
 * @param {string} runtime
 * @param {boolean} keep  Whether the snapshot may be kept, unpacked, in the browser's storage.
 */
function runtimeParts(runtime, keep) {
  const url = (/** @type {string} */ name) => new URL(name, runtime).href;
  const program = compile(url("pyodide.asm.wasm"));
  const lock = get(url("pyodide-lock.json")).then((response) => response.json());
  const listed = lock.then(({ snapshot }) => snapshot);
  return {
    lock,
    program,
    tokenizers: Promise.all([listed, program]).then(([any]) => any && compile(url("tokenizers.wasm"))), // needed later
    snapshot: listed.then((any) => any && openSnapshot(url(any.file_name), any.sha256, keep)),
  };
}

/** By streaming, so that the browser keeps machine code; not all hosts know the type. @param {string} url */
async function compile(url) {
  const response = await get(url);
  const isTyped = response.headers.get("Content-Type")?.startsWith("application/wasm");
  return isTyped ? WebAssembly.compileStreaming(response) : WebAssembly.compile(await response.arrayBuffer());
}

/** What the page has fetched for the worker. @type {Set<string>} */
const fetched = new Set();

/** @param {string} url */
async function get(url) {
  fetched.add(url);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${response.url} answers ${response.status}`);
  return response;
}

/**
 * The snapshot as an earlier visit unpacked it or as it lies beside the lock file.
 * @param {string} url
 * @param {string} sha256  Of the unpacked file.
 * @param {boolean} keep
 */
async function openSnapshot(url, sha256, keep) {
  const cache = keep ? await globalThis.caches?.open(KEPT).catch(() => undefined) : undefined;
  const kept = await cache?.match(`${url}?${sha256}`);
  if (kept) return (await kept.blob()).arrayBuffer(); // of a blob: twice as fast
  const unpacked = await unpack(await get(url));
  if (cache) void keepSnapshot(cache, `${url}?${sha256}`, unpacked.slice(0), sha256).catch(() => {}); // it costs the next visit time
  return unpacked;
}

/** @param {Cache} cache @param {string} key @param {ArrayBuffer} unpacked @param {string} sha256 */
async function keepSnapshot(cache, key, unpacked, sha256) {
  if ((await hash(unpacked)) !== sha256) return;
  await cache.delete(key, { ignoreSearch: true }); // an earlier one
  await cache.put(key, new Response(unpacked));
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

/** Where the store's cache has what the last visit's first request took from it. */
const NOTE = "/?inpage-ahead";
/** Bytes that are read ahead at most. */
const AHEAD = 64 << 20;

/**
 * Read for the worker what its first request is going to take from the store: the entries that the same request had to do
 * with on an earlier visit, as the worker noted. It fetches nothing.
 * @param {Record<string, any>} params  Of the request.
 * @param {Promise<any>} started  Settled when Python's parts are there, which come first.
 * @param {(name: "ahead" | "entry", value: object, transfer?: Transferable[]) => void} send
 */
async function readAhead(params, started, send) {
  const name = params.settings.cache_name;
  const cache = await caches.open(name);
  const request = await hash(new TextEncoder().encode(JSON.stringify(params)));
  const noted = await (await cache.match(NOTE))?.json();
  let left = AHEAD;
  const entries = noted?.request === request ? /** @type {[string, number][]} */ (noted.entries) : [];
  const urls = entries.filter(([, size]) => (left -= size) >= 0).map(([url]) => url);
  send("ahead", { urls, cache: name, note: NOTE, request });
  await started;
  for (const url of urls) {
    const read = async () => (await (await cache.match(url))?.blob())?.arrayBuffer() ?? new ArrayBuffer();
    const bytes = await read().catch(() => undefined);
    send("entry", { url, bytes }, bytes ? [bytes] : []);
  }
}

/** SHA-256 in hexadecimal digits. @param {BufferSource} data */
async function hash(data) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @type {Connection | undefined} */
let current;

const connection = () => (current ??= new Connection());

// What pages call

/** @type {typeof import("./inpage.d.ts").create} */
export const create = async (name, ...args) => connection().invoke("create", { name, settings: settings() }, args);

/** A model's name; one that begins as a path is a folder relative to the page. @param {any} name */
const place = (name) => (typeof name === "string" && /^\.{0,2}\//.test(name) ? absoluteURL(name) : name);

/** @type {typeof import("./inpage.d.ts").pipeline} */
export const pipeline = (task, ...args) => create("pipeline", task, ...args.map(place));

/** @param {string} name @returns {import("./inpage.d.ts").Loader<any>} */
const auto = (name) => ({ from_pretrained: (...args) => create(`${name}.from_pretrained`, ...args.map(place)) });

export const AutoConfig = auto("AutoConfig");
export const AutoModel = auto("AutoModel");
export const AutoModelForCausalLM = auto("AutoModelForCausalLM");
export const AutoModelForMaskedLM = auto("AutoModelForMaskedLM");
export const AutoModelForQuestionAnswering = auto("AutoModelForQuestionAnswering");
export const AutoModelForSequenceClassification = auto("AutoModelForSequenceClassification");
export const AutoModelForTokenClassification = auto("AutoModelForTokenClassification");
export const AutoTokenizer = auto("AutoTokenizer");

/** @type {typeof import("./inpage.d.ts").stream} */
export function stream(generate, input, { signal, progress_callback, ...options } = {}) {
  const controller = new AbortController();
  const abort = () => controller.abort(signal?.reason);
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort);
  /** @type {string[]} */
  const texts = [];
  let ended = false;
  let wake = () => {};
  const notify = () => wake();
  const result = generate(/** @type {any} */ (input), {
    ...options,
    signal: controller.signal,
    progress_callback(event) {
      progress_callback?.(event);
      if (event.status === "run" && event.text) texts.push(event.text);
      notify();
    },
  }).finally(() => {
    ended = true;
    signal?.removeEventListener("abort", abort);
    notify();
  });
  result.catch(() => {}); // whoever iterates or awaits the result gets the error
  return {
    result,
    async *[Symbol.asyncIterator]() {
      try {
        while (!ended || texts.length) {
          if (texts.length) yield texts.splice(0).join("");
          else await new Promise((/** @type {(value?: any) => void} */ resolve) => (wake = resolve));
        }
        await result;
      } finally {
        if (!ended) controller.abort();
      }
    },
  };
}

/** @type {typeof import("./inpage.d.ts").requests} */
export const requests = async () => [...fetched, ...(current ? await current.request("requests", {}) : [])];

export function terminate() {
  current?.end(failure("disposed", "The worker was terminated."));
}
