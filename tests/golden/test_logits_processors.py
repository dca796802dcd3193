"""Logits processors against transformers' own."""

from array import array
from typing import Any

import numpy as np
import pytest

from inpage.generation import logits_process, warpers
from inpage.generation.configuration import GenerationConfig
from inpage.generation.processors import default_processors

from .data import HERE, Golden

GOLDEN = Golden(HERE / "logits_processors")
CASES = [name for name in GOLDEN.cases if name != "in"]
INPUTS = GOLDEN.inputs("in")


def processor(case: str) -> Any:
    spec = GOLDEN.cases[case]
    if "generation_config" in spec:
        options = {"max_length": 20, "do_sample": True, **spec["generation_config"]}
        chain = default_processors(GenerationConfig(**options).complete(), INPUTS["input_ids"].tolist())
        assert [type(p).__name__ for p in chain] == spec["order"]
        return chain
    if case == "PrefixConstrained":
        return logits_process.PrefixConstrainedLogitsProcessor(lambda batch, ids: [batch, batch + 1, 7], 1)
    name, arguments = spec["call"]["class"], dict(spec["call"]["kwargs"])
    arguments.pop("device", None)
    return getattr(warpers if hasattr(warpers, name) else logits_process, name)(**arguments)


@pytest.mark.parametrize("case", CASES)
def test_processor(case: str) -> None:
    ids = INPUTS["input_ids"].tolist()
    if case == "ForcedBOS_len1":
        ids = [row[:1] for row in ids]
    rows = [array("f", row.tolist()) for row in INPUTS["scores"]]
    found = np.array(processor(case)(ids, rows))
    expected = GOLDEN.outputs(case)["scores"]
    assert (np.isneginf(found) == np.isneginf(expected)).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_all_cases_are_here() -> None:
    assert len(CASES) == 51
