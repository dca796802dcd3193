"""GPT-2 (Radford et al., 2019): learned positions, norms before both halves of a layer, fused queries, keys, values."""

from collections.abc import Iterable
from typing import Any, ClassVar

from .. import nn
from ..checkpoint.conversion import Transpose, WeightConverter
from ..tensor import Tensor
from .configuration import PreTrainedConfig
from .decoder import CausalLanguageModel, DecoderModel, Heads, Pass
from .decoder_heads import LastTokenClassifier, TokenScorer
from .phi3 import split_heads


class GPT2Config(PreTrainedConfig):
    model_type = "gpt2"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "use_cache": True,
        "pad_token_id": None,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    }

    def heads(self, layer: int) -> Heads:
        """The attention heads of a layer."""
        dim = self.n_embd // self.n_head
        scale = dim**-0.5 if self.scale_attn_weights else 1.0
        if self.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        return Heads(layer, self.n_head, self.n_head, dim, scale=scale)


class GPT2Attention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        self.heads = config.heads(layer)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, run: Pass, residual: Tensor) -> tuple[Tensor, Tensor | None]:
        q, k, v = split_heads(self.c_attn(x), (self.heads.q_count,) * 3, self.heads.dim)
        context, probabilities = run.attend(q, k, v, self.heads)
        return self.c_proj(context, residual=residual), probabilities


class GPT2MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = nn.Linear(config.n_embd, inner)
        self.c_proj = nn.Linear(inner, config.n_embd)
        self.activation = config.activation_function

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.c_proj(self.c_fc(x, activation=self.activation), residual=residual)


class GPT2Block(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = GPT2Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = GPT2MLP(config)

    def forward(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor | None]:
        x, probabilities = self.attn(self.ln_1(x), run, residual=x)
        return self.mlp(self.ln_2(x), residual=x), probabilities


class GPT2Model(DecoderModel):
    config_class = GPT2Config
    base_model_prefix = "transformer"
    # Checkpoints have these weights as [in, out].
    weight_conversions = (
        *DecoderModel.weight_conversions,
        WeightConverter((r"\.(c_attn|c_proj|c_fc)\.weight$",), (r".\1.weight",), (Transpose(),)),
    )
    keys_to_ignore_on_load_unexpected = (
        *DecoderModel.keys_to_ignore_on_load_unexpected,
        r"attn\.(bias|masked_bias)$",
    )

    def build(self, config: Any) -> None:
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(GPT2Block(config, i) for i in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.max_learned_positions = config.n_positions

    def heads(self) -> list[Heads]:
        return [block.attn.heads for block in self.h]

    def blocks(self) -> Iterable[nn.Module]:
        return self.h

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, positions: Tensor) -> Tensor:
        x: Any = self.wte(input_ids) if inputs_embeds is None else inputs_embeds
        return self.wpe(positions, residual=x)

    def finish(self, x: Tensor) -> Tensor:
        return self.ln_f(x)


class GPT2LMHeadModel(CausalLanguageModel):
    base_class = GPT2Model
    embedding_name = "wte"


class GPT2ForSequenceClassification(LastTokenClassifier):
    base_class = GPT2Model


class GPT2ForTokenClassification(TokenScorer):
    base_class = GPT2Model
    classifier_name = "classifier"
