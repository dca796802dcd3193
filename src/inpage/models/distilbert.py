"""DistilBERT (Sanh et al., 2019, https://arxiv.org/abs/1910.01108): half of BERT, without segments and pooler."""

from collections.abc import Iterable
from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .attention import Attend
from .configuration import PreTrainedConfig
from .encoder import Embeddings, EncoderModel
from .heads import MaskedLanguageModel, QuestionAnswerer, SequenceClassifier, TokenClassifier
from .outputs import ModelOutput

EPS = 1e-12


class DistilBertConfig(PreTrainedConfig):
    model_type = "distilbert"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "n_layers": 6,
        "n_heads": 12,
        "dim": 768,
        "hidden_dim": 3072,
        "activation": "gelu",
        "initializer_range": 0.02,
        "pad_token_id": 0,
    }


class DistilBertAttention(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.q_lin = nn.Linear(config.dim, config.dim)
        self.k_lin = nn.Linear(config.dim, config.dim)
        self.v_lin = nn.Linear(config.dim, config.dim)
        self.out_lin = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        """Context with the residual added, and the attention maps."""
        context, probabilities = attend(self.q_lin(x), self.k_lin(x), self.v_lin(x))
        return self.out_lin(context, residual=x), probabilities


class FeedForward(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.lin1 = nn.Linear(config.dim, config.hidden_dim)
        self.lin2 = nn.Linear(config.hidden_dim, config.dim)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        return self.lin2(self.lin1(x, activation=self.activation), residual=x)


class DistilBertLayer(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.attention = DistilBertAttention(config)
        self.sa_layer_norm = nn.LayerNorm(config.dim, EPS)
        self.ffn = FeedForward(config)
        self.output_layer_norm = nn.LayerNorm(config.dim, EPS)

    def forward(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        x, probabilities = self.attention(x, attend)
        return self.output_layer_norm(self.ffn(self.sa_layer_norm(x))), probabilities


class Transformer(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.layer = nn.ModuleList(DistilBertLayer(config) for _ in range(config.n_layers))


class DistilBertModel(EncoderModel):
    config_class = DistilBertConfig
    base_model_prefix = "distilbert"
    input_names = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")

    def build(self, config: PreTrainedConfig) -> None:
        self.embeddings = Embeddings(config, config.dim, EPS)
        self.transformer = Transformer(config)

    def layers(self) -> Iterable[nn.Module]:
        return self.transformer.layer


class DistilBertForMaskedLM(MaskedLanguageModel):
    base_class = DistilBertModel
    tied_weights_keys: ClassVar[dict[str, str]] = {
        "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"
    }

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.vocab_transform = nn.Linear(config.dim, config.dim)
        self.vocab_layer_norm = nn.LayerNorm(config.dim, EPS)
        self.vocab_projector = nn.Linear(config.dim, config.vocab_size)

    def predict(self, x: Tensor) -> Tensor:
        return self.vocab_projector(self.vocab_layer_norm(self.vocab_transform(x, activation=self.config.activation)))


class DistilBertForSequenceClassification(SequenceClassifier):
    base_class = DistilBertModel

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.pre_classifier = nn.Linear(config.dim, config.dim)
        self.classifier = nn.Linear(config.dim, config.num_labels)

    def classify(self, outputs: ModelOutput) -> Tensor:
        first = ops.select(outputs.last_hidden_state, 1, 0)
        return self.classifier(self.pre_classifier(first, activation="relu"))


class DistilBertForTokenClassification(TokenClassifier):
    base_class = DistilBertModel


class DistilBertForQuestionAnswering(QuestionAnswerer):
    base_class = DistilBertModel
