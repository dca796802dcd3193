"""The hub in a browser: Cache Storage, fetch and Web Locks against a deliberately bad server on another origin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PythonWorker
from tests.faults import FaultyServer, faulty_server

NAME = "org/tiny"
SEGMENT = 1 << 16
WEIGHTS = bytes(hashlib.shake_256(b"weights").digest(5 * SEGMENT + 1234))
CONFIG = {"model_type": "bert", "text": "ä" * 3000}

PRELUDE = f"""
import asyncio, hashlib, warnings, js
import inpage.hub.store as store, inpage.hub.transport as transport, inpage.hub.progress as progress
from inpage import env
from inpage.errors import InpageError
from inpage.hub import Repository, delete_cached, find_outdated, list_cached

store.SEGMENT = {SEGMENT}
transport.OPEN_DELAYS, transport.RESUME_DELAYS = (0, 0), (0, 0, 0, 0)
progress._INTERVAL = 0

async def load(file="model.safetensors", start=0, stop=None, name={NAME!r}, **options):
    "Length and hash of what arrives, or the code of the error."
    digest, length = hashlib.sha256(), 0
    try:
        async with Repository(name, **options).stream(file, start, stop) as chunks:
            async for chunk in chunks:
                digest.update(chunk.to_bytes())
                length += chunk.nbytes
    except InpageError as error:
        return {{"code": error.code, "message": str(error)}}
    return {{"length": length, "sha256": digest.hexdigest()}}

async def interrupt(after):
    "Cancel a load when `after` bytes have come."
    async def read():
        async with Repository({NAME!r}).stream("model.safetensors") as chunks:
            received = 0
            async for chunk in chunks:
                received += chunk.nbytes
                if received >= after:
                    enough.set()
    enough = asyncio.Event()
    task = asyncio.ensure_future(read())
    await enough.wait()
    task.cancel()
    try:
        await task
        return "finished"
    except asyncio.CancelledError:
        return "cancelled"

async def fresh():
    store._warned = False
    store._stores.clear()
    store._memory = store.MemoryBackend(1 << 30)

async def kept():
    "Number of entries in Cache Storage."
    return (await (await js.caches.open(env.cache_name)).keys()).length

async def locks():
    state = await js.navigator.locks.query()
    return state.held.length + state.pending.length
"""


def whole(start: int = 0, stop: int | None = None) -> dict[str, Any]:
    """What `load` gives when all is well."""
    data = WEIGHTS[start:stop]
    return {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "broken.json").write_text('{"a": ')
    (folder / "empty.bin").write_bytes(b"")
    return folder


@pytest.fixture
def faulty(folder: Path) -> Iterator[FaultyServer]:
    with faulty_server({NAME: str(folder)}) as server:
        yield server


@pytest.fixture(scope="module")
def tab(browser: Any, pyodide_worker: Callable[[Any], PythonWorker]) -> Iterator[PythonWorker]:
    context = browser.new_context()
    worker = pyodide_worker(context.new_page())
    worker.run_python(PRELUDE + "None")
    yield worker
    context.close()


caches = count()


@pytest.fixture
def python(tab: PythonWorker, faulty: FaultyServer) -> Callable[..., Any]:
    """Runs code in the worker with a cache of its own; `fault` chooses the hub."""
    cache_name = f"test-{next(caches)}"
    tab.run_python("env.reset(); env.cache_name = name; await fresh()", name=cache_name)

    def run(code: str, fault: str = "ok", **values: Any) -> Any:
        host = f"{faulty.url}{fault}/"
        return tab.run_python("env.remote_host = host\n" + code, host=host, **values)

    return run


# --- a healthy server -------------------------------------------------------------------------------------------------


def test_download_then_from_the_store(faulty: FaultyServer, python: Any) -> None:
    assert python("await load()") == whole()
    assert python("await load()") == whole()
    assert len(faulty.downloads("model.safetensors")) == 1
    (entry,) = python("await list_cached()")
    assert entry["complete"] and entry["size"] == len(WEIGHTS)
    assert entry["sha256"] == whole()["sha256"]
    assert python("await kept()") == 6 + 1  # segments and manifest
    assert python("await locks()") == 0


def test_json_and_empty(python: Any) -> None:
    assert python(f"await Repository({NAME!r}).json('config.json')") == CONFIG
    assert python("await load('empty.bin')")["length"] == 0
    assert python("(await load('empty.bin'))['length'] + await Repository('org/tiny').size('empty.bin')") == 0


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("start", "stop"), [(0, 8), (SEGMENT - 5, SEGMENT + 5), (3 * SEGMENT, None)])
def test_ranges(python: Any, start: int, stop: int | None, stored: bool) -> None:
    if stored:
        python("await load()")
    assert python("await load(start=start, stop=stop)", start=start, stop=stop) == whole(start, stop)
    assert (python("await kept()") > 0) == (stored or stop is None)


def test_broken_json_is_not_kept(python: Any) -> None:
    code = f"""
