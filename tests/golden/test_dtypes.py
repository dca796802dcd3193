"""Quantising while loading: quality, memory, and leaving layers out, on real weights."""

import json
from typing import Any

import numpy as np
import pytest

from inpage import AutoModel, pipeline
from inpage.errors import UnsupportedError
from tests import models
from tests.golden.data import HERE

MODEL = str(models.path("sentence-transformers/all-MiniLM-L6-v2"))
# Bits a weight, padding and unquantised parameters included, and least mean cosine to the reference.
EXPECTED = {
    "fp32": (32.1, 0.99999),
    "fp16": (16.5, 0.99999),
    "q8": (8.5, 0.995),
    "q8g": (8.8, 0.999),
    "q4z": (5.4, 0.974),
    "q4": (4.9, 0.965),
}
REFERENCE = json.loads((HERE / "models" / "all-MiniLM-L6-v2.json").read_text())["rows"]


@pytest.mark.parametrize("dtype", EXPECTED)
def test_quality_and_memory(dtype: str) -> None:
    bits, cosine = EXPECTED[dtype]
    with pipeline("feature-extraction", MODEL, dtype=dtype) as extract:
        got = np.asarray(extract([row["text"] for row in REFERENCE], pooling="mean", normalize=True))
        assert np.mean((got * np.array([row["embedding"] for row in REFERENCE])).sum(1)) >= cosine
        assert extract.model.get_memory_footprint() * 8 / extract.model.num_parameters() <= bits
        # Staging holds 4 MiB of a tensor at a time, in f32 at most.
        assert extract.model.executor.peak_bytes < extract.model.get_memory_footprint() + (16 << 20)


def layouts(dtype: Any) -> dict[str, str]:
    with AutoModel.from_pretrained(MODEL, dtype=dtype) as model:
        return {name: parameter.layout for name, parameter in model.named_parameters()}


def test_layers_are_left_out_by_pattern() -> None:
    found = layouts({"encoder.layer.0.*": "fp32", "*.dense.weight": "q4", "*": "q8"})
    assert found["encoder.layer.0.output.dense.weight"] == "panels"
    assert found["encoder.layer.1.output.dense.weight"] == "q4"
    assert found["encoder.layer.1.attention.self.query.weight"] == "q8"
    assert found["embeddings.word_embeddings.weight"] == "q8"
    assert found["embeddings.position_embeddings.weight"] == found["encoder.layer.1.output.dense.bias"] == "rows"


@pytest.mark.parametrize(
    "dtype", ["int3", {"*": "int3"}, {"no.such.layer": "q8"}, {"*": "q8", "pooler": "q4"}, {"*.LayerNorm": "fp16"}]
)
def test_unknown_dtypes_and_patterns_raise(dtype: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"int3|no\.such\.layer|'pooler'|'\*\.LayerNorm'"):
        AutoModel.from_pretrained(MODEL, dtype=dtype)


def test_what_is_in_float32_anyway_may_be_named() -> None:
    found = layouts({"*.LayerNorm": "fp32", "embeddings.position_embeddings": "fp32", "*": "q8"})
    assert found["encoder.layer.0.output.LayerNorm.weight"] == found["embeddings.position_embeddings.weight"] == "rows"
    assert found["encoder.layer.0.output.dense.weight"] == "q8"
