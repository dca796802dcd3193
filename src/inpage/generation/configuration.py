"""How to generate: options with transformers' names, defaults and precedence."""

import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from ..checks import check_flags, check_number
from ..errors import ConfigError, InputError, UnsupportedError
from ..runtime import Awaitable, resolve
from .logits_process import token_list
from .warpers import GREEDY

if TYPE_CHECKING:
    from ..hub import Repository

NEW_TOKENS = 20  # by default, where nothing says how long

# Every option with the value it has when nothing sets it. `max_length` has one that depends on the prompt.
DEFAULTS: dict[str, Any] = {
    "max_length": None,
    "max_new_tokens": None,
    "min_length": 0,
    "min_new_tokens": None,
    "early_stopping": False,
    "max_time": None,
    "stop_strings": None,
    "do_sample": False,
    "num_beams": 1,
    "use_cache": True,
    "cache_implementation": None,
    "kv_cache_dtype": None,
    "prefill_chunk_size": None,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "renormalize_logits": False,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "remove_invalid_values": False,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "guidance_scale": None,
    "num_assistant_tokens": 5,
    "prompt_lookup_num_tokens": None,
    "max_matching_ngram_size": 2,
    "num_return_sequences": 1,
    "output_scores": False,
    "output_logits": False,
    "output_hidden_states": False,
    "output_attentions": False,
    "return_dict_in_generate": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "decoder_start_token_id": None,
    "seed": None,
}
# Options of transformers that are not here, with the values under which they do nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "penalty_alpha": (0,),
    "dola_layers": (),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "constraints": (),
    "force_words_ids": (),
    "watermarking_config": (),
    "token_healing": (False,),
    "low_memory": (False,),
    "use_mtp": (False,),
    "assistant_early_exit": (),
    "assistant_ensemble_weight": (),
    "speculation_type": (),
    "is_assistant": (False,),
    "compile_config": (),
    "max_cache_len": (),
    "cache_config": (),
}
_REMOVED = {
    "penalty_alpha": "Contrastive search", "dola_layers": "DoLa", "num_beam_groups": "Group beam search",
    "diversity_penalty": "Group beam search", "constraints": "Constrained beam search",
    "force_words_ids": "Constrained beam search",
}  # fmt: skip
# Settings of assisted decoding, which files may have and which are without effect there as here.
_ASSISTED = (
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "target_lookbehind",
    "disable_compile",
)
# Caches in files of models with sliding windows, for which every cache here has room.
_WINDOWED = ("hybrid", "hybrid_chunked", "sliding_window")
_HUB_OPTIONS = {
    "revision": "main", "subfolder": "", "token": None, "local_files_only": False, "progress_callback": None,
}  # fmt: skip
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "seed")
_OUTPUTS = ("output_scores", "output_logits", "output_hidden_states", "output_attentions")
_BEAMS = ("early_stopping", "length_penalty")
_BOOLEANS = tuple(name for name, value in DEFAULTS.items() if isinstance(value, bool) and name != "early_stopping")
_COUNTS = {
    "max_length": 1, "max_new_tokens": 1, "min_length": 0, "min_new_tokens": 0, "num_beams": 1,
    "prefill_chunk_size": 1, "top_k": 0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "num_return_sequences": 1, "num_assistant_tokens": 1, "prompt_lookup_num_tokens": 1, "max_matching_ngram_size": 1,
}  # fmt: skip


