"""Generation against transformers' own, token for token."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inpage.models.auto import CONFIGS, AutoModelForCausalLM
from inpage.processing.tokenizer import AutoTokenizer

from .data import EXECUTORS, Golden, folders

CHECKPOINTS = [
    folder
    for folder in folders("decoders")
    if json.loads((folder / "config.json").read_text())["model_type"] in CONFIGS
]
CASES = [
    pytest.param(folder, case, id=f"{folder.name}-{case}")
    for folder in CHECKPOINTS
    for case, spec in Golden(folder).cases.items()
    if "generate" in spec
]
_loaded: dict[Any, Any] = {}


def load(folder: Path, device: str) -> tuple[Golden, Any, Any]:
    if (folder, device) not in _loaded:
        model = AutoModelForCausalLM.from_pretrained(str(folder), device=device)
        _loaded[folder, device] = Golden(folder), model, AutoTokenizer.from_pretrained(str(folder))
    return _loaded[folder, device]


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize(("folder", "case"), CASES)
def test_generate(folder: Path, case: str, device: str) -> None:
    golden, model, tokenizer = load(folder, device)
    options, expected = golden.cases[case]["generate"], golden.outputs(case)
    found = model.generate(
        **golden.inputs(case), tokenizer=tokenizer, return_dict_in_generate=True, output_scores=True, **options
    )
    assert found.sequences.tolist() == expected["sequences"].tolist()
    assert ("sequences_scores" in found) == ("sequences_scores" in expected)
    if "sequences_scores" in expected:
        np.testing.assert_allclose(np.asarray(found.sequences_scores), expected["sequences_scores"], atol=1e-4)
    found.past_key_values.dispose()


@pytest.mark.parametrize(
    "how", [{}, {"prefill_chunk_size": 5}, {"use_cache": False}, {"cache_implementation": "static"}], ids=str
)
@pytest.mark.parametrize(("folder", "case"), CASES)
def test_ways_to_the_same_tokens(folder: Path, case: str, how: dict[str, Any]) -> None:
    golden, model, tokenizer = load(folder, "wasm")
    spec = golden.cases[case]
    if not spec.get("cache_agrees", True) and "use_cache" in how:
        pytest.skip("transformers' own result differs without a cache")
    if "prefill_chunk_size" in how and model.base_model.dynamic_rope is not None:
        pytest.skip("its frequencies follow the length of what is computed at once")
    found = model.generate(**golden.inputs(case), tokenizer=tokenizer, **spec["generate"], **how)
    assert found.tolist() == golden.outputs(case)["sequences"].tolist()
