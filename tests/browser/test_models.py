"""Models in Chromium: the outputs of transformers for every golden checkpoint, without NumPy."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inpage.serve import Server
from tests.browser.conftest import PythonWorker
from tests.golden.data import Golden, assert_equal, folders

CASES = [
    (folder, case)
    for group in ("encoders", "decoders", "variants")
    for folder in folders(group)
    for case, spec in Golden(folder).cases.items()
    if "dtype" not in spec  # computed in half precision by transformers
    and "generate" not in spec
]

SETUP = """
import gc, sys
from inpage import env
from inpage.executors import acquire
from inpage.models import auto

env.remote_host = host

def flat(name, value):
    if isinstance(value, tuple):
        return {f"{name}.{i}": element.tolist() for i, element in enumerate(value)}
    return {name: value.tolist()}

async def outputs_of(name, class_name, load, call, inputs):
    choose = next(c for c in auto._AUTO_CLASSES if class_name in c.class_names.values())
    with await choose.from_pretrained(name, **load) as model:
        assert type(model).__name__ == class_name
        outputs = model(**inputs, **call)
    return {key: value for name, output in outputs.items() for key, value in flat(name, output).items()}

keeper = acquire("wasm")
"""


@pytest.fixture(scope="module")
def worker(browser: Any, server: Server, pyodide_worker: Callable[[Any], PythonWorker]) -> Iterator[PythonWorker]:
    context = browser.new_context()
    started = pyodide_worker(context.new_page())
    started.run_python(SETUP + "None", host=server.url)
    yield started
    context.close()


@pytest.mark.parametrize(("folder", "case"), CASES, ids=lambda value: getattr(value, "name", value))
def test_outputs(worker: PythonWorker, folder: Path, case: str) -> None:
    golden = Golden(folder)
    spec = golden.cases[case]
    found = worker.run_python(
        "await outputs_of(name, class_name, load, call, inputs)",
        name=f"golden/{folder.name}",
        class_name=spec["cls"],
        load=spec["load"],
        call=spec["call"],
        inputs={name: value.tolist() for name, value in golden.inputs(case).items()},
    )
    arrays = {name: np.array(value, np.float32) for name, value in found.items()}
    expected = golden.outputs(case)
    if "logits" not in expected:  # stored for the loss alone
        arrays.pop("logits", None)
    assert_equal(arrays, expected)


def test_weights_are_freed_and_numpy_is_not_imported(worker: PythonWorker) -> None:
    """Of kernel memory, the register file and the arena stay."""
    name, cls = "golden/bert-base", "BertModel"
    code = "await outputs_of(name, cls, {}, {}, {'input_ids': [[2, 3]]}); [keeper.used_bytes, keeper._arena[1]]"
    used, arena = worker.run_python(code, name=name, cls=cls)
    assert used <= arena + 512
    assert worker.run_python("'numpy' in sys.modules") is False


FLAT = """
import tracemalloc
from pyodide_js._module import _hiwire_num_refs

def measure():
    gc.collect()
    return {
        "kernels": keeper.used_bytes - keeper._arena[1],
        "memory": keeper.size,
        "heap": tracemalloc.get_traced_memory()[0],
        "proxies": _hiwire_num_refs(),
    }

async def cycles(name, class_name, count):
    for _ in range(count):
        await outputs_of(name, class_name, {}, {}, {"input_ids": [[2, 5, 3]]})
    return measure()

async def calls(name, class_name, count):
    choose = next(c for c in auto._AUTO_CLASSES if class_name in c.class_names.values())
    async def run(model, count):
        for i in range(count):
            model(input_ids=[[2] + [5] * (1 + i % 40) + [3]])
        return measure()
    with await choose.from_pretrained(name) as model:
        return [await run(model, 200), await run(model, count)]

tracemalloc.start()
"""


MAX_VIEWS = 16  # `MAX_WINDOWS` of pyodide_host.py, which only Pyodide can import


def assert_flat(before: dict[str, int], after: dict[str, int]) -> None:
    """Nothing has grown but what caches hold: views of kernel memory (proxies), and those of the interpreter."""
    assert (after["kernels"], after["memory"]) == (before["kernels"], before["memory"])
    assert after["proxies"] <= before["proxies"] + MAX_VIEWS
    assert after["heap"] < before["heap"] + 50_000


def test_memory_is_flat_over_100_models_and_1000_calls(worker: PythonWorker) -> None:
    names = {"name": "golden/bert-base", "class_name": "BertModel"}
    worker.run_python(FLAT + "None")
    before = worker.run_python("await cycles(name, class_name, 10)", **names)
    assert_flat(before, worker.run_python("await cycles(name, class_name, 100)", **names))
    assert_flat(*worker.run_python("await calls(name, class_name, 1000)", **names))
    worker.run_python("tracemalloc.stop()")
