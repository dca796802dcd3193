"""text-classification: the labels of a text or of a pair of texts, with scores."""

from dataclasses import dataclass
from math import exp
from typing import Any

from ..checks import check_choice, check_count, check_text
from ..errors import InputError
from ..tensor import Tensor
from .base import BatchPipeline, Row, TextOptions

DEFAULT: Any = object()  # top_k was not given, which is another result shape than top_k=1


@dataclass(frozen=True, kw_only=True)
class TextClassificationOptions(TextOptions):
    """
    top_k: how many labels, best first; None for all. Without it a result is the best label alone, not a list.
    function_to_apply: "softmax", "sigmoid" or "none" on the logits; by default what the model's kind of problem asks
        for: nothing for regression, sigmoid for one or independent labels, else softmax.
    """

    top_k: int | None = DEFAULT
    function_to_apply: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k is not DEFAULT:
            check_count("top_k", self.top_k, optional=True)
        check_choice("function_to_apply", self.function_to_apply, (None, "default", "softmax", "sigmoid", "none"))


class TextClassificationPipeline(BatchPipeline):
    """Labels of texts, each {"label", "score"}.

    Takes a text, a pair as {"text", "text_pair"}, or a list of those. Without `top_k`, a text gives [{...}] and a list
    gives one dict an item; with it, each item gives a list of dicts.
    """

    task = "text-classification"
    head = "AutoModelForSequenceClassification"
    options_class = TextClassificationOptions

    def check_item(self, item: Any, options: Any) -> None:
        if isinstance(item, list | tuple):
            raise InputError("A list in a list is not a text.", hint='Give pairs as {"text": ..., "text_pair": ...}.')
        for text in _texts(item):
            check_text(text, self.task)

    def encode(self, items: list[Any], options: TextClassificationOptions) -> list[Row]:
        pairs = [i for i, item in enumerate(items) if len(_texts(item)) == 2]
        alone = [i for i, item in enumerate(items) if len(_texts(item)) == 1]
        rows: list[Row] = []
        if alone:
            rows += self.rows(self.tokenize([_texts(items[i])[0] for i in alone], options=options), alone)
        if pairs:
            first, second = zip(*(_texts(items[i]) for i in pairs), strict=True)
            rows += self.rows(self.tokenize(list(first), list(second), options=options), pairs)
        return rows

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.model.forward(**inputs).logits

    def compute(self, rows: list[Row], options: Any) -> list[list[float]]:
        return self._run(**self.inputs(rows)).tolist()

    def decode(self, item: Any, rows: list[Row], outputs: list[list[float]], options: TextClassificationOptions) -> Any:
        scores = self._function(options)(outputs[0])
        labels = self.labels
        best = sorted(range(len(scores)), key=lambda i: -scores[i])
        ranked = [{"label": labels[i], "score": scores[i]} for i in best]
        return ranked[0] if options.top_k is DEFAULT else ranked[: options.top_k]

    def collect(self, results: list[Any], items: list[Any], single: bool, options: TextClassificationOptions) -> Any:
        if single and isinstance(items[0], str) and options.top_k is DEFAULT:
            return results
        return super().collect(results, items, single, options)

    def _function(self, options: TextClassificationOptions) -> Any:
        name = options.function_to_apply
        if name in (None, "default"):
            problem = getattr(self.model.config, "problem_type", None)
            if problem == "regression":
                name = "none"
            elif problem == "multi_label_classification" or len(self.labels) == 1:
                name = "sigmoid"
            else:
                name = "softmax"
        return {"none": list, "sigmoid": sigmoid, "softmax": softmax}[name]


def softmax(logits: list[float]) -> list[float]:
    """Softmax of a short list."""
    largest = max(logits)
    powers = [exp(x - largest) for x in logits]
    total = sum(powers)
    return [p / total for p in powers]


def sigmoid(logits: list[float]) -> list[float]:
    """Sigmoid of each number."""
    return [1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x)) for x in logits]


def _texts(item: Any) -> tuple[Any, ...]:
    """The text, or the two texts of a pair."""
    if not isinstance(item, dict):
        return (item,)
    if "text" not in item or set(item) - {"text", "text_pair"}:
        raise InputError(f"A pair of texts has the keys 'text' and 'text_pair', not {', '.join(map(repr, item))}.")
    return (item["text"],) if item.get("text_pair") is None else (item["text"], item["text_pair"])
