"""Logits processors: what changes the scores of the next token before one is chosen.

A processor is called with the tokens so far, a list for each sequence, and the scores, an `array("f")` over the
vocabulary for each. It may change the arrays in place, which are its own to change, or return others. NumPy sees an
array's memory by `numpy.asarray(row)`.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Generator, Iterable, Sequence
from math import inf, isfinite, isnan
from operator import add
from typing import Any, NamedTuple

from ..checks import check_count, check_number
from ..errors import InputError
from .scores import Candidates, Ids, Row, Rows, candidates, log_softmax

MAX_FLOAT = 3.4028234663852886e38
_MAX_GROWTH = 1e30  # scores stay finite


Pieces = Generator[None, None, None]
"""Long work, which yields between two pieces of it, so that others have their turn."""


class LogitsProcessor(ABC):
    """Base of all processors; any callable with these arguments does as well."""

    def prepare(self, input_ids: Ids, size: int) -> Pieces:
        """Do what takes long before the scores of `size` tokens come; yields between pieces of it."""
        yield from ()

    @abstractmethod
    def __call__(self, input_ids: Ids, scores: Rows) -> Rows:
        """The new scores."""


class LogitsWarper(LogitsProcessor):
    """Base of processors that need no more than the tokens still possible, and narrow them down."""

    limit: int | None = None  # how many of the best tokens `warp` looks at, where that is known before
    rescales = False  # whether it does no more than scale all scores alike

    @abstractmethod
    def warp(self, choice: Candidates) -> Candidates:
        """The candidates left, best first, with their new scores."""

    def __call__(self, input_ids: Ids, scores: Rows) -> Rows:
        return [self.warp(candidates(row, self.limit)).row(len(row)) for row in scores]


class LogitsProcessorList(list[Callable[[Ids, Rows], Any]]):
    """Processors applied one after the other."""

    def __call__(self, input_ids: Ids, scores: Rows) -> Rows:
        for processor in self:
            if isinstance(processor, LogitsProcessor):
                scores = processor(input_ids, scores)
            else:
                scores = own_scores(processor(input_ids, scores), scores)
        return scores

    def parts(self) -> "tuple[LogitsProcessorList, list[LogitsWarper]]":
        """The processors that take whole rows, and the warpers at the end."""
        split = len(self)
        while split and isinstance(self[split - 1], LogitsWarper):
            split -= 1
        return LogitsProcessorList(self[:split]), self[split:]  # pyright: ignore[reportReturnType]


def own_scores(result: Any, scores: Rows) -> Rows:
    """What a processor of the caller's returned, as rows: None means that it changed `scores` in place."""
    if result is None or result is scores:
        return scores
    try:
        rows = [row if isinstance(row, array) else array("f", row) for row in result]
    except TypeError:
        rows = []
    if len(rows) != len(scores) or any(len(row) != len(old) for row, old in zip(rows, scores, strict=True)):
        raise InputError(
            f"A logits processor must return {len(scores)} rows of {len(scores[0])} scores.",
            hint="Change the scores in place, or return as many as it was given.",
        )
    return rows


def warp(row: Row, warpers: Sequence[LogitsWarper]) -> Candidates:
    """What warpers leave of a row."""
    return warp_candidates(candidates(row, bound(warpers)), warpers)


def warp_candidates(choice: Candidates, warpers: Sequence[LogitsWarper]) -> Candidates:
    """What warpers leave of candidates."""
    for warper in warpers:
        choice = warper.warp(choice)
    return choice


def bound(warpers: Sequence[LogitsWarper]) -> int | None:
    """How many of the best tokens are all that warpers need; None where they need all."""
    for warper in warpers:
        if warper.limit is not None or not warper.rescales:
            return warper.limit
    return None


class RowProcessor(LogitsProcessor):
    """Base of processors that look at each sequence alone and change its scores in place."""

    @abstractmethod
    def process(self, ids: list[int], row: Row, index: int) -> None:
        """Change the row of sequence number `index`."""

    def __call__(self, input_ids: Ids, scores: Rows) -> Rows:
        for index, (ids, row) in enumerate(zip(input_ids, scores, strict=True)):
            self.process(ids, row, index)
        return scores


class Edit(NamedTuple):
    """A change of some tokens' scores: x becomes x * below where it is negative, else x * above, plus `bias`.

    Infinite scores stay; but a bias of -inf rules a token out.
    """

    tokens: Sequence[int]
    below: float = 1.0
    above: float = 1.0
    bias: float = 0.0


