"""Bidirectional text encoders: embeddings, a stack of layers, a pooler. BERT and its descendants differ in these."""

from collections.abc import Iterable
from typing import Any

from .. import nn, ops
from ..errors import InputError
from ..tensor import Tensor
from .attention import attend_with
from .configuration import PreTrainedConfig
from .modeling import PreTrainedModel
from .outputs import ModelOutput


class EncoderModel(PreTrainedModel):
    """Base of the encoders. A subclass builds `embeddings` and what `layers` gives; each layer is `(x, attend)`."""

    input_names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
    embeddings: "Embeddings"

    def __init__(self, config: PreTrainedConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        config.require(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute", pruned_heads={})
        self.build(config)
        self.pooler = self.build_pooler(config) if add_pooling_layer else None

    def build(self, config: PreTrainedConfig) -> None:
        """Make the modules."""
        raise NotImplementedError

    def build_pooler(self, config: PreTrainedConfig) -> Any:
        """Module that makes `pooler_output` of the last hidden state; None for families without."""
        return None

    def layers(self) -> Iterable[nn.Module]:
        raise NotImplementedError

    @property
    def max_positions(self) -> int:
        return self.embeddings.max_positions

    def embed(self, **tokens: Tensor) -> Tensor:
        """Input of the first layer [B, L, N]."""
        return self.embeddings(**tokens)

    def attention_bias(self, length: int) -> Tensor | None:
        """Bias [1, H, L, L] on the attention scores."""
        return None

    def pool(self, x: Tensor) -> Tensor | None:
        return None if self.pooler is None else self.pooler(x)

    def forward(
        self,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **tokens: Tensor,
    ) -> ModelOutput:
        """`last_hidden_state` [B, L, N], `pooler_output` [B, N], and the tuples `hidden_states` and `attentions`."""
        x = self.embed(**tokens)
        attend = attend_with(
            self.config.attn_implementation,
            attention_mask,
            self.attention_bias(x.shape[1]),
            heads=self.config.num_attention_heads,
            output_attentions=output_attentions,
        )
        hidden_states, attentions = [x] if output_hidden_states else [], []
        for layer in self.layers():
            x, probabilities = layer(x, attend)
            if output_hidden_states:
                hidden_states.append(x)
            if output_attentions:
                attentions.append(probabilities)
        return ModelOutput(
            last_hidden_state=x,
            pooler_output=self.pool(x),
            hidden_states=tuple(hidden_states) or None,
            attentions=tuple(attentions) or None,
        )


class Embeddings(nn.Module):
    """Sum of word, position and, where the family has them, segment embeddings, normalised."""

    def __init__(self, config: PreTrainedConfig, width: int, eps: float, token_types: int = 0) -> None:
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(token_types, width) if token_types else None
        self.LayerNorm = nn.LayerNorm(width, eps)

    @property
    def max_positions(self) -> int:
        """Tokens that there are positions for."""
        return self.position_embeddings.weight.shape[0] - self.first_position

    @property
    def first_position(self) -> int:
        """Position of the first token."""
        return 0

    def positions(self, input_ids: Tensor | None, batch: int, length: int) -> Tensor:
        """Position ids int32 [B, L] when none are given."""
        return self.sequential_positions(batch, length, start=0)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        x = self._words(input_ids, inputs_embeds)
        batch, length = x.shape[:2]
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = ops.constant([[0] * length] * batch, "int32")
            x = self.token_type_embeddings(token_type_ids, residual=x)
        if position_ids is None:
            position_ids = self.positions(input_ids, batch, length)
        return self.LayerNorm(self.position_embeddings(position_ids, residual=x))

    def sequential_positions(self, batch: int, length: int, start: int) -> Tensor:
        """start, start + 1, ... for each row."""
        self.check_length(length, start)
        return ops.constant([list(range(start, start + length))] * batch, "int32")

    def check_length(self, length: int, start: int) -> None:
        """Raise InputError unless there are positions start .. start + length - 1."""
        available = self.position_embeddings.weight.shape[0] - start
        if length > available:
            raise InputError(
                f"A sequence of {length} tokens is longer than the {available} positions of the model.",
                hint="Tokenize with truncation=True, or split the text.",
                length=length,
                maximum=available,
            )

    def _words(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if inputs_embeds is None:
            return self.word_embeddings(input_ids)
        width = self.word_embeddings.weight.shape[1]
        if inputs_embeds.shape[-1] != width:
            raise InputError(f"inputs_embeds must have {width} features, found shape {list(inputs_embeds.shape)}.")
        return inputs_embeds


class OffsetEmbeddings(Embeddings):
    """Embeddings whose positions are counted from `padding_idx` + 1 over the tokens that are not padding."""

    padding_idx: int

    @property
    def first_position(self) -> int:
        return self.padding_idx + 1

    def positions(self, input_ids: Tensor | None, batch: int, length: int) -> Tensor:
        if input_ids is None:
            return self.sequential_positions(batch, length, self.padding_idx + 1)
        self.check_length(length, self.padding_idx + 1)
        return ops.position_ids(input_ids, self.padding_idx)
