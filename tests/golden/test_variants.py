"""Variants of checkpoints: stored in half precision, in shards, under old names, incomplete or not fitting.

`loading_info.json` is the report of transformers for each.
"""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inpage.errors import MismatchedShapesError
from inpage.models.modeling import PreTrainedModel
from tests.checkpoints import Array, decode, encode

from .data import EXECUTORS, HERE, Golden, assert_equal, folders, model_class

VARIANTS = HERE / "variants"
REPORTS: dict[str, Any] = json.loads((VARIANTS / "loading_info.json").read_text())
CASES = [
    (folder, case)
    for folder in folders("variants")
    for case, spec in Golden(folder).cases.items()
    if "generate" not in spec
]


def _report(info: dict[str, Any]) -> dict[str, Any]:
    """A report as transformers prints it."""
    rows = [f"('{name}', torch.Size({list(a)}), torch.Size({list(b)}))" for name, a, b in info["mismatched_keys"]]
    return info | {"mismatched_keys": rows}


def _load(
    folder: Path, class_name: str, device: str = "wasm", **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The model and its report, which comes with one warning exactly if something has initial values."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pair: Any = model_class(class_name).from_pretrained(
            str(folder), device=device, output_loading_info=True, **options
        )
        model, info = pair
    assert len(caught) == bool(info["missing_keys"] or info["mismatched_keys"])
    return model, info


def _copy(source: Path, target: Path, values: dict[str, Array]) -> Path:
    """`source`'s configuration with other weights."""
    target.mkdir()
    shutil.copy(source / "config.json", target)
    (target / "model.safetensors").write_bytes(encode(values))
    return target


def _weights(folder: Path) -> dict[str, Array]:
    return decode((folder / "model.safetensors").read_bytes())


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize(("folder", "case"), CASES, ids=lambda value: getattr(value, "name", value))
def test_outputs(folder: Path, case: str, device: str) -> None:
    """Within 1e-4, but for runs of transformers in half precision: those round what is computed in float32 here.

    Their errors are relative to the largest output.
    """
    golden = Golden(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = golden.load(case, device=device)
    expected = golden.outputs(case)
    relative = {"float16": 5e-3, "bfloat16": 4e-2}.get(golden.cases[case].get("dtype", ""))
    tolerance = relative * max(float(np.abs(output).max()) for output in expected.values()) if relative else 1e-4
    with model:
        assert_equal(model(**golden.inputs(case)), expected, tolerance)


def test_outputs_are_compared() -> None:
    assert {folder.name for folder, _ in CASES} == {
        "base_from_head",
        "bert-cls-bfloat16",
        "bert-cls-float16",
        "gpt2-hub-layout",
        "llama-sharded3",
        "qwen2-bfloat16",
        "qwen2-float16",
        "unexpected",
    }


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize(
    "name", ["base_from_head", "cls_from_mlm", "head_from_base", "mismatched_ignored", "missing", "unexpected"]
)
def test_report(name: str, device: str) -> None:
    expected = REPORTS[name]
    model, info = _load(VARIANTS / name, expected["cls"], device, **expected["load"])
    assert _report(info) == expected["loading_info"]
    with model:
        outputs = model(input_ids=[[2, 30, 31, 3]])
        assert all(np.isfinite(np.asarray(value)).all() for value in outputs.values())


def test_mismatch_raises() -> None:
    expected = REPORTS["mismatched_error"]
    with pytest.raises(MismatchedShapesError, match=r"classifier\.bias: \[3\], expected \[7\]"):
        model_class(expected["cls"]).from_pretrained(str(VARIANTS / "mismatched_error"))


def test_missing_unexpected_and_mismatched_at_once(tmp_path: Path) -> None:
    source = VARIANTS / "mismatched_ignored"
    values = _weights(source) | {"junk": np.zeros(3, np.float32)}
    del values["bert.pooler.dense.bias"]
    expected = REPORTS["all_three"]
    model, info = _load(_copy(source, tmp_path / "all", values), expected["cls"], **expected["load"])
    assert _report(info) == expected["loading_info"]
    model.dispose()


def test_initial_values_are_those_of_the_class() -> None:
    """A new classifier: weights from a normal distribution of deviation 0.02, biases 0."""
    model, _ = _load(VARIANTS / "head_from_base", "BertForSequenceClassification")
    with model:
        named = dict(model.named_parameters())
        assert not named["classifier.bias"].numpy().any()
        weight = named["classifier.weight"].numpy()
        assert 0.01 < weight.std() < 0.03
        assert abs(weight.mean()) < 0.01


@pytest.mark.parametrize("variant", ["legacy_gamma_beta", "position_ids_and_tied_copies"])
def test_old_layouts_of_a_masked_language_model(tmp_path: Path, variant: str) -> None:
    golden = Golden(HERE / "encoders" / "bert-mlm")
    values = _weights(golden.folder)
    if variant == "legacy_gamma_beta":
        values = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in values.items()
        }
        assert "cls.predictions.transform.LayerNorm.gamma" in values
    else:
        values["bert.embeddings.position_ids"] = np.arange(64, dtype=np.int64)[None]
        values["cls.predictions.decoder.weight"] = values["bert.embeddings.word_embeddings.weight"]
        values["cls.predictions.decoder.bias"] = values["cls.predictions.bias"]
    expected = REPORTS[variant]
    model, info = _load(_copy(golden.folder, tmp_path / variant, values), expected["cls"])
    assert _report(info) == expected["loading_info"]
    with model:
        assert_equal(model(**golden.inputs("batch")), golden.outputs("batch"))
        named = dict(model.named_parameters())
        assert named["cls.predictions.decoder.weight"] is named["bert.embeddings.word_embeddings.weight"]
        assert model.num_parameters() == sum(value.size for value in _weights(golden.folder).values())


