"""GPT-NeoX (Black et al., 2022, https://arxiv.org/abs/2204.06745): both halves of a layer side by side, partial rotary
positions."""

from collections.abc import Iterable
from typing import Any, ClassVar

from .. import nn, ops
from ..tensor import Tensor
from .configuration import PreTrainedConfig
from .decoder import CausalLanguageModel, DecoderModel, Heads, Pass
from .decoder_heads import LastTokenClassifier, TokenScorer
from .rope import RotaryEmbedding


class GPTNeoXConfig(PreTrainedConfig):
    model_type = "gpt_neox"
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000,
        "max_position_embeddings": 2048,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-5,
        "use_cache": True,
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "rope_scaling": None,
        "attention_bias": True,
    }

    def heads(self, layer: int) -> Heads:
        """The attention heads of a layer."""
        count = self.num_attention_heads
        return Heads(layer, count, count, self.hidden_size // count)


class GPTNeoXAttention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        self.heads = config.heads(layer)
        width, bias = config.hidden_size, config.attention_bias
        self.query_key_value = nn.Linear(width, 3 * width, bias)
        self.dense = nn.Linear(width, width, bias)

    def forward(self, x: Tensor, run: Pass, residual: Tensor) -> tuple[Tensor, Tensor | None]:
        heads, shape = self.heads, x.shape
        # Queries, keys and values lie side by side in every head.
        fused = self.query_key_value(x).reshape(-1, 3, heads.dim)
        q, k, v = (ops.select(fused, 1, i).reshape(shape) for i in range(3))
        q, k = ops.rope(q, run.tables[""], heads.q_count), ops.rope(k, run.tables[""], heads.kv_count)
        context, probabilities = run.attend(q, k, v, heads)
        return self.dense(context, residual=residual), probabilities


class GPTNeoXMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        self.dense_h_to_4h = nn.Linear(config.hidden_size, config.intermediate_size)
        self.dense_4h_to_h = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = config.hidden_act

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.dense_4h_to_h(self.dense_h_to_4h(x, activation=self.activation), residual=residual)


class GPTNeoXLayer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        self.input_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.attention = GPTNeoXAttention(config, layer)
        self.mlp = GPTNeoXMLP(config)
        self.parallel = config.use_parallel_residual

    def forward(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor | None]:
        attended, probabilities = self.attention(self.input_layernorm(x), run, residual=x)
        seen = x if self.parallel else attended
        return self.mlp(self.post_attention_layernorm(seen), residual=attended), probabilities


class GPTNeoXModel(DecoderModel):
    config_class = GPTNeoXConfig
    base_model_prefix = "gpt_neox"
    keys_to_ignore_on_load_unexpected = (
        *DecoderModel.keys_to_ignore_on_load_unexpected,
        r"attention\.(bias|masked_bias)$",
    )

    def build(self, config: Any) -> None:
        self.embed_in = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(GPTNeoXLayer(config, i) for i in range(config.num_hidden_layers))
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        given = getattr(config, "rope_parameters", None) or {}
        settings = {"partial_rotary_factor": config.rotary_pct, "rope_theta": config.rotary_emb_base} | given
        self._rotary = RotaryEmbedding(config, config.heads(0).dim, **settings)
        self.dynamic_rope = self._rotary if self._rotary.dynamic else None

    def rotary(self) -> dict[str, RotaryEmbedding]:
        return {"": self._rotary}

    def heads(self) -> list[Heads]:
        return [layer.attention.heads for layer in self.layers]

    def blocks(self) -> Iterable[nn.Module]:
        return self.layers

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, positions: Tensor) -> Tensor:
        return self.embed_in(input_ids) if inputs_embeds is None else inputs_embeds

    def finish(self, x: Tensor) -> Tensor:
        return self.final_layer_norm(x)


class GPTNeoXForCausalLM(CausalLanguageModel):
    base_class = GPTNeoXModel
    head_name = "embed_out"
    embedding_name = "embed_in"


class GPTNeoXForSequenceClassification(LastTokenClassifier):
    base_class = GPTNeoXModel


class GPTNeoXForTokenClassification(TokenScorer):
    base_class = GPTNeoXModel
    classifier_name = "classifier"
