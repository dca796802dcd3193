"""Tokenizers against transformers' own: golden data, variants of files and options, random calls, a corpus."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from inpage import AutoTokenizer
from inpage.processing.tokenizer import PreTrainedTokenizer
from tests.corpus.lines import lines
from tests.golden.tokenizers.cases import ENCODERS, VARIANTS, call, describe

TOKENIZERS = ENCODERS.parent / "tokenizers"
REFERENCE = json.loads((TOKENIZERS / "reference.json").read_text())
GOLDEN = sorted(path.parent for folder in (ENCODERS, TOKENIZERS) for path in folder.glob("*/golden_tokenizer.json"))


CORPUS = lines()


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.fixture(params=GOLDEN, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def golden(folder: Path) -> Any:
    return json.loads((folder / "golden_tokenizer.json").read_text())


@pytest.fixture
def tokenizer(folder: Path) -> PreTrainedTokenizer:
    return AutoTokenizer.from_pretrained(str(folder), model_max_length=4096)


def test_there_is_golden_data() -> None:
    assert len(GOLDEN) == 18
    assert len(REFERENCE["variants"]) == len(VARIANTS)


def test_texts(tokenizer: PreTrainedTokenizer, golden: Any) -> None:
    assert golden["texts"]
    for expected in golden["texts"]:
        found = tokenizer(expected["text"], return_offsets_mapping=True, return_special_tokens_mask=True)
        assert as_json(found) == {name: expected[name] for name in found}
        assert ("token_type_ids" in found) == ("token_type_ids" in expected)
        assert found.tokens() == expected["tokens"]
        assert tokenizer.encode(expected["text"], add_special_tokens=False) == expected["no_special"]
        assert tokenizer.decode(expected["input_ids"]) == expected["decode"]
        assert tokenizer.decode(expected["input_ids"], skip_special_tokens=True) == expected["decode_skip"]


def test_pairs(tokenizer: PreTrainedTokenizer, golden: Any) -> None:
    assert golden["pairs"]
    for expected in golden["pairs"]:
        found = tokenizer(expected["a"], expected["b"], return_offsets_mapping=True)
        assert as_json(found) == {name: expected[name] for name in found}
        assert found.tokens() == expected["tokens"]
        assert found.sequence_ids() == expected["sequence_ids"]


def test_lengths(tokenizer: PreTrainedTokenizer, golden: Any) -> None:
    texts = [golden["texts"][i]["text"] for i in (1, 0)]
    pair = golden["pairs"][0]
    assert tokenizer(texts[0], truncation=True, max_length=6)["input_ids"] == golden["truncated6"]
    if "batch_padded" in golden:
        assert tokenizer(texts, padding=True) == golden["batch_padded"]
        left = tokenizer(texts, padding=True, padding_side="left", pad_to_multiple_of=8)
        assert left == golden["batch_left_mult8"]
    if "overflow26_stride4" in golden:
        found = tokenizer(
            pair["a"], pair["b"], truncation="only_second", max_length=26, stride=4,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        assert as_json(found) == golden["overflow26_stride4"]


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, tmp_path: Path) -> None:
    VARIANTS[name].build(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path), **VARIANTS[name].options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A text has")
        assert as_json(describe(tokenizer)) == REFERENCE["variants"][name]


@pytest.mark.parametrize("name", REFERENCE["calls"])
def test_calls(name: str, tmp_path: Path) -> None:
    VARIANTS[name].build(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path), **VARIANTS[name].options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for expected in REFERENCE["calls"][name]:
            found = call(tokenizer, expected["arguments"], expected["options"])
            assert as_json(found) == expected["result"], expected["options"]


def test_corpus(tokenizer: PreTrainedTokenizer, folder: Path) -> None:
    """Ids, offsets and words equal those of the backend used by itself."""
    assert len(CORPUS) >= 1000
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = tokenizer(CORPUS, return_offsets_mapping=True, return_special_tokens_mask=True)
    for i, expected in enumerate(backend.encode_batch(CORPUS)):
        assert encoded["input_ids"][i] == expected.ids
        assert encoded["offset_mapping"][i] == expected.offsets
        assert encoded["special_tokens_mask"][i] == expected.special_tokens_mask
        assert encoded.word_ids(i) == expected.word_ids
    decoded = tokenizer.batch_decode(encoded["input_ids"], skip_special_tokens=True)
    assert decoded == backend.decode_batch(encoded["input_ids"], skip_special_tokens=True)
