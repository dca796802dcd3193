"""Qwen3 (2025, https://arxiv.org/abs/2505.09388): Llama whose queries and keys are normalised, head by head."""

from typing import Any, ClassVar

from .. import nn
from ..tensor import Tensor
from .decoder import CausalLanguageModel
from .decoder_heads import LastTokenClassifier, TokenScorer
from .llama import LlamaAttention, LlamaDecoderLayer, LlamaModel
from .qwen2 import Qwen2Config


class Qwen3Config(Qwen2Config):
    model_type = "qwen3"
    defaults: ClassVar[dict[str, Any]] = Qwen2Config.defaults | {"head_dim": 128}


class NormedHeadsAttention(LlamaAttention):
    """Attention with a norm on every head of queries and keys."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.q_norm = self.head_norm(config)
        self.k_norm = self.head_norm(config)

    def head_norm(self, config: Any) -> nn.Module:
        return nn.RMSNorm(self.heads.dim, config.rms_norm_eps)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x)
        q_norm, k_norm = self.norms()
        return self._normed(q_norm, q), self._normed(k_norm, k), v

    def norms(self) -> tuple[nn.Module, nn.Module]:
        """The norms of queries and of keys."""
        return self.q_norm, self.k_norm

    def _normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x.reshape(*x.shape[:-1], -1, self.heads.dim)).reshape(x.shape)


class Qwen3DecoderLayer(LlamaDecoderLayer):
    attention_class = NormedHeadsAttention


class Qwen3Model(LlamaModel):
    config_class = Qwen3Config
    layer_class = Qwen3DecoderLayer


class Qwen3ForCausalLM(CausalLanguageModel):
    base_class = Qwen3Model


class Qwen3ForSequenceClassification(LastTokenClassifier):
    base_class = Qwen3Model


class Qwen3ForTokenClassification(TokenScorer):
    base_class = Qwen3Model
