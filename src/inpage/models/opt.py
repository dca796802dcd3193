"""OPT (Zhang et al., 2022, https://arxiv.org/abs/2205.01068): learned positions, counted from 2 over the tokens that
are not padding."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from .. import nn
from ..tensor import Tensor
from .configuration import PreTrainedConfig
from .decoder import CausalLanguageModel, DecoderModel, Heads, Pass
from .decoder_heads import LastTokenClassifier

POSITION_OFFSET = 2


class OPTConfig(PreTrainedConfig):
    model_type = "opt"
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "word_embed_proj_dim": None,
        "num_attention_heads": 12,
        "activation_function": "relu",
        "init_std": 0.02,
        "use_cache": True,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 2,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
    }

    @property
    def table_width(self) -> int:
        """Features of the tokens' table."""
        return self.word_embed_proj_dim or self.hidden_size


class OPTAttention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        width, count = config.hidden_size, config.num_attention_heads
        self.heads = Heads(layer, count, count, width // count)
        self.k_proj = nn.Linear(width, width, config.enable_bias)
        self.v_proj = nn.Linear(width, width, config.enable_bias)
        self.q_proj = nn.Linear(width, width, config.enable_bias)
        self.out_proj = nn.Linear(width, width, config.enable_bias)

    def forward(self, x: Tensor, run: Pass, residual: Tensor) -> tuple[Tensor, Tensor | None]:
        context, probabilities = run.attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads)
        return self.out_proj(context, residual=residual), probabilities


class OPTDecoderLayer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        self.self_attn = OPTAttention(config, layer)
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden_size)
        self.fc1 = nn.Linear(config.hidden_size, config.ffn_dim, config.enable_bias)
        self.fc2 = nn.Linear(config.ffn_dim, config.hidden_size, config.enable_bias)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size)
        self.activation = config.activation_function
        self.norm_first = config.do_layer_norm_before

    def forward(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor | None]:
        if self.norm_first:
            x, probabilities = self.self_attn(self.self_attn_layer_norm(x), run, residual=x)
            return self._feed(self.final_layer_norm(x), residual=x), probabilities
        x, probabilities = self.self_attn(x, run, residual=x)
        x = self.self_attn_layer_norm(x)
        return self.final_layer_norm(self._feed(x, residual=x)), probabilities

    def _feed(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.fc2(self.fc1(x, activation=self.activation), residual=residual)


class OPTDecoder(nn.Module):
    def __init__(self, config: Any) -> None:
        width, table = config.hidden_size, config.table_width
        self.embed_tokens = nn.Embedding(config.vocab_size, table)
        self.embed_positions = nn.Embedding(config.max_position_embeddings + POSITION_OFFSET, width)
        self.project_out = nn.Linear(width, table, bias=False) if table != width else None
        self.project_in = nn.Linear(table, width, bias=False) if table != width else None
        norms = config.do_layer_norm_before and not config._remove_final_layer_norm
        self.final_layer_norm = nn.LayerNorm(width) if norms else None
        self.layers = nn.ModuleList(OPTDecoderLayer(config, i) for i in range(config.num_hidden_layers))


class OPTModel(DecoderModel):
    config_class = OPTConfig
    places_tokens = True

    def build(self, config: Any) -> None:
        config.require(layer_norm_elementwise_affine=True)
        self.decoder = OPTDecoder(config)
        self.max_learned_positions = config.max_position_embeddings + POSITION_OFFSET

    def heads(self) -> list[Heads]:
        return [layer.self_attn.heads for layer in self.decoder.layers]

    def blocks(self) -> Iterable[nn.Module]:
        return self.decoder.layers

    def place(self, given: Tensor | None, visible: Sequence[Sequence[int]], length: int) -> Tensor:
        """Rows of the table of positions: padding has the one before the first."""
        if given is not None:
            rows = [[position + POSITION_OFFSET for position in row] for row in given.tolist()]
        else:
            rows = [self._count(row)[-length:] for row in visible]
        return Tensor.from_values(rows, "int32")

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, positions: Tensor) -> Tensor:
        x: Any = self.decoder.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.decoder.project_in is not None:
            x = self.decoder.project_in(x)
        return self.decoder.embed_positions(positions, residual=x)

    def finish(self, x: Tensor) -> Tensor:
        if self.decoder.final_layer_norm is not None:
            x = self.decoder.final_layer_norm(x)
        return x if self.decoder.project_out is None else self.decoder.project_out(x)

    def _count(self, visible: Sequence[int]) -> list[int]:
        counted, places = POSITION_OFFSET - 1, list[int]()
        for seen in visible:
            counted += bool(seen)
            places.append(counted if seen else POSITION_OFFSET - 1)
        return places


class OPTForCausalLM(CausalLanguageModel):
    base_class = OPTModel
    embedding_name = "decoder.embed_tokens"

    def head_width(self, config: Any) -> int:
        return config.table_width


class OPTForSequenceClassification(LastTokenClassifier):
    base_class = OPTModel
