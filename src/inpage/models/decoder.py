"""Causal language models: a table of tokens, a stack of layers that look back, a norm, a head. Llama and others."""

import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from .. import nn, ops
from ..checkpoint.conversion import WeightRenaming
from ..checks import check_flags
from ..errors import InputError
from ..generation.cache import SEEN, Cache, DynamicCache, LayerShape, check_cache
from ..generation.generate import GenerationMixin
from ..program import Recorded
from ..tensor import Tensor
from .attention import BUILT_IN, attention_function, attention_with_maps
from .configuration import PreTrainedConfig
from .modeling import PreTrainedModel
from .outputs import ModelOutput, with_head
from .rope import RotaryEmbedding


class Heads(NamedTuple):
    """The attention heads of one layer. `window` 0 sees everything before; `scale` None is 1 / sqrt(dim)."""

    layer: int
    q_count: int
    kv_count: int
    dim: int
    window: int = 0
    scale: float | None = None
    softcap: float = 0.0


class Pass:
    """What the layers share in one forward pass: rotary tables, and attention to what is present and past.

    `tables` is by layer type, "" where all layers have one.
    """

    def __init__(
        self,
        implementation: str,
        mask: Tensor | None,
        cache: Cache | None,
        output_attentions: bool,
        rows: Sequence[int] | None,
    ) -> None:
        self.tables: dict[str, Tensor] = {}
        self._function = (attention_with_maps if output_attentions else attention_function)(implementation)
        self._mask = mask
        self._cache = cache
        self._rows = rows

    def attend(self, q: Tensor, k: Tensor, v: Tensor, heads: Heads) -> tuple[Tensor, Tensor | None]:
        """Context [B, L, H*D] and, if they are asked for, the attention maps [B, H, L, tokens]."""
        common: dict[str, Any] = {
            "heads": heads.q_count, "scale": heads.scale, "window": heads.window, "softcap": heads.softcap
        }  # fmt: skip
        if self._cache is None:
            return self._function(q, k, v, self._mask, None, kv_heads=heads.kv_count, causal=True, **common)
        layer = self._cache.layers[heads.layer]
        keys, values = layer.append(k, v)
        if self._rows is not None:
            rows = self._rows[layer.group.number] + q.shape[1]
            mask = layer.group.mask
            seen = None if mask is None else ops.slice(mask, 1, 0, rows)
            keys, values = layer.read(keys, rows), layer.read(values, rows)
            return self._function(q, keys, values, seen, None, kv_heads=heads.kv_count, causal=True, **common)
        context = ops.cached_attention(
            q, keys, values, layer.group.mask, length=layer.group.after, head_dim=heads.dim, dtype=layer.dtype, **common
        )
        return context, None


