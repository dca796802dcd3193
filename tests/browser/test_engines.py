"""The whole loop in the engines of Firefox and Safari, in Debian's builds of them."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from inpage.serve import Handler
from tests import environment, models
from tests.browser.pages import serve_site

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
ROWS = json.loads((Path(__file__).parent.parent / "golden" / "models" / "all-MiniLM-L6-v2.json").read_text())["rows"]
TEXTS = [row["text"] for row in ROWS[:8]]
SECONDS = 120  # for a visit on a busy machine

PAGE = """<!doctype html><title>Engine</title><script type="module">
const tell = (found) => fetch("/found", { method: "POST", body: JSON.stringify(found) });
try {
  const inpage = await import("./inpage.js");
  inpage.env.remoteHost = "./";
  inpage.env.wasm.numThreads = 2;
  const found = { isolated: crossOriginIsolated, cached: {} };
  for (const dtype of ["fp32", "q8"]) {
    const files = (found.cached[dtype] = []);
    const progress_callback = ({ status, file, cached }) => { if (status === "done" && cached) files.push(file); };
    const extract = await inpage.pipeline("feature-extraction", "MODEL", { dtype, progress_callback });
    found[dtype] = (await extract(TEXTS, { pooling: "mean", normalize: true })).tolist();
    await extract.dispose();
  }
  await tell({ ...found, requests: await inpage.requests() });
} catch (error) {
  await tell({ error: `${error} ${error.stack}` });
}
</script>""".replace("MODEL", MINILM).replace("TEXTS", json.dumps(TEXTS))


class Told(Handler):
    """Takes what the page finds."""

    found: ClassVar[dict[str, Any]] = {}
    arrived: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        self.found.clear()
        self.found.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.begin(204, {})
        self.arrived.set()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("engines")
    with serve_site(folder, {MINILM: models.path(MINILM)}, handler=Told) as url:
        (folder / "engine.html").write_text(PAGE)
        yield url + "engine.html"


def visit(command: list[str], url: str, profile: Path) -> dict[str, Any]:
    """What the page finds in a browser that keeps its things in `profile`."""
    # WebKit's sandbox needs privileges that containers do not give.
    home = {name: str(profile) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    environ = {**os.environ, **home, "WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS": "1"}
    Told.arrived.clear()
    browser = subprocess.Popen(
        [*command, url], env=environ, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert Told.arrived.wait(SECONDS), "the page found nothing"
    finally:
        os.killpg(browser.pid, signal.SIGTERM)
        browser.wait()
    return dict(Told.found)


@pytest.mark.parametrize("engine", ["firefox", "webkit"])
def test_a_first_and_a_second_visit(engine: str, url: str, tmp_path: Path) -> None:
    command = environment.other_browsers().get(engine)
    if command is None:
        pytest.skip(f"{engine} is not installed: apt-get install {' '.join(environment.ENGINES)}")
    first, second = (visit(command, url, tmp_path) for _ in range(2))
    expected = np.array([row["embedding"] for row in ROWS[: len(TEXTS)]])
    for found in (first, second):
        assert "error" not in found, found["error"]
        assert found["isolated"]
        assert np.abs(np.array(found["fp32"]) - expected).max() <= 1e-4
        assert (np.array(found["q8"]) * expected).sum(-1).min() >= 0.98  # of a text; 0.995 on average
        # The snapshot was taken, which has the files of the wheel.
        assert not [name for name in found["requests"] if "/inpage-" in name and name.endswith(".whl")]
        assert not [name for name in found["requests"] if not name.startswith(url.rpartition("/")[0])]
    assert not first["cached"]["fp32"]
    assert "model.safetensors" in second["cached"]["fp32"]
    assert [file for file in second["cached"]["q8"] if file.startswith("model.q8")]
