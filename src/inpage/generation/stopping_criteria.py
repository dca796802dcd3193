"""Stopping criteria: what ends a sequence after a token has been added to it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import InputError
from .scores import Ids
from .token_bytes import TokenBytes


class StoppingCriteria(ABC):
    """Base of all criteria; any callable with these arguments does as well.

    A criterion is called with the tokens so far, a list for each sequence, and what was computed for the last ones:
    rows of scores where processors or outputs needed them, else None. It returns a bool for each sequence, or one for
    all.
    """

    @abstractmethod
    def __call__(self, input_ids: Ids, scores: Any, **more: Any) -> list[bool] | bool:
        """Which sequences are done."""


class StoppingCriteriaList(list[Callable[..., Any]]):
    """Criteria of which one is enough."""

    def __call__(self, input_ids: Ids, scores: Any, **more: Any) -> list[bool]:
        done = [False] * len(input_ids)
        for criterion in self:
            found = criterion(input_ids, scores, **more)
            found = found.tolist() if hasattr(found, "tolist") else found
            each = [found] * len(done) if isinstance(found, bool) else found
            if not isinstance(each, Sequence) or len(each) != len(done):
                raise InputError(
                    f"A stopping criterion must return True, False or {len(done)} of them, one a sequence."
                )
            done = [a or bool(b) for a, b in zip(done, each, strict=True)]
        return done


class MaxTimeCriteria(StoppingCriteria):
    """Ends after `max_time` seconds, counted from `initial_timestamp` (of `time.time()`) or from now."""

    def __init__(self, max_time: float, initial_timestamp: float | None = None) -> None:
        self.max_time = max_time
        self.start = time.time() if initial_timestamp is None else initial_timestamp

    def __call__(self, input_ids: Ids, scores: Any, **more: Any) -> bool:
        return time.time() - self.start > self.max_time


class StopStringCriteria(StoppingCriteria):
    """Ends when the last token completes one of `stop_strings`, wherever the borders of tokens lie."""

    def __init__(self, tokenizer: Any, stop_strings: str | Sequence[str]) -> None:
        self.tokens = TokenBytes(tokenizer)
        strings = [stop_strings] if isinstance(stop_strings, str) else stop_strings
        self.stops = [text.encode() for text in strings]
        self.longest = max(map(len, self.stops))

    def __call__(self, input_ids: Ids, scores: Any, **more: Any) -> list[bool]:
        return [self._ends(ids) for ids in input_ids]

    def _ends(self, ids: list[int]) -> bool:
        last = self.tokens[ids[-1]]
        text, i = b"", len(ids) - 1
        while len(text) < self.longest - 1 and i:
            i -= 1
            text = self.tokens[ids[i]] + text
        border = len(text)
        text += last
        return any(text.find(stop, max(border + 1 - len(stop), 0)) >= 0 for stop in self.stops)