class CausalModel(PreTrainedModel):
    """What all models over a decoder share: cached keys and values, and positions that go on from them."""

    input_names = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")
    option_names = ("past_key_values",)
    # The text part of a checkpoint with other parts, in its newer and its older form.
    weight_conversions = (
        WeightRenaming(r"^model\.(language|text)_model\.", "model."),
        WeightRenaming(r"^language_model\.(model|lm_head)\.", r"\1."),
    )
    keys_to_ignore_on_load_unexpected = (
        *PreTrainedModel.keys_to_ignore_on_load_unexpected,
        r"rotary_emb\.",
        r"^(model\.)?(vision_|visual\.|multi_modal_projector\.|audio_|image_newline|connector\.)",
    )

    @classmethod
    def config_values(cls, values: dict[str, Any], name: str) -> dict[str, Any]:
        """The values themselves or, with a warning, the text part of a model that has others."""
        text = values.get("text_config")
        if text is None or values.get("model_type") == cls.config_class.model_type:
            return values
        warnings.warn(
            f"{name} holds a {values.get('model_type')!r} model of several parts; {cls.__name__} loads only the one "
            "for text.",
            stacklevel=2,
        )
        shared = {key: values[key] for key in ("tie_word_embeddings", "torch_dtype", "dtype") if key in values}
        # The head is of the whole: its being tied counts whatever the part says, which may be a default.
        tied = {"tie_word_embeddings": True} if shared.get("tie_word_embeddings") else {}
        return shared | text | tied

    @property
    def backbone(self) -> "DecoderModel":
        """The model without its head."""
        model: Any = self.base_model
        return model

    def __call__(
        self,
        inputs: Any = None,
        *,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **named: Any,
    ) -> Any:
        """As `PreTrainedModel`, with keys and values of the tokens before in `past_key_values`.

        The cache is extended in place and is the output `past_key_values`; `use_cache=True` makes a `DynamicCache`
        where none is given. attention_mask is then int32 [B, tokens in the cache + L], and need not be given again
        where the new tokens are all visible. Positions go on from the cache, or are those of `position_ids`.
        """
        check_flags(optional=True, use_cache=use_cache)
        check_cache(past_key_values)
        if use_cache is False and past_key_values is not None:
            raise InputError("use_cache=False cannot go with past_key_values.")
        if past_key_values is None and use_cache:
            past_key_values = DynamicCache()
        if past_key_values is None:
            return super().__call__(inputs, **named)
        return_dict = named.pop("return_dict", None)
        check_flags(optional=True, return_dict=return_dict)
        outputs = super().__call__(inputs, past_key_values=past_key_values, **named)
        outputs["past_key_values"] = past_key_values
        return outputs if (self.config.return_dict if return_dict is None else return_dict) else outputs.to_tuple()

    def prepare_inputs(
        self, named: Mapping[str, Any], *, past_key_values: Cache | None = None, **options: Any
    ) -> dict[str, Tensor]:
        mask = None
        if past_key_values is not None:
            mask = named.get("attention_mask")
            named = {name: value for name, value in named.items() if name != "attention_mask"}
        inputs = super().prepare_inputs(named)
        if mask is not None:
            inputs["attention_mask"] = Tensor.from_values(mask, "int32")
        return inputs

    @property
    def repeats(self) -> bool:
        """Whether a program that was recorded over a cache needs nothing but tokens and the cache's registers."""
        backbone = self.backbone
        by_values = backbone.places_tokens or backbone.dynamic_rope or backbone.max_learned_positions
        return not by_values and self.config.attn_implementation in BUILT_IN

    def replay(self, recorded: Recorded, arguments: dict[str, Any]) -> Generator[None, None, Any]:
        """Run with room in the cache for the new tokens, and with the frequencies of positions that need them."""
        cache: Cache | None = arguments.get("past_key_values")
        tokens = arguments.get("input_ids", arguments.get("inputs_embeds"))
        if tokens is None:  # of what the model has computed before
            return (yield from recorded.steps(**arguments))
        batch, length = tokens.shape[:2]
        seen = 0 if cache is None else cache.get_seq_length()
        backbone = self.backbone
        if backbone.places_tokens:
            visible = visible_tokens(arguments.get("attention_mask"), cache, batch, seen + length)
            arguments["position_ids"] = backbone.place(arguments.get("position_ids"), visible, length)
        if backbone.dynamic_rope or backbone.max_learned_positions:
            positions = arguments.get("position_ids")
            backbone.check_positions(last := seen + length - 1 if positions is None else max(positions.data))
            if backbone.dynamic_rope:
                rest = 0 if cache is None else max(0, cache.expected - seen - length)
                frequencies = backbone.dynamic_rope.frequencies(last + 1 + rest)
                arguments["rope_frequencies"] = Tensor.from_values(frequencies, "float32")
        if cache is None:
            return (yield from recorded.steps(**arguments))
        mask = arguments.pop("attention_mask", None)
        with cache.extended(self.executor, backbone.cache_shapes, batch, length, mask) as registers:
            if arguments.get("output_attentions") or self.config.attn_implementation not in BUILT_IN:
                arguments["rows"] = cache.rows
            return (yield from recorded.steps(registers=registers, **arguments))


def visible_tokens(mask: Tensor | None, cache: Cache | None, batch: int, total: int) -> list[Sequence[int]]:
    """For every sequence 1 where a token is visible, of the tokens in the cache and the new ones."""
    if mask is not None:
        return mask.tolist()
    hidden = cache.mask if cache is not None else None
    return [b"\1" * total if hidden is None else bytes(hidden[b]).ljust(total, b"\1") for b in range(batch)]


class DecoderModel(CausalModel):
    """Base of the decoders. A subclass builds `layers`, each `(x, run)`, and says what `embed` and `finish` do."""

    base_model_prefix = "model"
    dynamic_rope: RotaryEmbedding | None = None
    max_learned_positions = 0
    places_tokens = False  # whether `place` makes position ids of the visible tokens, or of given ones

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.build(config)
        self.cache_shapes = [LayerShape(h.kv_count, h.dim, h.window) for h in self.heads()]

    def build(self, config: PreTrainedConfig) -> None:
        """Make the modules."""
        raise NotImplementedError

    def heads(self) -> list[Heads]:
        """The attention heads of every layer."""
        raise NotImplementedError

    def blocks(self) -> Iterable[nn.Module]:
        """The layers."""
        raise NotImplementedError

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, positions: Tensor) -> Tensor:
        """Input of the first layer [B, L, N]."""
        raise NotImplementedError

    def finish(self, x: Tensor) -> Tensor:
        """The norm behind the last layer."""
        raise NotImplementedError

    def rotary(self) -> dict[str, RotaryEmbedding]:
        """Rotary embeddings by layer type; empty where positions are embedded otherwise."""
        return {}

    def place(self, given: Tensor | None, visible: Sequence[Sequence[int]], length: int) -> Tensor:
        """Position ids int32 [B, L] of the last `length` tokens, where a family counts them in its own way."""
        raise NotImplementedError

    @property
    def max_positions(self) -> int | None:
        return self.config.max_position_embeddings

    def check_positions(self, last: int) -> None:
        """Raise InputError for positions that a table of learned ones does not have."""
        if self.max_learned_positions and last >= self.max_learned_positions:
            raise InputError(
                f"Position {last} is beyond the {self.max_learned_positions} positions of the model.",
                hint="Shorten the input, or truncate while tokenizing.",
            )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        rope_frequencies: Tensor | None = None,
        past_key_values: Cache | None = None,
        rows: Sequence[int] | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> ModelOutput:
        """`last_hidden_state` [B, L, N], and the tuples `hidden_states` and `attentions`.

        `rows`, those in use of every group of the cache, are given where the kernel over a cache does not do: for maps,
        which have a shape, and for implementations of others.
        """
        tokens: Any = inputs_embeds if input_ids is None else input_ids
        batch, length = tokens.shape[:2]
        if position_ids is None:
            position_ids = ops.positions(batch, length, 0 if past_key_values is None else SEEN)
        run = Pass(self.config.attn_implementation, attention_mask, past_key_values, output_attentions, rows)
        for kind, rotary in self.rotary().items():
            run.tables[kind] = rotary.tables(position_ids, rope_frequencies if rotary.dynamic else None)
        x = self.embed(input_ids, inputs_embeds, position_ids)
        hidden_states, attentions = [], []
        for layer in self.blocks():
            if output_hidden_states:
                hidden_states.append(x)
            x, probabilities = layer(x, run)
            if output_attentions:
                attentions.append(probabilities)
        x = self.finish(x)
        if output_hidden_states:
            hidden_states.append(x)
        return ModelOutput(
            last_hidden_state=x, hidden_states=tuple(hidden_states) or None, attentions=tuple(attentions) or None
        )


