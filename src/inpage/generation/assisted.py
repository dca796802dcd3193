"""Assisted decoding: tokens that were guessed are verified together, and each that is right saves a step.

What comes out is what comes without guesses, as every token is the model's own choice.
"""

from collections.abc import Generator
from typing import Any, Protocol

from .decoding import Decoding, Request, Steps
from .session import Session


class Assistant(Protocol):
    """Guesses what comes next."""

    count: int  # how many tokens it guesses

    def guess(self, ids: list[int]) -> Generator[None, None, list[int]]:
        """`count` tokens that may follow, or none; yields between two pieces of work."""
        ...

    def dispose(self) -> None:
        """Free what it holds."""


class PromptLookup:
    """Guesses that the text goes on as it did after the same last tokens before, `ngram_size` of them or fewer."""

    def __init__(self, count: int, ngram_size: int) -> None:
        self.count = count
        self._sizes = range(ngram_size, 0, -1)
        self._read = 0
        self._next: dict[tuple[int, ...], int] = {}  # where the text went on after some tokens, the last time

    def guess(self, ids: list[int]) -> Generator[None, None, list[int]]:
        yield from ()
        for place in range(max(self._read, 1), len(ids)):
            for size in self._sizes:
                if size <= place:
                    self._next[tuple(ids[place - size : place])] = place
        self._read = len(ids)
        places = (self._next.get(tuple(ids[-size:])) for size in self._sizes)
        place = next((place for place in places if place is not None), None)
        if place is None:
            return []
        found = ids[place : place + self.count]
        return found + found[-1:] * (self.count - len(found))

    def dispose(self) -> None:
        pass


class DraftModel:
    """Guesses what a smaller model with the same vocabulary would write."""

    def __init__(self, session: Session, count: int) -> None:
        self.count = count
        self._session = session
        self._read: list[int] = []  # the tokens in the cache

    def guess(self, ids: list[int]) -> Generator[None, None, list[int]]:
        same = next((i for i, (a, b) in enumerate(zip(self._read, ids[:-1], strict=False)) if a != b), None)
        self._session.crop(min(len(self._read), len(ids) - 1) if same is None else same)
        text = list(ids)
        (token,) = yield from self._session.prefill([text], "argmax")
        text.append(token)
        while len(text) < len(ids) + self.count:
            yield
            text += self._session.step([text], "argmax")
        self._read = text[:-1]
        return text[len(ids) :]

    def dispose(self) -> None:
        self._session.cache.dispose()


class AssistedDecoding(Decoding):
    """Greedy search and sampling of one sequence with the guesses of an assistant."""

    def __init__(self, request: Request, assistant: Assistant) -> None:
        super().__init__(request)
        self._assistant = assistant

    def run(self) -> Steps:
        """Generate; yields after every step, which may have made several tokens, and between those of the assistant."""
        (ids,) = self.ids
        if self.request.streamer is not None:
            self.request.streamer.put(self.request.prompts)
        outputs = yield from self.prefill(self.wanted, 1)
        guesses: list[int] = []
        while True:
            self._take(outputs, guesses)
            self.session.keep(len(ids) - 1)
            made = len(ids) - self.prompt_length
            yield made, self.total
            if self.finished[0]:
                return
            guesses = []
            if made + self._assistant.count < self.total:
                asked = self._assistant.guess(ids)
                while True:
                    try:
                        next(asked)
                    except StopIteration as stop:
                        guesses = stop.value
                        break
                    yield made, self.total
            yield from self.prepare([[*ids, *guesses[:count]] for count in range(len(guesses) + 1)], made)
            outputs = self.session.verify(ids, guesses, self.wanted)

    def _take(self, outputs: list[Any], guesses: list[int]) -> None:
        """Append the tokens that are right, and the one after them."""
        (ids,) = self.ids
        for place, output in enumerate(outputs):
            tokens, rows = self._choose([output])
            ids.append(tokens[0])
            if self.request.streamer is not None:
                self.request.streamer.put(tokens)
            self.finished = self.ended(self.ids, rows)
            if self.finished[0] or place == len(guesses) or tokens[0] != guesses[place]:
                return
