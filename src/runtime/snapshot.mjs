/**
 * Make a memory snapshot of Pyodide with inpage imported, for pages: node snapshot.mjs RUNTIME_FOLDER OUTPUT
 *
 * Prints as JSON what the memory refers to and a page has to have at the same places. `table`: the length of the table of
 * functions, in it the indices of Pyodide's exported functions, in their order (-1 for those without one), and a module, in
 * base64, that puts functions of JavaScript into it. `addresses`: of symbols, by name, indices of functions or places in
 * memory. `side`: where the memory and the functions of the side module begin, that of tokenizers.
 *
 * `_makeSnapshot` and `makeMemorySnapshot` are private to Pyodide; the worker loads the result into the very same
 * build only, and starts the plain way where that fails.
 */
import nodeCrypto from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

process.on("uncaughtException", ({ message }) => {
  console.error(message); // without the source line, which is a megabyte
  process.exit(1);
});

// Equal wheels give an equal snapshot: Python is to see neither the time, nor chance, nor where this happens.
const start = Date.UTC(2026, 0);
Date.now = () => start;
performance.now = () => 0;
nodeCrypto.randomFillSync = (array) => array.fill(0);

const [runtime, output] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide } = await import(pathToFileURL(join(runtime, "pyodide.mjs")).href);
process.argv[1] = "inpage";
const { packages } = JSON.parse(await readFile(join(runtime, "pyodide-lock.json"), "utf8"));
const wheels = ["inpage", ...packages.inpage.depends].map((name) => packages[name]);

const SIDE = "tokenizers/tokenizers.abi3.so";

/**
 * The instances that link to others: Pyodide, and side modules.
 * @type {{module: WebAssembly.Module, imports: any, exports: any}[]}
 */
const linked = [];
async function createPyodideModule(settings) {
  const { default: createModule } = await import(pathToFileURL(join(runtime, "pyodide.asm.mjs")).href);
  const { instantiateWasm } = settings;
  settings.instantiateWasm = (imports, receive) =>
    instantiateWasm(imports, ({ exports }, module) => {
      linked.push({ module, imports, exports });
      return receive({ exports }, module);
    });
  return createModule(settings);
}
const { Instance } = WebAssembly;
WebAssembly.Instance = function (module, imports) {
  const instance = new Instance(module, imports);
  if (imports["GOT.func"]) linked.push({ module, imports, exports: instance.exports });
  return instance;
};

/** Put zeros where nobody reads again: in free memory, and in the side module's file, of which loading it left a copy. */
function clearUnused({ FS, _module: { _malloc, _free, _sbrk, HEAPU8 } }) {
  const end = _sbrk(0);
  const blocks = [];
  for (let size = 1 << 20; size >= 1 << 4; size >>= 1) {
    let block;
    while ((block = _malloc(size)) + size <= end) blocks.push([block, size]);
    _free(block);
  }
  for (const [block, size] of blocks) HEAPU8.fill(0, block, block + size);
  for (const [block] of blocks) _free(block);
  const file = FS.readFile(`${extractDir}/${SIDE}`);
  const copy = Buffer.from(HEAPU8.buffer).indexOf(file);
  if (copy >= 0) HEAPU8.fill(0, copy, copy + file.length);
}

function describeLinks() {
  const [{ imports, exports: main }, side, ...more] = linked;
  if (!side || more.length) throw new Error(`one side module was expected, not ${linked.length - 1}`);
  const kinds = ["GOT.func", "GOT.mem"];
  const wanted = linked.flatMap(({ module }) => WebAssembly.Module.imports(module));
  const names = wanted.filter(({ module }) => kinds.includes(module)).map(({ name }) => name);
  const addresses = Object.fromEntries(names.map((name) => [name, imports["GOT.func"][name].value]));
  const isOfJS = (/** @type {string} */ name) => typeof imports.env[name] === "function" && imports.env[name].sig;
  const wrapped = Object.entries(addresses).filter(([name]) => isOfJS(name));
  const exported = Object.keys(main).filter((name) => typeof main[name] === "function");
  return {
    table: {
      length: main.__indirect_function_table.length,
      exported: exported.map((name) => imports["GOT.func"][name].value),
      wrappers: Buffer.from(
        wrappersOf(wrapped.map(([name, index]) => ({ name, index, sig: imports.env[name].sig }))),
      ).toString("base64"),
    },
    addresses,
    side: { memory: side.imports.env.__memory_base, table: side.imports.env.__table_base },
  };
}

/**
 * A module that imports functions of JavaScript as `env`, with WebAssembly's types, and puts them into the table
 * `env.__indirect_function_table`. Names of one function have one index.
 * @param {{name: string, index: number, sig: string}[]} functions  Signatures as Emscripten writes them.
 */
function wrappersOf(functions) {
  const placed = [...new Map(functions.map((each) => [each.index, each])).values()];
  const sigs = [...new Set(placed.map(({ sig }) => sig))];
  const codes = { i: 0x7f, p: 0x7f, j: 0x7e, f: 0x7d, d: 0x7c, e: 0x6f };
  const types = (/** @type {string} */ text) => list([...text].map((letter) => [codes[letter]]));
  const table = [...string("env"), ...string("__indirect_function_table"), 1, 0x70, 0, ...leb(0)];
  const imported = ({ name, sig }) => [...string("env"), ...string(name), 0, ...leb(sigs.indexOf(sig))];
  return Uint8Array.from([
    ...[0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, sigs.map((sig) => [0x60, ...types(sig.slice(1)), ...types(sig[0] === "v" ? "" : sig[0])])),
    ...section(2, [table, ...placed.map(imported)]),
    ...section(9, placed.map(({ index }, at) => [0, 0x41, ...leb(index, true), 0x0b, ...list([leb(at)])])),
  ]);
}

/** @param {number} id @param {number[][]} items */
function section(id, items) {
  const body = list(items);
  return [id, ...leb(body.length), ...body];
}

/** @param {number[][]} items */
const list = (items) => [...leb(items.length), ...items.flat()];

/** @param {string} text */
const string = (text) => list([...new TextEncoder().encode(text)].map((byte) => [byte]));

/** A number as WebAssembly writes it. @param {number} value @param {boolean} [signed] @returns {number[]} */
function leb(value, signed = false) {
  const last = signed ? value < 64 : value < 128;
  return last ? [value] : [(value & 127) | 128, ...leb(value >> 7, signed)];
}

const pyodide = await loadPyodide({
  indexURL: runtime,
  createPyodideModule,
  _makeSnapshot: true,
  env: { PYTHONHASHSEED: "0" },
  jsglobals: Object.create(globalThis, { process: { value: undefined } }), // Python is to find itself in a page
});
const extractDir = pyodide.runPython("import sysconfig; sysconfig.get_path('purelib')");
for (const { file_name } of wheels) {
  pyodide.unpackArchive(new Uint8Array(await readFile(join(runtime, file_name))), "wheel", { extractDir });
}
pyodide.pyimport("importlib").invalidate_caches(); // by the clock, the folder did not change
pyodide.pyimport("inpage.snapshot").prepare(wheels.map(({ sha256 }) => sha256).join(" "));
clearUnused(pyodide);
const links = describeLinks();
await writeFile(output, pyodide.makeMemorySnapshot());
console.log(JSON.stringify(links));