class SparseProcessor(LogitsProcessor):
    """Base of processors that can say what they change, so that kernels do it and no scores come to Python."""

    def edits(self, input_ids: Ids, size: int) -> list[Iterable[Edit]]:
        """Edits for each sequence, of the scores of `size` tokens."""
        return []

    def masks(self, input_ids: Ids, size: int) -> "list[bytearray | None]":
        """For each sequence bits, lowest first, of the `size` tokens that stay; None where all do."""
        return []


class EditProcessor(SparseProcessor, RowProcessor):
    """Base of processors that look at each sequence alone and edit the scores of single tokens."""

    @abstractmethod
    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        """Edits for sequence number `index`."""

    def edits(self, input_ids: Ids, size: int) -> list[Iterable[Edit]]:
        return [self.edits_of(ids, size, index) for index, ids in enumerate(input_ids)]

    def process(self, ids: list[int], row: Row, index: int) -> None:
        for tokens, below, above, bias in self.edits_of(ids, len(row), index):
            for token in tokens:
                if bias == -inf and token < len(row):
                    row[token] = -inf
                elif token < len(row) and isfinite(x := row[token]):
                    row[token] = x * (below if x < 0 else above) + bias


def are_sparse(processors: Iterable[Any]) -> bool:
    """Whether kernels can do what the processors do. Those that callers derive may do something else."""
    return all(isinstance(each, SparseProcessor) and type(each).__module__.startswith("inpage.") for each in processors)


class RepetitionPenaltyLogitsProcessor(EditProcessor):
    """Makes tokens that occurred less likely (`penalty` > 1) or more.

    `prompt_ignore_length`: how many of the first tokens do not count, one number or one a sequence.
    """

    def __init__(self, penalty: float, prompt_ignore_length: int | Sequence[int] | None = None) -> None:
        self.penalty = check_number("repetition_penalty", penalty, above=0)
        self.ignored = prompt_ignore_length or 0

    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        start = self.ignored if isinstance(self.ignored, int) else self.ignored[index % len(self.ignored)]
        return [_penalty(set(ids[start:]), self.penalty)]


class EncoderRepetitionPenaltyLogitsProcessor(EditProcessor):
    """Makes tokens of the prompt more likely (`penalty` > 1) or less."""

    def __init__(self, penalty: float, encoder_input_ids: Ids) -> None:
        self.penalty = 1 / check_number("encoder_repetition_penalty", penalty, above=0)
        self.tokens = [set(ids) for ids in encoder_input_ids]

    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        return [_penalty(self.tokens[index % len(self.tokens)], self.penalty)]


class NoRepeatNGramLogitsProcessor(EditProcessor):
    """Rules out tokens that would repeat a run of `ngram_size` tokens.

    `padding` says how many tokens at the left of each sequence are none.
    """

    def __init__(self, ngram_size: int, padding: Sequence[int] | None = None) -> None:
        check_count("no_repeat_ngram_size", ngram_size)
        self.size = ngram_size
        self.padding = padding or (0,)

    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        ids = ids[self.padding[index % len(self.padding)] :]
        return [_ruled_out(_followers(ids, self.size, ids))] if len(ids) + 1 >= self.size else []


class EncoderNoRepeatNGramLogitsProcessor(EditProcessor):
    """Rules out tokens that would repeat a run of `encoder_ngram_size` tokens of the prompt."""

    def __init__(self, encoder_ngram_size: int, encoder_input_ids: Ids) -> None:
        check_count("encoder_no_repeat_ngram_size", encoder_ngram_size)
        self.size = encoder_ngram_size
        self.prompts = encoder_input_ids

    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        return [_ruled_out(_followers(self.prompts[index % len(self.prompts)], self.size, ids))]


class SequenceBiasLogitsProcessor(EditProcessor):
    """Adds a bias to tokens that complete given sequences.

    `sequence_bias`: pairs of a list of token ids and a number, or a dict of numbers by tuples of ids.
    """

    option = "sequence_bias"

    def __init__(self, sequence_bias: Any) -> None:
        pairs = sequence_bias.items() if isinstance(sequence_bias, dict) else sequence_bias
        try:
            self.biases = {tuple(_token_ids(self.option, sequence)): float(bias) for sequence, bias in pairs}
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.option} must have pairs of token ids and a number, not {pairs!r:.100}.") from None
        if not self.biases:
            raise InputError(f"{self.option} must not be empty.")

    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        for (*prefix, last), bias in self.biases.items():
            _check_vocabulary(self.option, [last], size)
            if len(prefix) <= len(ids) and ids[len(ids) - len(prefix) :] == prefix:
                yield Edit([last], bias=bias)


