"""feature-extraction: what a model makes of each token, or one vector a text."""

from dataclasses import dataclass
from typing import Any

from .. import ops
from ..tensor import Tensor, from_bytes
from .base import Pipeline, Row, TextOptions, check_choice

_POOLING = {
    "none": None,
    "mean": "mean",
    "cls": "first",
    "first_token": "first",
    "eos": "last",
    "last_token": "last",
}


@dataclass(frozen=True, kw_only=True)
class FeatureExtractionOptions(TextOptions):
    """
    pooling: "mean" over a text's tokens, "cls" (or "first_token"), "last_token" (or "eos"); "none" leaves a vector a
        token.
    normalize: scale each vector to length 1.
    return_tensors: False gives nested lists in place of tensors.
    """

    pooling: str = "none"
    normalize: bool = False
    return_tensors: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("pooling", self.pooling, _POOLING)


class FeatureExtractionPipeline(Pipeline):
    """Features of texts, as a Tensor (`.tolist()`, `np.asarray`).

    With pooling, [1, dim] for a text and [n, dim] for a list of n. Without, [1, tokens, dim] for a text and a list of
    such tensors for a list, as texts differ in length. Pooling and normalisation run in the model's program.

    Models of sentence-transformers say in files of their own what suits them; give it as `pooling`, `normalize` and
    `max_length`, as in extract(texts, pooling="mean", normalize=True, max_length=256).
    """

    task = "feature-extraction"
    head = "AutoModel"
    options_class = FeatureExtractionOptions

    def forward(self, *, pooling: str | None, normalize: bool, **inputs: Tensor) -> Tensor:
        features = self.model.base_model.forward(**inputs).last_hidden_state
        if pooling:
            features = ops.pool(features, inputs["attention_mask"], pooling)
        return ops.normalize(features) if normalize else features

    def compute(self, rows: list[Row], options: FeatureExtractionOptions) -> list[Tensor]:
        pooling = _POOLING[options.pooling]
        features = self._run(pooling=pooling, normalize=options.normalize, **self.inputs(rows))
        return list(features) if pooling else [self.unpadded(features[i], row) for i, row in enumerate(rows)]

    def decode(self, item: str, rows: list[Row], outputs: list[Tensor], options: FeatureExtractionOptions) -> Tensor:
        return outputs[0].reshape(1, *outputs[0].shape)

    def collect(self, results: list[Tensor], items: list[Any], single: bool, options: FeatureExtractionOptions) -> Any:
        if options.pooling != "none" and not single:
            stacked = _concatenate(results, self.model.config.hidden_size)
            return stacked if options.return_tensors else stacked.tolist()
        converted = results if options.return_tensors else [result.tolist() for result in results]
        return super().collect(converted, items, single, options)


def _concatenate(tensors: list[Tensor], dim: int) -> Tensor:
    """Host tensors [1, dim] as one [n, dim]."""
    return from_bytes((len(tensors), dim), "float32", b"".join(tensor.data for tensor in tensors))
