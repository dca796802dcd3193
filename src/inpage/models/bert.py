"""BERT (Devlin et al., 2018, https://arxiv.org/abs/1810.04805): a bidirectional encoder, norms after residuals."""

from collections.abc import Iterable
from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .attention import Attend
from .configuration import PreTrainedConfig
from .encoder import Embeddings, EncoderModel
from .heads import MaskedLanguageModel, PooledClassifier, QuestionAnswerer, TokenClassifier


class BertConfig(PreTrainedConfig):
    model_type = "bert"
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }


class BertSelfAttention(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        return attend(self.query(x), self.key(x), self.value(x))


class BertOutput(nn.Module):
    """Projection, residual and layer norm: the end of both halves of a layer."""

    def __init__(self, in_features: int, config: PreTrainedConfig) -> None:
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x, residual=residual))


class BertAttention(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.self = BertSelfAttention(config)
        self.output = BertOutput(config.hidden_size, config)

    def forward(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        context, probabilities = self.self(x, attend)
        return self.output(context, residual=x), probabilities


class BertIntermediate(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x, activation=self.activation)


class BertLayer(nn.Module):
    attention_class: ClassVar[type[Any]] = BertAttention

    def __init__(self, config: PreTrainedConfig) -> None:
        self.attention = self.attention_class(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config.intermediate_size, config)

    def forward(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        x, probabilities = self.attention(x, attend)
        return self.output(self.intermediate(x), residual=x), probabilities


class BertEncoder(nn.Module):
    layer_class: ClassVar[type[Any]] = BertLayer

    def __init__(self, config: PreTrainedConfig) -> None:
        self.layer = nn.ModuleList(self.layer_class(config) for _ in range(config.num_hidden_layers))


class BertPooler(nn.Module):
    """A layer on the first token."""

    def __init__(self, config: PreTrainedConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(ops.select(x, 1, 0), activation="tanh")


class BertModel(EncoderModel):
    config_class = BertConfig
    base_model_prefix = "bert"

    def build(self, config: PreTrainedConfig) -> None:
        self.embeddings = Embeddings(config, config.hidden_size, config.layer_norm_eps, config.type_vocab_size)
        self.encoder = BertEncoder(config)

    def build_pooler(self, config: PreTrainedConfig) -> BertPooler | None:
        return BertPooler(config)

    def layers(self) -> Iterable[nn.Module]:
        return self.encoder.layer


class BertPredictionTransform(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.activation = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x, activation=self.activation))


class BertPredictionHead(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.transform = BertPredictionTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter((config.vocab_size,))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.transform(x))


class BertMaskedLMHead(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.predictions = BertPredictionHead(config)


class BertForMaskedLM(MaskedLanguageModel):
    base_class = BertModel
    tied_weights_keys: ClassVar[dict[str, str]] = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.cls = BertMaskedLMHead(config)

    def predict(self, x: Tensor) -> Tensor:
        return self.cls.predictions(x)


class BertForSequenceClassification(PooledClassifier):
    base_class = BertModel


class BertForTokenClassification(TokenClassifier):
    base_class = BertModel


class BertForQuestionAnswering(QuestionAnswerer):
    base_class = BertModel
