"""OLMo 2 (2024, https://arxiv.org/abs/2501.00656): Llama with norms behind the halves of a layer, and on all queries
and all keys together."""

from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .decoder import CausalLanguageModel, Pass
from .decoder_heads import LastTokenClassifier
from .llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaModel


class Olmo2Config(LlamaConfig):
    model_type = "olmo2"
    defaults: ClassVar[dict[str, Any]] = LlamaConfig.defaults | {
        "vocab_size": 50304,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": None,
        "eos_token_id": 50279,
    }


class Olmo2Attention(LlamaAttention):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.q_norm = nn.RMSNorm(self.heads.q_count * self.heads.dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.heads.kv_count * self.heads.dim, config.rms_norm_eps)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x)
        return self.q_norm(q), self.k_norm(k), v


class Olmo2DecoderLayer(LlamaDecoderLayer):
    attention_class = Olmo2Attention

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        del self.input_layernorm
        self.post_feedforward_layernorm = self.norm(config)

    def forward(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor | None]:
        attended, probabilities = self.self_attn(x, run)
        x = ops.add(x, self.post_attention_layernorm(attended))
        return ops.add(x, self.post_feedforward_layernorm(self.mlp(x))), probabilities


class Olmo2Model(LlamaModel):
    config_class = Olmo2Config
    layer_class = Olmo2DecoderLayer


class Olmo2ForCausalLM(CausalLanguageModel):
    base_class = Olmo2Model


class Olmo2ForSequenceClassification(LastTokenClassifier):
    base_class = Olmo2Model
