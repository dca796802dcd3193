"""How long encoded texts become: strategies of truncation and padding, and padding of ids."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InputError
from .batch_encoding import BatchEncoding

if TYPE_CHECKING:
    from .tokenizer import PreTrainedTokenizer

UNLIMITED = int(1e30)
_LARGEST_COUNT = 2**31 - 1  # that the backend takes on every platform
# Anything above stands for "no limit" in tokenizer_config.json.
_LARGEST_LIMIT = int(1e20)

_PADDING = {True: "longest", "longest": "longest", "max_length": "max_length", False: None, "do_not_pad": None}
_TRUNCATION = {
    True: "longest_first",
    "longest_first": "longest_first",
    "only_first": "only_first",
    "only_second": "only_second",
    False: None,
    None: None,
    "do_not_truncate": None,
}


class Lengths(NamedTuple):
    """Resolved strategies: `padding` is "longest", "max_length" or None; `truncation` the backend's name for it."""

    padding: str | None
    truncation: str | None
    max_length: int | None


def resolve_lengths(
    tokenizer: "PreTrainedTokenizer",
    padding: bool | str,
    truncation: bool | str | None,
    max_length: int | None,
    pad_to_multiple_of: int | None,
    verbose: bool = True,
) -> Lengths:
    """What the arguments of a call mean for this tokenizer, as in transformers.

    `max_length` alone switches truncation on; without it the model's own limit is taken, and where there is none,
    nothing is truncated or padded to it (with a warning).
    """
    if max_length is not None and padding is False and truncation is None:
        truncation = "longest_first"
    pad, truncate = _choose("padding", padding, _PADDING), _choose("truncation", truncation, _TRUNCATION)
    if verbose and padding is True and max_length is not None and truncate is None:
        warnings.warn(
            "max_length has no effect with padding=True and no truncation; padding='max_length' pads to it.",
            stacklevel=4,
        )
    if max_length is None and (pad == "max_length" or truncate):
        if tokenizer.model_max_length <= _LARGEST_LIMIT:
            max_length = tokenizer.model_max_length
        else:
            if verbose:
                tokenizer.warn_once(
                    "The model of this tokenizer states no maximum length and max_length is not given: "
                    "no truncation to it, and no padding to it."
                )
            pad, truncate = None if pad == "max_length" else pad, None
    if pad and tokenizer.pad_token_id is None:
        raise InputError(
            "Padding is asked for, but the tokenizer has no padding token.",
            hint="Choose one: tokenizer.pad_token = tokenizer.eos_token",
        )
    if truncate and pad and pad_to_multiple_of and max_length is not None and max_length % pad_to_multiple_of:
        raise InputError(
            f"Texts are truncated to max_length={max_length}, which is no multiple of "
            f"pad_to_multiple_of={pad_to_multiple_of}.",
            hint="Choose a max_length that is.",
        )
    return Lengths(pad, truncate, max_length)


def _choose(option: str, value: Any, choices: dict[Any, str | None]) -> str | None:
    if isinstance(value, bool | str | None) and value in choices:
        return choices[value]
    names = ", ".join(repr(choice) for choice in choices)
    raise InputError(f"{option} is one of {names}, not {value!r}.")


def check_counts(**counts: int | None) -> None:
    """Raise InputError for lengths that are no whole numbers, or are negative; a multiple of 0 is none either."""
    for name, value in counts.items():
        least = 1 if name == "pad_to_multiple_of" else 0
        if value is not None and not (type(value) is int and least <= value <= _LARGEST_COUNT):
            raise InputError(f"{name} is an integer from {least} to {_LARGEST_COUNT}, not {value!r}.")


def check_side(name: str, side: str) -> str:
    """The side, if it is one."""
    if side not in ("left", "right"):
        raise InputError(f"{name} is 'left' or 'right', not {side!r}.")
    return side


def pad_encoded(
    tokenizer: "PreTrainedTokenizer",
    encoded: Any,
    lengths: Lengths,
    pad_to_multiple_of: int | None,
    padding_side: str,
    return_attention_mask: bool | None,
    return_tensors: str | None,
) -> BatchEncoding:
    """Pad one or several rows of ids, with the masks and type ids that go with them. See `PreTrainedTokenizer.pad`."""
    columns, single = _columns(encoded)
    if return_attention_mask is None:
        return_attention_mask = "attention_mask" in tokenizer.model_input_names
    if return_attention_mask:
        columns.setdefault("attention_mask", [[1] * len(row) for row in columns["input_ids"]])

    sizes = [len(row) for row in columns["input_ids"]]
    target = {"longest": max(sizes), "max_length": lengths.max_length, None: None}[lengths.padding]
    if target is not None and pad_to_multiple_of:
        target += -target % pad_to_multiple_of
    fillers = {
        "input_ids": tokenizer.pad_token_id,
        "attention_mask": 0,
        "token_type_ids": tokenizer.pad_token_type_id,
        "special_tokens_mask": 1,
    }
    for name, rows in columns.items():
        if not isinstance(rows, list) or len(rows) != len(sizes):
            found = f"{len(rows)} rows" if isinstance(rows, list) else "no rows"
            raise InputError(f"{name!r} has {found}, but input_ids has {len(sizes)}.")
        if name in fillers and not all(isinstance(row, list) for row in rows):
            raise InputError(f"{name!r} has a row that is no list, unlike input_ids.")
        if target is not None and name in fillers:
            columns[name] = [_fill(row, target - len(row), fillers[name], padding_side) for row in rows]
    if single:
        columns = {name: rows[0] for name, rows in columns.items()}
    return BatchEncoding(columns, tensor_type=return_tensors)


def _columns(encoded: Any) -> tuple[dict[str, Any], bool]:
    """Rows by name, and whether there was one alone. Raises InputError for what is not encoded texts."""
    if isinstance(encoded, list | tuple) and encoded and all(isinstance(row, Mapping) for row in encoded):
        names = [name for name in encoded[0] if all(name in row for row in encoded)]
        encoded = {name: [row[name] for row in encoded] for name in names}
    if not isinstance(encoded, Mapping) or "input_ids" not in encoded:
        raise InputError("pad() needs encoded texts with `input_ids`: a BatchEncoding, a dict, or a list of them.")
    columns = {name: _to_lists(value) for name, value in encoded.items()}
    ids = columns["input_ids"]
    single = isinstance(ids, list) and not any(isinstance(row, list) for row in ids)
    rows = [ids] if single else ids
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and all(type(index) is int for index in row) for row in rows
    ):
        raise InputError(f"`input_ids` are a list of ids, or a list of such lists, not {ids!r:.80}.")
    return ({name: [value] for name, value in columns.items()} if single else columns), single


def _fill(row: list[Any], missing: int, filler: Any, side: str) -> list[Any]:
    filling = [filler] * missing
    return row + filling if side == "right" else filling + row


def _to_lists(value: Any) -> Any:
    """Nested lists of nested lists, tensors or arrays."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_to_lists(item) for item in value] if isinstance(value, list | tuple) else value