class GenerationConfig(Awaitable):
    """Options of `generate` as attributes; None where nothing is said.

    The names are those of `DEFAULTS`. Beyond transformers': `seed` makes the samples of a call repeatable, and
    `kv_cache_dtype` (f32, f16, q8) is the precision of the cache.
    Raises InputError for unknown names and values that cannot be, UnsupportedError for options that are not here.
    """

    def __init__(self, **options: Any) -> None:
        self.values: dict[str, Any] = {}
        self.update(**options)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Options of the contents of a file. Keys that are no options are left out; values are checked when used."""
        config = cls()
        known = {name: value for name, value in values.items() if name in DEFAULTS or name in UNSUPPORTED}
        if known.get("cache_implementation") in _WINDOWED:
            del known["cache_implementation"]
        config.values = {name: value for name, value in known.items() if value is not None}
        return config

    @classmethod
    def from_model_config(cls, config: Any) -> Self:
        """Options that a model's configuration has: its special tokens, and what old files say of generation."""
        values = config if isinstance(config, Mapping) else config.to_dict()
        return cls.from_dict(
            {name: value for name, value in values.items() if name not in ("use_cache", "seed", "kv_cache_dtype")}
        )

    @classmethod
    def from_pretrained(cls, name: "str | os.PathLike[str] | Repository", **options: Any) -> Self:
        """The `generation_config.json` of a repository, with other options over it.

        revision, subfolder, token, local_files_only and progress_callback are options of the repository.
        """
        return resolve(cls._from_pretrained(name, **options))

    @classmethod
    async def _from_pretrained(cls, name: Any, *, model_config: Any = None, **options: Any) -> Self:
        """`model_config` stands in for a missing file."""
        from ..models.modeling import as_repository

        repository = as_repository(name, *(options.pop(option, value) for option, value in _HUB_OPTIONS.items()))
        values = await repository.json("generation_config.json", required=model_config is None)
        if values is None:
            config = cls.from_model_config(model_config)
        elif isinstance(values, dict):
            config = cls.from_dict(values)
        else:
            raise ConfigError(f"generation_config.json of {repository.name} is not an object.")
        config.update(**options)
        return config

    def update(self, **options: Any) -> None:
        """Set options; None takes one back."""
        for name, value in options.items():
            if name in _ASSISTED or (name in UNSUPPORTED and value is not None and value not in UNSUPPORTED[name]):
                raise _unsupported(name, value)
            if name not in DEFAULTS and name not in UNSUPPORTED:
                raise unknown_option(name)
            self.values.pop(name, None)
            if name in DEFAULTS and value is not None:
                _check(name, value)
                self.values[name] = value

    def complete(self, under: "GenerationConfig | None" = None, **options: Any) -> "GenerationConfig":
        """All options with a value: `options`, else these, else those of `under`, else the defaults.

        An option in `options` that would have no effect raises; one of a file may have any value then.
        """
        merged = self.over(under)
        merged.update(**options)
        idle = () if merged.do_sample else _SAMPLING
        for name, value in merged.values.items():
            if name in UNSUPPORTED:
                if value not in UNSUPPORTED[name]:
                    raise _unsupported(name, value)
            elif name not in idle:
                _check(name, value)
        merged.values = {**DEFAULTS, **merged.values}
        merged.check_applicable(options)
        return merged

    def over(self, under: "GenerationConfig | None") -> "GenerationConfig":
        """These options, and those of `under` about which these say nothing."""
        merged = GenerationConfig()
        merged.values = {**(under.values if under else {}), **self.values}
        return merged

    def check_applicable(self, given: Mapping[str, Any]) -> None:
        """Raise InputError for options given that the others make meaningless, and for contradictions."""
        for names, applies, hint in (
            (_SAMPLING, self.do_sample, "Set do_sample=True."),
            (_BEAMS, self.num_beams > 1, "Set num_beams."),
            (("max_matching_ngram_size",), self.prompt_lookup_num_tokens, "Set prompt_lookup_num_tokens."),
            (_OUTPUTS, self.return_dict_in_generate, "Set return_dict_in_generate=True."),
            (("decoder_start_token_id",), False, "It is for models with an encoder."),
        ):
            for name in names:
                if not applies and given.get(name) not in (None, DEFAULTS[name]):
                    raise InputError(f"{name}={given[name]!r} would have no effect.", hint=hint)
        if given.get("max_length") is not None and self.max_new_tokens is not None:
            warnings.warn(f"max_new_tokens is {self.max_new_tokens}, so max_length does not count.", stacklevel=2)
        if self.num_return_sequences > 1 and self.num_beams == 1 and not self.do_sample:
            raise InputError("Greedy search has one result.", hint="Set do_sample=True, or num_beams.")
        if self.num_beams > 1 and self.num_return_sequences > self.num_beams:
            raise InputError(
                f"num_return_sequences={self.num_return_sequences} is more than num_beams={self.num_beams}."
            )

    def set_lengths(self, prompt: int, max_positions: int | None) -> None:
        """Make `max_length` and `min_length` absolute, for a prompt of so many tokens. Raises InputError."""
        longest = self.max_length or min(prompt + NEW_TOKENS, max_positions or prompt + NEW_TOKENS)
        if self.max_new_tokens is not None:
            longest = prompt + self.max_new_tokens
        if self.min_new_tokens is not None:
            self.values["min_length"] = prompt + self.min_new_tokens
        if longest <= prompt:
            raise InputError(
                f"The prompt has {prompt} tokens, and max_length is {longest}.", hint="Set max_new_tokens."
            )
        self.values["max_length"] = longest
        if self.min_length > self.max_length:
            raise InputError(f"min_length {self.min_length} is more than max_length {self.max_length}.")

    @property
    def eos_tokens(self) -> list[int]:
        """Tokens that end a sequence; files say by a negative one that there is none."""
        return [token for token in token_list(self.eos_token_id) if token >= 0]

    def to_dict(self) -> dict[str, Any]:
        """The options that are set."""
        return dict(self.values)

    def __getattr__(self, name: str) -> Any:
        if name in DEFAULTS:
            return self.values.get(name)
        raise AttributeError(f"GenerationConfig has no option {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "values":
            super().__setattr__(name, value)
        else:
            self.update(**{name: value})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GenerationConfig) and self.values == other.values

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"GenerationConfig({', '.join(f'{name}={value!r}' for name, value in self.values.items())})"


