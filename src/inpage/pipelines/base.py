"""What all pipelines share: from items to rows, from rows to batches, and back in order.

An *item* is what the caller gave one result for (a text, a pair, a question with its context). Encoding makes one or
more *rows* of it, token sequences for the model. Rows of all items of a call are batched by length, so that little is
spent on padding, and what the model says of an item's rows is decoded into the item's result.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from itertools import chain, islice
from struct import pack
from typing import Any, ClassVar, NamedTuple

from ..checks import check_choice, check_count, check_flags, check_text
from ..errors import DisposedError, InputError, UnsupportedError
from ..runtime import Awaitable, result_of
from ..tensor import Tensor, from_bytes

WINDOW = 256  # items encoded at a time: bounds what tokens of a long list take, and the time between two steps
BATCH_TOKENS = 512  # tokens in a batch by default: matrix products are at full speed, steps still short
BATCH_ROWS = 32
TOKENIZER_OPTIONS = ("add_special_tokens", "max_length", "truncation")
TRUNCATIONS = ("longest_first", "only_first", "only_second")
# Arguments of models that tokenizers give, and what they are in an encoding of the tokenizers package. Masks of rows
# that are not padded need not be asked for.
_COLUMNS = {"input_ids": "ids", "attention_mask": "", "token_type_ids": "type_ids"}
_ONE = pack("i", 1)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a call that every pipeline takes.

    batch_size: rows that the model computes at once; by default as many as make about 512 tokens. No result depends
        on it.
    """

    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size, optional=True)
        for kind, optional in ((bool, False), (bool | None, True)):
            flags = {field.name: getattr(self, field.name) for field in fields(self) if field.type == kind}
            check_flags(optional=optional, **flags)


@dataclass(frozen=True, kw_only=True)
class TextOptions(Options):
    """
    truncation: cut texts to what the model takes (True), or refuse longer ones (False). A strategy of the tokenizer
        ("longest_first", "only_first", "only_second") says which text of a pair is cut.
    max_length: cut to so many tokens instead.
    add_special_tokens: whether the tokenizer adds [CLS] and the like.
    """

    truncation: bool | str = True
    max_length: int | None = None
    add_special_tokens: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_length", self.max_length, optional=True)
        check_choice("truncation", self.truncation, (True, False, *TRUNCATIONS))
        if self.max_length is not None and not self.truncation:
            raise InputError(
                "max_length says where to cut, and truncation=False not to.", hint="Leave one of them out."
            )


class Row(NamedTuple):
    """One sequence for the model."""

    item: int
    length: int  # in tokens
    encoding: Any  # of the tokenizers package: ids, offsets, words, special tokens


