"""Every encoder checkpoint, every case, on both executors: all outputs within 1e-4 of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inpage.errors import InputError
from inpage.models.auto import CONFIGS
from inpage.models.outputs import ModelOutput

from .data import EXECUTORS, HERE, Golden, assert_equal, folders, model_class

FOLDERS = list(folders("encoders"))
FAMILIES = sorted({folder.name.split("-")[0] for folder in FOLDERS})
CASES = [(folder, case) for folder in FOLDERS for case in Golden(folder).cases]


def test_data_is_complete() -> None:
    assert len(FOLDERS) == 27
    assert set(FAMILIES) <= CONFIGS.keys()
    assert len(FAMILIES) == 6
    assert len(CASES) == 55


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize(("folder", "case"), CASES, ids=lambda value: getattr(value, "name", value))
def test_case(folder: Path, case: str, device: str) -> None:
    golden = Golden(folder)
    with golden.load(case, device=device) as model:
        outputs = model(**golden.inputs(case), **golden.cases[case]["call"])
        assert_equal(outputs, golden.outputs(case))
        again = model(**golden.inputs(case), **golden.cases[case]["call"])  # replays the program
        assert_equal(again, golden.outputs(case))


@pytest.mark.parametrize("device", EXECUTORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_implementations_agree(family: str, device: str) -> None:
    """The maps of `batch` come from "eager"; here both compute the hidden states."""
    golden = Golden(HERE / "encoders" / f"{family}-base")
    expected = {
        name: value for name, value in golden.outputs("batch").items() if name in ("last_hidden_state", "pooler_output")
    }
    for implementation in ("sdpa", "eager"):
        with golden.load("batch", device=device, attn_implementation=implementation) as model:
            assert_equal(model(**golden.inputs("batch")), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_does_not_count(family: str) -> None:
    """A row of a padded batch has the outputs that it has alone."""
    golden = Golden(HERE / "encoders" / f"{family}-base")
    inputs = golden.inputs("batch")
    lengths = inputs["attention_mask"].sum(1)
    row = int(lengths.argmin())
    assert lengths[row] < inputs["attention_mask"].shape[1], "no row is padded"
    alone = {name: value[row : row + 1, : lengths[row]] for name, value in inputs.items()}
    with golden.load("batch", device="wasm") as model:
        together = np.asarray(model(**inputs).last_hidden_state)[row, : lengths[row]]
        assert np.abs(np.asarray(model(**alone).last_hidden_state)[0] - together).max() < 1e-5


def test_ways_to_give_inputs_and_get_outputs() -> None:
    golden = Golden(HERE / "encoders" / "bert-base")
    inputs, expected = golden.inputs("single"), golden.outputs("single")
    lists: dict[str, Any] = {name: value.tolist() for name, value in inputs.items()}
    with golden.load("single", device="wasm") as model:
        assert_equal(model(lists), expected)
        assert_equal(model(lists, output_attentions=False), expected)
        assert_equal(model(lists["input_ids"], attention_mask=lists["attention_mask"]), expected)
        assert_equal(model(input_ids=inputs["input_ids"]), expected)
        outputs = model(**lists)
        assert isinstance(outputs, ModelOutput)
        assert list(outputs) == ["last_hidden_state", "pooler_output"]
        assert outputs[0] is outputs.last_hidden_state is outputs["last_hidden_state"]
        assert outputs[1] is outputs.pooler_output
        assert not hasattr(outputs, "attentions")
        pair = model(**lists, return_dict=False)
        assert isinstance(pair, tuple)
        assert len(pair) == 2
        everything = model(**lists, output_hidden_states=True, output_attentions=True)
        assert list(everything) == ["last_hidden_state", "pooler_output", "hidden_states", "attentions"]
        assert [len(everything.hidden_states), len(everything.attentions)] == [3, 2]


def test_position_ids() -> None:
    golden = Golden(HERE / "encoders" / "bert-base")
    inputs = golden.inputs("batch")
    length = inputs["input_ids"].shape[1]
    expected = {k: v for k, v in golden.outputs("batch").items() if k in ("last_hidden_state", "pooler_output")}
    with golden.load("batch", device="wasm") as model:
        assert_equal(model(**inputs, position_ids=[list(range(length))]), expected)
        moved = model(**inputs, position_ids=[list(range(1, length + 1))])
        assert np.abs(np.asarray(moved.last_hidden_state) - expected["last_hidden_state"]).max() > 1e-2


def test_programs_are_kept_by_signature() -> None:
    golden = Golden(HERE / "encoders" / "bert-base")
    with golden.load("single", device="wasm") as model:
        for _ in range(3):
            model(**golden.inputs("single"))
        (recorded,) = model._programs
        assert len(recorded._programs) == 1
        model(attention_mask=golden.inputs("single")["attention_mask"], input_ids=golden.inputs("single")["input_ids"])
        model(input_ids=golden.inputs("single")["input_ids"], attention_mask=golden.inputs("single")["attention_mask"])
        assert len(recorded._programs) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": None}, "needs either"),
        ({"inputs_embeds": [[[0.0] * 32]]}, "needs either"),
        ({"head_mask": [[1]]}, "takes no 'head_mask'"),
        ({"input_ids": [1, 2, 3]}, "2 dimensions"),
        ({"input_ids": [[]]}, "none empty"),
        ({"attention_mask": [[1, 1]]}, "attention_mask must have shape"),
        ({"input_ids": [[5] * 65], "attention_mask": None, "token_type_ids": None}, "65 tokens is longer than the 64"),
        ({"input_ids": None, "inputs_embeds": [[[0.0] * 31] * 20]}, "32 features"),
    ],
)
def test_wrong_inputs(change: dict[str, Any], message: str) -> None:
    golden = Golden(HERE / "encoders" / "bert-base")
    with golden.load("single", device="wasm") as model, pytest.raises(InputError, match=message):
        model(**{**golden.inputs("single"), **change})


def test_length_limit_counts_the_offset_of_positions() -> None:
    """RoBERTa's 66 positions hold 64 tokens."""
    with model_class("RobertaModel").from_pretrained(str(HERE / "encoders" / "roberta-base"), device="wasm") as model:
        model(input_ids=[[5] * 64])
        with pytest.raises(InputError, match="65 tokens is longer than the 64"):
            model(input_ids=[[5] * 65])