try:
    await Repository({NAME!r}).json('broken.json')
except InpageError as error:
    code = error.code
[code, await kept()]
"""
    assert python(code) == ["corrupt_file", 0]


def test_a_folder_by_a_relative_url(python: Any) -> None:
    assert python("(await Repository('./golden/bert-base/resolve/main').json('config.json'))['model_type']") == "bert"
    assert python("(await Repository('/golden/bert-base/resolve/v1/').json('config.json'))['model_type']") == "bert"


def test_local_models_come_before_the_hub(faulty: FaultyServer, python: Any) -> None:
    code = """
env.update({"allow_local_models": True, "local_model_path": "/golden/bert-base/resolve"})
[(await Repository("main").json("config.json"))["model_type"], await load(name="org/tiny")]
"""
    assert python(code) == ["bert", whole()]
    assert [request.file for request in faulty.requests if request.method == "GET"] == ["model.safetensors"]


def test_no_store(faulty: FaultyServer, python: Any) -> None:
    assert python("env.use_browser_cache = False; [await load(), await load(), await kept()]") == [whole(), whole(), 0]
    assert len(faulty.downloads("model.safetensors")) == 2


def test_list_find_outdated_and_delete(python: Any, folder: Path) -> None:
    (folder / "changing.json").write_text("[1]")
    python("[await load(file) for file in ('changing.json', 'config.json', 'model.safetensors')]")
    assert python("await find_outdated()") == []
    (folder / "changing.json").write_text("[2]")
    assert [entry["file"] for entry in python("await find_outdated()")] == ["changing.json"]
    (folder / "changing.json").unlink()
    assert len(python("await list_cached('org/tiny')")) == 3
    assert len(python("await delete_cached('org/tiny', 'main')")) == 3
    assert python("await kept()") == 0


def test_offline_after_the_first_load(faulty: FaultyServer, python: Any) -> None:
    code = f"""
made = Repository({NAME!r})
[await made.json("config.json"), await made.json("absent.json", required=False), await made.exists("other.bin"),
 await made.size("model.safetensors"), await load()]
"""
    expected = [CONFIG, None, False, len(WEIGHTS), whole()]
    assert python(code) == expected
    asked = len(faulty.requests)
    faulty.is_down = True
    assert python(code) == expected
    assert len(faulty.requests) == asked
    assert python("await load('never_asked_for.bin')")["code"] == "network"


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "cut-then-whole"])
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_cut_download_is_continued(faulty: FaultyServer, python: Any, fault: str, file: str) -> None:
    length = python("await load(file)", fault, file=file)["length"]
    assert length == (len(WEIGHTS) if file == "model.safetensors" else len(json.dumps(CONFIG)))
    first, second = faulty.downloads(file)
    assert first.headers.get("range", "bytes=0-") == "bytes=0-"
    assert int(second.headers["range"][6:-1]) > length // 2
    assert python("(await list_cached())[0]['complete']")


def test_a_download_that_never_ends_well(python: Any) -> None:
    result = python("await load()", "cut-always")
    assert result["code"] == "network" and "broke off" in result["message"]
    (entry,) = python("await list_cached()")
    assert not entry["complete"] and SEGMENT <= entry["stored"] <= 3 * SEGMENT
    assert python("await locks()") == 0


def test_cancelling_frees_everything_and_a_later_load_continues(faulty: FaultyServer, python: Any) -> None:
    assert python("await interrupt(3.5 * store.SEGMENT)", "slow") == "cancelled"
    assert python("await locks()") == 0
    (entry,) = python("await list_cached()")
    assert not entry["complete"] and SEGMENT <= entry["stored"] < len(WEIGHTS)
    assert python("await load()", "slow") == whole()
    assert faulty.downloads("model.safetensors")[-1].headers["range"] == f"bytes={entry['stored']}-"
    assert python("(await list_cached())[0]['complete']")


def test_cancelling_a_loader_that_waits(python: Any) -> None:
    code = """
