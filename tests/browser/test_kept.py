"""What a load quantised is kept in Cache Storage, and the next page reads it alone."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PythonWorker
from tests.faults import FaultyServer, faulty_server
from tests.unit.test_kept import CONFIG, NAME, SINGLE, checkpoint

LOAD = """
import hashlib
from inpage import AutoModel, env
from inpage.hub import delete_cached, list_cached

async def load(dtype, **options):
    "Hash of the weights as they lie in kernel memory."
    with await AutoModel.from_pretrained(NAME, dtype=dtype, **options) as model:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(model.executor.read(parameter.address, parameter.nbytes))
        return digest.hexdigest()

async def stored():
    return {e["file"]: e["size"] for e in await list_cached(NAME) if e["complete"] and "safetensors" in e["file"]}

env.remote_host = host
None
"""


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyServer]:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / SINGLE).write_bytes(checkpoint(1))
    with faulty_server({NAME: str(tmp_path)}) as server:
        yield server


@pytest.fixture
def pages(
    browser: Any, faulty: FaultyServer, pyodide_worker: Callable[[Any], PythonWorker]
) -> Iterator[list[PythonWorker]]:
    """Two of one visitor."""
    context = browser.new_context()
    pages = [pyodide_worker(context.new_page()) for _ in range(2)]
    for page in pages:
        page.run_python(LOAD, NAME=NAME, host=f"{faulty.url}ok/")
    yield pages
    context.close()


def test_the_second_page_reads_only_what_was_kept(pages: list[PythonWorker], faulty: FaultyServer) -> None:
    first = [pages[0].run_python("await load(dtype)", dtype=dtype) for dtype in ("q4", "q8")]
    files = pages[0].run_python("await stored()")
    assert [name[:8] for name in sorted(files)] == ["model.q4", "model.q8"]
    whole = len(checkpoint(1))
    assert all(size < 0.4 * whole for size in files.values())
    count = len(faulty.downloads(SINGLE))
    assert [pages[1].run_python("await load(dtype)", dtype=dtype) for dtype in ("q4", "q8")] == first
    assert pages[1].run_python("await load('q4', local_files_only=True)") == first[0]
    assert len(faulty.downloads(SINGLE)) == count
    pages[1].run_python("await delete_cached(NAME)")
    assert pages[0].run_python("await stored()") == {}


def test_a_page_does_not_trust_it_once_the_source_changed(pages: list[PythonWorker], tmp_path: Path) -> None:
    """Which shows while it is being read."""
    first = pages[0].run_python("await load('q8')")
    (tmp_path / SINGLE).write_bytes(checkpoint(2))
    second = pages[1].run_python("await load('q8')")
    assert second != first
    assert pages[1].run_python("await load('q8')") == second
    assert pages[1].run_python("await delete_cached(NAME); await load('q8')") == second
