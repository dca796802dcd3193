"""Phi-3 (2024, https://arxiv.org/abs/2404.14219): Llama with fused projections."""

from itertools import pairwise
from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .decoder import CausalLanguageModel
from .decoder_heads import LastTokenClassifier, TokenScorer
from .llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaModel


class Phi3Config(LlamaConfig):
    model_type = "phi3"
    defaults: ClassVar[dict[str, Any]] = LlamaConfig.defaults | {
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 32000,
        "eos_token_id": 32000,
        "sliding_window": None,
        "partial_rotary_factor": 1.0,
    }

    def slides(self, layer: int) -> bool:
        return True


class Phi3Attention(LlamaAttention):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        del self.q_proj, self.k_proj, self.v_proj
        self.widths = (self.heads.q_count, self.heads.kv_count, self.heads.kv_count)
        self.qkv_proj = nn.Linear(config.hidden_size, sum(self.widths) * self.heads.dim, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = split_heads(self.qkv_proj(x), self.widths, self.heads.dim)
        return q, k, v


class Phi3MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = config.hidden_act

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.down_proj(ops.gated_halves(self.gate_up_proj(x), self.activation), residual=residual)


class Phi3DecoderLayer(LlamaDecoderLayer):
    attention_class = Phi3Attention
    mlp_class = Phi3MLP


class Phi3Model(LlamaModel):
    config_class = Phi3Config
    layer_class = Phi3DecoderLayer


class Phi3ForCausalLM(CausalLanguageModel):
    base_class = Phi3Model


class Phi3ForSequenceClassification(LastTokenClassifier):
    base_class = Phi3Model


class Phi3ForTokenClassification(TokenScorer):
    base_class = Phi3Model


def split_heads(x: Tensor, counts: tuple[int, ...], dim: int) -> list[Tensor]:
    """Parts of the last dimension, `counts` heads of `dim` features each."""
    starts = [dim * sum(counts[:i]) for i in range(len(counts) + 1)]
    return [ops.slice(x, -1, start, stop) for start, stop in pairwise(starts)]
