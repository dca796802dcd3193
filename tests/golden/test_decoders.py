"""Every decoder checkpoint, every case, on both executors: outputs within 1e-4 of transformers, equal greedy ids."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inpage import AutoModelForCausalLM
from inpage.generation.cache import Cache, DynamicCache, StaticCache
from tests.checkpoints import decode, encode

from .data import EXECUTORS, Array, Golden, assert_equal, folders

FOLDERS = list(folders("decoders"))
FORWARD = [
    (folder, case) for folder in FOLDERS for case, spec in Golden(folder).cases.items() if "generate" not in spec
]
GREEDY = [
    (folder, case) for folder in FOLDERS for case in Golden(folder).cases if case in ("greedy", "greedy_left_padded")
]
CACHES: dict[str, Callable[[], Cache | None]] = {
    "none": lambda: None,
    "dynamic": DynamicCache,
    "static": lambda: StaticCache(64),
    "f16": lambda: DynamicCache(kv_cache_dtype="f16"),
}


def named(value: Any) -> Any:
    return getattr(value, "name", value)


def positions(mask: Array) -> Array:
    """Position ids of a padded batch, as `generate` makes them."""
    return np.maximum(mask.cumsum(1) - 1, 0)


def greedy(model: Any, inputs: dict[str, Any], length: int, cache: Cache | None) -> Array:
    """Sequences continued to `length` tokens by the highest logit, with a cache or from the beginning each time."""
    ids = np.asarray(inputs["input_ids"])
    mask = np.asarray(inputs.get("attention_mask", np.ones_like(ids)))
    end = model.config.eos_token_id
    padding = end if model.config.pad_token_id is None else model.config.pad_token_id
    finished = np.zeros((len(ids), 1), bool)
    while ids.shape[1] < length:
        seen = cache.get_seq_length() if cache is not None else 0
        outputs = model(
            input_ids=ids[:, seen:],
            attention_mask=mask,
            position_ids=positions(mask)[:, seen:],
            past_key_values=cache,
            logits_to_keep=1,
        )
        following = np.asarray(outputs.logits)[:, -1].argmax(-1)[:, None]
        following = np.where(finished, padding, following)
        finished |= following == end
        ids = np.concatenate([ids, following], 1)
        mask = np.concatenate([mask, np.ones_like(following)], 1)
    return ids


def test_data_is_complete() -> None:
    assert len(FOLDERS) == 21
    assert len(GREEDY) == 34


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize(("folder", "case"), FORWARD, ids=named)
def test_case(folder: Path, case: str, device: str) -> None:
    golden = Golden(folder)
    with golden.load(case, device=device) as model:
        for _ in range(2):  # the second time replays the program
            outputs = dict(model(**golden.inputs(case), **golden.cases[case]["call"]))
            expected = golden.outputs(case)
            if "logits" not in expected:  # stored for the loss alone
                del outputs["logits"]
            assert_equal(outputs, expected)


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize(("folder", "case"), GREEDY, ids=named)
def test_greedy(folder: Path, case: str, kind: str, device: str) -> None:
    golden = Golden(folder)
    expected = golden.outputs(case)
    sequences = expected["sequences"]
    if kind == "none":
        sequences = expected.get("sequences_nocache", sequences)
    with golden.load(case, device=device) as model:
        cache = CACHES[kind]()
        found = greedy(model, golden.inputs(case), sequences.shape[1], cache)
        if cache is not None:
            cache.dispose()
    assert found.tolist() == sequences.tolist()


@pytest.mark.parametrize(("folder", "case"), [g for g in GREEDY if g[1] == "greedy"], ids=named)
def test_chunks_of_a_prompt_give_the_logits_of_the_whole(folder: Path, case: str) -> None:
    golden = Golden(folder)
    ids = np.asarray(golden.inputs(case)["input_ids"])
    model: Any = golden.load(case, device="wasm")
    with model:
        whole = np.asarray(model(input_ids=ids).logits)
        for dtype, tolerance in (("f32", 1e-4), ("f16", 0.05), ("q8", 0.5)):
            cache, parts = DynamicCache(kv_cache_dtype=dtype), []
            for start in range(0, ids.shape[1], 7):
                parts.append(np.asarray(model(input_ids=ids[:, start : start + 7], past_key_values=cache).logits))
            error = np.abs(np.concatenate(parts, 1) - whole).max()
            if model.backbone.dynamic_rope is None:  # whose frequencies follow the length so far
                assert error <= tolerance
                assert dtype == "f32" or error > 1e-6
            cache.dispose()


def test_quantised_cache_differs_little_over_all() -> None:
    golden = Golden(next(folder for folder in FOLDERS if folder.name == "llama"))
    with golden.load("greedy", device="wasm") as model:
        sizes = []
        for dtype in ("f32", "f16", "q8"):
            with DynamicCache(kv_cache_dtype=dtype) as cache:
                model(**golden.inputs("greedy"), past_key_values=cache)
                sizes.append(cache.nbytes)
    assert sizes[1] == sizes[0] / 2
    assert sizes[2] == sizes[0] * 3 / 8  # heads of 8: two words and a scale


@pytest.mark.parametrize(
    "naming",
    [
        {"model.": "model.language_model."},  # transformers 5
        {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},  # transformers 4
        {"model.": "model.text_model."},  # SmolVLM and Idefics 3
    ],
)
def test_the_text_part_of_a_model_of_several_parts(naming: dict[str, str], tmp_path: Path) -> None:
    folder = next(folder for folder in FOLDERS if folder.name == "llama")
    golden = Golden(folder)
    config = json.loads((folder / "config.json").read_text())
    values = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": config}
    (tmp_path / "config.json").write_text(json.dumps(values))
    weights = decode((folder / "model.safetensors").read_bytes())
    renamed = {"vision_tower.patches.weight": np.zeros((3, 4), np.float32)}
    for name, array in weights.items():
        prefix = next((prefix for prefix in naming if name.startswith(prefix)), "")
        renamed[naming.get(prefix, "") + name.removeprefix(prefix)] = array
    (tmp_path / "model.safetensors").write_bytes(encode(renamed))
    with pytest.warns(
        UserWarning, match="'llava' model of several parts; LlamaForCausalLM loads only the one for text"
    ):
        model, info = AutoModelForCausalLM.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values())
    with model:
        assert_equal(model(**golden.inputs("single"), **golden.cases["single"]["call"]), golden.outputs("single"))


@pytest.mark.parametrize("tied", [{"tie_word_embeddings": True}, {}])
def test_the_model_of_several_parts_says_whether_its_head_is_tied(tied: dict[str, bool], tmp_path: Path) -> None:
    folder = next(folder for folder in FOLDERS if folder.name == "llama")
    config = json.loads((folder / "config.json").read_text())
    values = {"model_type": "mistral3", "text_config": {**config, "tie_word_embeddings": not tied}, **tied}
    (tmp_path / "config.json").write_text(json.dumps(values))
    weights = decode((folder / "model.safetensors").read_bytes())
    weights.pop("lm_head.weight", None)
    (tmp_path / "model.safetensors").write_bytes(encode(weights))
    with pytest.warns(UserWarning, match="several parts"):
        model, info = AutoModelForCausalLM.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values())
    with model:
        assert model.lm_head.weight is model.model.embed_tokens.weight