def unknown_option(name: str) -> InputError:
    """The error for an option that generation does not have."""
    from difflib import get_close_matches

    close = get_close_matches(name, DEFAULTS, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(DEFAULTS)}."
    return InputError(f"Generation has no option {name!r}.", hint=hint)


def _unsupported(name: str, value: Any) -> UnsupportedError:
    hint = "Leave it out."
    if name in _REMOVED:
        hint = f"{_REMOVED[name]} has left transformers, too, for a repository whose code would have to be run."
    return UnsupportedError(f"The option {name}={value!r:.60} of generation is not supported.", hint=hint)


def _check(name: str, value: Any) -> None:
    """Raise InputError for a value that the option cannot have."""
    if name in _BOOLEANS:
        check_flags(**{name: value})
    elif name in _COUNTS:
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= _COUNTS[name]
        _require(name, value, fits, f"a whole number of at least {_COUNTS[name]}")
    elif name == "early_stopping":
        _require(name, value, isinstance(value, bool) or value == "never", 'True, False or "never"')
    elif name in _RANGES:
        _RANGES[name](value)
    elif name in ("pad_token_id", "forced_bos_token_id"):
        _require(name, value, _is_token(value), "a token id")
    elif name.endswith("_token_id"):
        tokens = [value] if isinstance(value, int) else value
        fits = isinstance(tokens, list | tuple) and all(map(_is_token, tokens))
        _require(name, value, fits, "a token id or a list of them")
    elif name == "stop_strings":
        strings = [value] if isinstance(value, str) else value
        fits = isinstance(strings, list | tuple) and all(isinstance(text, str) and text for text in strings)
        _require(name, value, fits, "a text or a list of them, none empty")
    elif name == "seed":
        _require(name, value, isinstance(value, int), "a whole number")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(name: str, value: Any, fits: bool, wanted: str) -> None:
    if not fits:
        raise InputError(f"{name} must be {wanted}, not {value!r:.60}.")


def _range(name: str, **bounds: Any) -> Callable[[Any], float]:
    return lambda value: check_number(name, value, **bounds)


_RANGES: dict[str, Callable[[Any], float]] = {
    "max_time": _range("max_time", above=0),
    "temperature": _range("temperature", above=0, hint=GREEDY),
    "top_p": _range("top_p", least=0, most=1),
    "min_p": _range("min_p", least=0, most=1),
    "top_h": _range("top_h", above=0, most=1),
    "typical_p": _range("typical_p", above=0, most=1),
    "epsilon_cutoff": _range("epsilon_cutoff", least=0, below=1),
    "eta_cutoff": _range("eta_cutoff", least=0, below=1),
    "repetition_penalty": _range("repetition_penalty", above=0),
    "encoder_repetition_penalty": _range("encoder_repetition_penalty", above=0),
    "length_penalty": _range("length_penalty"),
    "guidance_scale": _range("guidance_scale"),
}
