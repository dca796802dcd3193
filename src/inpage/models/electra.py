"""ELECTRA (Clark et al., 2020, https://arxiv.org/abs/2003.10555): BERT trained to spot replaced tokens."""

from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .bert import BertEncoder, BertModel
from .configuration import PreTrainedConfig
from .encoder import Embeddings
from .heads import FirstTokenClassifier, HeadModel, MaskedLanguageModel, QuestionAnswerer, TokenClassifier
from .outputs import ModelOutput, with_head

IGNORED = -100


class ElectraConfig(PreTrainedConfig):
    model_type = "electra"
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 30522,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }


class ElectraModel(BertModel):
    config_class = ElectraConfig
    base_model_prefix = "electra"

    def build(self, config: PreTrainedConfig) -> None:
        self.embeddings = Embeddings(config, config.embedding_size, config.layer_norm_eps, config.type_vocab_size)
        narrow = config.embedding_size != config.hidden_size
        self.embeddings_project = nn.Linear(config.embedding_size, config.hidden_size) if narrow else None
        self.encoder = BertEncoder(config)

    def build_pooler(self, config: PreTrainedConfig) -> None:
        return None

    def embed(self, **tokens: Tensor) -> Tensor:
        x = self.embeddings(**tokens)
        return x if self.embeddings_project is None else self.embeddings_project(x)


class ElectraGeneratorPredictions(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.LayerNorm = nn.LayerNorm(config.embedding_size, config.layer_norm_eps)
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x, activation="gelu"))


class ElectraDiscriminatorPredictions(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense_prediction = nn.Linear(config.hidden_size, 1)
        self.activation = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_prediction(self.dense(x, activation=self.activation))


class ElectraForMaskedLM(MaskedLanguageModel):
    """The generator."""

    base_class = ElectraModel
    tied_weights_keys: ClassVar[dict[str, str]] = {
        "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"
    }

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.generator_predictions = ElectraGeneratorPredictions(config)
        self.generator_lm_head = nn.Linear(config.embedding_size, config.vocab_size)

    def predict(self, x: Tensor) -> Tensor:
        return self.generator_lm_head(self.generator_predictions(x))


class ElectraForPreTraining(HeadModel):
    """The discriminator: a score for every token, positive if it was replaced. `labels` int32 [B, L] are 0 or 1."""

    base_class = ElectraModel
    label_names = ("labels",)

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.discriminator_predictions = ElectraDiscriminatorPredictions(config)

    def forward(self, labels: Tensor | None = None, **inputs: Any) -> ModelOutput:
        outputs = self.base_model.forward(**inputs)
        logits = self.discriminator_predictions(outputs.last_hidden_state)
        loss = None if labels is None else self.loss(logits, labels)
        return with_head(outputs, loss, logits=logits.reshape(logits.shape[:-1]))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Binary cross entropy over the tokens that are not padding, as over two classes scored 0 and logit."""
        original = ops.constant([[[0.0]] * logits.shape[1]] * logits.shape[0])
        return ops.cross_entropy(ops.concatenate([original, logits], -1), labels, ignore_index=IGNORED)

    def prepare_labels(self, inputs: dict[str, Tensor]) -> None:
        if "labels" not in inputs or "attention_mask" not in inputs:
            return
        labels, mask = inputs["labels"], inputs["attention_mask"]
        kept = [int(label) if seen else IGNORED for label, seen in zip(labels.data, mask.data, strict=True)]
        inputs["labels"] = Tensor.from_values(kept, "int32").reshape(labels.shape)


class ElectraForSequenceClassification(FirstTokenClassifier):
    base_class = ElectraModel
    head_activation = "gelu"


class ElectraForTokenClassification(TokenClassifier):
    base_class = ElectraModel


class ElectraForQuestionAnswering(QuestionAnswerer):
    base_class = ElectraModel
