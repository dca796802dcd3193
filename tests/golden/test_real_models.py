"""Trained models from packages: the outputs of transformers, and what loading costs."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inpage import AutoModel, AutoModelForMaskedLM, ops
from tests import models

from .data import HERE

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SPLADE = "splade-bert-tiny-mlm"
HEAP_GROWTH = 10 << 20  # bytes; a chunk is 4 MiB, the weights are 91 MB


def _reference(name: str) -> Any:
    return json.loads((HERE / "models" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def minilm() -> Path:
    return models.path(MINILM)


def test_sentence_embeddings(minilm: Path) -> None:
    rows = _reference("all-MiniLM-L6-v2")["rows"]
    assert rows
    with AutoModel.from_pretrained(str(minilm)) as model:

        def embed(**inputs: Any) -> Any:
            return ops.normalize(ops.pool(model.forward(**inputs).last_hidden_state, None, "mean"))

        run = model.jit(embed)
        for row in rows:
            found = np.asarray(run(**model.prepare_inputs({"input_ids": [row["input_ids"]]})))[0]
            expected = np.array(row["embedding"])
            assert np.abs(found - expected).max() <= 1e-4, row["text"]
            assert found @ expected / np.linalg.norm(expected) >= 0.99999, row["text"]


def test_batch_of_sentences(minilm: Path) -> None:
    rows = _reference("all-MiniLM-L6-v2")["rows"][:11]
    length = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (length - len(row["input_ids"])) for row in rows]
    mask = [[1] * len(row["input_ids"]) + [0] * (length - len(row["input_ids"])) for row in rows]
    with AutoModel.from_pretrained(str(minilm)) as model:
        run = model.jit(
            lambda attention_mask, **inputs: ops.normalize(
                ops.pool(
                    model.forward(attention_mask=attention_mask, **inputs).last_hidden_state, attention_mask, "mean"
                )
            )
        )
        found = np.asarray(run(**model.prepare_inputs({"input_ids": ids, "attention_mask": mask})))
    assert np.abs(found - np.array([row["embedding"] for row in rows])).max() <= 1e-4


def test_loading_does_not_fill_the_python_heap(minilm: Path) -> None:
    AutoModel.from_pretrained(str(minilm)).dispose()  # imports what is needed
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with AutoModel.from_pretrained(str(minilm)) as model:
            after, peak = tracemalloc.get_traced_memory()
            assert model.get_memory_footprint() > 90e6
            assert model.num_parameters() == 22_713_216
    finally:
        tracemalloc.stop()
    assert peak - before < HEAP_GROWTH
    assert after - before < 1 << 20


def test_masked_words() -> None:
    from tokenizers import Tokenizer

    folder = models.path(SPLADE)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = _reference("splade-bert-tiny-mlm")["fill_mask"]
    mask = tokenizer.token_to_id("[MASK]")
    assert rows
    assert mask is not None
    with AutoModelForMaskedLM.from_pretrained(str(folder)) as model:
        for row in rows:
            encoding = tokenizer.encode(row["text"])
            ids = encoding.ids[: sum(encoding.attention_mask)]
            logits = np.asarray(model(input_ids=[ids]).logits, np.float64)[0, ids.index(mask)]
            probabilities = np.exp(logits - logits.max())
            probabilities /= probabilities.sum()
            expected = row["top"]
            assert np.argsort(-probabilities)[: len(expected)].tolist() == [word["token"] for word in expected]
            for word in expected:
                assert abs(probabilities[word["token"]] - word["score"]) < 1e-4
