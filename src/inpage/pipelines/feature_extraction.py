"""feature-extraction: what a model makes of each token, or one vector a text."""

from dataclasses import dataclass
from typing import Any

from .. import ops
from ..checks import check_choice
from ..tensor import Tensor, from_bytes
from .base import BatchPipeline, Row, TextOptions

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


class FeatureExtractionPipeline(BatchPipeline):
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

    def compute(self, rows: list[Row], options: FeatureExtractionOptions) -> list[Any]:
        """Vectors of the rows as memoryviews, or without pooling tensors [tokens, dim]."""
        pooling = _POOLING[options.pooling]
        features = self._run(pooling=pooling, normalize=options.normalize, **self.inputs(rows))
        if not pooling:
            return [self.unpadded(features[i], row) for i, row in enumerate(rows)]
        data, dim = features.data, features.shape[1]
        return [data[i : i + dim] for i in range(0, len(data), dim)]

    def decode(self, item: str, rows: list[Row], outputs: list[Any], options: FeatureExtractionOptions) -> Any:
        return outputs[0]

    def collect(self, results: list[Any], items: list[Any], single: bool, options: FeatureExtractionOptions) -> Any:
        if options.pooling != "none":
            vectors = from_bytes((len(results), self.model.config.hidden_size), "float32", b"".join(results))
            return vectors if options.return_tensors else vectors.tolist()
        tensors = [result.reshape(1, *result.shape) for result in results]
        converted = tensors if options.return_tensors else [tensor.tolist() for tensor in tensors]
        return super().collect(converted, items, single, options)
