"""Task heads: a base model, an output layer and a loss. A family names its base model and differs where it must."""

from typing import Any, ClassVar

from .. import nn, ops
from ..errors import ConfigError, InputError
from ..tensor import Tensor
from .configuration import PreTrainedConfig
from .encoder import EncoderModel
from .modeling import PreTrainedModel
from .outputs import ModelOutput, with_head


class HeadModel(PreTrainedModel):
    """A base model, kept under its family's prefix, and something on top."""

    base_class: ClassVar[type[EncoderModel]]
    uses_pooler: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if base := getattr(cls, "base_class", None):
            cls.config_class = base.config_class
            cls.base_model_prefix = base.base_model_prefix
            cls.input_names = base.input_names

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        setattr(self, self.base_model_prefix, self.base_class(config, add_pooling_layer=self.uses_pooler))


class MaskedLanguageModel(HeadModel):
    """Scores of the vocabulary for every token. `labels` int32 [B, L], -100 where there is nothing to predict."""

    label_names = ("labels",)

    def predict(self, x: Tensor) -> Tensor:
        """Hidden states [B, L, N] -> logits [B, L, V]."""
        raise NotImplementedError

    def forward(self, labels: Tensor | None = None, **inputs: Any) -> ModelOutput:
        outputs = self.base_model.forward(**inputs)
        logits = self.predict(outputs.last_hidden_state)
        loss = None if labels is None else ops.cross_entropy(logits, labels)
        return with_head(outputs, loss, logits=logits)


class TokenClassifier(HeadModel):
    """Class scores for every token. `labels` int32 [B, L], -100 where there is nothing to predict."""

    label_names = ("labels",)

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, labels: Tensor | None = None, **inputs: Any) -> ModelOutput:
        outputs = self.base_model.forward(**inputs)
        logits = self.classifier(outputs.last_hidden_state)
        loss = None if labels is None else ops.cross_entropy(logits, labels)
        return with_head(outputs, loss, logits=logits)


class QuestionAnswerer(HeadModel):
    """Scores of every token as start and end of the answer. Positions are int32 [B]; those outside are ignored."""

    label_names = ("start_positions", "end_positions")

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        if config.num_labels != 2:
            raise ConfigError(f"{type(self).__name__} needs 2 labels, for start and end; found {config.num_labels}.")
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    def forward(
        self, start_positions: Tensor | None = None, end_positions: Tensor | None = None, **inputs: Any
    ) -> ModelOutput:
        outputs = self.base_model.forward(**inputs)
        logits = self.qa_outputs(outputs.last_hidden_state)
        start, end = ops.select(logits, -1, 0), ops.select(logits, -1, 1)
        loss = None
        if start_positions is not None and end_positions is not None:
            outside = start.shape[1]
            start_loss = ops.cross_entropy(start, start_positions, ignore_index=outside)
            end_loss = ops.cross_entropy(end, end_positions, ignore_index=outside)
            loss = ops.divide(ops.add(start_loss, end_loss), ops.constant(2.0))
        return with_head(outputs, loss, start_logits=start, end_logits=end)

    def prepare_labels(self, inputs: dict[str, Tensor]) -> None:
        """Positions [B] or [B, 1], cut to 0 .. L, of which L is ignored by the loss."""
        length = next(iter(inputs.values())).shape[1]
        for name in inputs.keys() & set(self.label_names):
            clamped = [min(max(int(position), 0), length) for position in inputs[name].data]
            inputs[name] = Tensor.from_values(clamped, "int32")


class SequenceLabels(PreTrainedModel):
    """The loss of class scores, or regression values, for every sequence.

    It follows `config.problem_type`; without it, one label means regression, integer labels [B] one class of
    many, and float labels [B, C] any number of classes.
    """

    label_names = ("labels",)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        kind = self.problem_type(labels)
        if kind == "regression":
            return ops.mse_loss(logits.reshape(-1), labels.reshape(-1))
        if kind == "single_label_classification":
            return ops.cross_entropy(logits, labels.reshape(-1))
        return ops.bce_loss(logits, labels)

    def problem_type(self, labels: Tensor) -> str:
        if self.config.problem_type is not None:
            return self.config.problem_type
        if self.config.num_labels == 1:
            return "regression"
        return "single_label_classification" if labels.dtype == "int32" else "multi_label_classification"

    def prepare_labels(self, inputs: dict[str, Tensor]) -> None:
        if (labels := inputs.get("labels")) is None:
            return
        kind, classes, batch = self.problem_type(labels), self.config.num_labels, next(iter(inputs.values())).shape[0]
        if kind != "single_label_classification":
            labels = Tensor.from_values(labels, "float32")
        elif labels.dtype != "int32":
            raise InputError(f"Labels for {kind} must be integers, found {labels.dtype}.")
        expected = batch if kind == "single_label_classification" else batch * classes
        if labels.size != expected:
            raise InputError(f"Labels for {kind} must be {expected} values, found shape {list(labels.shape)}.")
        inputs["labels"] = labels


class SequenceClassifier(SequenceLabels, HeadModel):
    """Class scores, or regression values, for every sequence, with the loss of `SequenceLabels`."""

    def classify(self, outputs: ModelOutput) -> Tensor:
        """Outputs of the base model -> logits [B, C]."""
        raise NotImplementedError

    def forward(self, labels: Tensor | None = None, **inputs: Any) -> ModelOutput:
        outputs = self.base_model.forward(**inputs)
        logits = self.classify(outputs)
        return with_head(outputs, None if labels is None else self.loss(logits, labels), logits=logits)


class PooledClassifier(SequenceClassifier):
    """A classifier on the pooler's output."""

    uses_pooler = True

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def classify(self, outputs: ModelOutput) -> Tensor:
        return self.classifier(outputs.pooler_output)


class ClassificationHead(nn.Module):
    """Two layers on the first token."""

    def __init__(self, config: PreTrainedConfig, activation: str) -> None:
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.dense(ops.select(x, 1, 0), activation=self.activation))


class FirstTokenClassifier(SequenceClassifier):
    """A `ClassificationHead` on the last hidden state."""

    head_activation: ClassVar[str] = "tanh"

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.classifier = ClassificationHead(config, self.head_activation)

    def classify(self, outputs: ModelOutput) -> Tensor:
        return self.classifier(outputs.last_hidden_state)
