"""RoBERTa (Liu et al., 2019, https://arxiv.org/abs/1907.11692): BERT whose positions skip padding."""

from typing import Any, ClassVar

from .. import nn
from ..tensor import Tensor
from .bert import BertEncoder, BertModel
from .configuration import PreTrainedConfig
from .encoder import OffsetEmbeddings
from .heads import FirstTokenClassifier, MaskedLanguageModel, QuestionAnswerer, TokenClassifier


class RobertaConfig(PreTrainedConfig):
    model_type = "roberta"
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 50265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }

    def _check_values(self) -> None:
        super()._check_values()
        if not isinstance(self.pad_token_id, int):  # positions begin after it
            raise self._error("pad_token_id", "a token id", self.pad_token_id)


class RobertaEmbeddings(OffsetEmbeddings):
    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config, config.hidden_size, config.layer_norm_eps, config.type_vocab_size)
        self.padding_idx = config.pad_token_id


class RobertaModel(BertModel):
    config_class = RobertaConfig
    base_model_prefix = "roberta"

    def build(self, config: PreTrainedConfig) -> None:
        self.embeddings = RobertaEmbeddings(config)
        self.encoder = BertEncoder(config)


class RobertaLMHead(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter((config.vocab_size,))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.layer_norm(self.dense(x, activation="gelu")))


class RobertaForMaskedLM(MaskedLanguageModel):
    base_class = RobertaModel
    tied_weights_keys: ClassVar[dict[str, str]] = {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.lm_head = RobertaLMHead(config)

    def predict(self, x: Tensor) -> Tensor:
        return self.lm_head(x)


class RobertaForSequenceClassification(FirstTokenClassifier):
    base_class = RobertaModel


class RobertaForTokenClassification(TokenClassifier):
    base_class = RobertaModel


class RobertaForQuestionAnswering(QuestionAnswerer):
    base_class = RobertaModel