class Pipeline(ABC, Awaitable):
    """A model with its tokenizer, callable on texts.

    `pipe(inputs, **options)` computes; the options are the fields of `options_class`. A list gives a list, in its
    order; a generator gives an iterator of results. `dispose()`, or leaving `with pipe:`, frees the model unless the
    caller loaded it. Raises InputError for inputs and options that do not fit.
    """

    task: ClassVar[str]
    head: ClassVar[str]  # name of the auto class that loads the model
    options_class: ClassVar[type[Options]] = TextOptions
    arguments: ClassVar[tuple[str, ...]] = ("inputs",)  # names of what a call takes by position

    def __init__(self, model: Any, tokenizer: Any, *, owns_model: bool = False, **defaults: Any) -> None:
        """`defaults` are options for calls that do not give them."""
        self.defaults = defaults
        self.options()  # checks them
        if not self.accepts(model):
            kind = self.head.removeprefix("AutoModel")
            raise InputError(
                f"{self.task} needs a model {kind}, not a {type(model).__name__}.", hint=f"Use {self.head}."
            )
        self.model = model
        self.tokenizer = tokenizer
        self._owns_model = owns_model
        self._disposed = False

    @classmethod
    def accepts(cls, model: Any) -> bool:
        """Whether a model has the head for the task."""
        return type(model).__name__.endswith(cls.head.removeprefix("AutoModel"))

    # The call

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Results for `inputs`: see the class."""
        if inputs and isinstance(inputs[0], Iterator):
            return self._stream(*inputs, **options)
        return result_of(self.steps(*inputs, **options))

    @abstractmethod
    def steps(self, *inputs: Any, **options: Any) -> Generator[Any, None, Any]:
        """The call in steps: yields (items done, items in all) after every piece of work and returns the results.

        Closing the generator between two steps abandons the call; the pipeline stays usable.
        """

    def options(self, **given: Any) -> Any:
        """The options of a call, over the pipeline's defaults. Raises InputError for unknown or unfit ones."""
        return make_options(self.options_class, {**self.defaults, **given}, self.task)

    def dispose(self) -> None:
        """Free the model, unless the caller loaded it. The pipeline cannot be used any more."""
        self._disposed = True
        if self._owns_model:
            self.model.dispose()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *exception: object) -> None:
        self.dispose()

    # What a task defines

    def items(self, arguments: dict[str, Any], options: Any) -> tuple[list[Any], bool]:
        """The items, and whether the caller gave a single one outside a list. `arguments` are those of the call."""
        inputs = arguments.get(self.arguments[0])
        single = not isinstance(inputs, list | tuple)
        items = [inputs] if single else list(inputs)
        for item in items:
            self.check_item(item, options)
        return items, single

    def check_item(self, item: Any, options: Any) -> None:
        """Raise InputError for an item that the task cannot take."""
        check_text(item, self.task)

    # Tools for tasks

    @property
    def max_positions(self) -> int:
        """Tokens that the model has positions for."""
        limit = self.model.max_positions
        return sys.maxsize if limit is None else limit

    @property
    def max_length(self) -> int:
        """Tokens to which texts are cut: the model's positions, or fewer if the tokenizer says so."""
        return min(int(self.tokenizer.model_max_length), self.max_positions)

    def _sort_arguments(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments of `items`, and options; both may come by position or by name."""
        if len(inputs) > len(self.arguments):
            raise InputError(
                f"{self.task} takes {len(self.arguments)} arguments by position, {len(inputs)} were given.",
                hint=f"They are: {', '.join(self.arguments)}. Options go by name.",
            )
        given = dict(zip(self.arguments, inputs, strict=False))
        twice = [name for name in given if name in named]
        if twice:
            raise InputError(f"{twice[0]} was given twice, by position and by name.")
        given |= named
        known = option_names(self.options_class)
        names = [name for name in self.arguments if name in given and name not in known]
        return {name: given.pop(name) for name in names}, given

    def _stream(self, inputs: Iterator[Any], *more: Any, **options: Any) -> Iterator[Any]:
        """Results one by one, reading no more inputs than make a batch."""
        size = self.options(**options).batch_size or 1
        while items := list(islice(inputs, size)):
            yield from self(items, *more, **options)

    def _check_usable(self) -> None:
        if self._disposed:
            raise DisposedError(f"This {self.task} pipeline was disposed of.", hint="Load it again with pipeline().")


class BatchPipeline(Pipeline):
    """A pipeline that makes rows of items, and batches of rows: see the module. All tasks do but text-generation."""

    def __init__(self, model: Any, tokenizer: Any, *, owns_model: bool = False, **defaults: Any) -> None:
        super().__init__(model, tokenizer, owns_model=owns_model, **defaults)
        self._run = model.jit(self.forward)

    def steps(self, *inputs: Any, **options: Any) -> Generator[tuple[int, int], None, Any]:
        self._check_usable()
        arguments, options = self._sort_arguments(inputs, options)
        chosen = self.options(**options)
        items, single = self.items(arguments, chosen)
        results: list[Any] = []
        for start in range(0, len(items), WINDOW):
            results += yield from self._process(items, start, chosen)
        return self.collect(results, items, single, chosen)

    def dispose(self) -> None:
        """Free the programs, and the model unless the caller loaded it. The pipeline cannot be used any more."""
        self._run.dispose()
        super().dispose()

    # What a task defines

    def encode(self, items: list[Any], options: Any) -> list[Row]:
        """Rows of the items; rows of one item follow one another."""
        return self.rows(self.tokenize(items, options=options))

    @abstractmethod
    def forward(self, **inputs: Any) -> Any:
        """What is recorded: from the model's inputs, with batch dimension, to what decoding needs of it."""

    @abstractmethod
    def compute(self, rows: list[Row], options: Any) -> Sequence[Any]:
        """One batch: what `decode` needs of each row."""

    @abstractmethod
    def decode(self, item: Any, rows: list[Row], outputs: list[Any], options: Any) -> Any:
        """The result of one item."""

    def collect(self, results: list[Any], items: list[Any], single: bool, options: Any) -> Any:
        """The value of the call."""
        return results[0] if single else results

    # Tools for tasks

    def tokenize(self, texts: list[Any], pairs: list[str] | None = None, *, options: Any, **more: Any) -> list[Any]:
        """Encodings of texts, or of pairs of texts; `more` goes to the tokenizer's `encodings`."""
        longest = self.max_length
        length = min(options.max_length or longest, longest) if options.truncation else None
        arguments = {"add_special_tokens": options.add_special_tokens, "truncation": options.truncation, **more}
        # What is too long raises.
        return self.tokenizer.encodings(texts, pairs, max_length=length, verbose=False, **arguments)

    def rows(self, encodings: list[Any], items: Sequence[int] | None = None) -> list[Row]:
        """Rows of encodings. `items` are the items' indices, when they are not simply counted."""
        lengths = [len(encoding) for encoding in encodings]
        self._check_lengths(lengths)
        indices = range(len(lengths)) if items is None else items
        return list(map(Row._make, zip(indices, lengths, encodings, strict=True)))

    def inputs(self, rows: list[Row]) -> dict[str, Tensor]:
        """The rows as padded int32 tensors [rows, length] by name."""
        length = min(padded_length(max(row.length for row in rows)), self.max_positions)
        return {
            name: from_bytes((len(rows), length), "int32", self._padded(name, rows, length))
            for name in self.model.input_names
            if name == "input_ids" or (name in _COLUMNS and name in self.tokenizer.model_input_names)
        }

    def _padded(self, name: str, rows: list[Row], length: int) -> bytes:
        """One of the model's inputs for `rows`, each padded to `length` int32 numbers."""
        column, counts = _COLUMNS[name], [row.length for row in rows]
        if column:
            numbers = chain.from_iterable([getattr(row.encoding, column) for row in rows])
            data = pack(f"{sum(counts)}i", *numbers)
        else:
            data = _ONE * sum(counts)
        if min(counts) == length:
            return data
        filler, left = pack("i", self._filler(name)), self.tokenizer.padding_side == "left"
        parts: list[bytes] = []
        end = 0
        for count in counts:
            start, end = end, end + 4 * count
            padding = filler * (length - count)
            parts += (padding, data[start:end]) if left else (data[start:end], padding)
        return b"".join(parts)

    def unpadded(self, values: Tensor, row: Row) -> Tensor:
        """Values [length of the batch, ...] of a row without those of its padding."""
        first = len(values) - row.length if self.tokenizer.padding_side == "left" else 0
        return values[first : first + row.length]

    @cached_property
    def labels(self) -> dict[int, str]:
        """Names of the model's classes."""
        return {int(index): label for index, label in self.model.config.id2label.items()}

    # The work

    def _process(self, items: list[Any], start: int, options: Any) -> Generator[tuple[int, int], None, list[Any]]:
        """Results of the window of items from `start` on; yields after every batch, as `steps` does."""
        total = len(items)
        items = items[start : start + WINDOW]
        rows = self.encode(items, options)
        by_item: list[list[int]] = [[] for _ in items]
        for index, row in enumerate(rows):
            by_item[row.item].append(index)
        outputs: list[Any] = [None] * len(rows)
        missing = [len(indices) for indices in by_item]
        for batch in batches([row.length for row in rows], options.batch_size):
            self._check_usable()
            computed = self.compute([rows[i] for i in batch], options)
            for index, output in zip(batch, computed, strict=True):
                outputs[index] = output
                missing[rows[index].item] -= 1
            yield start + missing.count(0), total
        return [
            self.decode(item, [rows[i] for i in indices], [outputs[i] for i in indices], options)
            for item, indices in zip(items, by_item, strict=True)
        ]

    def _filler(self, name: str) -> int:
        """What one of the model's inputs is padded with."""
        if name == "input_ids":
            return self.tokenizer.pad_token_id or 0
        return self.tokenizer.pad_token_type_id if name == "token_type_ids" else 0

    def _check_lengths(self, lengths: list[int]) -> None:
        longest, most = max(lengths), self.max_positions
        if longest > most:
            raise InputError(
                f"A text has {longest} tokens, the model takes at most {most}.",
                hint="Split the text, or cut it with truncation=True.",
                tokens=longest,
            )
        if not min(lengths):
            raise InputError(
                "A text without a single token cannot be computed.",
                hint="Leave empty texts out, or add special tokens.",
            )


@cache
def option_names(cls: type[Options]) -> tuple[str, ...]:
    """Names of the options that a class has."""
    return tuple(field.name for field in fields(cls))


def make_options(cls: type[Options], given: dict[str, Any], task: str) -> Any:
    """Checked options. Tokenizer options may come in a dict of their own, as transformers has it for some tasks."""
    known = option_names(cls)
    flat = dict(given)
    for name in ("tokenize_kwargs", "tokenizer_kwargs"):
        tokenizer_options = flat.pop(name, None) or {}
        if not isinstance(tokenizer_options, Mapping):
            raise InputError(f"{name} must be a mapping of options to values, not {tokenizer_options!r:.60}.")
        for key, value in tokenizer_options.items():
            if key not in TOKENIZER_OPTIONS:
                raise UnsupportedError(f"{name} has {key!r}.", hint=f"It takes {', '.join(TOKENIZER_OPTIONS)}.")
            if key in given:
                raise InputError(f"{key!r} was given twice, as an option and in {name}.")
            flat[key] = value
    unknown = [name for name in flat if name not in known]
    if unknown:
        raise InputError(
            f"{task} has no option {', '.join(map(repr, unknown))}.", hint=f"Its options are: {', '.join(known)}."
        )
    return cls(**flat)


def padded_length(length: int) -> int:
    """A length that sequences are padded to: few different ones, so that programs are reused, at most 1/8 longer."""
    step = max(8, 1 << max(length.bit_length() - 4, 0))
    return -(-length // step) * step


def batches(lengths: Sequence[int], batch_size: int | None) -> Iterator[list[int]]:
    """Indices of rows to compute together, long rows first, so that what does not fit fails at once."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        longest = padded_length(lengths[order[start]])
        size = batch_size or min(BATCH_ROWS, max(1, BATCH_TOKENS // max(longest, 1)))
        yield order[start : start + size]
        start += size
