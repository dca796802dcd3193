"""Gemma 3's text model (2025, https://arxiv.org/abs/2503.19786): Gemma 2 with normalised heads instead of capped
scores, five local layers to each global one, and rotary positions of their own for the local ones."""

from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .gemma2 import CappedLanguageModel, Gemma2Config, Gemma2DecoderLayer, Gemma2Model, GemmaRMSNorm
from .qwen3 import NormedHeadsAttention
from .rope import RotaryEmbedding


class Gemma3TextConfig(Gemma2Config):
    model_type = "gemma3_text"
    defaults: ClassVar[dict[str, Any]] = Gemma2Config.defaults | {
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10000.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
        "use_bidirectional_attention": False,
    }

    def slides(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern != 0


class Gemma3Attention(NormedHeadsAttention):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.kind = config.layer_type(layer)

    def head_norm(self, config: Any) -> nn.Module:
        return GemmaRMSNorm(self.heads.dim, config.rms_norm_eps)


class Gemma3DecoderLayer(Gemma2DecoderLayer):
    attention_class = Gemma3Attention


class Gemma3TextModel(Gemma2Model):
    config_class = Gemma3TextConfig
    layer_class = Gemma3DecoderLayer

    def build(self, config: Any) -> None:
        config.require(use_bidirectional_attention=False)
        super().build(config)

    def build_rotary(self, config: Any) -> dict[str, RotaryEmbedding]:
        local, everywhere = "sliding_attention", "full_attention"
        own = local in (getattr(config, "rope_parameters", None) or {})
        plain = {} if own else {"rope_type": "default", "rope_theta": config.rope_local_base_freq}
        return {
            local: RotaryEmbedding(config, config.head_size, local, **plain),
            everywhere: RotaryEmbedding(config, config.head_size, everywhere),
        }

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, positions: Tensor) -> Tensor:
        """Given embeddings are scaled already, as those of images are."""
        if inputs_embeds is not None:
            return inputs_embeds
        return ops.multiply(self.embed_tokens(input_ids), ops.constant(self.config.hidden_size**0.5))


class Gemma3ForCausalLM(CappedLanguageModel):
    base_class = Gemma3TextModel
