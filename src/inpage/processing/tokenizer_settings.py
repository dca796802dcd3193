"""Merges what class, files and caller say into the settings of a tokenizer."""

from collections.abc import Callable
from typing import Any

from ..errors import ConfigError, InputError
from .tokenizer_classes import BYTE_LEVEL_OPTIONS, SPECIAL_TOKENS, WORDPIECE_OPTIONS, Config
from .tokenizer_files import TokenizerFiles

SETTINGS = (
    *SPECIAL_TOKENS,
    "added_tokens_decoder",
    "additional_special_tokens",
    "chat_template",
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    "extra_special_tokens",
    "model_input_names",
    "model_max_length",
    "padding_side",
    "split_special_tokens",
    "truncation_side",
)
_FLAGS = (
    "add_bos_token",
    "add_eos_token",
    "add_prefix_space",
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    "do_lower_case",
    "split_special_tokens",
    "strip_accents",
    "tokenize_chinese_chars",
    "trim_offsets",
)
OVERRIDES = (*SETTINGS, *WORDPIECE_OPTIONS, *BYTE_LEVEL_OPTIONS, "add_bos_token", "add_eos_token")


def merge_settings(files: TokenizerFiles, backend: Any, overrides: Config) -> Config:
    """What the files and the caller say, the later of class, tokenizer.json, its two companions and the caller winning.

    The result has the keys of `SETTINGS`, and named tokens of the model's own. Raises InputError for an override that
    is no setting.
    """
    check_settings(overrides, OVERRIDES)
    for source in (files.config, files.special_tokens_map, overrides):
        check_forms(source)
    config, tokens = dict(files.config), dict(files.special_tokens_map)
    if files.chat_template is not None:
        config["chat_template"] = files.chat_template
    if "max_len" in config:
        config.setdefault("model_max_length", config["max_len"])
    settings = {
        **_known_defaults(files.class_defaults, backend),
        **_settings_of(backend),
        **config,
        **tokens,
        **overrides,
    }
    extra: dict[str, Any] = {}
    for source in (overrides,) if _extra_tokens(overrides) else (config, tokens):
        listed = _extra_tokens(source)
        if isinstance(listed, dict):  # named ones
            settings |= listed
        else:
            for token in listed:
                extra.setdefault(token_text(token), token)
    settings["extra_special_tokens"] = list(extra.values())
    settings.pop("additional_special_tokens", None)
    return {name: value for name, value in settings.items() if name in SETTINGS or _is_named_token(name, value)}


def _known_defaults(defaults: Config, backend: Any) -> Config:
    """Defaults of a class, without special tokens that are not in this vocabulary."""
    return {
        name: value
        for name, value in defaults.items()
        if name not in SPECIAL_TOKENS or backend.token_to_id(value) is not None
    }


def _settings_of(backend: Any) -> Config:
    """Settings that tokenizer.json itself holds."""
    settings: Config = {}
    if backend.truncation:
        settings["truncation_side"] = backend.truncation["direction"]
    if backend.padding:
        settings |= {"padding_side": backend.padding["direction"], "pad_token": backend.padding["pad_token"]}
    return settings


def _extra_tokens(config: Config) -> Any:
    return config.get("extra_special_tokens") or config.get("additional_special_tokens") or []


def _is_named_token(name: str, value: Any) -> bool:
    """True for tokens such as `image_token`, which a model names beyond the common ones."""
    return name.endswith("_token") and not isinstance(value, bool | int | float | None)


def token_text(token: Any) -> str:
    """Text of a token given as str, as `AddedToken` or as its JSON form."""
    text = token.get("content") if isinstance(token, dict) else getattr(token, "content", token)
    if not isinstance(text, str):
        raise ConfigError(f"A special token is a string or an object with `content`, not {token!r}.")
    return text


def named_tokens(settings: Config) -> dict[str, str]:
    """Texts of the named special tokens by name, the common ones first."""
    names = (*SPECIAL_TOKENS, *(name for name in settings if _is_named_token(name, settings[name])))
    return {name: token_text(settings[name]) for name in names if settings.get(name) is not None}


def check_settings(given: Config, known: tuple[str, ...]) -> None:
    """Raise InputError for settings that tokenizers do not have."""
    for name in given:
        if name not in known and not name.endswith("_token"):
            raise InputError(f"Tokenizers have no setting {name!r}.", hint=f"There are: {', '.join(sorted(known))}.")


def check_forms(settings: Config) -> None:
    """Raise ConfigError for a setting whose value has another form than it must have. None leaves a setting open."""
    for name, value in settings.items():
        expected = _FORMS.get(name)
        if value is not None and expected and not expected[1](value):
            raise ConfigError(f"The tokenizer's {name} is {expected[0]}, not {value!r:.80}.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_token(value: Any) -> bool:
    return _is_text(value.get("content") if isinstance(value, dict) else getattr(value, "content", value))


def _is_list_of(is_element: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(is_element, value))


def _are_tokens(value: Any) -> bool:
    return _is_list_of(_is_token)(list(value.values()) if isinstance(value, dict) else value)


def _are_tokens_by_id(value: Any) -> bool:
    return isinstance(value, dict) and _are_tokens(value) and all(str(index).isdecimal() for index in value)


def _is_template(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_text, value.values()))
    named = _is_list_of(lambda entry: isinstance(entry, dict) and {*map(type, map(entry.get, _TEMPLATE))} == {str})
    return _is_text(value) or named(value)


_TEMPLATE = ("name", "template")
# What a setting is, in words, and whether a value is that.
_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **{name: ("true or false", lambda value: isinstance(value, bool)) for name in _FLAGS},
    **dict.fromkeys(SPECIAL_TOKENS, ("a special token", _is_token)),
    **dict.fromkeys(("additional_special_tokens", "extra_special_tokens"), ("a list of tokens", _are_tokens)),
    **dict.fromkeys(("padding_side", "tokenizer_class", "truncation_side"), ("a name", _is_text)),
    "added_tokens_decoder": ("an object of tokens by id", _are_tokens_by_id),
    "chat_template": ("a text, or texts by name", _is_template),
    "model_input_names": ("a list of names", _is_list_of(_is_text)),
    "model_max_length": ("a number of tokens", lambda value: type(value) in (int, float) and value >= 0),
}
