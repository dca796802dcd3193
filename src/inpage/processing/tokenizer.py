"""Tokenizers: text to ids and back, with the calling conventions of transformers, over the `tokenizers` package."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from ..checks import check_flags
from ..errors import InputError, RemoteCodeError, UnsupportedError
from ..runtime import Awaitable, resolve
from .backend import load_backend
from .batch_encoding import BatchEncoding
from .chat_template import ChatTemplates, load_jinja
from .lengths import UNLIMITED, check_counts, check_side, pad_encoded, resolve_lengths
from .special_tokens import SpecialTokens, check_tokens
from .text_batch import as_text_batch, is_batched
from .tokenizer_backend import add_configured_tokens, apply_options, build_backend
from .tokenizer_files import read_tokenizer_files
from .tokenizer_settings import SETTINGS, check_forms, check_settings, merge_settings, named_tokens, token_text

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_HUB_OPTIONS = ("revision", "subfolder", "token", "progress_callback", "local_files_only")

_CLEAN_UP = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"),
    (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


class PreTrainedTokenizer(SpecialTokens, ChatTemplates, Awaitable):
    """A tokenizer with its settings: special tokens, `model_max_length`, `padding_side`, `truncation_side`,
    `model_input_names`, `clean_up_tokenization_spaces`, `split_special_tokens`, `chat_template`.

    Made by `AutoTokenizer.from_pretrained`, or from a `tokenizers.Tokenizer` and settings named as in
    `tokenizer_config.json`. The backend is the tokenizer's own from then on.
    """

    def __init__(self, tokenizer_object: "Tokenizer", *, name_or_path: str = "", **settings: Any) -> None:
        check_settings(settings, SETTINGS)
        check_forms(settings)
        self.backend_tokenizer = tokenizer_object
        self.name_or_path = name_or_path
        self.special_tokens_map = named_tokens(settings)
        self.extra_special_tokens = [token_text(token) for token in settings.get("extra_special_tokens") or []]
        self.model_max_length = int(min(settings.get("model_max_length") or UNLIMITED, UNLIMITED))
        self.padding_side = check_side("padding_side", settings.get("padding_side", "right"))
        self.truncation_side = check_side("truncation_side", settings.get("truncation_side", "right"))
        self.model_input_names: list[str] = list(settings.get("model_input_names") or ("input_ids", "attention_mask"))
        self.clean_up_tokenization_spaces = bool(settings.get("clean_up_tokenization_spaces"))
        self.split_special_tokens = bool(settings.get("split_special_tokens"))
        self.chat_template: str | dict[str, str] | None = _chat_templates(settings.get("chat_template"))
        self._clean_up_bpe = bool(
            settings.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
        )
        self._warned: set[str] = set()
        add_configured_tokens(tokenizer_object, settings)
        self._reset_backend()

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> Self:
        """Load from a hub repository, a local folder or the address of a folder.

        Keyword arguments are the hub's (`revision`, `subfolder`, `token`, `progress_callback`, `local_files_only`),
        settings, which win over the repository's (`model_max_length=128`, `pad_token="<pad>"`, ...), and options of the
        backend (`do_lower_case`, `tokenize_chinese_chars`, `strip_accents`, `add_prefix_space`, `trim_offsets`,
        `add_bos_token`, `add_eos_token`). Awaitable; must be awaited where the platform cannot block.

        Raises FileNotFoundInRepositoryError without a tokenizer.json (or the older vocabulary files of BERT and
        RoBERTa kin), ConfigError for a broken one, InputError for an unknown argument.
        """
        return resolve(cls._from_pretrained(name, **options))

    @classmethod
    async def _from_pretrained(cls, source: Any, **options: Any) -> Self:
        """As `from_pretrained`; `source` may also be an opened `Repository`."""
        if options.pop("trust_remote_code", False):
            raise RemoteCodeError("trust_remote_code=True is refused: code from repositories is never run.")
        if not options.pop("use_fast", True):
            raise UnsupportedError("use_fast=False asks for a tokenizer in Python; only the fast ones are here.")
        if not hasattr(source, "json"):
            from ..hub import Repository

            hub_options = {name: options.pop(name) for name in _HUB_OPTIONS if name in options}
            source = Repository(source, **hub_options)
        files = await read_tokenizer_files(source)
        tokenizers = await load_backend()
        backend = build_backend(tokenizers, files)
        settings = merge_settings(files, backend, options)
        apply_options(tokenizers, backend, files, options)
        if settings.get("chat_template"):
            await load_jinja()
        return cls(backend, name_or_path=source.name, **settings)

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        verbose: bool = True,
        split_special_tokens: bool | None = None,
    ) -> BatchEncoding:
        """Encode a text, a pair of texts (`text_pair`), or a list of either.

        With `is_split_into_words` a text is a list of words. Values of the result are lists of ids, one for a single
        text and a list of lists for several; with `return_tensors` ("ip" or "np") they are tensors [batch, length].

        `padding`: False, True or "longest", "max_length". `truncation`: False, True or "longest_first", "only_first",
        "only_second"; to `max_length`, or to the model's limit without it. `return_overflowing_tokens` keeps what was
        cut off as further rows that overlap by `stride` tokens; `overflow_to_sample_mapping` says whose they are.

        Raises InputError for inputs of another form and for lengths that cannot be kept.
        """
        if text_target is not None or text_pair_target is not None:
            raise UnsupportedError("text_target is not supported.", hint="Encode the targets in a call of their own.")
        check_flags(
            optional=True,
            return_token_type_ids=return_token_type_ids,
            return_attention_mask=return_attention_mask,
            return_overflowing_tokens=return_overflowing_tokens,
            return_special_tokens_mask=return_special_tokens_mask,
            return_offsets_mapping=return_offsets_mapping,
            return_length=return_length,
        )
        encodings = self.encodings(
            text,
            text_pair,
            add_special_tokens=add_special_tokens,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            stride=stride,
            is_split_into_words=is_split_into_words,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            verbose=verbose,
            split_special_tokens=split_special_tokens,
        )
        rows, samples = with_overflow(encodings) if return_overflowing_tokens else (encodings, None)
        columns: dict[str, Any] = {"input_ids": [row.ids for row in rows]}
        if self._wanted("token_type_ids", return_token_type_ids):
            columns["token_type_ids"] = [row.type_ids for row in rows]
        if self._wanted("attention_mask", return_attention_mask):
            columns["attention_mask"] = [row.attention_mask for row in rows]
        if return_special_tokens_mask:
            columns["special_tokens_mask"] = [row.special_tokens_mask for row in rows]
        if return_offsets_mapping:
            columns["offset_mapping"] = [row.offsets for row in rows]
        if return_length:
            columns["length"] = [len(row) for row in rows]
        if samples is not None:
            columns["overflow_to_sample_mapping"] = samples
        if verbose and max_length is None:
            self._warn_of_length(max(map(len, rows)))
        if return_tensors is None and samples is None and not is_batched(text, is_split_into_words):
            columns = {name: rows[0] if isinstance(rows[0], list) else rows for name, rows in columns.items()}
        return BatchEncoding(columns, rows, tensor_type=return_tensors)

    def encodings(
        self,
        text: Any,
        text_pair: Any = None,
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        verbose: bool = True,
        split_special_tokens: bool | None = None,
    ) -> "list[Encoding]":
        """The backend's encodings of one or several texts, for callers that do not want all that a call makes of them.

        Arguments are those of a call.
        """
        check_flags(
            optional=True,
            add_special_tokens=add_special_tokens,
            is_split_into_words=is_split_into_words,
            split_special_tokens=split_special_tokens,
            verbose=verbose,
        )
        batch = as_text_batch(text, text_pair, is_split_into_words)
        check_counts(max_length=max_length, stride=stride, pad_to_multiple_of=pad_to_multiple_of)
        lengths = resolve_lengths(self, padding, truncation, max_length, pad_to_multiple_of, verbose)
        limit = lengths.max_length if lengths.truncation else None
        if limit is not None:
            self._check_truncation(limit, stride, add_special_tokens, batch.pairs)
        side = check_side("padding_side", self.padding_side if padding_side is None else padding_side)
        backend = self.backend_tokenizer
        try:
            backend.encode_special_tokens = (
                self.split_special_tokens if split_special_tokens is None else split_special_tokens
            )
            if limit is not None:
                backend.enable_truncation(
                    limit, stride=stride, strategy=lengths.truncation, direction=self.truncation_side
                )
            if lengths.padding:
                backend.enable_padding(
                    direction=side,
                    pad_id=self.pad_token_id,
                    pad_token=self.pad_token,
                    pad_type_id=self.pad_token_type_id,
                    length=lengths.max_length if lengths.padding == "max_length" else None,
                    pad_to_multiple_of=pad_to_multiple_of,
                )
            return self._encode_batch(batch.items, add_special_tokens, is_split_into_words)
        finally:
            self._reset_backend()

    def encode(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        """The `input_ids` of a call."""
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(self, text: Any, pair: Any = None, add_special_tokens: bool = False, **options: Any) -> list[str]:
        """The tokens of a text as strings."""
        return self(text, pair, add_special_tokens=add_special_tokens, **options).tokens()

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pad encoded texts: a BatchEncoding or dict of one row or of several, or a list of those.

        `attention_mask` is made where it is missing and the model wants it. Tensors among the values become lists
        unless `return_tensors` says otherwise.
        """
        check_counts(max_length=max_length, pad_to_multiple_of=pad_to_multiple_of)
        lengths = resolve_lengths(self, padding, False, max_length, pad_to_multiple_of, verbose)
        side = check_side("padding_side", self.padding_side if padding_side is None else padding_side)
        return pad_encoded(
            self, encoded_inputs, lengths, pad_to_multiple_of, side, return_attention_mask, return_tensors
        )

    def decode(
        self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> Any:
        """Text of ids: an int, a list, a tensor; a list of texts for a list of lists or a tensor [batch, length]."""
        decode = self.text_decoder(skip_special_tokens, clean_up_tokenization_spaces)
        ids = _ids(token_ids)
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            return [decode(row) for row in ids]
        return decode(ids if isinstance(ids, list) else [ids])

    def text_decoder(
        self, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> Callable[[list[int]], str]:
        """`decode` of lists of ids with these options, which are looked at now: for those who decode often."""
        check_flags(
            optional=True,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        backend, skip = self.backend_tokenizer, bool(skip_special_tokens)
        clean_up = self._cleans_up(clean_up_tokenization_spaces)

        def decode(ids: list[int]) -> str:
            try:
                text = backend.decode(ids, skip_special_tokens=skip)
            except (OverflowError, TypeError) as error:
                raise InputError(f"Only lists of token ids, integers from 0, can be decoded: {error}.") from error
            return _cleaned_up(text) if clean_up else text

        return decode

    def batch_decode(
        self, sequences: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> list[str]:
        """Texts of several lists of ids."""
        if isinstance(sequences, str | Mapping) or not isinstance(sequences, Iterable):
            raise InputError(f"Only lists of token ids can be decoded, not {sequences!r:.80}.")
        return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in sequences]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Token of an id, or tokens of several; None for ids outside the vocabulary."""
        ids = _ids(ids)
        if not isinstance(ids, list):
            return self._token(ids)
        tokens = [(index, self._token(index)) for index in ids]
        skipped = set(self.all_special_ids) if skip_special_tokens else ()
        return [token for index, token in tokens if index not in skipped]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Text of tokens."""
        if not isinstance(tokens, list | tuple):
            raise InputError(f"Text is made of a list of tokens, not of {tokens!r:.80}.")
        check_tokens(tokens)
        decoder = self.backend_tokenizer.decoder
        return decoder.decode(list(tokens)) if decoder is not None else " ".join(tokens)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens are put around a text, or a pair of texts."""
        return self.backend_tokenizer.num_special_tokens_to_add(pair)

    @property
    def max_len_single_sentence(self) -> int:
        """How many tokens of one text the model can take."""
        return self.model_max_length - self.num_special_tokens_to_add()

    @property
    def max_len_sentences_pair(self) -> int:
        """How many tokens of two texts together the model can take."""
        return self.model_max_length - self.num_special_tokens_to_add(pair=True)

    @property
    def is_fast(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary without added tokens; `len(tokenizer)` counts them."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=False)

    @property
    def vocab(self) -> dict[str, int]:
        return self.get_vocab()

    def get_vocab(self) -> dict[str, int]:
        """Ids by token, added ones included."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def get_added_vocab(self) -> dict[str, int]:
        """Ids of the added tokens, in order."""
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return {added[index].content: index for index in sorted(added)}

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name_or_path={self.name_or_path!r}, vocab_size={self.vocab_size}, "
            f"model_max_length={self.model_max_length}, padding_side={self.padding_side!r}, "
            f"truncation_side={self.truncation_side!r}, special_tokens={self.special_tokens_map})"
        )

    def warn_once(self, message: str, kind: str | None = None) -> None:
        """Warn, if this tokenizer has not done so for messages of this kind (the message itself by default)."""
        if (kind or message) not in self._warned:
            self._warned.add(kind or message)
            warnings.warn(message, stacklevel=4)

    def _wanted(self, name: str, asked: bool | None) -> bool:
        return name in self.model_input_names if asked is None else asked

    def _warn_of_length(self, length: int) -> None:
        if length > self.model_max_length:
            self.warn_once(
                f"A text has {length} tokens, more than the {self.model_max_length} that the model can take; "
                "truncation=True cuts it.",
                kind="length",
            )

    def _check_truncation(self, max_length: int, stride: int, add_special_tokens: bool, pair: bool) -> None:
        """The backend skips a truncation that it cannot do, or panics; say so instead."""
        special = self.num_special_tokens_to_add(pair)
        if add_special_tokens and max_length < special:
            raise InputError(f"max_length={max_length} is too short for the {special} special tokens around each text.")
        if stride and stride >= max_length - special:
            raise InputError(
                f"stride={stride} is too long: of max_length={max_length} tokens, {special} are for special tokens.",
                hint=f"The stride is at most {max(max_length - special - 1, 0)} here.",
            )

    def _reset_backend(self) -> None:
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.encode_special_tokens = False

    def _encode_batch(self, batch: list[Any], add_special_tokens: bool, is_pretokenized: bool) -> "list[Encoding]":
        try:
            return self.backend_tokenizer.encode_batch(
                batch, add_special_tokens=add_special_tokens, is_pretokenized=is_pretokenized
            )
        except BaseException as error:
            # Rust panics arrive as a class that cannot be imported, and that is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise InputError(
                f"The tokenizer cannot encode this input: {error}.",
                hint="Texts must be valid Unicode, and truncation must leave more room than the stride.",
            ) from error

    def _token(self, index: Any) -> str | None:
        try:
            return self.backend_tokenizer.id_to_token(index)
        except (OverflowError, TypeError) as error:
            raise InputError(f"Only token ids, integers from 0, have tokens: {error}.") from error

    def _cleans_up(self, asked: bool | None) -> bool:
        """Whether texts are cleaned up."""
        if not (self.clean_up_tokenization_spaces if asked is None else asked):
            return False
        if type(self.backend_tokenizer.model).__name__ == "BPE" and not self._clean_up_bpe:
            self.warn_once(
                "clean_up_tokenization_spaces is left out, as it would take spaces from the text of this BPE tokenizer."
            )
            return False
        return True


class AutoTokenizer:
    """Loads the tokenizer of any repository that has a tokenizer.json; see `PreTrainedTokenizer.from_pretrained`."""

    @staticmethod
    def from_pretrained(name: str | os.PathLike[str], **options: Any) -> PreTrainedTokenizer:
        return PreTrainedTokenizer.from_pretrained(name, **options)

    @staticmethod
    async def _from_pretrained(source: Any, **options: Any) -> PreTrainedTokenizer:
        return await PreTrainedTokenizer._from_pretrained(source, **options)


def _chat_templates(value: Any) -> Any:
    """Chat templates as one text, or as texts by name."""
    return {entry["name"]: entry["template"] for entry in value} if isinstance(value, list) else value


def with_overflow(encodings: "list[Encoding]") -> "tuple[list[Encoding], list[int]]":
    """Each encoding followed by what was cut off from it, and for each the number of its text."""
    groups = [[encoding, *encoding.overflowing] for encoding in encodings]
    return [row for group in groups for row in group], [i for i, group in enumerate(groups) for _ in group]


def _cleaned_up(text: str) -> str:
    """A text without the spaces before punctuation that some tokenizers put there."""
    for spaced, plain in _CLEAN_UP:
        text = text.replace(spaced, plain)
    return text


def _ids(ids: Any) -> Any:
    """Ids as int, list or nested lists, from those, tensors and arrays."""
    if hasattr(ids, "tolist"):
        return ids.tolist()
    # Most are integers, and are passed by, as streams decode some tokens after each.
    return [item if type(item) is int else _ids(item) for item in ids] if isinstance(ids, list | tuple) else ids
