"""MPNet (Song et al., 2020, https://arxiv.org/abs/2004.09297): BERT with a bias for relative positions."""

import math
from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .attention import Attend
from .bert import BertEncoder, BertLayer, BertModel
from .configuration import PreTrainedConfig
from .encoder import OffsetEmbeddings
from .heads import FirstTokenClassifier, QuestionAnswerer, TokenClassifier
from .roberta import RobertaForMaskedLM

BUCKETS = 32
MAX_DISTANCE = 128


class MPNetConfig(PreTrainedConfig):
    model_type = "mpnet"
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 30527,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "relative_attention_num_buckets": 32,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


class MPNetEmbeddings(OffsetEmbeddings):
    padding_idx = 1  # whatever the configuration says

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config, config.hidden_size, config.layer_norm_eps)


class MPNetSelfAttention(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.q = nn.Linear(config.hidden_size, config.hidden_size)
        self.k = nn.Linear(config.hidden_size, config.hidden_size)
        self.v = nn.Linear(config.hidden_size, config.hidden_size)
        self.o = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        """Context with the residual added, and the attention maps."""
        context, probabilities = attend(self.q(x), self.k(x), self.v(x))
        return self.o(context, residual=x), probabilities


class MPNetAttention(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        self.attn = MPNetSelfAttention(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        x, probabilities = self.attn(x, attend)
        return self.LayerNorm(x), probabilities


class MPNetLayer(BertLayer):
    attention_class = MPNetAttention


class MPNetEncoder(BertEncoder):
    layer_class = MPNetLayer

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_attention_heads)


class MPNetModel(BertModel):
    config_class = MPNetConfig
    base_model_prefix = "mpnet"
    input_names = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")

    def build(self, config: PreTrainedConfig) -> None:
        self.embeddings = MPNetEmbeddings(config)
        self.encoder = MPNetEncoder(config)

    def attention_bias(self, length: int) -> Tensor:
        buckets = [[relative_bucket(key - query) for key in range(length)] for query in range(length)]
        values = self.encoder.relative_attention_bias(ops.constant(buckets, "int32"))
        return ops.transpose(values, (2, 0, 1)).reshape(1, -1, length, length)


def relative_bucket(offset: int) -> int:
    """Bucket of the distance from query to key: half of them for each direction, exact when near, then logarithmic."""
    half = BUCKETS // 2
    exact = half // 2
    distance = abs(offset)
    first = half if offset > 0 else 0
    if distance < exact:
        return first + distance
    scaled = math.log(distance / exact) / math.log(MAX_DISTANCE / exact) * (half - exact)
    return first + min(exact + int(scaled), half - 1)


class MPNetForMaskedLM(RobertaForMaskedLM):
    base_class = MPNetModel
    tied_weights_keys: ClassVar[dict[str, str]] = {
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }


class MPNetForSequenceClassification(FirstTokenClassifier):
    base_class = MPNetModel


class MPNetForTokenClassification(TokenClassifier):
    base_class = MPNetModel


class MPNetForQuestionAnswering(QuestionAnswerer):
    base_class = MPNetModel
