"""Beam search over one prompt: which continuations live on and which finished ones are kept.

Scores are sums of log-probabilities; those of finished beams are divided by length ** length_penalty.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest
from math import inf
from random import Random
from typing import NamedTuple

from .scores import Candidates, check_best, sample_distinct

_HOPELESS = -1e9  # score of places that hold no beam


class Beam(NamedTuple):
    """A continuation of the prompt."""

    score: float
    ids: list[int]  # prompt included
    rows: list[int]  # for each new token, the row of the batch that it continued
    finished: bool = False


@dataclass
class BeamSearch:
    """The beams of one prompt, whose rows in the batch are `first_row` and the `width` - 1 that follow."""

    prompt: list[int]
    width: int
    first_row: int
    eos_count: int
    length_penalty: float
    early_stopping: bool | str
    max_length: int
    random: Random | None = None  # sampling instead of taking the best
    open: bool = True
    running: list[Beam] = field(init=False)
    kept: list[Beam] = field(init=False)

    def __post_init__(self) -> None:
        first = Beam(0.0, self.prompt, [])
        self.running = [first] + [first._replace(score=_HOPELESS)] * (self.width - 1)
        self.kept = [first._replace(score=_HOPELESS)] * self.width
        # Enough that `width` of them go on even if the others all end.
        self.reach = max(2, 1 + self.eos_count) * self.width

    def advance(self, rows: list[Candidates], ends: Callable[[list[list[int]]], list[bool]]) -> bool:
        """Take the next tokens' candidates of every running beam; False when the search is over."""
        found = self._continuations(rows)
        finished = ends([beam.ids for beam in found])
        self._keep(found, finished)
        going_on = [
            beam._replace(score=beam.score + _HOPELESS * end) for beam, end in zip(found, finished, strict=True)
        ]
        self.running = nlargest(self.width, going_on, key=lambda beam: beam.score)
        # Where fewer tokens may follow than there are places, the others hold what is not looked at again.
        self.running += [self.running[0]._replace(score=_HOPELESS)] * (self.width - len(self.running))
        self.open = self.open and self._can_improve()
        full = self.early_stopping is True and all(beam.finished for beam in self.kept)
        return self.open and not full and not all(finished)

    def _continuations(self, rows: list[Candidates]) -> list[Beam]:
        sums = [
            (beam.score + value, token, number)
            for number, (beam, row) in enumerate(zip(self.running, rows, strict=True))
            for token, value in zip(row.ids, row.values, strict=True)
        ]
        check_best(max((score for score, _, _ in sums), default=-inf))
        if self.random is None:
            best = nlargest(self.reach, sums, key=lambda entry: entry[0])
        else:
            sums.sort(key=lambda entry: -entry[0])
            drawn = sample_distinct(
                Candidates(list(range(len(sums))), [entry[0] for entry in sums]), self.reach, self.random
            )
            best = [sums[i] for i in drawn.ids]
        return [
            Beam(score, [*self.running[number].ids, token], [*self.running[number].rows, self.first_row + number])
            for score, token, number in best
        ]

    def _keep(self, found: list[Beam], finished: list[bool]) -> None:
        """Put newly finished ones among the best into the kept."""
        full = self.early_stopping is True and all(beam.finished for beam in self.kept)
        if full or not self.open:
            return
        length = len(found[0].ids) - len(self.prompt)
        divisor = length**self.length_penalty
        new = [
            beam._replace(score=beam.score / divisor, finished=True)
            for beam, end in zip(found[: self.width], finished, strict=False)
            if end
        ]
        self.kept = nlargest(self.width, [*self.kept, *new], key=lambda beam: beam.score)

    def _can_improve(self) -> bool:
        """Whether a running beam may still beat the worst of the kept."""
        prompt = len(self.prompt)
        length = len(self.running[0].ids) - prompt
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = self.max_length - prompt
        best = self.running[0].score / length**self.length_penalty
        worst = min(beam.score for beam in self.kept)
        return any(best > (worst if beam.finished else _HOPELESS) for beam in self.kept)

    def results(self, count: int) -> list[Beam]:
        """The best finished beams."""
        return self.kept[:count]
