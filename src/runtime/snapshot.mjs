/**
 * Make a memory snapshot of Pyodide with inpage imported, for pages: node snapshot.mjs RUNTIME_FOLDER OUTPUT
 * Prints as JSON how Pyodide's table of functions is filled, to which the memory refers: the indices of its exported
 * functions, in their order (-1 for those without one), those of the functions of JavaScript, by name, and a module, in
 * base64, that puts these there.
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

/** @type {{exported: number[], imported: Record<string, number>, wrappers: string}} */
let functions;
async function createPyodideModule(settings) {
  const { default: createModule } = await import(pathToFileURL(join(runtime, "pyodide.asm.mjs")).href);
  const { instantiateWasm } = settings;
  settings.instantiateWasm = (imports, receive) =>
    instantiateWasm(imports, (instance, module) => {
      const received = receive(instance, module);
      const index = (/** @type {string} */ name) => imports["GOT.func"][name].value;
      const exported = Object.entries(instance.exports).filter(([, value]) => typeof value === "function");
      const imported = WebAssembly.Module.imports(module).flatMap(({ module, name }) => (module === "GOT.func" ? [name] : []));
      const wrapped = imported.map((name) => ({ name, index: index(name), sig: imports.env[name].sig }));
      functions = {
        exported: exported.map(([name]) => index(name)),
        imported: Object.fromEntries(imported.map((name) => [name, index(name)])),
        wrappers: Buffer.from(wrappersOf(wrapped)).toString("base64"),
      };
      return received;
    });
  return createModule(settings);
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
  return Uint8Array.from([
    ...[0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, sigs.map((sig) => [0x60, ...types(sig.slice(1)), ...types(sig[0] === "v" ? "" : sig[0])])),
    ...section(2, [table, ...placed.map(({ name, sig }) => [...string("env"), ...string(name), 0, ...leb(sigs.indexOf(sig))])]),
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
await writeFile(output, pyodide.makeMemorySnapshot());
console.log(JSON.stringify(functions));
