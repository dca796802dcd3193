"""LoRA adapters in PEFT's files, against weights that NumPy merged: loading, switching, merging, memory, errors."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from inpage import AutoModelForCausalLM, pipeline
from inpage.errors import (
    CheckpointError,
    ConfigError,
    DisposedError,
    InputError,
    MismatchedShapesError,
    UnsupportedError,
)
from tests.checkpoints import bfloat16, encode, write_adapter

DECODERS = Path(__file__).parent.parent / "golden" / "decoders"
LLAMA, GPT2 = DECODERS / "llama", DECODERS / "gpt2"
IDS = [[1, 341, 299, 321, 381, 341, 328, 323]]
TOLERANCE = 1e-4
Array = npt.NDArray[Any]


def merged_logits(folder: Path, base: Path, *all_deltas: Mapping[str, Array]) -> Array:
    """Logits of a checkpoint whose weights have the deltas added."""
    copytree(base, folder, dirs_exist_ok=True)
    weights = load_file(base / "model.safetensors")
    for deltas in all_deltas:
        for path, delta in deltas.items():
            name = f"{path}.weight"
            weights[name] = (weights[name] + (delta.T if ".c_" in path else delta)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    with AutoModelForCausalLM.from_pretrained(str(folder)) as model:
        return logits(model)


def logits(model: Any) -> Array:
    return np.asarray(model(input_ids=IDS).logits)


def close(a: Array, b: Array) -> bool:
    return bool(np.abs(a - b).max() < TOLERANCE)


@pytest.fixture(params=["wasm", "reference"])
def model(request: Any) -> Iterator[Any]:
    with AutoModelForCausalLM.from_pretrained(str(LLAMA), device=request.param) as model:
        yield model


LAYER_SHAPES = [(420, 32, 4)] + 2 * [
    (32, 32, 4), (32, 32, 4), (16, 32, 4), (16, 32, 4), (64, 32, 4), (64, 32, 4), (32, 64, 4)
]  # fmt: skip
ATTENTION, ALL = r"(q|v)_proj\.weight", r"(_proj|lm_head)\.weight"


@pytest.mark.parametrize(
    ("targets", "config"),
    [
        (ATTENTION, {}),
        (ALL, {"rank": 5, "use_rslora": True}),
        (ALL, {"rank_pattern": {"down_proj": 1, "q_proj": 9}, "alpha_pattern": {"k_proj": 3, "q_proj": 2.5}}),
        (ATTENTION, {"dtype": "float16", "rank": 16}),
    ],
)
def test_logits_equal_those_of_merged_weights(model: Any, tmp_path: Path, targets: str, config: Any) -> None:
    base = logits(model)
    deltas = write_adapter(tmp_path / "a", LLAMA, targets, **config)
    assert model.load_adapter(str(tmp_path / "a")) is None
    adapted = logits(model)
    assert np.abs(adapted - base).max() > 100 * TOLERANCE
    assert close(adapted, merged_logits(tmp_path / "merged", LLAMA, deltas))


def test_the_copy_of_a_heads_weight_is_no_part_of_the_adapter(model: Any, tmp_path: Path) -> None:
    """PEFT puts it into the file where a layer of the vocabulary is adapted."""
    deltas = write_adapter(tmp_path / "a", LLAMA, ALL)
    file, name = tmp_path / "a" / "adapter_model.safetensors", "base_model.model.lm_head.base_layer.weight"
    weight = load_file(LLAMA / "model.safetensors")["lm_head.weight"]
    save_file({**load_file(file), name: weight}, file)
    model.load_adapter(str(tmp_path / "a"))
    assert close(logits(model), merged_logits(tmp_path / "merged", LLAMA, deltas))
    save_file({**load_file(file), name: np.vstack([weight, weight[:1]])}, file)
    with pytest.raises(MismatchedShapesError, match=r"base_layer\.weight: \[421, 32\], expected \[420, 32\]"):
        model.load_adapter(str(tmp_path / "a"), "larger")


def test_bfloat16_is_read(model: Any, tmp_path: Path) -> None:
    path = "model.layers.0.self_attn.q_proj"
    write_adapter(tmp_path / "a", LLAMA, r"layers\.0.*q_proj")
    tensors = {k: bfloat16(v) for k, v in load_file(tmp_path / "a" / "adapter_model.safetensors").items()}
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(encode(tensors))
    a, b = (
        (tensors[f"base_model.model.{path}.lora_{x}.weight"].astype(np.uint32) << 16).view(np.float32) for x in "AB"
    )
    model.load_adapter(str(tmp_path / "a"))
    assert close(logits(model), merged_logits(tmp_path / "merged", LLAMA, {path: 2 * b @ a}))


def test_transposed_weights_and_fused_activations(tmp_path: Path) -> None:
    deltas = write_adapter(tmp_path / "a", GPT2, r"\.c_(attn|proj|fc)\.weight", fan_in_fan_out=True)
    with AutoModelForCausalLM.from_pretrained(str(GPT2)) as model:
        base = logits(model)
        model.load_adapter(str(tmp_path / "a"))
        reference = merged_logits(tmp_path / "merged", GPT2, deltas)
        assert close(logits(model), reference)
        assert not close(reference, base)
        model.merge_adapter()
        assert close(logits(model), reference)


def test_adapters_of_a_base_model_alone_fit_the_model_with_a_head(model: Any, tmp_path: Path) -> None:
    deltas = write_adapter(tmp_path / "a", LLAMA, ATTENTION)
    file = tmp_path / "a" / "adapter_model.safetensors"
    save_file({name.replace("base_model.model.model.", "base_model.model."): v for name, v in load_file(file).items()},
              file)  # fmt: skip
    model.load_adapter(str(tmp_path / "a"))
    assert close(logits(model), merged_logits(tmp_path / "merged", LLAMA, deltas))


def test_switching_disabling_and_deleting(model: Any, tmp_path: Path) -> None:
    base = logits(model)
    first = write_adapter(tmp_path / "a", LLAMA, ATTENTION)
    second = write_adapter(tmp_path / "b", LLAMA, ALL, seed=1)
    a, b, both = (
        merged_logits(tmp_path / f"merged{i}", LLAMA, *deltas)
        for i, deltas in enumerate([(first,), (second,), (first, second)])
    )
    model.load_adapter(str(tmp_path / "a"), "a")
    assert close(logits(model), a)
    model.load_adapter(str(tmp_path / "b"), adapter_name="b")
    assert model.active_adapters() == ["b"]
    assert close(logits(model), b)
    model.set_adapter("a")
    assert close(logits(model), a)
    model.set_adapter(["a", "b"])
    assert close(logits(model), both)
    model.disable_adapters()
    assert (logits(model) == base).all()
    model.enable_adapters()
    assert close(logits(model), both)
    model.delete_adapter("b")
    assert model.active_adapters() == ["a"]
    assert close(logits(model), a)
    model.delete_adapter(["a"])
    assert model.active_adapters() == []
    assert (logits(model) == base).all()


def test_deleting_gives_memory_back(model: Any, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", LLAMA, ALL)
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        model.load_adapter(str(tmp_path / "a"))
        logits(model)
        model.merge_adapter()
        model.unmerge_adapter()
        logits(model)
        loaded = model.executor.used_bytes
        model.delete_adapter("default")
        logits(model)
        seen.append((loaded, model.executor.used_bytes))
    assert seen[0] == seen[1] == seen[2]  # the first round has grown the arena
    weights = sum(rank * inner + -(-out // 8) * 8 * rank for out, inner, rank in LAYER_SHAPES)
    assert seen[0][0] - seen[0][1] >= 4 * weights


def test_merging_equals_the_run_time_form_and_can_be_undone(model: Any, tmp_path: Path) -> None:
    base = logits(model)
    write_adapter(tmp_path / "a", LLAMA, ALL)
    write_adapter(tmp_path / "b", LLAMA, ATTENTION, seed=1)
    model.load_adapter(str(tmp_path / "b"), "b")
    model.load_adapter(str(tmp_path / "a"), "a")
    model.set_adapter(["a", "b"])
    adapted = logits(model)
    model.merge_adapter()
    assert not any(layer.self_attn.q_proj.low_rank for layer in model.model.layers)
    assert close(logits(model), adapted)
    for change in (
        model.merge_adapter, model.disable_adapters, lambda: model.set_adapter("a"), lambda: model.delete_adapter("a"),
        lambda: model.load_adapter(str(tmp_path / "a"), "c"),
    ):  # fmt: skip
        with pytest.raises(InputError, match="merged into the weights: a, b"):
            change()
    model.unmerge_adapter()
    assert close(logits(model), adapted)
    model.disable_adapters()
    assert close(logits(model), base)


@pytest.mark.parametrize("dtype", ["fp16", "q8", "q8g", "q4"])
def test_adapters_work_over_quantised_weights(tmp_path: Path, dtype: str) -> None:
    """The head is the last layer, so that what its adapter adds can be computed from the hidden states."""
    deltas = write_adapter(tmp_path / "a", LLAMA, r"lm_head\.weight")
    with AutoModelForCausalLM.from_pretrained(str(LLAMA), dtype=dtype) as model:
        before = model(input_ids=IDS, output_hidden_states=True)
        model.load_adapter(str(tmp_path / "a"))
        expected = np.asarray(before.logits) + np.asarray(before.hidden_states[-1]) @ deltas["lm_head"].T
        assert close(logits(model), expected)
        with pytest.raises(UnsupportedError, match=r"lm_head\.weight have layout"):
            model.merge_adapter()
        assert close(logits(model), expected)
        model.disable_adapters()
        assert (logits(model) == np.asarray(before.logits)).all()


def test_tied_weights_are_adapted_in_one_place_and_not_merged(tmp_path: Path) -> None:
    deltas = write_adapter(tmp_path / "a", LLAMA, r"lm_head\.weight")
    with AutoModelForCausalLM.from_pretrained(str(LLAMA)) as model:
        for parameter in (model.lm_head.weight, model.model.embed_tokens.weight):
            parameter.free()
        model.lm_head.weight = model.model.embed_tokens.weight = tied = type(model.lm_head.weight)((420, 32), "panels")
        tied.place(model.executor)
        model.executor.write(tied.address, np.ones(tied.nbytes // 4, np.float32))
        before = model(input_ids=IDS, output_hidden_states=True)
        model.load_adapter(str(tmp_path / "a"))
        hidden = np.asarray(before.hidden_states[-1])
        assert close(logits(model), np.asarray(before.logits) + hidden @ deltas["lm_head"].T)
        with pytest.raises(UnsupportedError, match=r"tied to others.*lm_head\.weight"):
            model.merge_adapter()


def test_generation_follows_the_adapter(model: Any, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", LLAMA, ALL, alpha=32)
    plain = model.generate(IDS, max_new_tokens=6, do_sample=False).tolist()
    model.load_adapter(str(tmp_path / "a"))
    adapted = model.generate(IDS, max_new_tokens=6, do_sample=False).tolist()
    assert adapted != plain
    assert adapted[0][len(IDS[0])] == int(logits(model)[0, -1].argmax())
    model.disable_adapters()
    assert model.generate(IDS, max_new_tokens=6, do_sample=False).tolist() == plain


def test_a_pipeline_keeps_nothing_that_other_weights_computed(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", LLAMA, ALL, alpha=32)
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "return_tensors": True}
    with pipeline("text-generation", str(LLAMA)) as pipe:
        plain = pipe("Once upon a time", **options)
        pipe.model.load_adapter(str(tmp_path / "a"))
        adapted = pipe("Once upon a time", **options)
        pipe.clear_cache()
        assert pipe("Once upon a time", **options) == adapted != plain
        pipe.model.disable_adapters()
        assert pipe("Once upon a time", **options) == plain


def test_disposing_gives_everything_back(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", LLAMA, ALL)
    with AutoModelForCausalLM.from_pretrained(str(LLAMA)) as other:
        used: list[int] = []
        for _ in range(2):
            with AutoModelForCausalLM.from_pretrained(str(LLAMA)) as model:
                model.load_adapter(str(tmp_path / "a"))
                logits(model)
            with pytest.raises(DisposedError):
                model.load_adapter(str(tmp_path / "a"))
            used.append(other.executor.used_bytes)
        assert used[0] == used[1]  # the first round has grown the arena


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"peft_type": "LOHA"}, UnsupportedError, "'LOHA'"),
        ({"peft_type": None}, UnsupportedError, "None"),
        ({"use_dora": True}, UnsupportedError, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, UnsupportedError, "modules_to_save"),
        ({"bias": "all"}, UnsupportedError, "'all'"),
        ({"init_lora_weights": "pissa_niter_4"}, UnsupportedError, "pissa_niter_4"),
        ({"r": 0}, ConfigError, "ranks"),
        ({"lora_alpha": None}, ConfigError, "lora_alpha"),
        ({"alpha_pattern": {"(": 1}}, ConfigError, "malformed pattern"),
        ({"rank_pattern": {"(?i)Q_proj": 4}}, ConfigError, "malformed pattern"),
        (
            {"r": 3},
            MismatchedShapesError,
            r"layers\.0\.self_attn\.q_proj\.lora_A.weight: \[4, 32\], expected \[3, 32\]",
        ),
        ({"target_modules": ["q_proj", "w_pack"]}, CheckpointError, "no weights: w_pack"),
    ],
)
def test_configurations_that_cannot_be_used(
    model: Any, tmp_path: Path, config: dict[str, Any], error: type[Exception], words: str
) -> None:
    base, used = logits(model), model.executor.used_bytes
    write_adapter(tmp_path / "a", LLAMA, r"q_proj\.weight", target_modules=config.get("target_modules", ["q_proj"]))
    file = tmp_path / "a" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises(error, match=words):
        model.load_adapter(str(tmp_path / "a"))
    assert model.active_adapters() == []
    assert model.executor.used_bytes == used
    assert (logits(model) == base).all()


def square(shape: tuple[int, int]) -> Array:
    return np.zeros(shape, np.float32)


LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("tensors", "error", "words"),
    [
        ({f"{LAYER}.lora_A.weight": square((4, 32))}, CheckpointError, "only one of lora_A and lora_B.*q_proj"),
        ({f"{LAYER}.lora_A.weight": square((4, 32)), f"{LAYER}.lora_B.weight": square((24, 4))}, MismatchedShapesError,
         r"q_proj\.lora_B\.weight: \[24, 4\], expected \[32, 4\]"),
        ({f"{LAYER}x.lora_A.weight": square((4, 32)), f"{LAYER}x.lora_B.weight": square((32, 4))}, CheckpointError,
         "does not have: model.layers.0.self_attn.q_projx"),
        ({"base_model.model.model.norm.lora_A.weight": square((4, 32)),
          "base_model.model.model.norm.lora_B.weight": square((32, 4))}, CheckpointError, r"not have: model\.norm"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": square((4, 420))}, UnsupportedError, "embedding_A"),
        ({f"{LAYER}.base_layer.weight": square((32, 32))}, UnsupportedError, "q_proj.base_layer"),
        ({f"{LAYER}.lora_A.weight": np.zeros((4, 32), np.int8)}, UnsupportedError, "q_proj.*I8"),
        ({}, CheckpointError, "no tensors"),
    ],
)  # fmt: skip
def test_tensors_that_cannot_be_used(
    model: Any, tmp_path: Path, tensors: dict[str, Array], error: type[Exception], words: str
) -> None:
    used = model.executor.used_bytes
    write_adapter(tmp_path / "a", LLAMA, r"q_proj\.weight")
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(encode(tensors))
    with pytest.raises(error, match=words):
        model.load_adapter(str(tmp_path / "a"))
    assert model.executor.used_bytes == used


def test_names_are_checked(model: Any, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", LLAMA, ATTENTION)
    model.load_adapter(str(tmp_path / "a"), "a")
    with pytest.raises(InputError, match="'a' already"):
        model.load_adapter(str(tmp_path / "a"), "a")
    for change in (model.set_adapter, model.delete_adapter, model.merge_adapter):
        with pytest.raises(InputError, match=r"called b\. Loaded are: a"):
            change(["a", "b"])
    with pytest.raises(TypeError, match="adapter"):
        model.load_adapter(str(tmp_path / "a"), adapter="b")
