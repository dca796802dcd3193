"""StableLM (2024, https://arxiv.org/abs/2402.17834): Llama with layer norms and partial rotary positions."""

from typing import Any, ClassVar

from .. import nn
from ..tensor import Tensor
from .decoder import CausalLanguageModel, Pass
from .decoder_heads import LastTokenClassifier, TokenScorer
from .llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaModel


class StableLmConfig(LlamaConfig):
    model_type = "stablelm"
    defaults: ClassVar[dict[str, Any]] = LlamaConfig.defaults | {
        "vocab_size": 50304,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5,
        "use_qkv_bias": False,
        "qk_layernorm": False,
        "use_parallel_residual": False,
        "partial_rotary_factor": 0.25,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


class StableLmAttention(LlamaAttention):
    def has_bias(self, config: Any) -> bool:
        return config.use_qkv_bias

    def has_output_bias(self, config: Any) -> bool:
        return False


class StableLmDecoderLayer(LlamaDecoderLayer):
    attention_class = StableLmAttention

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.parallel = config.use_parallel_residual
        if self.parallel:
            del self.post_attention_layernorm

    def norm(self, config: Any) -> nn.Module:
        return nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor | None]:
        if not self.parallel:
            return super().forward(x, run)
        normed = self.input_layernorm(x)
        attended, probabilities = self.self_attn(normed, run, residual=x)
        return self.mlp(normed, residual=attended), probabilities


class StableLmModel(LlamaModel):
    config_class = StableLmConfig
    layer_class = StableLmDecoderLayer

    def build(self, config: Any) -> None:
        config.require(qk_layernorm=False)
        super().build(config)

    def final_norm(self, config: Any) -> nn.Module:
        return nn.LayerNorm(config.hidden_size, config.layer_norm_eps)


class StableLmForCausalLM(CausalLanguageModel):
    base_class = StableLmModel


class StableLmForSequenceClassification(LastTokenClassifier):
    base_class = StableLmModel


class StableLmForTokenClassification(TokenScorer):
    base_class = StableLmModel
