/**
 * Make a memory snapshot of Pyodide with inpage imported, for pages: node snapshot.mjs RUNTIME_FOLDER OUTPUT
 * Prints as JSON where in the function table Pyodide's exports are, by name.
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

/** @type {Record<string, number>} */
const table = {};
async function createPyodideModule(settings) {
  const { default: createModule } = await import(pathToFileURL(join(runtime, "pyodide.asm.mjs")).href);
  const { instantiateWasm } = settings;
  settings.instantiateWasm = (imports, receive) =>
    instantiateWasm(imports, (instance, module) => {
      const functions = instance.exports.__indirect_function_table;
      const indices = new Map(Array.from({ length: functions.length }, (_, index) => [functions.get(index), index]));
      for (const [name, value] of Object.entries(instance.exports)) {
        if (typeof value === "function" && indices.has(value)) table[name] = indices.get(value);
      }
      return receive(instance, module);
    });
  return createModule(settings);
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
console.log(JSON.stringify(table));
