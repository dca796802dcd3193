"""Scores of next tokens in plain Python: a row is an `array("f")` over the vocabulary, a distribution its best part."""

from array import array
from collections.abc import Sequence
from heapq import nlargest
from itertools import repeat
from math import exp, inf, isfinite, log
from operator import sub
from random import Random
from typing import NamedTuple

from ..errors import InputError

Ids = list[list[int]]  # tokens so far, one list a sequence
Row = array  # array("f"): scores of the vocabulary
Rows = list[array]  # one a sequence


class Candidates(NamedTuple):
    """Tokens that may come next, best first; all others are out."""

    ids: list[int]
    values: list[float]

    def row(self, size: int) -> Row:
        """The scores of a vocabulary, -inf where a token is out."""
        row = array("f", [-inf]) * size
        for token, value in zip(self.ids, self.values, strict=True):
            row[token] = value
        return row


def log_sum_exp(values: Sequence[float]) -> float:
    """log(sum(exp(values))). Raises InputError where that is no number."""
    top = max(values, default=-inf)
    total = top + log(sum(map(exp, map(sub, values, repeat(top))))) if isfinite(top) else top
    check_best(total)
    return total


def check_best(score: float) -> None:
    """Raise InputError unless the greatest score is a number."""
    if not isfinite(score):
        raise InputError(
            f"The scores of the next token give no distribution: their greatest is {score}.",
            hint="A processor ruled every token out, or the model's logits overflowed.",
        )


def softmax(values: Sequence[float]) -> list[float]:
    """Probabilities of scores."""
    return list(map(exp, map(sub, values, repeat(log_sum_exp(values)))))


def log_softmax(row: Row) -> Row:
    """Logarithms of the probabilities of a row, as a new row."""
    return array("f", map(sub, row, repeat(log_sum_exp(row))))


def candidates(row: Row, limit: int | None = None) -> Candidates:
    """The tokens of a row that are not ruled out; with `limit`, that many of the best and what ties with the last."""
    least = -inf
    if limit is not None and limit < len(row):
        least = nlargest(limit, row)[-1]
    ids = [token for token, value in enumerate(row) if value >= least and value != -inf]
    ids.sort(key=row.__getitem__, reverse=True)
    return Candidates(ids, [row[token] for token in ids])


def sample(choice: Candidates, random: Random) -> int:
    """One token, by the probabilities of the scores."""
    return random.choices(choice.ids, softmax(choice.values))[0]


def sample_distinct(choice: Candidates, count: int, random: Random) -> Candidates:
    """Up to `count` different tokens, drawn one after the other, best first."""
    # The order of exponential variables scaled by probabilities is that of draws without replacement.
    keys = [value - log(-log(random.random() or 5e-324)) for value in choice.values]
    drawn = sorted(nlargest(count, range(len(keys)), key=keys.__getitem__))
    return Candidates([choice.ids[i] for i in drawn], [choice.values[i] for i in drawn])
