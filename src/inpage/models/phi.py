"""Phi (Li et al., 2023, https://arxiv.org/abs/2309.05463): both halves of a layer side by side behind one norm."""

from typing import Any, ClassVar

from .. import nn
from ..tensor import Tensor
from .decoder import CausalLanguageModel, Pass
from .decoder_heads import LastTokenClassifier, TokenScorer
from .llama import LlamaAttention, LlamaConfig, LlamaModel
from .qwen3 import NormedHeadsAttention


class PhiConfig(LlamaConfig):
    model_type = "phi"
    defaults: ClassVar[dict[str, Any]] = LlamaConfig.defaults | {
        "vocab_size": 51200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "qk_layernorm": False,
        "attention_bias": True,
    }


class PhiAttention(LlamaAttention):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.dense = self.o_proj
        del self.o_proj

    def output(self, context: Tensor, residual: Tensor | None) -> Tensor:
        return self.dense(context, residual=residual)


class PhiNormedAttention(PhiAttention, NormedHeadsAttention):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.q_layernorm, self.k_layernorm = self.q_norm, self.k_norm
        del self.q_norm, self.k_norm

    def head_norm(self, config: Any) -> nn.Module:
        return nn.LayerNorm(self.heads.dim, config.layer_norm_eps)

    def norms(self) -> tuple[nn.Module, nn.Module]:
        return self.q_layernorm, self.k_layernorm


class PhiMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = config.hidden_act

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.fc2(self.fc1(x, activation=self.activation), residual=residual)


class PhiDecoderLayer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        self.self_attn = (PhiNormedAttention if config.qk_layernorm else PhiAttention)(config, layer)
        self.mlp = PhiMLP(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor | None]:
        normed = self.input_layernorm(x)
        attended, probabilities = self.self_attn(normed, run, residual=x)
        return self.mlp(normed, residual=attended), probabilities


class PhiModel(LlamaModel):
    config_class = PhiConfig
    layer_class = PhiDecoderLayer

    def build(self, config: Any) -> None:
        super().build(config)
        self.final_layernorm = self.norm
        del self.norm

    def final_norm(self, config: Any) -> nn.Module:
        return nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def finish(self, x: Tensor) -> Tensor:
        return self.final_layernorm(x)


class PhiForCausalLM(CausalLanguageModel):
    base_class = PhiModel
    head_bias = True


class PhiForSequenceClassification(LastTokenClassifier):
    base_class = PhiModel


class PhiForTokenClassification(TokenScorer):
    base_class = PhiModel