first = asyncio.ensure_future(load())
await asyncio.sleep(0.05)
second = asyncio.ensure_future(load())
await asyncio.sleep(0.05)
waiting = await locks()
second.cancel()
result = await first
[waiting, second.cancelled(), result, await locks()]
"""
    assert python(code, "slow") == [2, True, whole(), 0]


def test_dropping_a_stream_frees_it(python: Any) -> None:
    code = """
async for chunk in Repository("org/tiny").stream("model.safetensors"):
    break
await asyncio.sleep(0.1)
[await locks(), await load()]
"""
    assert python(code, "slow") == [0, whole()]


def test_a_file_that_changes_while_it_is_downloaded(python: Any) -> None:
    result = python("await load()", "cut-and-changed")
    assert result["code"] == "corrupt_file" and "changed" in result["message"]
    assert python("await kept()") == 0


@pytest.mark.parametrize("fault", ["wrong-length", "short", "wrong-hash", "html", "html-unlabelled"])
def test_what_is_not_the_file_is_never_stored(python: Any, fault: str) -> None:
    assert python("await load()", fault)["code"] == "corrupt_file"
    assert python("await kept()") == 0


@pytest.mark.parametrize(
    ("fault", "code"), [("missing", "not_found"), ("denied", "access_denied"), ("forbidden", "access_denied")]
)
def test_refusals(python: Any, fault: str, code: str) -> None:
    file = "absent.bin" if fault == "missing" else "model.safetensors"
    assert python("await load(file)", fault, file=file)["code"] == code
    assert python("await list_cached()") == []


def test_no_cors_header(python: Any) -> None:
    result = python("await load()", "no-cors")
    assert result["code"] == "network" and "Access-Control-Allow-Origin" in result["message"]
    assert python("await kept()") == 0


def test_no_ranges(python: Any) -> None:
    assert python("await load(start=100, stop=200)", "no-range") == whole(100, 200)
    assert python("await load()", "no-range") == whole()


def test_an_overloaded_server_is_asked_again(python: Any) -> None:
    assert python("await load()", "busy") == whole()


def test_the_token_stays_with_the_hub(faulty: FaultyServer, python: Any) -> None:
    assert python("await load(token='secret')", "redirect") == whole()
    sent = [(request.fault, request.headers.get("authorization")) for request in faulty.requests]
    assert ("redirect", "Bearer secret") in sent
    assert {authorization for fault, authorization in sent if fault == "ok"} == {None}


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["ok", "cut", "gzip", "redirect"])
def test_progress(python: Any, fault: str) -> None:
    code = f"""
events = []
made = Repository({NAME!r}, progress_callback=events.append)
await made.expect("config.json", "model.safetensors", "absent.bin")
await made.json("config.json")
await made.read("model.safetensors")
events
"""
    sizes = {"config.json": len(json.dumps(CONFIG)), "model.safetensors": len(WEIGHTS)}
    for cached in (False, True):
        events = python(code, fault)
        assert {event["cached"] for event in events} == {cached}
        for file, size in sizes.items():
            mine = [event for event in events if event.get("file") == file]
            others = [event["status"] for event in mine if event["status"] != "progress"]
            assert others == ["initiate", "download", "done"]
            steps = [event for event in mine if event["status"] == "progress"]
            check_steps(steps, None if fault == "gzip" and not cached else size)
            assert steps[-1]["loaded"] == steps[-1]["total"] == size
        totals = [event for event in events if event["status"] == "progress_total"]
        check_steps(totals, None if fault == "gzip" and not cached else sum(sizes.values()))


def check_steps(steps: list[dict[str, Any]], total: int | None) -> None:
    assert steps[-1]["progress"] == 100
    assert all(0 <= step["progress"] <= 100 for step in steps)
    assert total is None or {step["total"] for step in steps} == {total}
    assert all(before["progress"] <= after["progress"] for before, after in pairwise(steps))
    assert all(before["loaded"] <= after["loaded"] for before, after in pairwise(steps))


# --- the store --------------------------------------------------------------------------------------------------------


def test_parallel_loaders_share_one_download(faulty: FaultyServer, python: Any) -> None:
    assert python("await asyncio.gather(load(), load(), load())", "slow") == [whole()] * 3
    assert len(faulty.downloads("model.safetensors")) == 1


def test_two_tabs_at_once(
    faulty: FaultyServer, python: Any, tab: PythonWorker, pyodide_worker: Callable[[Any], PythonWorker]
) -> None:
    other = pyodide_worker(tab.page.context.new_page())
    other.run_python(PRELUDE + "env.update(settings); None", settings=python("env.as_dict()", "slow"))
    python("task = asyncio.ensure_future(load()); None", "slow")
    assert other.run_python("await load()") == whole()
    assert python("await task", "slow") == whole()
    assert len(faulty.downloads("model.safetensors")) == 1
    other.page.close()


DENY = """(how) => {
  const deny = () => { throw new DOMException("The operation is insecure.", "SecurityError"); };
  const value = { open: () => Promise.reject(new DOMException("Denied.", "SecurityError")) };
  Object.defineProperty(globalThis, "caches", {
    configurable: true, ...{ get: { get: deny }, open: { value }, absent: { value: undefined } }[how],
  });
}"""


@pytest.mark.parametrize("how", ["get", "open", "absent"])
def test_cache_storage_is_denied(faulty: FaultyServer, python: Any, how: str) -> None:
    code = """