class NoBadWordsLogitsProcessor(SequenceBiasLogitsProcessor):
    """Rules out tokens that complete one of the sequences `bad_words_ids`."""

    option = "bad_words_ids"

    def __init__(self, bad_words_ids: list[list[int]], eos_token_id: int | Sequence[int] | None = None) -> None:
        if not isinstance(bad_words_ids, list) or not all(isinstance(word, list) for word in bad_words_ids):
            raise InputError(f"bad_words_ids must be a list of lists of token ids, not {bad_words_ids!r:.100}.")
        ends = [[token] for token in token_list(eos_token_id)]
        self.biases = {tuple(_token_ids(self.option, word)): -inf for word in bad_words_ids if word not in ends}


class PrefixConstrainedLogitsProcessor(LogitsProcessor):
    """Leaves the tokens alone that `prefix_allowed_tokens_fn(batch index, tokens so far)` lists."""

    def __init__(self, prefix_allowed_tokens_fn: Callable[[int, list[int]], Iterable[int]], num_beams: int) -> None:
        self.allowed = prefix_allowed_tokens_fn
        self.num_beams = num_beams

    def __call__(self, input_ids: Ids, scores: Rows) -> Rows:
        results: Rows = []
        for index, (ids, row) in enumerate(zip(input_ids, scores, strict=True)):
            tokens = list(self.allowed(index // self.num_beams, ids) or ())
            if not tokens:
                raise InputError(
                    f"prefix_allowed_tokens_fn allows no token for sequence {index // self.num_beams}.",
                    hint="Return the end-of-sequence token where nothing else may follow.",
                )
            _check_vocabulary("prefix_allowed_tokens_fn", tokens, len(row))
            results.append(Candidates(tokens, [row[token] for token in tokens]).row(len(row)))
        return results


class ForcedBOSTokenLogitsProcessor(LogitsProcessor):
    """Makes `bos_token_id` the first token that is generated after a single token."""

    def __init__(self, bos_token_id: int) -> None:
        self.token = bos_token_id

    def __call__(self, input_ids: Ids, scores: Rows) -> Rows:
        return _forced("forced_bos_token_id", [self.token], scores) if len(input_ids[0]) == 1 else scores


class ForcedEOSTokenLogitsProcessor(LogitsProcessor):
    """Makes the last token of `max_length` one of `eos_token_id`."""

    def __init__(self, max_length: int, eos_token_id: int | Sequence[int]) -> None:
        self.max_length = max_length
        self.tokens = token_list(eos_token_id)

    def __call__(self, input_ids: Ids, scores: Rows) -> Rows:
        is_last = len(input_ids[0]) == self.max_length - 1
        return _forced("forced_eos_token_id", self.tokens, scores) if is_last else scores


class MinLengthLogitsProcessor(EditProcessor):
    """Rules out the end before `min_length` tokens."""

    def __init__(self, min_length: int, eos_token_id: int | Sequence[int]) -> None:
        self.min_length = min_length
        self.tokens = token_list(eos_token_id)

    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        return [_ruled_out(self.tokens)] if len(ids) < self.min_length else []


class MinNewTokensLengthLogitsProcessor(MinLengthLogitsProcessor):
    """Rules out the end before `min_new_tokens` tokens after a prompt of `prompt_length_to_skip`."""

    def __init__(self, prompt_length_to_skip: int, min_new_tokens: int, eos_token_id: int | Sequence[int]) -> None:
        super().__init__(prompt_length_to_skip + min_new_tokens, eos_token_id)


class ExponentialDecayLengthPenalty(EditProcessor):
    """Makes the end more likely the longer the text: by `factor` a token, from `start` new tokens on.

    `exponential_decay_length_penalty` is the pair (start, factor).
    """

    def __init__(
        self,
        exponential_decay_length_penalty: Sequence[float],
        eos_token_id: int | Sequence[int],
        input_ids_seq_length: int,
    ) -> None:
        try:
            start, self.factor = (
                check_number("exponential_decay_length_penalty", value) for value in exponential_decay_length_penalty
            )
        except (TypeError, ValueError):  # InputError is one
            raise InputError(
                "exponential_decay_length_penalty must be a pair of numbers (start, factor), not "
                f"{exponential_decay_length_penalty!r:.60}."
            ) from None
        check_number("The factor of exponential_decay_length_penalty", self.factor, above=0)
        self.start = start + input_ids_seq_length
        self.tokens = token_list(eos_token_id)

    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        if len(ids) <= self.start:
            return []
        growth = min(self.factor ** (len(ids) - self.start), _MAX_GROWTH) - 1
        return [Edit(self.tokens, below=1 - growth, above=1 + growth)]


class SuppressTokensLogitsProcessor(EditProcessor):
    """Rules tokens out."""

    option = "suppress_tokens"

    def __init__(self, suppress_tokens: Sequence[int]) -> None:
        self.tokens = _token_ids(self.option, suppress_tokens)

    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        return [_ruled_out(self.tokens)]


class SuppressTokensAtBeginLogitsProcessor(SuppressTokensLogitsProcessor):
    """Rules tokens out in place `begin_index`."""

    option = "begin_suppress_tokens"

    def __init__(self, begin_suppress_tokens: Sequence[int], begin_index: int) -> None:
        super().__init__(begin_suppress_tokens)
        self.begin_index = begin_index

    def edits_of(self, ids: list[int], size: int, index: int) -> Iterable[Edit]:
        return super().edits_of(ids, size, index) if len(ids) == self.begin_index else []


class InfNanRemoveLogitsProcessor(RowProcessor):
    """Replaces NaN by 0 and infinities by the greatest and least numbers."""

    def process(self, ids: list[int], row: Row, index: int) -> None:
        for token, value in enumerate(row):
            if not isfinite(value):
                row[token] = 0.0 if isnan(value) else MAX_FLOAT if value > 0 else -MAX_FLOAT


class UnbatchedClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Moves the scores away from those that the model gives after another, "negative" prompt.

    `unconditional(input_ids)` gives the logits after the negative prompt and what was generated since.
    """

    def __init__(self, guidance_scale: float, unconditional: Callable[[Ids], Rows]) -> None:
        self.scale = guidance_scale
        self.unconditional = unconditional

    def __call__(self, input_ids: Ids, scores: Rows) -> Rows:
        results: Rows = []
        for row, other in zip(map(log_softmax, scores), map(log_softmax, self.unconditional(input_ids)), strict=True):
            scaled = [self.scale * (a - b) for a, b in zip(row, other, strict=True)]
            results.append(array("f", map(add, scaled, other)))
        return results


def mask_nbytes(size: int) -> int:
    """Bytes of a mask of `size` tokens: whole words of 32 bits."""
    return -(-size // 32) * 4


def token_list(tokens: int | Sequence[int] | None) -> list[int]:
    """One or several token ids as a list."""
    return [] if tokens is None else [tokens] if isinstance(tokens, int) else list(tokens)


def _penalty(tokens: Iterable[int], penalty: float) -> Edit:
    return Edit(list(tokens), below=penalty, above=1 / penalty)


def _followers(text: list[int], size: int, ids: list[int]) -> set[int]:
    """Tokens of `text` that come after the last size - 1 of `ids`."""
    if size == 1:
        return set(text)
    prefix = ids[len(ids) + 1 - size :]
    last = prefix[-1:]
    return {
        text[i + 1]
        for i in range(size - 2, len(text) - 1)
        if text[i : i + 1] == last and text[i + 2 - size : i + 1] == prefix
    }


def _ruled_out(tokens: Iterable[int]) -> Edit:
    return Edit(list(tokens), bias=-inf)


def _forced(option: str, tokens: list[int], scores: Rows) -> Rows:
    _check_vocabulary(option, tokens, len(scores[0]))
    return [Candidates(tokens, [0.0] * len(tokens)).row(len(row)) for row in scores]


def _check_vocabulary(option: str, tokens: Iterable[int], size: int) -> None:
    for token in tokens:
        if not 0 <= token < size:
            raise InputError(f"{option} has the token {token}; the model has {size} tokens.")


def _token_ids(option: str, tokens: Any) -> list[int]:
    found = [tokens] if isinstance(tokens, int) else list(tokens) if isinstance(tokens, Iterable) else []
    if not found or any(not isinstance(token, int) or isinstance(token, bool) or token < 0 for token in found):
        raise InputError(f"{option} must have lists of token ids, not {tokens!r:.100}.")
    return found
