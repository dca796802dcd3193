"""Classifiers over decoders: of a whole text, by its last token, and of every token."""

from collections.abc import Mapping
from typing import Any, ClassVar

from .. import nn, ops
from ..errors import InputError
from ..tensor import Tensor
from .configuration import PreTrainedConfig
from .decoder import DecoderHead
from .heads import SequenceLabels
from .outputs import ModelOutput, with_head


class LastTokenClassifier(SequenceLabels, DecoderHead):
    """Class scores of a text, by its last token that is not padding, with the loss of `SequenceLabels`."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)

    def forward(self, last_mask: Tensor | None = None, labels: Tensor | None = None, **inputs: Any) -> ModelOutput:
        outputs = self.base_model.forward(**inputs)
        last_mask = inputs.get("attention_mask") if last_mask is None else last_mask
        logits = self.score(ops.pool(outputs.last_hidden_state, last_mask, "last"))
        return with_head(outputs, None if labels is None else self.loss(logits, labels), logits=logits)

    def prepare_inputs(self, named: Mapping[str, Any], **options: Any) -> dict[str, Tensor]:
        inputs = super().prepare_inputs(named, **options)
        padding, ids = self.config.pad_token_id, inputs.get("input_ids")
        if ids is not None and padding is not None:
            inputs["last_mask"] = Tensor.from_values(
                [[int(i != padding) for i in row] for row in ids.tolist()], "int32"
            )
        elif next(iter(inputs.values())).shape[0] > 1 and padding is None:
            raise InputError("A batch needs config.pad_token_id, to find the last token of each text.")
        return inputs


class TokenScorer(DecoderHead):
    """Class scores for every token. `labels` int32 [B, L], -100 where there is nothing to predict."""

    label_names = ("labels",)
    classifier_name: ClassVar[str] = "score"

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        setattr(self, self.classifier_name, nn.Linear(config.hidden_size, config.num_labels))

    def forward(self, labels: Tensor | None = None, **inputs: Any) -> ModelOutput:
        outputs = self.base_model.forward(**inputs)
        logits = getattr(self, self.classifier_name)(outputs.last_hidden_state)
        loss = None if labels is None else ops.cross_entropy(logits, labels)
        return with_head(outputs, loss, logits=logits)
