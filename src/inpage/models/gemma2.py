"""Gemma 2 (2024, https://arxiv.org/abs/2408.00118): norms around both halves of a layer, capped scores and logits,
and a sliding window in every other layer."""

from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .decoder import CausalLanguageModel, Heads, Pass
from .decoder_heads import LastTokenClassifier, TokenScorer
from .llama import LlamaConfig, LlamaDecoderLayer, LlamaModel


class Gemma2Config(LlamaConfig):
    model_type = "gemma2"
    attribute_map: ClassVar[dict[str, str]] = {"hidden_act": "hidden_activation"}
    defaults: ClassVar[dict[str, Any]] = {
        **{name: value for name, value in LlamaConfig.defaults.items() if name != "hidden_act"},
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0

    def heads(self, layer: int) -> Heads:
        scale, cap = self.query_pre_attn_scalar**-0.5, self.attn_logit_softcapping or 0.0
        return super().heads(layer)._replace(scale=scale, softcap=cap)


class GemmaRMSNorm(nn.RMSNorm):
    """The norm whose weight counts from 1."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__(dim, eps, offset=1.0)


class Gemma2DecoderLayer(LlamaDecoderLayer):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.pre_feedforward_layernorm = self.norm(config)
        self.post_feedforward_layernorm = self.norm(config)

    def norm(self, config: Any) -> nn.Module:
        return GemmaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor | None]:
        attended, probabilities = self.self_attn(self.input_layernorm(x), run)
        x = ops.add(x, self.post_attention_layernorm(attended))
        inner = self.mlp(self.pre_feedforward_layernorm(x))
        return ops.add(x, self.post_feedforward_layernorm(inner)), probabilities


class Gemma2Model(LlamaModel):
    config_class = Gemma2Config
    layer_class = Gemma2DecoderLayer

    def final_norm(self, config: Any) -> nn.Module:
        return GemmaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, positions: Tensor) -> Tensor:
        x = super().embed(input_ids, inputs_embeds, positions)
        return ops.multiply(x, ops.constant(self.config.hidden_size**0.5))


class CappedLanguageModel(CausalLanguageModel):
    """Logits within plus and minus `final_logit_softcapping`."""

    def predict(self, x: Tensor) -> Tensor:
        logits, cap = super().predict(x), self.config.final_logit_softcapping
        return ops.soft_cap(logits, cap) if cap else logits


class Gemma2ForCausalLM(CappedLanguageModel):
    base_class = Gemma2Model


class Gemma2ForSequenceClassification(LastTokenClassifier):
    base_class = Gemma2Model


class Gemma2ForTokenClassification(TokenScorer):
    base_class = Gemma2Model
