"""The bytes that tokens stand for."""

import json
import re
from collections.abc import Callable, Generator
from typing import Any

from ..errors import UnsupportedError
from ..runtime import Slices

_MOST_IDS = 1 << 22  # of which some may have no token


class TokenBytes:
    """The bytes that each token of a tokenizer adds to a text.

    Raises UnsupportedError for tokenizers whose tokens do not say that (WordPiece).
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        decoder = self._backend.decoder
        self._convert = _conversion(json.loads(decoder.__getstate__()) if decoder else None)
        self._added = self._backend.get_added_tokens_decoder()
        self._special = frozenset(tokenizer.all_special_ids)
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        """The bytes of a token, those of its name if it is an added one; none for unknown ids."""
        found = self._known.get(token)
        if found is None:
            name = self._backend.id_to_token(token) or ""
            found = self._known[token] = name.encode() if token in self._added else self._convert(name)
        return found

    def written(self) -> Generator[None, None, list[bytes | None]]:
        """The bytes of all tokens by id; None for special tokens, and for ids without one. Yields between slices."""
        name_of, slices = self._backend.id_to_token, Slices()
        found: list[bytes | None] = []
        named, size = 0, self._backend.get_vocab_size(with_added_tokens=True)
        while named < size and len(found) < _MOST_IDS:
            token = len(found)
            name = name_of(token)
            named += name is not None
            if name is None or token in self._special or (token in self._added and self._added[token].special):
                found.append(None)
            else:
                found.append(name.encode() if token in self._added else self._convert(name))
            if token % 256 == 0 and slices.over():
                yield
        return found


def _conversion(decoder: Any) -> Callable[[str], bytes]:
    kinds = [part["type"] for part in (decoder or {}).get("decoders", [decoder] if decoder else [])]
    if "ByteLevel" in kinds:
        table = _byte_level()

        def convert(text: str) -> bytes:
            try:
                return bytes([table[char] for char in text])
            except KeyError:
                return text.encode()

        return convert
    if "Metaspace" in kinds or ("Replace" in kinds and "WordPiece" not in kinds):
        return _metaspace
    raise UnsupportedError(
        "Constraints and stop strings need a tokenizer of bytes or pieces of text.",
        hint="This one's tokens leave out spaces.",
    )


def _metaspace(text: str) -> bytes:
    if re.fullmatch("<0x[0-9A-F]{2}>", text):
        return bytes([int(text[3:5], 16)])
    return text.replace("\u2581", " ").encode()


def _byte_level() -> dict[str, int]:
    """Bytes by the characters that stand for them in byte-level tokens: visible ones for themselves."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}
