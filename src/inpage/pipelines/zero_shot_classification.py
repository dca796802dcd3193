"""zero-shot-classification: labels chosen at the call, scored by a model of entailment."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import check_texts
from ..errors import InputError
from ..tensor import Tensor
from .base import BatchPipeline, Row, TextOptions
from .text_classification import softmax


@dataclass(frozen=True, kw_only=True)
class ZeroShotClassificationOptions(TextOptions):
    """
    candidate_labels: a list of labels, or a text with commas between them; also the second argument.
    hypothesis_template: a sentence with {} for the label.
    multi_label: score labels independently; otherwise the scores of all labels add up to 1.
    """

    candidate_labels: str | Sequence[str] = ()
    hypothesis_template: str = "This example is {}."
    multi_label: bool = False
    truncation: bool | str = "only_first"  # the label must not be cut

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.candidate_labels, str):
            check_texts("candidate_labels", self.candidate_labels)
        if not isinstance(self.hypothesis_template, str) or self.hypothesis("a") == self.hypothesis_template:
            raise InputError(
                f"hypothesis_template {self.hypothesis_template!r} has no place for the label.", hint="Write {} in it."
            )

    def hypothesis(self, label: str) -> str:
        """The template with the label in it. Raises InputError for a template that is none."""
        try:
            return self.hypothesis_template.format(label)
        except (ValueError, LookupError, AttributeError) as error:
            raise InputError(
                f"hypothesis_template {self.hypothesis_template!r} cannot be filled with a label: {error}.",
                hint="Write {} where the label goes, and {{ }} for braces.",
            ) from error

    @property
    def labels(self) -> list[str]:
        if not isinstance(self.candidate_labels, str):
            return list(self.candidate_labels)
        return [label.strip() for label in self.candidate_labels.split(",") if label.strip()]


class ZeroShotClassificationPipeline(BatchPipeline):
    """How well labels fit texts: {"sequence", "labels", "scores"}, best label first, for each text."""

    task = "zero-shot-classification"
    head = "AutoModelForSequenceClassification"
    options_class = ZeroShotClassificationOptions
    arguments = ("sequences", "candidate_labels")

    def __init__(self, model: Any, tokenizer: Any, *, owns_model: bool = False, **defaults: Any) -> None:
        super().__init__(model, tokenizer, owns_model=owns_model, **defaults)
        if self._entailment is None:
            warnings.warn(
                f"No label of the model begins with 'entail' ({', '.join(self.labels.values())}); the last one is "
                "taken for entailment.",
                stacklevel=2,
            )

    def items(self, arguments: dict[str, Any], options: ZeroShotClassificationOptions) -> tuple[list[Any], bool]:
        if not options.labels:
            raise InputError("No candidate_labels were given.", hint="Give at least one label.")
        return super().items(arguments, options)

    def encode(self, items: list[str], options: ZeroShotClassificationOptions) -> list[Row]:
        hypotheses = [options.hypothesis(label) for label in options.labels]
        texts = [item for item in items for _ in hypotheses]
        owners = [index for index in range(len(items)) for _ in hypotheses]
        return self.rows(self.tokenize(texts, hypotheses * len(items), options=options), owners)

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.model.forward(**inputs).logits

    def compute(self, rows: list[Row], options: Any) -> list[list[float]]:
        return self._run(**self.inputs(rows)).tolist()

    def decode(
        self, item: str, rows: list[Row], outputs: list[list[float]], options: ZeroShotClassificationOptions
    ) -> dict[str, Any]:
        entailment = -1 if self._entailment is None else self._entailment
        if options.multi_label or len(outputs) == 1:
            contradiction = -1 if entailment == 0 else 0
            scores = [softmax([logits[contradiction], logits[entailment]])[1] for logits in outputs]
        else:
            scores = softmax([logits[entailment] for logits in outputs])
        best = sorted(range(len(scores)), key=lambda i: (scores[i], i), reverse=True)
        labels = options.labels
        return {"sequence": item, "labels": [labels[i] for i in best], "scores": [scores[i] for i in best]}

    @property
    def _entailment(self) -> int | None:
        """Class of the model that means entailment."""
        return next((i for i, label in self.labels.items() if label.lower().startswith("entail")), None)