@pytest.mark.parametrize(
    "name", ["bert-mlm", "albert-mlm", "electra-mlm", "distilbert-mlm", "roberta-mlm", "mpnet-mlm"]
)
def test_tied_weights_share_memory(name: str) -> None:
    folder = HERE / "encoders" / name
    golden = Golden(folder)
    model, info = _load(folder, golden.cases["batch"]["cls"])
    assert not any(info.values())
    with model:
        named = dict(model.named_parameters())
        assert model.tied_weights_keys
        for target, source in model.tied_weights_keys.items():
            assert named[target] is named[source]
        assert model.num_parameters() == sum(value.size for value in _weights(folder).values())


@pytest.mark.parametrize("device", EXECUTORS)
def test_sharded(tmp_path: Path, device: str) -> None:
    golden = Golden(HERE / "encoders" / "bert-base")
    shutil.copy(golden.folder / "config.json", tmp_path)
    values = _weights(golden.folder)
    names = list(values)
    weight_map: dict[str, str] = {}
    for i in range(3):
        shard, file = names[i::3], f"model-{i + 1:05}-of-00003.safetensors"
        (tmp_path / file).write_bytes(encode({name: values[name] for name in shard}))
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": 4}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model, info = _load(tmp_path, "BertModel", device)
    assert not any(info.values())
    with model:
        for case in ("batch", "pair"):
            outputs = model(**golden.inputs(case), **golden.cases[case]["call"])
            assert_equal(outputs, golden.outputs(case))


def test_configuration_of_transformers_5(tmp_path: Path) -> None:
    """`dtype` for `torch_dtype`, and keys with default values left out."""
    golden = Golden(HERE / "encoders" / "bert-base")
    config = json.loads((golden.folder / "config.json").read_text())
    config["dtype"] = config.pop("torch_dtype")
    for key in ("layer_norm_eps", "hidden_act", "type_vocab_size", "pad_token_id", "tie_word_embeddings", "is_decoder"):
        del config[key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(golden.folder / "model.safetensors", tmp_path)
    model, _ = _load(tmp_path, "BertModel")
    with model:
        assert model.config.dtype == "float32"
        assert_equal(model(**golden.inputs("single")), golden.outputs("single"))
