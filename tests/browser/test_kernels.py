"""The case table in Chromium, in the Python of the worker: every op, every variant of the kernels.

There is no NumPy in there: cases are sent as bytes, and their results are compared here.
"""

import base64
import inspect
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import pytest

from inpage.executors.wasm import VARIANTS
from inpage.optable import OPS
from tests.browser.conftest import PythonWorker
from tests.ops import job
from tests.ops.cases import Case, all_cases, linear_case

CASES = {
    op: list(cases) for op, cases in groupby(sorted(all_cases(), key=lambda case: case.op), key=lambda case: case.op)
}

SETUP = """
import base64, gc, js, pyodide_js, sys
from array import array
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

def run_jobs(sent):
    results = []
    for fields in sent:
        fields["block"] = base64.b64decode(fields["block"])
        status, outputs = run_job(executor, Job(**fields))
        results.append([status, [base64.b64encode(output).decode() for output in outputs]])
    return results

def code_of(function):
    try:
        function()
    except InpageError as error:
        return error.code
"""


@pytest.fixture(scope="module")
def worker(browser: Any, pyodide_worker: Callable[[Any], PythonWorker]) -> Iterator[PythonWorker]:
    """A worker with the kernels' tools as Python globals."""
    context = browser.new_context()
    started = pyodide_worker(context.new_page())
    started.run_python(inspect.getsource(job))
    started.run_python(SETUP)
    yield started
    context.close()


def failures(worker: PythonWorker, cases: list[Case]) -> dict[str, list[str]]:
    """What is wrong with the results, by case."""
    jobs = [case.job() for case in cases]
    sent = [{**job._asdict(), "block": base64.b64encode(job.block).decode()} for job in jobs]
    results = worker.run_python("run_jobs(sent)", sent=sent)
    decoded = [(status, [base64.b64decode(output) for output in outputs]) for status, outputs in results]
    errors = {case.id: case.errors(*result) for case, result in zip(cases, decoded, strict=True)}
    return {name: problems for name, problems in errors.items() if problems}


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_cases(worker: PythonWorker, variant: str, op: str) -> None:
    worker.run_python(f"open_executor({variant!r})")
    assert failures(worker, CASES[op]) == {}


def test_the_best_variant_is_chosen_and_printed(worker: PythonWorker) -> None:
    worker.run_python("close_executor(); executor = WasmExecutor()")
    assert worker.run_python("executor.variant") == "relaxed"
    assert worker.run_python("', '.join(wasm.config()['features'])") == "relaxed, threads"
    assert worker.run_python("wasm.config()['host']") == "javascript"


def test_no_numpy_is_loaded(worker: PythonWorker) -> None:
    assert worker.run_python("'numpy' in sys.modules") is False


@pytest.mark.parametrize("variant", VARIANTS)
def test_addresses_over_2_gib_work(worker: PythonWorker, variant: str) -> None:
    worker.run_python(f"close_executor(); open_executor({variant!r}); high = executor.allocate(2**31)")
    assert worker.run_python("executor.allocate(64) > 2**31")
    assert failures(worker, [linear_case(7, 13, 5, bias=True, residual=True, activation="gelu")]) == {}
    worker.run_python("close_executor()")


def test_memory_that_cannot_grow_raises_and_the_next_call_works(worker: PythonWorker) -> None:
    worker.run_python("open_executor('relaxed'); size = executor.size")
    assert worker.run_python("code_of(lambda: executor.allocate(2**32))") == "out_of_memory"
    assert worker.run_python("executor.size == size")
    assert failures(worker, CASES["fill"]) == {}


def test_max_memory_limits_growth(worker: PythonWorker) -> None:
    worker.run_python("close_executor(); env.wasm.max_memory = 8 << 20; open_executor('relaxed'); env.wasm.reset()")
    assert worker.run_python("code_of(lambda: executor.allocate(9 << 20))") == "out_of_memory"
    assert worker.run_python("code_of(lambda: executor.allocate(5 << 20))") is None
    worker.run_python("close_executor()")


def test_a_trap_raises_and_the_next_call_works(worker: PythonWorker) -> None:
    worker.run_python("open_executor('relaxed'); words = executor.allocate(256)")
    length = OPS["fill"].length
    program = [OPS["fill"].number | length << 16, 1, 2**32 - 64, 1000, 0]
    worker.run_python("executor.write(words, array('I', program))", program=program)
    assert worker.run_python(f"code_of(lambda: executor.execute(words, {length}, words))") == "kernel"
    assert failures(worker, CASES["fill"]) == {}


def test_write_takes_typed_arrays(worker: PythonWorker) -> None:
    worker.run_python("open_executor('relaxed'); place = executor.allocate(64)")
    for script, expected in (
        ("js.Uint8Array.new(js.eval('[1, 2, 3]'))", "010203"),
        ("js.Uint8Array.new(js.eval('[9, 1, 2, 3]')).subarray(1)", "010203"),
        ("js.Int8Array.new(js.eval('[-1, 2]'))", "ff02"),
        ("js.Float32Array.new(js.eval('[1.5]'))", "0000c03f"),
        ("js.Uint32Array.new(js.eval('[7, 258]')).subarray(1)", "02010000"),
    ):
        worker.run_python(f"executor.write(place, {script})")
        assert worker.run_python(f"executor.read(place, {len(expected) // 2}).hex()") == expected


def test_calls_leave_no_proxies_behind(worker: PythonWorker) -> None:
    worker.run_python("open_executor('simd')")
    worker.run_python("""
def work(rounds):
    for i in range(rounds):
        block = executor.allocate(1 << 16)
        place = block + 64 * (i % 100)
        words = array("I", [fill.number | fill.length << 16, 1, place + 64, 3, 0])
        executor.write(place, words)
        executor.write(place + 1000, js.Uint8Array.new(100))
        assert executor.execute(place, len(words), place + 8000) == 0
        assert executor.read(place + 64, 12) == bytes(12)
        executor.free(block)
        if i % 100 == 0:
            executor.grow(executor.size + 65536)

from inpage.optable import OPS
fill = OPS["fill"]
work(10)
""")

    def proxies() -> int:
        return worker.run_python("gc.collect(); pyodide_js._module._hiwire_num_refs()")

    opened = proxies()
    kept = worker.run_python("from inpage.executors.pyodide_host import MAX_WINDOWS; MAX_WINDOWS")
    worker.run_python("work(1000)")
    assert proxies() <= opened + kept
    worker.run_python("close_executor()")
    assert proxies() < opened
