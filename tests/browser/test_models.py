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
    for group in ("encoders", "variants")
    for folder in folders(group)
    for case, spec in Golden(folder).cases.items()
    if "dtype" not in spec  # computed in half precision by transformers
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
    assert_equal(arrays, golden.outputs(case))


def test_weights_are_freed_and_numpy_is_not_imported(worker: PythonWorker) -> None:
    """Of kernel memory, the register file and the arena stay."""
    name, cls = "golden/bert-base", "BertModel"
    code = "await outputs_of(name, cls, {}, {}, {'input_ids': [[2, 3]]}); [keeper.used_bytes, keeper._arena[1]]"
    used, arena = worker.run_python(code, name=name, cls=cls)
    assert used <= arena + 512
    assert worker.run_python("'numpy' in sys.modules") is False
