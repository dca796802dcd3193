"""Without our worker: the wheel installed by micropip into a Pyodide of somebody else's, in a page and under node."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inpage import pipeline
from tests.browser.conftest import GOLDEN, RUNTIME
from tests.browser.pages import serve_site
from web.demo import link

MODEL = "golden/bert-base"
FOLDER = GOLDEN / "encoders" / "bert-base"
TEXT = "A cat sat on the mat."
CODE = """
import micropip
await micropip.install(wheel)
from inpage import env, pipeline
env.remote_host = host
extract = await pipeline("feature-extraction", model)
vector = extract(text, pooling="mean").tolist()
again = await pipeline("feature-extraction", model, local_files_only=True)
same = again(text, pooling="mean").tolist() == vector
import json, sys
answer = json.dumps([vector, same, "numpy" in sys.modules])
await pipeline("feature-extraction", model)  # JavaScript gets it, and must not await it without end
"""
NODE = """
import { pathToFileURL } from "node:url";
const [folder, code] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const pyodide = await loadPyodide({ indexURL: folder });
await pyodide.loadPackage("micropip", { messageCallback() {} });
await pyodide.runPythonAsync(code);
console.log(pyodide.globals.get("answer"));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URL and folder of a site with a Pyodide that knows nothing of inpage, and with the wheels in another folder."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "pyodide").mkdir()
    (folder / "wheels").mkdir()
    lock = json.loads((RUNTIME / "pyodide-lock.json").read_text())
    for file in RUNTIME.iterdir():
        link(str(file), str(folder / ("wheels" if file.suffix == ".whl" else "pyodide") / file.name))
    micropip = lock["packages"]["micropip"]
    link(str(RUNTIME / micropip["file_name"]), str(folder / "pyodide" / micropip["file_name"]))
    (folder / "pyodide" / "pyodide-lock.json").unlink()
    (folder / "pyodide" / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": {"micropip": micropip}}))
    with serve_site(folder, {MODEL: FOLDER}, files=False) as url:
        yield url, folder


def program(url: str) -> str:
    wheel = next(RUNTIME.glob("inpage-*.whl")).name
    values = {"wheel": f"{url}wheels/{wheel}", "host": url, "model": MODEL, "text": TEXT}
    return "".join(f"{name} = {value!r}\n" for name, value in values.items()) + CODE


def check(answer: str) -> None:
    vector, same, numpy = json.loads(answer)
    with pipeline("feature-extraction", str(FOLDER)) as extract:
        assert vector[0] == pytest.approx(extract(TEXT, pooling="mean").tolist()[0], abs=1e-5)
    assert same
    assert not numpy


def test_in_a_page(browser: Any, site: tuple[str, Path]) -> None:
    url, _ = site
    context = browser.new_context()
    page = context.new_page()
    page.goto(url + "blank.html")
    answer = page.evaluate(
        """async (code) => {
          const { loadPyodide } = await import("./pyodide/pyodide.mjs");
          const pyodide = await loadPyodide({ indexURL: new URL("pyodide/", location.href).href });
          await pyodide.loadPackage("micropip");
          await pyodide.runPythonAsync(code);
          return pyodide.globals.get("answer");
        }""",
        program(url),
    )
    context.close()
    check(answer)


def test_under_node_with_files_as_the_cache(site: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = site
    script = tmp_path / "run.mjs"
    script.write_text(NODE)
    cache = tmp_path / "cache"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = ["node", str(script), str(folder / "pyodide"), program(url)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    check(done.stdout.strip().splitlines()[-1])
    sizes = [file.stat().st_size for file in cache.rglob("*") if file.is_file()]
    assert (FOLDER / "model.safetensors").stat().st_size in sizes
