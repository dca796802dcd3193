"""Tokenizers in Chromium: the same ids, offsets and texts as native ones give."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer

from inpage.processing.tokenizer import PreTrainedTokenizer
from inpage.serve import Server
from tests import models
from tests.browser.conftest import PythonWorker
from tests.corpus.lines import lines
from tests.golden.tokenizers.cases import ENCODERS

CORPUS = lines()
# One checkpoint for each tokenizer among the golden encoders.
GOLDEN = ("albert-base", "bert-base", "mpnet-base", "roberta-base")

SETUP = """
from inpage import AutoTokenizer, env
from inpage.processing.tokenizer import PreTrainedTokenizer
import tokenizers

env.remote_host = host

def columns(tokenizer, texts, pairs=None, **options):
    encoded = tokenizer(texts, pairs, return_offsets_mapping=True, **options)
    ids = encoded["input_ids"]
    return {
        **encoded,
        "words": [encoded.word_ids(i) for i in range(len(ids))],
        "texts": [encoded.sequence_ids(i) for i in range(len(ids))],
        "decoded": tokenizer.batch_decode(ids),
        "plain": tokenizer.batch_decode(ids, skip_special_tokens=True),
    }
"""
TRUNCATED = {
    "truncation": "only_second", "max_length": 40, "stride": 3, "return_overflowing_tokens": True, "padding": True,
    "padding_side": "left", "pad_to_multiple_of": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def worker(browser: Any, server: Server, pyodide_worker: Callable[[Any], PythonWorker]) -> Iterator[PythonWorker]:
    context = browser.new_context()
    started = pyodide_worker(context.new_page())
    started.run_python(SETUP + "None", host=server.url)
    yield started
    context.close()


def native(backend: Tokenizer, texts: list[str]) -> dict[str, Any]:
    """What `columns` gives, from the native backend by itself."""
    encoded = backend.encode_batch(texts)
    ids = [encoding.ids for encoding in encoded]
    return {
        "input_ids": ids,
        "attention_mask": [encoding.attention_mask for encoding in encoded],
        "token_type_ids": [encoding.type_ids for encoding in encoded],
        "offset_mapping": [list(map(list, encoding.offsets)) for encoding in encoded],
        "words": [encoding.word_ids for encoding in encoded],
        "texts": [encoding.sequence_ids for encoding in encoded],
        "decoded": backend.decode_batch(ids, skip_special_tokens=False),
        "plain": backend.decode_batch(ids),
    }


def differences(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> dict[str, list[str]]:
    """Texts for which a column differs, by column."""
    return {
        name: [text for text, a, b in zip(CORPUS, column, expected[name], strict=True) if a != b]
        for name, column in found.items()
        if column != expected[name]
    }


@pytest.mark.parametrize("name", GOLDEN)
def test_corpus(worker: PythonWorker, name: str) -> None:
    assert len(CORPUS) >= 1000
    code = "columns(await AutoTokenizer.from_pretrained(name, model_max_length=10**6), corpus)"
    found = worker.run_python(code, name=f"golden/{name}", corpus=CORPUS)
    assert {"input_ids", "offset_mapping"} <= set(found)
    expected = native(Tokenizer.from_file(str(ENCODERS / name / "tokenizer.json")), CORPUS)
    assert differences(found, expected) == {}


def test_corpus_with_a_real_vocabulary(worker: PythonWorker) -> None:
    text = (models.path("sentence-transformers/all-MiniLM-L6-v2") / "tokenizer.json").read_text()
    code = "columns(PreTrainedTokenizer(tokenizers.Tokenizer.from_str(text)), corpus)"
    found = worker.run_python(code, text=text, corpus=CORPUS)
    backend = Tokenizer.from_str(text)
    backend.no_padding()
    backend.no_truncation()
    assert differences(found, native(backend, CORPUS)) == {}


@pytest.mark.parametrize("name", GOLDEN)
def test_pairs_with_truncation_and_padding(worker: PythonWorker, name: str) -> None:
    pairs = [text for text in CORPUS if text.strip()][:300]
    questions = [f"Q{i}?" for i in range(len(pairs))]
    code = "columns(await AutoTokenizer.from_pretrained(name), questions, pairs, **options)"
    found = worker.run_python(code, name=f"golden/{name}", questions=questions, pairs=pairs, options=TRUNCATED)
    encoded = PreTrainedTokenizer.from_pretrained(str(ENCODERS / name))(questions, pairs, **TRUNCATED)  # pyright: ignore[reportArgumentType]
    assert len(found["input_ids"]) > len(pairs)
    assert {column: found[column] for column in encoded} == json.loads(json.dumps(encoded))
    assert found["words"] == [encoded.word_ids(i) for i in range(len(found["words"]))]


def test_errors_of_the_backend_leave_it_usable(worker: PythonWorker) -> None:
    code = """
from inpage.errors import InputError

def attempt(*texts, **options):
    try:
        return tokenizer(*texts, **options)["input_ids"]
    except InputError as error:
        return error.code

tokenizer = await AutoTokenizer.from_pretrained("golden/bert-base")
long = "hello world " * 9
[
    attempt(long, long, truncation=True, max_length=9, stride=4),  # a panic in the backend
    attempt("a b c", truncation="only_second", max_length=4),
    attempt("lone surrogate \\ud800"),
    attempt("[MASK]"),
]
"""
    assert worker.run_python(code) == ["input", "input", "input", [2, 4, 3]]


def test_tensors_without_numpy(worker: PythonWorker) -> None:
    code = """
import sys
tokenizer = await AutoTokenizer.from_pretrained("golden/bert-base")
tensor = tokenizer(["a", "hello world"], padding=True, return_tensors="ip").input_ids
[list(tensor.shape), tokenizer.batch_decode(tensor, skip_special_tokens=True), "numpy" in sys.modules]
"""
    assert worker.run_python(code) == [[2, 8], ["a", "hello world"], False]