class DecoderHead(CausalModel):
    """A decoder, kept under its family's prefix, and something on top."""

    base_class: ClassVar[type[DecoderModel]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if base := getattr(cls, "base_class", None):
            cls.config_class = base.config_class
            cls.base_model_prefix = base.base_model_prefix
            cls.weight_conversions = base.weight_conversions
            cls.keys_to_ignore_on_load_unexpected = base.keys_to_ignore_on_load_unexpected

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        setattr(self, self.base_model_prefix, self.base_class(config))


class CausalLanguageModel(GenerationMixin, DecoderHead):
    """Scores of the vocabulary for the token after each.

    `labels` int32 [B, L] are the tokens themselves, -100 where there is nothing to predict; the loss shifts them.
    `logits_to_keep` n gives the logits of the last n tokens only; 0 is all.
    """

    label_names = ("labels",)
    option_names = ("past_key_values", "logits_to_keep")
    head_name: ClassVar[str] = "lm_head"
    head_bias: ClassVar[bool] = False
    embedding_name: ClassVar[str] = "embed_tokens"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "base_class"):
            table = f"{cls.base_model_prefix}.{cls.embedding_name}.weight"
            cls.tied_weights_keys = {f"{cls.head_name}.weight": table}

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        setattr(self, self.head_name, nn.Linear(self.head_width(config), config.vocab_size, bias=self.head_bias))

    def head_width(self, config: PreTrainedConfig) -> int:
        """Features that the head takes."""
        return config.hidden_size

    def predict(self, x: Tensor) -> Tensor:
        """Hidden states [..., N] -> logits [..., V]."""
        return getattr(self, self.head_name)(x)

    def forward(self, labels: Tensor | None = None, logits_to_keep: int = 0, **inputs: Any) -> ModelOutput:
        outputs = self.base_model.forward(**inputs)
        x = outputs.last_hidden_state
        length = x.shape[1]
        if 0 < logits_to_keep < length:
            x = ops.slice(x, 1, length - logits_to_keep, length)
        logits = self.predict(x)
        loss = None if labels is None else ops.cross_entropy(logits, labels)
        return with_head(outputs, loss, logits=logits)

    def prepare_inputs(
        self,
        named: Mapping[str, Any],
        *,
        past_key_values: Cache | None = None,
        logits_to_keep: int = 0,
        **options: Any,
    ) -> dict[str, Tensor]:
        if not isinstance(logits_to_keep, int) or logits_to_keep < 0:
            raise InputError(f"logits_to_keep must be a whole number of at least 0, not {logits_to_keep!r:.60}.")
        if logits_to_keep and named.get("labels") is not None:
            raise InputError("labels need the logits of all tokens.", hint="Leave logits_to_keep out.")
        return super().prepare_inputs(named, past_key_values=past_key_values, **options)

    def prepare_labels(self, inputs: dict[str, Tensor]) -> None:
        """Labels of the tokens become those of the tokens before them."""
        if (labels := inputs.get("labels")) is None:
            return
        tokens = next(iter(inputs.values()))
        if labels.shape != tokens.shape[:2] or labels.dtype != "int32":
            raise InputError(
                f"labels must be int32 {list(tokens.shape[:2])}, found {labels.dtype} {list(labels.shape)}."
            )
        inputs["labels"] = Tensor.from_values([[*row[1:], -100] for row in labels.tolist()], "int32")
