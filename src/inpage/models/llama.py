"""Llama (Touvron et al., 2023, https://arxiv.org/abs/2302.13971): pre-norm layers, rotary positions, gated MLP."""

from collections.abc import Iterable
from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .configuration import PreTrainedConfig
from .decoder import CausalLanguageModel, DecoderModel, Heads, Pass
from .decoder_heads import LastTokenClassifier, TokenScorer
from .rope import RotaryEmbedding


class LlamaConfig(PreTrainedConfig):
    model_type = "llama"
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "use_cache": True,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
    }

    @property
    def head_size(self) -> int:
        """Features of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    def layer_type(self, layer: int) -> str:
        """ "full_attention" or "sliding_attention"."""
        types = getattr(self, "layer_types", None)
        if types is not None:
            return types[layer]
        return "sliding_attention" if self.slides(layer) else "full_attention"

    def slides(self, layer: int) -> bool:
        """Whether a layer has a window where `layer_types` does not say so."""
        return False

    def heads(self, layer: int) -> Heads:
        """The attention heads of a layer."""
        sliding = self.layer_type(layer) == "sliding_attention"
        window = (getattr(self, "sliding_window", None) or 0) if sliding else 0
        return Heads(layer, self.num_attention_heads, self.kv_heads, self.head_size, window)


class LlamaAttention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        self.heads = heads = config.heads(layer)
        self.kind = ""
        width, bias = config.hidden_size, self.has_bias(config)
        self.q_proj = nn.Linear(width, heads.q_count * heads.dim, bias)
        self.k_proj = nn.Linear(width, heads.kv_count * heads.dim, bias)
        self.v_proj = nn.Linear(width, heads.kv_count * heads.dim, bias)
        self.o_proj = nn.Linear(heads.q_count * heads.dim, width, self.has_output_bias(config))

    def has_bias(self, config: Any) -> bool:
        """Whether queries, keys and values have a bias."""
        return config.attention_bias

    def has_output_bias(self, config: Any) -> bool:
        return config.attention_bias

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, L, H*D], keys and values [B, L, KVH*D]."""
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def forward(self, x: Tensor, run: Pass, residual: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        q, k, v = self.project(x)
        tables = run.tables.get(self.kind)
        if tables is not None:
            q, k = ops.rope(q, tables, self.heads.q_count), ops.rope(k, tables, self.heads.kv_count)
        context, probabilities = run.attend(q, k, v, self.heads)
        return self.output(context, residual), probabilities

    def output(self, context: Tensor, residual: Tensor | None) -> Tensor:
        """The projection behind the heads."""
        return self.o_proj(context, residual=residual)


class LlamaMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        width, inner, bias = config.hidden_size, config.intermediate_size, getattr(config, "mlp_bias", False)
        self.gate_proj = nn.Linear(width, inner, bias)
        self.up_proj = nn.Linear(width, inner, bias)
        self.down_proj = nn.Linear(inner, width, bias)
        self.activation = config.hidden_act

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        # Both stay until their product is quantised, which so takes other memory, and threads need not wait in between.
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(ops.gated(gate, up, self.activation), residual=residual)


class LlamaDecoderLayer(nn.Module):
    attention_class: ClassVar[type[Any]] = LlamaAttention
    mlp_class: ClassVar[type[Any]] = LlamaMLP

    def __init__(self, config: Any, layer: int) -> None:
        self.self_attn = self.attention_class(config, layer)
        self.mlp = self.mlp_class(config)
        self.input_layernorm = self.norm(config)
        self.post_attention_layernorm = self.norm(config)

    def norm(self, config: Any) -> nn.Module:
        return nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor | None]:
        x, probabilities = self.self_attn(self.input_layernorm(x), run, residual=x)
        return self.mlp(self.post_attention_layernorm(x), residual=x), probabilities


class LlamaModel(DecoderModel):
    config_class = LlamaConfig
    layer_class: ClassVar[type[Any]] = LlamaDecoderLayer

    def build(self, config: Any) -> None:
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(self.layer_class(config, i) for i in range(config.num_hidden_layers))
        self.norm = self.final_norm(config)
        self._rotary = self.build_rotary(config)
        self.dynamic_rope = next((rotary for rotary in self._rotary.values() if rotary.dynamic), None)

    def final_norm(self, config: Any) -> nn.Module:
        return nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def build_rotary(self, config: Any) -> dict[str, RotaryEmbedding]:
        return {"": RotaryEmbedding(config, config.head_size)}

    def rotary(self) -> dict[str, RotaryEmbedding]:
        return self._rotary

    def heads(self) -> list[Heads]:
        return [layer.self_attn.heads for layer in self.layers]

    def blocks(self) -> Iterable[nn.Module]:
        return self.layers

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, positions: Tensor) -> Tensor:
        return self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds

    def finish(self, x: Tensor) -> Tensor:
        return self.norm(x)


class LlamaForCausalLM(CausalLanguageModel):
    base_class = LlamaModel


class LlamaForSequenceClassification(LastTokenClassifier):
    base_class = LlamaModel


class LlamaForTokenClassification(TokenScorer):
    base_class = LlamaModel
