"""Fixtures of the browser tests: Chromium, a server of the runtime and the models, and workers that run Python."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inpage.serve import Server, Site
from tests import environment

ROOT = Path(__file__).resolve().parent.parent.parent
# Another runtime can be tested in its place, such as one with an older Pyodide.
RUNTIME = Path(os.environ.get("INPAGE_RUNTIME", ROOT / "dist" / "runtime"))
GOLDEN = ROOT / "tests" / "golden"

# The worker answers each message {code} with {value}, the JSON of its last expression, or {error}.
WORKER = """
import { loadPyodide } from "./runtime/pyodide.mjs";
const ready = loadPyodide({ indexURL: new URL("./runtime/", import.meta.url).href, packages: ["inpage"] });
onmessage = async ({ data: { code } }) => {
  try {
    const pyodide = await ready;
    pyodide.globals.set("_code", code);
    postMessage({ value: await pyodide.runPythonAsync(`
import json as _json
from pyodide.code import eval_code_async as _eval
_json.dumps(await _eval(_code, globals()))
`) });
  } catch (error) {
    postMessage({ error: String(error) });
  }
};
"""

START = """() => {
  const worker = new Worker("./worker.js", { type: "module" });
  globalThis.runPython = (code) => new Promise((resolve, reject) => {
    worker.onmessage = ({ data: { value, error } }) => error === undefined ? resolve(value) : reject(new Error(error));
    worker.onerror = ({ message }) => reject(new Error(message));
    worker.postMessage({ code });
  });
}"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, in which each test opens a context of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = environment.chromium()
        browser = playwright.chromium.launch(executable_path=path, args=environment.CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves an empty page, dist/runtime as runtime/, and the golden models in a hub's layout, as golden/NAME."""
    assert (RUNTIME / "pyodide.mjs").exists(), f"{RUNTIME} has no Pyodide; run: python build_wheels.py"
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text("<!doctype html><title>Test</title>")
    (folder / "worker.js").write_text(WORKER)
    (folder / "runtime").symlink_to(RUNTIME)
    models = {f"golden/{path.parent.name}": str(path.parent) for path in GOLDEN.glob("*/*/config.json")}
    with Server(Site(str(folder), models), quiet=True) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@dataclass
class PythonWorker:
    """A worker of a page, with Pyodide and inpage in it."""

    page: Any

    def run_python(self, code: str, **values: Any) -> Any:
        """Value of the last expression, if it can be JSON; `values` are variables of the code. It may use `await`."""
        setting = "".join(f"{name} = _json.loads({json.dumps(json.dumps(value))})\n" for name, value in values.items())
        return json.loads(self.page.evaluate("(code) => runPython(code)", setting + code))


@pytest.fixture(scope="session")
def pyodide_worker(server: Server) -> Callable[[Any], PythonWorker]:
    """Opens the test site in a page and starts a worker: `pyodide_worker(page).run_python("1 + 1")`."""

    def start(page: Any) -> PythonWorker:
        page.goto(server.url)
        page.evaluate(START)
        return PythonWorker(page)

    return start
