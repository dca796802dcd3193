"""Trained models from packages: the outputs of transformers, and what loading costs."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inpage import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, ops
from inpage.generation.cache import DynamicCache
from inpage.tensor import Tensor
from tests import models
from tests.bench import constrained

from .data import HERE

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SPLADE = "splade-bert-tiny-mlm"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
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


def _log_probabilities(model: Any, ids: list[int]) -> Any:
    """Of every token after the first, given those before."""
    logits = np.asarray(model(input_ids=[ids]).logits, np.float64)[0, :-1]
    logits -= logits.max(-1, keepdims=True)
    return logits[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(logits).sum(-1))


def test_language_model() -> None:
    """Log-probabilities within 1e-3, and the same continuations, with the next token chosen in kernels."""
    reference = _reference("SmolLM2-135M-Instruct")
    with AutoModelForCausalLM.from_pretrained(str(models.path(SMOLLM2))) as model:
        scored = reference["scored"]
        assert np.abs(_log_probabilities(model, scored["input_ids"]) - scored["log_probs"]).max() < 1e-3
        step = model.jit(lambda **inputs: ops.argmax(model.forward(logits_to_keep=1, **inputs).logits))
        for row in reference["greedy"]:
            with DynamicCache() as cache:
                ids, found = row["input_ids"], list[int]()
                while len(found) < len(row["new_ids"]):
                    ids = step(input_ids=Tensor.from_values([ids]), past_key_values=cache)[0].tolist()
                    found += ids
            assert found == row["new_ids"], row["prompt"]
        first = reference["greedy"][0]  # guesses that are verified together change nothing
        new = len(first["new_ids"])
        guessed = model.generate([first["input_ids"]], max_new_tokens=new, do_sample=False, prompt_lookup_num_tokens=4)
        assert guessed.tolist() == [first["input_ids"] + first["new_ids"]]


def test_constrained_samples() -> None:
    """Texts at temperature 1 have the form that is wanted. tests/bench/constrained.py looks at more of them."""
    folder = str(models.path(SMOLLM2))
    with AutoModelForCausalLM.from_pretrained(folder, dtype="q8g") as model:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for form in constrained.FORMS.values():
            texts = constrained.samples(model, tokenizer, form, constrained.BATCH)
            assert [text for text in texts if not form.valid(text)] == []
            assert len(set(texts)) > 1


# Perplexity over that of float32, at most; root mean square of the differences of log-probabilities, at most; bits a
# weight. The text is short: a percent of its perplexity is chance, the spread of the log-probabilities is not. The
# checkpoint was made of groups of 16 unsigned steps, so that q4 takes zero points.
QUALITY = {
    "fp16": (1.001, 0.01, 16.1),
    "q8g": (1.01, 0.08, 8.6),
    "q4": (1.06, 0.12, 5.8),
    "q4z": (1.06, 0.12, 5.8),
}


@pytest.mark.parametrize("dtype", QUALITY)
def test_perplexity_of_quantised_models(dtype: str) -> None:
    scored, (most, spread, bits) = _reference("SmolLM2-135M-Instruct")["scored"], QUALITY[dtype]
    with AutoModelForCausalLM.from_pretrained(str(models.path(SMOLLM2)), dtype=dtype) as model:
        found = _log_probabilities(model, scored["input_ids"])
        assert model.get_memory_footprint() * 8 / model.num_parameters() < bits
    assert np.exp(-found.mean()) / scored["perplexity"] < most
    difference = np.sqrt(np.mean((found - scored["log_probs"]) ** 2))
    assert difference < spread
    assert dtype == "fp16" or difference > 1e-3
