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
CASES = [(folder, case) for folder in CHECKPOINTS for case, spec in Golden(folder).cases.items() if "generate" in spec]
CHUNKS: dict[str, Any] = {"prefill_chunk_size": 5}
UNCACHED: dict[str, Any] = {"use_cache": False}
GUESSES: dict[str, Any] = {"prompt_lookup_num_tokens": 3}
WAYS: list[dict[str, Any]] = [{}, CHUNKS, UNCACHED, {"cache_implementation": "static"}, GUESSES]
_loaded: dict[Any, Any] = {}


def name(folder: Path, case: str) -> str:
    return f"{folder.name}-{case}"


def ways(folder: Path, case: str) -> list[dict[str, Any]]:
    """Ways that give the same tokens.

    With some frequencies that follow the length, transformers' own result differs without a cache; guesses do not go
    with them, and are for single sequences.
    """
    rope = json.loads((folder / "config.json").read_text()).get("rope_scaling") or {}
    different = [GUESSES] if {"dynamic", "longrope"} & {rope.get("rope_type"), rope.get("type")} else []
    golden = Golden(folder)
    spec = golden.cases[case]
    if not spec.get("cache_agrees", True):
        different.append(UNCACHED)
    if spec["generate"].get("num_beams", 1) > 1 or len(golden.inputs(case)["input_ids"]) > 1:
        different.append(GUESSES)
    return [way for way in WAYS if way not in different]


def load(folder: Path, device: str) -> tuple[Golden, Any, Any]:
    if (folder, device) not in _loaded:
        model = AutoModelForCausalLM.from_pretrained(str(folder), device=device)
        _loaded[folder, device] = Golden(folder), model, AutoTokenizer.from_pretrained(str(folder))
    return _loaded[folder, device]


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize(("folder", "case"), [pytest.param(*case, id=name(*case)) for case in CASES])
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
    ("folder", "case", "how"),
    [pytest.param(*case, how, id=f"{name(*case)}-{how}") for case in CASES for how in ways(*case)],
)
def test_ways_to_the_same_tokens(folder: Path, case: str, how: dict[str, Any]) -> None:
    golden, model, tokenizer = load(folder, "wasm")
    spec = golden.cases[case]
    found = model.generate(**golden.inputs(case), tokenizer=tokenizer, **spec["generate"], **how)
    assert found.tolist() == golden.outputs(case)["sequences"].tolist()
