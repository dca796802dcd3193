"""Threads in the page: what they need, that they change no result, and what happens when one goes away."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests import models
from tests.browser.pages import Opened, open_page, serve_site

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
EMBED = """
    inpage.env.wasm.numThreads = threads;
    globalThis.extract = await inpage.pipeline("feature-extraction", model);
    const texts = ["the quick brown fox ".repeat(40), "a b"];
    globalThis.run = async () => (await extract(texts, {pooling: "mean"})).tolist();
    return run();
"""
EXECUTOR = "import inpage.executors; executor = next(iter(inpage.executors._open.values()))\n"

# In a helper's place: takes a chunk of the next run, and does nothing with it.
LOST_HELPER = """
import js
from pyodide.ffi import to_js
source = '''onmessage = ({data: {memory, control}}) => {
    const generation = new Int32Array(memory.buffer, control, 1);
    const total = new Int32Array(memory.buffer, control + 32, 1);
    const next = new BigInt64Array(memory.buffer, control + 64, 1);
    const before = Atomics.load(generation, 0);
    const claim = () => {
        const ticket = Atomics.load(next, 0);
        const isOne = ticket >> 32n > before && BigInt.asUintN(32, ticket) < Atomics.load(total, 0);
        return isOne && Atomics.compareExchange(next, 0, ticket, ticket + 1n) === ticket;
    };
    postMessage("ready");
    while (!claim());
}'''
lost = js.Worker.new(js.URL.createObjectURL(js.Blob.new(to_js([source]))))
lost.onmessage = lambda event: setattr(js, "lost", True)
values = {"memory": executor._instance._memory, "control": executor._control}
lost.postMessage(to_js(values, dict_converter=js.Object.fromEntries))
"""


@pytest.fixture(scope="module")
def isolated_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_site(tmp_path_factory.mktemp("isolated"), {MINILM: models.path(MINILM)}) as url:
        yield url


@pytest.fixture(scope="module")
def plain_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A host without headers."""
    with serve_site(tmp_path_factory.mktemp("plain"), {MINILM: models.path(MINILM)}, isolation=False) as url:
        yield url


@pytest.fixture
def two_threads(browser: Any, isolated_site: str) -> Iterator[tuple[Opened, list[list[float]]]]:
    """A page with a pipeline on two threads, and its results."""
    with open_page(browser, isolated_site) as page:
        yield page, page.run(EMBED, threads=2, model=MINILM)


def has_workers(page: Opened, count: int) -> bool:
    """Whether the page comes to have so many workers, Python's and its helpers, within ten seconds."""
    for _ in range(100):
        page.page.wait_for_timeout(100)
        if len(page.page.workers) == count:
            return True
    return False


def python(page: Opened, code: str) -> Any:
    """Value of Python code in the worker that has Python."""
    found = [worker for worker in page.page.workers if "inpage-worker" in worker.url]
    return found[0].evaluate("(code) => pyodide.runPython(code)", EXECUTOR + code)


def test_two_threads_give_what_one_gives_and_end_with_the_model(
    browser: Any, isolated_site: str, two_threads: tuple[Opened, list[list[float]]]
) -> None:
    page, found = two_threads
    assert python(page, "f'{executor.variant} {executor.threads}'") == "relaxed_threads 2"
    assert has_workers(page, 2)
    page.run("await extract.dispose()")
    assert has_workers(page, 1)
    with open_page(browser, isolated_site) as other:
        assert other.run(EMBED, threads=1, model=MINILM) == found
        assert has_workers(other, 1)


def test_helpers_end_with_the_worker(two_threads: tuple[Opened, list[list[float]]]) -> None:
    page, _ = two_threads
    assert has_workers(page, 2)
    page.run("inpage.terminate()")
    assert has_workers(page, 0)


def test_a_helper_that_was_ended_is_not_missed(two_threads: tuple[Opened, list[list[float]]]) -> None:
    page, found = two_threads
    python(page, "executor._helpers[0]._worker.terminate()")
    assert has_workers(page, 1)
    assert page.run("return run()") == found


def test_a_helper_lost_with_its_work_does_not_hang_the_run(two_threads: tuple[Opened, list[list[float]]]) -> None:
    page, found = two_threads
    python(page, LOST_HELPER)
    (worker,) = (worker for worker in page.page.workers if "inpage-worker" in worker.url)
    worker.evaluate("async () => { while (!globalThis.lost) await new Promise((done) => setTimeout(done, 10)); }")
    assert page.run("return run()") == found
    assert python(page, "executor.threads") == 1
    assert page.run("return run()") == found


def test_without_isolation_one_thread_and_one_warning(browser: Any, plain_site: str) -> None:
    with open_page(browser, plain_site) as page:
        said: list[str] = []
        page.page.on("console", lambda message: said.append(message.text))
        page.run(EMBED, threads=2, model=MINILM)
        page.run("await extract.dispose()")
        page.run(EMBED, threads=2, model=MINILM)
        assert python(page, "f'{executor.variant} {executor.threads}'") == "relaxed 1"
        assert len([text for text in said if "computes on one thread" in text]) == 1
        assert "isolation.js" in " ".join(said)


def test_isolation_worker_brings_threads_to_a_plain_host(browser: Any, plain_site: str) -> None:
    with open_page(browser, plain_site) as page:
        assert page.page.evaluate("crossOriginIsolated") is False
        with page.page.expect_navigation():
            page.page.evaluate("() => { import('./isolation.js'); }")
        assert page.page.evaluate("crossOriginIsolated") is True
        isolated = "async () => { window.inpage = await import('./inpage.js'); inpage.env.remoteHost = './';"
        isolated += " return (await import('./isolation.js')).isolated; }"
        assert page.page.evaluate(isolated) is True
        page.run(EMBED, threads=2, model=MINILM)
        assert python(page, "f'{executor.variant} {executor.threads}'") == "relaxed_threads 2"
        # Not even a reload past the service worker leads into a loop.
        page.page.reload()
        assert page.page.evaluate("crossOriginIsolated") is True


def test_isolation_where_storage_is_blocked(browser: Any, plain_site: str, isolated_site: str) -> None:
    blocked = """async () => {
        const get = () => { throw new DOMException("denied", "SecurityError"); };
        Object.defineProperty(window, "sessionStorage", { get });
        return (await import("./isolation.js")).isolated;
    }"""
    for site, expected in ((plain_site, False), (isolated_site, True)):
        with open_page(browser, site) as page:
            assert page.page.evaluate(blocked) is expected