from pyodide.code import run_js
run_js(deny)(how)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    results = [await load(), await load(), (await load("config.json"))["length"]]
run_js("delete globalThis.caches")
[results, [str(warning.message) for warning in warned], len(await list_cached())]
"""
    results, warned, listed = python(code, deny=DENY, how=how)
    assert results == [whole(), whole(), len(json.dumps(CONFIG))]
    assert len(warned) == 1 and "memory" in warned[0]
    assert len(faulty.downloads("model.safetensors")) == 1  # the second came from memory
    assert listed == 2


def test_web_locks_are_denied(faulty: FaultyServer, python: Any) -> None:
    code = """
from pyodide.code import run_js
run_js("navigator.locks.request = () => Promise.reject(new DOMException('Denied.', 'SecurityError'))")
results = await asyncio.gather(load(), load())
run_js("delete navigator.locks.request")
results
"""
    assert python(code, "slow") == [whole(), whole()]
    assert len(faulty.downloads("model.safetensors")) == 1


@pytest.mark.parametrize("asked_before", [True, False])
def test_the_quota_is_exceeded(faulty: FaultyServer, python: Any, tab: PythonWorker, asked_before: bool) -> None:
    """Either the estimate says so before the download, or a put fails in the middle of it."""
    session = tab.page.context.new_cdp_session(tab.page)
    origin = tab.page.evaluate("() => origin")
    code = """
original = store.CacheBackend.free
async def free(self):
    return room if asked_before else None
store.CacheBackend.free = free  # browsers state a number of their choice, but keep to the real one
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    results = [await load(), await load()]
store.CacheBackend.free = original
[results, [str(warning.message) for warning in warned], await kept()]
"""
    used = tab.page.evaluate("async () => (await navigator.storage.estimate()).usage")
    room = 2 * len(WEIGHTS) // 3
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": used + room})
    try:
        results, warned, kept = python(code, asked_before=asked_before, room=room)
    finally:
        session.send("Storage.overrideQuotaForOrigin", {"origin": origin})
    assert results == [whole(), whole()]
    assert len(warned) == 1 and "Cache Storage" in warned[0]
    assert ("are free" in warned[0]) == asked_before
    assert len(faulty.downloads("model.safetensors")) == 1
    assert kept == 0


def test_a_lost_segment_is_made_good(faulty: FaultyServer, python: Any) -> None:
    code = """
await load()
cache = await js.caches.open(env.cache_name)
await cache.delete(env.remote_host + "org/tiny/resolve/main/model.safetensors?inpage=2")
[await load(), await load()]
"""
    assert python(code) == [whole(), whole()]
    assert len(faulty.downloads("model.safetensors")) == 2


def test_streaming_leaves_the_python_heap_as_it_was(python: Any, folder: Path) -> None:
    """64 MB through download, hash, store and back: neither Python's memory nor the number of proxies grows."""
    (folder / "large.safetensors").write_bytes(bytes(64 << 20))
    code = """
import gc, pyodide_js
from pyodide.ffi import JsProxy
store.SEGMENT = 16 << 20

async def consume():
    async with Repository("org/tiny").stream("large.safetensors") as chunks:
        return sum([chunk.nbytes async for chunk in chunks])

def state():
    gc.collect()
    return [pyodide_js._module.HEAPU8.length, sum(isinstance(o, JsProxy) for o in gc.get_objects())]

async def measure(count):
    for _ in range(count):
        assert await consume() == 64 << 20
    return state()

await load("config.json")
before = state()
cold, warm, again = await measure(1), await measure(1), await measure(3)
[before, cold, warm, again]
"""
    before, cold, warm, again = python(code)
    assert cold[0] - before[0] < 24 << 20, "the file went through the Python heap"
    assert warm[0] == cold[0] == again[0]
    assert again[1] <= cold[1] + 2
