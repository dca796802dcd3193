"""The special tokens of a tokenizer as attributes: `cls_token`, `cls_token_id`, and so on."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError
from .tokenizer_classes import SPECIAL_TOKENS
from .tokenizer_settings import token_text


class _Token:
    """Attribute for the text of a named token, None where the tokenizer has none."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, tokenizer: "SpecialTokens", owner: type | None = None) -> str | None:
        return tokenizer.special_tokens_map.get(self.name)

    def __set__(self, tokenizer: "SpecialTokens", token: Any) -> None:
        if token is None:
            tokenizer.special_tokens_map.pop(self.name, None)
        else:
            tokenizer.special_tokens_map[self.name] = token_text(token)


class _TokenId:
    """Attribute for the id of a named token; setting it names the token that has the id."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.token = name.removesuffix("_id")

    def __get__(self, tokenizer: "SpecialTokens", owner: type | None = None) -> int | None:
        token = tokenizer.special_tokens_map.get(self.token)
        return None if token is None else tokenizer.convert_tokens_to_ids(token)

    def __set__(self, tokenizer: "SpecialTokens", index: int | None) -> None:
        setattr(tokenizer, self.token, None if index is None else tokenizer.backend_tokenizer.id_to_token(index))


class SpecialTokens:
    """Mixin: named special tokens, further ones, and the ways to add some."""

    backend_tokenizer: Any
    special_tokens_map: dict[str, str]
    extra_special_tokens: list[str]

    bos_token, bos_token_id = _Token(), _TokenId()
    eos_token, eos_token_id = _Token(), _TokenId()
    unk_token, unk_token_id = _Token(), _TokenId()
    sep_token, sep_token_id = _Token(), _TokenId()
    pad_token, pad_token_id = _Token(), _TokenId()
    cls_token, cls_token_id = _Token(), _TokenId()
    mask_token, mask_token_id = _Token(), _TokenId()
    pad_token_type_id = 0

    def __getattr__(self, name: str) -> Any:
        """Tokens that a model names beyond the common ones, such as `image_token` and `image_token_id`."""
        token = self.__dict__.get("special_tokens_map", {}).get(name.removesuffix("_id"))
        if token is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.convert_tokens_to_ids(token) if name.endswith("_id") else token

    @property
    def additional_special_tokens(self) -> list[str]:
        """The older name of `extra_special_tokens`."""
        return self.extra_special_tokens

    @property
    def extra_special_tokens_ids(self) -> list[int]:
        return [self.convert_tokens_to_ids(token) for token in self.extra_special_tokens]

    @property
    def all_special_tokens(self) -> list[str]:
        """All special tokens, each once: the named ones first."""
        return list(dict.fromkeys([*self.special_tokens_map.values(), *self.extra_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        return [self.convert_tokens_to_ids(token) for token in self.all_special_tokens]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Id of a token, or ids of several; that of the unknown token (None without one) for tokens not in the
        vocabulary."""
        if isinstance(tokens, list | tuple):
            check_tokens(tokens)
            return [self.convert_tokens_to_ids(token) for token in tokens]
        if not isinstance(tokens, str):
            raise InputError(f"tokens are strings, not {tokens!r:.80}.")
        index = self.backend_tokenizer.token_to_id(tokens)
        if index is not None:
            return index
        unknown = self.special_tokens_map.get("unk_token")
        return None if unknown is None else self.backend_tokenizer.token_to_id(unknown)

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens (str or `tokenizers.AddedToken`, one or several) at the end of the vocabulary. Returns how many
        were new. The model's embeddings are not resized."""
        tokens = list(new_tokens) if isinstance(new_tokens, list | tuple) else [new_tokens]
        check_tokens([getattr(token, "content", token) for token in tokens])
        add = self.backend_tokenizer.add_special_tokens if special_tokens else self.backend_tokenizer.add_tokens
        return add(tokens)

    def add_special_tokens(self, special_tokens_dict: dict[str, Any], replace_extra_special_tokens: bool = True) -> int:
        """Name special tokens, and add those that are new to the vocabulary; returns how many that were.

        Keys are `bos_token`, ..., `mask_token` with one token, and `extra_special_tokens` (`additional_special_tokens`)
        with a list, which replaces the present one or is joined to it.
        """
        added: list[Any] = []
        if not isinstance(special_tokens_dict, Mapping):
            raise InputError(f"special_tokens_dict has tokens by name, unlike {special_tokens_dict!r:.80}.")
        for name, value in special_tokens_dict.items():
            if name in SPECIAL_TOKENS:
                setattr(self, name, value)
                added.append(value)
            elif name in ("extra_special_tokens", "additional_special_tokens"):
                if not isinstance(value, list | tuple):
                    raise InputError(f"{name} is a list of tokens, not {value!r:.80}.")
                present = [] if replace_extra_special_tokens else self.extra_special_tokens
                self.extra_special_tokens = list(dict.fromkeys([*present, *map(token_text, value)]))
                added += value
            else:
                names = ", ".join((*SPECIAL_TOKENS, "extra_special_tokens"))
                raise InputError(f"{name!r} is not a special token.", hint=f"There are: {names}.")
        return self.add_tokens(added, special_tokens=True)


def check_tokens(tokens: Sequence[Any]) -> None:
    """Raise InputError unless all are strings."""
    for token in tokens:
        if not isinstance(token, str):
            raise InputError(f"tokens are strings, not {token!r:.80}.")
