"""ALBERT (Lan et al., 2019, https://arxiv.org/abs/1909.11942): BERT with shared layers and narrow embeddings."""

from collections.abc import Iterator
from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .attention import Attend
from .configuration import PreTrainedConfig
from .encoder import Embeddings, EncoderModel
from .heads import MaskedLanguageModel, PooledClassifier, QuestionAnswerer, TokenClassifier


class AlbertConfig(PreTrainedConfig):
    model_type = "albert"
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }


class AlbertAttention(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        context, probabilities = attend(self.query(x), self.key(x), self.value(x))
        return self.LayerNorm(self.dense(context, residual=x)), probabilities


class AlbertLayer(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.attention = AlbertAttention(config)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = config.hidden_act

    def forward(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        x, probabilities = self.attention(x, attend)
        inner = self.ffn(x, activation=self.activation)
        return self.full_layer_layer_norm(self.ffn_output(inner, residual=x)), probabilities


class AlbertLayerGroup(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.albert_layers = nn.ModuleList(AlbertLayer(config) for _ in range(config.inner_group_num))


class AlbertTransformer(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList(AlbertLayerGroup(config) for _ in range(config.num_hidden_groups))


class AlbertModel(EncoderModel):
    config_class = AlbertConfig
    base_model_prefix = "albert"

    def build(self, config: PreTrainedConfig) -> None:
        self.embeddings = Embeddings(config, config.embedding_size, config.layer_norm_eps, config.type_vocab_size)
        self.encoder = AlbertTransformer(config)

    def build_pooler(self, config: PreTrainedConfig) -> nn.Linear:
        return nn.Linear(config.hidden_size, config.hidden_size)

    def embed(self, **tokens: Tensor) -> Tensor:
        return self.encoder.embedding_hidden_mapping_in(self.embeddings(**tokens))

    def layers(self) -> Iterator[nn.Module]:
        layers, groups = self.config.num_hidden_layers, self.config.num_hidden_groups
        for i in range(layers):
            yield from self.encoder.albert_layer_groups[i * groups // layers].albert_layers

    def pool(self, x: Tensor) -> Tensor | None:
        return None if self.pooler is None else self.pooler(ops.select(x, 1, 0), activation="tanh")


class AlbertMaskedLMHead(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.LayerNorm = nn.LayerNorm(config.embedding_size, config.layer_norm_eps)
        self.bias = nn.Parameter((config.vocab_size,))
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        self.activation = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.LayerNorm(self.dense(x, activation=self.activation)))


class AlbertForMaskedLM(MaskedLanguageModel):
    base_class = AlbertModel
    tied_weights_keys: ClassVar[dict[str, str]] = {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.predictions = AlbertMaskedLMHead(config)

    def predict(self, x: Tensor) -> Tensor:
        return self.predictions(x)


class AlbertForSequenceClassification(PooledClassifier):
    base_class = AlbertModel


class AlbertForTokenClassification(TokenClassifier):
    base_class = AlbertModel


class AlbertForQuestionAnswering(QuestionAnswerer):
    base_class = AlbertModel
