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
import asyncio, hashlib, warnings
from inpage.hub.backends import CacheBackend
from inpage.executors import acquire, release
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

put, waiting, may_write = CacheBackend.put, asyncio.Event(), asyncio.Event()

def hold(after, error=None):
    "Writing into what is kept waits after `after` entries until `may_write` is set, then goes on or fails."
    count = 0
    async def held(self, url, part, chunks):
        nonlocal count
        count += "inpage-kept" in url
        if "inpage-kept" in url and count > after:
            waiting.set()
            await may_write.wait()
            if error:
                raise error
        await put(self, url, part, chunks)
    waiting.clear(), may_write.clear()
    CacheBackend.put = held

async def locks():
    state = await js.navigator.locks.query()
    return state.held.length + state.pending.length

import js
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


def test_a_load_that_is_given_up_while_it_is_kept_leaves_nothing(pages: list[PythonWorker]) -> None:
    code = """
import inpage.runtime
inpage.runtime.prefer_coroutines = True  # as for requests of a page, which can be aborted
keeper = acquire("wasm")
first = await load("q8")  # which makes the arena
await delete_cached(NAME)
used = keeper.used_bytes
hold(1)
task = asyncio.ensure_future(load("q8"))
await waiting.wait()
task.cancel()
await asyncio.wait([task])
found = [task.cancelled(), keeper.used_bytes - used, await stored(), await locks()]
CacheBackend.put = put
found.append(await load("q8") == await load("q8", local_files_only=True) == first)
release(keeper)
found
"""
    assert pages[0].run_python(code) == [True, 0, {}, 0, True]


def test_failing_to_keep_it_is_said_once(pages: list[PythonWorker]) -> None:
    code = """
from inpage.errors import StoreError
hold(1, StoreError("The disk is full."))
may_write.set()
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    first = await load("q8")
    files = await stored()
CacheBackend.put = put
[[str(w.message) for w in warned], files, await load("q8") == first, list(await stored()), await locks()]
"""
    warned, files, same, later, locks = pages[0].run_python(code)
    (warning,) = [text for text in warned if "could not be kept" in text]
    assert "The disk is full." in warning
    assert (files, same, locks) == ({}, True, 0)
    assert [name[:8] for name in later] == ["model.q8"]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_page_that_closes_leaves_nothing_that_is_read(
    pages: list[PythonWorker], faulty: FaultyServer, after: int
) -> None:
    code = """
import inpage.hub.store
inpage.hub.store.SEGMENT = 1 << 14
hold(after)
task = asyncio.ensure_future(load("q8"))
await waiting.wait()
await locks()
"""
    assert pages[0].run_python(code, after=after) == 1
    pages[0].page.close()
    assert pages[1].run_python("await stored()") == {}
    first = pages[1].run_python("await load('q8')")
    count = len(faulty.downloads(SINGLE))
    assert pages[1].run_python("[await load('q8'), list(await stored()), await locks()]")[::2] == [first, 0]
    assert len(faulty.downloads(SINGLE)) == count


def test_two_pages_that_keep_the_same(pages: list[PythonWorker]) -> None:
    pages[0].run_python("hold(1); first = asyncio.ensure_future(load('q8')); await waiting.wait(); None")
    pages[1].run_python("second = asyncio.ensure_future(load('q8')); await asyncio.sleep(0.2); None")
    loaded = [pages[0].run_python("may_write.set(); await first"), pages[1].run_python("await second")]
    assert [name[:8] for name in pages[1].run_python("await stored()")] == ["model.q8"]
    assert {*loaded, *(page.run_python("await load('q8', local_files_only=True)") for page in pages)} == {loaded[0]}
