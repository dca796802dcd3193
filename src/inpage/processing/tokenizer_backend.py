"""Makes the `tokenizers.Tokenizer` that files describe, and applies options to its parts."""

import json
from collections.abc import Iterator
from typing import Any

from ..errors import ConfigError, InputError, UnsupportedError
from .tokenizer_classes import BYTE_LEVEL_OPTIONS, WORDPIECE_OPTIONS, Config
from .tokenizer_files import TokenizerFiles
from .tokenizer_settings import named_tokens, token_text


def build_backend(tokenizers: Any, files: TokenizerFiles) -> Any:
    """The `tokenizers.Tokenizer` that the files describe, before any option is applied."""
    try:
        if files.tokenizer is not None:
            return tokenizers.Tokenizer.from_buffer(files.tokenizer)
        assert files.vocabulary is not None  # see _read_vocabulary
        if files.merges is None:
            return _wordpiece_backend(tokenizers, files, _lines(files.vocabulary))
        return _byte_level_backend(tokenizers, files, json.loads(files.vocabulary), _lines(files.merges))
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"The tokenizer file of {files.name} cannot be read: {error}.",
            hint="The file may be damaged, or be made for a newer version of the `tokenizers` package.",
        ) from error


def _lines(text: bytes) -> list[str]:
    return text.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")


def _wordpiece_backend(tokenizers: Any, files: TokenizerFiles, vocabulary: list[str]) -> Any:
    unknown, first, last = (token_text(files.merged[name]) for name in ("unk_token", "cls_token", "sep_token"))
    ids = {token: i for i, token in enumerate(vocabulary)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token=unknown))
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece(prefix="##")
    if files.class_name == "MPNetTokenizer":
        backend.post_processor = _roberta_processor(tokenizers, ids, first, last)
    else:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{first}:0 $A:0 {last}:0",
            pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
            special_tokens=[(first, ids[first]), (last, ids[last])],
        )
    return backend


def _byte_level_backend(tokenizers: Any, files: TokenizerFiles, ids: dict[str, int], merges: list[str]) -> Any:
    tokens = files.merged
    pairs = [tuple(line.split(" ")) for line in merges if line and not line.startswith("#version")]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(ids, pairs))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    if tokens.get("cls_token") and tokens.get("sep_token"):
        first, last = token_text(tokens["cls_token"]), token_text(tokens["sep_token"])
        backend.post_processor = _roberta_processor(tokenizers, ids, first, last)
    else:
        backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    return backend


def _roberta_processor(tokenizers: Any, ids: dict[str, int], first: str, last: str) -> Any:
    return tokenizers.processors.RobertaProcessing((last, ids[last]), (first, ids[first]), add_prefix_space=False)


def add_configured_tokens(backend: Any, settings: Config) -> None:
    """Give the backend the tokens of the settings that it does not have in the same form.

    Those are the entries of `added_tokens_decoder`, and special tokens, which are then matched as a whole in texts.
    """
    from tokenizers import AddedToken

    known = list(backend.get_added_tokens_decoder().values())
    known_forms = set(map(repr, known))
    listed = sorted((settings.get("added_tokens_decoder") or {}).items(), key=lambda entry: int(entry[0]))
    wanted = [_added_token(AddedToken, token) for _, token in listed]
    tokens = [token for token in wanted if repr(token) not in known_forms]
    present = {token.content for token in (*known, *wanted)}
    named = [settings[name] for name in named_tokens(settings)]
    for token in (*named, *(settings.get("extra_special_tokens") or ())):
        if token_text(token) not in present:
            present.add(token_text(token))
            tokens.append(_added_token(AddedToken, token, special=True))
    if tokens:
        backend.add_tokens(tokens)


def _added_token(added_token: Any, token: Any, **flags: bool) -> Any:
    """`AddedToken` of a text, of another one, or of its JSON form."""
    if not isinstance(token, dict | str):
        token = token.__getstate__()
    if isinstance(token, dict):
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {name: bool(token[name]) for name in names if name in token} | flags
    return added_token(token_text(token), **flags)


def apply_options(tokenizers: Any, backend: Any, files: TokenizerFiles, overrides: Config) -> None:
    """Set what the options say in the parts of the backend.

    The repository's own options count where the tokenizer's class has them, as in transformers. Raises UnsupportedError
    for one that the caller gave and that this backend has no part for.
    """
    configured = {name: value for name, value in files.config.items() if name in files.class_defaults}
    options = {**files.class_defaults, **configured, **overrides}
    for names, parts in ((WORDPIECE_OPTIONS, _normalizers(backend)), (BYTE_LEVEL_OPTIONS, _byte_level_parts(backend))):
        for name in names:
            if name in overrides and not parts:
                raise UnsupportedError(f"The tokenizer of {files.name} has no part that the option {name!r} changes.")
            if name in options:
                for part in parts:
                    _set_option(part, name, options[name])
    if "add_bos_token" in overrides or "add_eos_token" in overrides:
        ends = [name for name in ("bos_token", "eos_token") if overrides.get(f"add_{name}")]
        _set_ends(tokenizers, backend, {name: (files.merged | overrides).get(name) for name in ends})
    elif backend.post_processor is None:  # without one, padding would count as part of the text
        _set_ends(tokenizers, backend, {})


_ATTRIBUTES = {"do_lower_case": "lowercase", "tokenize_chinese_chars": "handle_chinese_chars"}


def _set_option(part: Any, name: str, value: Any) -> None:
    attribute = _ATTRIBUTES.get(name, name)
    if hasattr(part, attribute) and (value is not None or attribute == "strip_accents"):
        setattr(part, attribute, value)


def _normalizers(backend: Any) -> list[Any]:
    return [part for part in _parts(backend.normalizer) if type(part).__name__ == "BertNormalizer"]


def _byte_level_parts(backend: Any) -> list[Any]:
    parts = (*_parts(backend.pre_tokenizer), *_parts(backend.post_processor))
    return [part for part in parts if type(part).__name__ in ("ByteLevel", "RobertaProcessing")]


def _parts(component: Any) -> Iterator[Any]:
    """A component, or the components of a sequence."""
    if component is not None:
        yield from component if type(component).__name__ == "Sequence" else (component,)


def _set_ends(tokenizers: Any, backend: Any, ends: Config) -> None:
    """Let the backend put these tokens, `bos_token` before and `eos_token` after, around each text, and no others."""
    for name, token in ends.items():
        if token is None:
            raise InputError(f"add_{name} is on, but the tokenizer has no {name}.", hint=f"Give {name} as well.")
    tokens = {name: token_text(token) for name, token in ends.items()}

    def template(sequence: str, type_id: int) -> str:
        parts = (tokens.get("bos_token"), f"${sequence}", tokens.get("eos_token"))
        return " ".join(f"{part}:{type_id}" for part in parts if part)

    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=template("A", 0),
        pair=f"{template('A', 0)} {template('B', 1)}",
        special_tokens=[(token, backend.token_to_id(token)) for token in set(tokens.values())],
    )