def test_families_without_segments_refuse_them() -> None:
    golden = Golden(HERE / "encoders" / "distilbert-base")
    ids = golden.inputs("single")["input_ids"]
    with golden.load("single", device="wasm") as model, pytest.raises(InputError, match="token_type_ids"):
        model(input_ids=ids, token_type_ids=ids * 0)


def test_answer_positions_outside_are_ignored() -> None:
    golden = Golden(HERE / "encoders" / "bert-qa")
    inputs = golden.inputs("batch")
    length = inputs["input_ids"].shape[1]
    first = {name: value[:1] for name, value in inputs.items()}
    with golden.load("batch", device="wasm") as model:
        far = model(**{**inputs, "start_positions": [2, 999], "end_positions": [4, length]})
        alone = model(**first)
        column = model(**{**first, "start_positions": [[2]], "end_positions": [[4]]})
        assert abs(far.loss.item() - alone.loss.item()) < 1e-6
        assert abs(column.loss.item() - alone.loss.item()) < 1e-6


@pytest.mark.parametrize(
    ("override", "labels", "message"),
    [
        ({}, [[0.5, 0.5]], "must be 6 values"),
        ({"problem_type": "single_label_classification"}, [0.5, 1.0], "must be integers"),
        ({}, [0, 1, 2], "must be 2 values"),
    ],
)
def test_wrong_labels(override: dict[str, Any], labels: Any, message: str) -> None:
    folder = HERE / "encoders" / "bert-cls"
    ids = Golden(folder).inputs("single_label")["input_ids"]
    with (
        model_class("BertForSequenceClassification").from_pretrained(str(folder), device="wasm", **override) as model,
        pytest.raises(InputError, match=message),
    ):
        model(input_ids=ids, labels=labels)


def test_loss_is_chosen_by_labels_without_a_problem_type() -> None:
    golden = Golden(HERE / "encoders" / "bert-cls")
    with model_class("BertForSequenceClassification").from_pretrained(str(golden.folder), device="wasm") as model:
        for case in ("single_label", "multi_label"):
            assert_equal(model(**golden.inputs(case)), golden.outputs(case))


def test_discriminator_loss_without_mask() -> None:
    golden = Golden(HERE / "encoders" / "electra-disc")
    inputs = golden.inputs("batch")
    labels = inputs["labels"][:1]
    with golden.load("batch", device="wasm") as model:
        outputs = model(input_ids=inputs["input_ids"][:1], labels=labels)
        x = np.asarray(outputs.logits, np.float64)
        expected = (np.maximum(x, 0) - x * labels + np.log1p(np.exp(-np.abs(x)))).mean()
        assert abs(outputs.loss.item() - expected) < 1e-5
