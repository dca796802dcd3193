"""The case table in Chromium, in the Python of the worker: every op, every variant of the kernels.

There is no NumPy in there: cases are sent as bytes, and their results are compared here.
"""

import base64
import inspect
import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

from inpage.executors.wasm import VARIANTS
from inpage.optable import OPS
from tests.browser.pages import Opened, open_page, serve_site
from tests.ops import job
from tests.ops.cases import Case, all_cases, linear_case

CASES = {
    op: list(cases) for op, cases in groupby(sorted(all_cases(), key=lambda case: case.op), key=lambda case: case.op)
}

SETUP = """
import base64, gc, json, js, sys
from inpage.env import env
from inpage.errors import InpageError
from inpage.executors import wasm
from inpage.executors.wasm import WasmExecutor

executor = None

def open_executor(variant):
    global executor
    if executor is None or executor.variant != variant:
        close_executor()
        executor = WasmExecutor(variant)

def close_executor():
    global executor
    if executor is not None:
        executor.close()
    executor = None

def run_jobs(text):
    results = []
    for fields in json.loads(text):
        fields["block"] = base64.b64decode(fields["block"])
        status, outputs = run_job(executor, Job(**fields))
        results.append([status, [base64.b64encode(output).decode() for output in outputs]])
    return json.dumps(results)

def code_of(function):
    try:
        function()
    except InpageError as error:
        return error.code
"""


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A page whose worker has the kernels' tools as Python globals."""
    with serve_site(tmp_path_factory.mktemp("site"), {}) as url, open_page(browser, url) as opened:
        opened.run("await inpage.create('env.as_dict').catch(() => {});")
        opened.python(inspect.getsource(job))
        opened.python(SETUP)
        yield opened


def failures(page: Opened, cases: list[Case]) -> dict[str, list[str]]:
    """What is wrong with the results, by case."""
    jobs = [case.job() for case in cases]
    fields = [{**job._asdict(), "block": base64.b64encode(job.block).decode()} for job in jobs]
    results = json.loads(page.python(f"run_jobs({json.dumps(fields)!r})"))
    decoded = [(status, [base64.b64decode(output) for output in outputs]) for status, outputs in results]
    errors = {case.id: case.errors(*result) for case, result in zip(cases, decoded, strict=True)}
    return {name: problems for name, problems in errors.items() if problems}


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_cases(page: Opened, variant: str, op: str) -> None:
    page.python(f"open_executor({variant!r})")
    assert failures(page, CASES[op]) == {}


def test_the_best_variant_is_chosen_and_printed(page: Opened) -> None:
    page.python("close_executor(); executor = WasmExecutor()")
    assert page.python("executor.variant") == "relaxed"
    assert page.python("', '.join(wasm.config()['features'])") == "relaxed, threads"
    assert page.python("wasm.config()['host']") == "javascript"


def test_no_numpy_is_loaded(page: Opened) -> None:
    assert page.python("'numpy' in sys.modules") is False


def test_kernels_can_be_compiled_off_the_thread(page: Opened) -> None:
    (worker,) = page.page.workers
    worker.evaluate("pyodide.runPythonAsync('await wasm.prepare()')")
    page.python("close_executor(); executor = WasmExecutor()")
    assert failures(page, CASES["fill"]) == {}


@pytest.mark.parametrize("variant", VARIANTS)
def test_addresses_over_2_gib_work(page: Opened, variant: str) -> None:
    page.python(f"close_executor(); open_executor({variant!r}); high = executor.allocate(2**31)")
    assert page.python("executor.allocate(64) > 2**31")
    assert failures(page, [linear_case(7, 13, 5, bias=True, residual=True, activation="gelu")]) == {}
    page.python("close_executor()")


def test_memory_that_cannot_grow_raises_and_the_next_call_works(page: Opened) -> None:
    page.python("open_executor('relaxed'); size = executor.size")
    assert page.python("code_of(lambda: executor.allocate(2**32))") == "out_of_memory"
    assert page.python("executor.size == size")
    assert failures(page, CASES["fill"]) == {}


def test_max_memory_limits_growth(page: Opened) -> None:
    page.python("close_executor(); env.wasm.max_memory = 8 << 20; open_executor('relaxed'); env.wasm.reset()")
    assert page.python("code_of(lambda: executor.allocate(9 << 20))") == "out_of_memory"
    assert page.python("code_of(lambda: executor.allocate(5 << 20))") is None
    page.python("close_executor()")


def test_a_trap_raises_and_the_next_call_works(page: Opened) -> None:
    page.python("open_executor('relaxed'); words = executor.allocate(256)")
    length = OPS["fill"].length
    program = [OPS["fill"].number | length << 16, 1, 2**32 - 64, 1000, 0]
    page.python(f"from array import array; executor.write(words, array('I', {program}))")
    assert page.python(f"code_of(lambda: executor.execute(words, {length}, words))") == "kernel"
    assert failures(page, CASES["fill"]) == {}


def test_write_takes_typed_arrays(page: Opened) -> None:
    page.python("open_executor('relaxed'); place = executor.allocate(64)")
    for script, expected in (
        ("js.Uint8Array.new(js.eval('[1, 2, 3]'))", "010203"),
        ("js.Uint8Array.new(js.eval('[9, 1, 2, 3]')).subarray(1)", "010203"),
        ("js.Int8Array.new(js.eval('[-1, 2]'))", "ff02"),
        ("js.Float32Array.new(js.eval('[1.5]'))", "0000c03f"),
        ("js.Uint32Array.new(js.eval('[7, 258]')).subarray(1)", "02010000"),
    ):
        page.python(f"executor.write(place, {script})")
        assert page.python(f"executor.read(place, {len(expected) // 2}).hex()") == expected


def test_calls_leave_no_proxies_behind(page: Opened) -> None:
    page.python("open_executor('simd')")
    page.python("""
def work(rounds):
    for i in range(rounds):
        place = executor.allocate(1 << 16)
        words = array("I", [fill.number | fill.length << 16, 1, place + 64, 3, 0])
        executor.write(place, words)
        executor.write(place + 1000, js.Uint8Array.new(100))
        assert executor.execute(place, len(words), place + 8000) == 0
        assert executor.read(place + 64, 12) == bytes(12)
        executor.free(place)
        if i % 100 == 0:
            executor.grow(executor.size + 65536)

from array import array
from inpage.optable import OPS
fill = OPS["fill"]
work(10)
""")
    (worker,) = page.page.workers

    def proxies() -> int:
        page.python("gc.collect()")
        return worker.evaluate("pyodide._module._hiwire_num_refs()")

    before = proxies()
    page.python("work(1000)")
    assert proxies() == before
    page.python("close_executor()")
    assert proxies() < before
