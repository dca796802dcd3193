"""What a tokenizer returns: a dict of lists or tensors, with the backend's encodings beside it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InputError, UnsupportedError
from ..runtime import import_numpy

if TYPE_CHECKING:
    from tokenizers import Encoding


_LARGEST_INDEX = 2**32 - 1  # that the backend takes on every platform


class CharSpan(NamedTuple):
    """Characters [start, end) of a text."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """Tokens [start, end) of an encoding."""

    start: int
    end: int


class BatchEncoding(dict[str, Any]):
    """`input_ids`, `attention_mask` and so on by key or attribute; `batch[i]` is the i-th encoding of the backend.

    `encodings` is None for batches that were made from ids (`tokenizer.pad`); the methods that map between tokens,
    words and characters then raise InputError. They take `(batch_index, index)`, or `(index)` for the first element.
    """

    encodings: "list[Encoding] | None"

    def __init__(
        self,
        data: dict[str, Any] | None = None,
        encodings: "Sequence[Encoding] | None" = None,
        tensor_type: str | None = None,
        prepend_batch_axis: bool = False,
    ) -> None:
        super().__init__(data or {})
        self.encodings = None if encodings is None else list(encodings)
        self.convert_to_tensors(tensor_type, prepend_batch_axis)

    def __getitem__(self, item: Any) -> Any:
        """Value of a key; encoding of an index; a dict of sliced values for a slice."""
        if isinstance(item, str):
            return super().__getitem__(item)
        if isinstance(item, slice):
            return {name: value[item] for name, value in self.items()}
        return self._encodings()[item]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getitem__(name)
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None

    @property
    def is_fast(self) -> bool:
        """True where the encodings of the backend are there."""
        return self.encodings is not None

    @property
    def n_sequences(self) -> int | None:
        """1 for texts, 2 for pairs of texts, None where it is not known."""
        return self.encodings[0].n_sequences if self.encodings else None

    def convert_to_tensors(self, tensor_type: str | None = None, prepend_batch_axis: bool = False) -> "BatchEncoding":
        """Turn all values into tensors in place: "ip" gives `inpage.Tensor` (int32), "np" NumPy arrays (int64).

        Raises InputError for rows of unequal length and UnsupportedError for other libraries' tensors.
        """
        if tensor_type is None:
            return self
        as_tensor = _converter(tensor_type)
        for name, value in self.items():
            try:
                self[name] = as_tensor([value] if prepend_batch_axis else value)
            except ValueError as error:  # InputError is one
                raise InputError(
                    f"{name!r} cannot become a tensor: its rows differ in length, or nest too deeply.",
                    hint="Pad and truncate, padding=True and truncation=True, so that all rows have one length.",
                ) from error
        return self

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens as strings."""
        return self._encodings()[batch_index].tokens

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token: 0 or 1 for the first or second text of a pair, None for special tokens."""
        return self._encodings()[batch_index].sequence_ids

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token: the index of its word in its text, None for special tokens."""
        return self._encodings()[batch_index].word_ids

    def token_to_sequence(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Which text of a pair a token belongs to; None for special tokens."""
        encoding, token = self._token(batch_or_token_index, token_index)
        return encoding.token_to_sequence(token)

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Index of the word that a token is part of; None for special tokens."""
        encoding, token = self._token(batch_or_token_index, token_index)
        return encoding.token_to_word(token)

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> CharSpan | None:
        """Characters that a token stands for; None for special tokens."""
        encoding, token = self._token(batch_or_token_index, token_index)
        span = encoding.token_to_chars(token)
        return None if span is None else CharSpan(*span)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """Tokens of a word; None for a word that has none."""
        encoding, word = self._element(batch_or_word_index, word_index)
        span = encoding.word_to_tokens(word, sequence_index)
        return None if span is None else TokenSpan(*span)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """Characters of a word; None for a word that has none."""
        encoding, word = self._element(batch_or_word_index, word_index)
        span = encoding.word_to_chars(word, sequence_index)
        return None if span is None else CharSpan(*span)

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """Index of the token that holds a character; None for characters between tokens."""
        encoding, char = self._element(batch_or_char_index, char_index)
        return encoding.char_to_token(char, sequence_index)

    def char_to_word(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """Index of the word that holds a character; None for characters between words."""
        encoding, char = self._element(batch_or_char_index, char_index)
        return encoding.char_to_word(char, sequence_index)

    def _encodings(self) -> "list[Encoding]":
        if self.encodings is None:
            raise InputError(
                "This batch has no encodings: it was made from ids, not from texts.",
                hint="Words, offsets and tokens are known only in what calling the tokenizer returns.",
            )
        return self.encodings

    def _element(self, batch_or_index: int, index: int | None, *, from_end: bool = False) -> "tuple[Encoding, int]":
        """The encoding and the index meant by `(index)` or `(batch_index, index)`."""
        batch_index, index = (0, batch_or_index) if index is None else (batch_or_index, index)
        encoding = self._encodings()[batch_index]
        counted = index + len(encoding) if from_end and index < 0 else index
        if not 0 <= counted <= _LARGEST_INDEX:
            raise InputError(
                f"There is no index {index} in encoding {batch_index}, which has {len(encoding)} tokens.",
                hint="Words and characters are counted from 0, tokens from either end.",
            )
        return encoding, counted

    def _token(self, batch_or_index: int, index: int | None) -> "tuple[Encoding, int]":
        """As `_element`, for tokens, which a negative index counts from the end."""
        return self._element(batch_or_index, index, from_end=True)


def _converter(tensor_type: str) -> Any:
    """Function that makes a tensor of nested lists of integers."""
    if tensor_type == "ip":
        from ..tensor import Tensor

        return lambda values: Tensor.from_values(values, "int32")
    if tensor_type == "np":
        np = import_numpy("return_tensors='np'")
        return lambda values: np.asarray(values, dtype=np.int64)
    if tensor_type in ("pt", "tf", "jax", "mlx"):
        raise UnsupportedError(
            f"return_tensors={tensor_type!r} asks for a library that does not run here.",
            hint='Use "ip" for inpage tensors or "np" for NumPy arrays.',
        )
    raise InputError(f'return_tensors is "ip", "np" or None, not {tensor_type!r}.')
