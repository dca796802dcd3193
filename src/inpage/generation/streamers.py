"""Streamers: text of a sequence while it is being generated."""

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import InputError

_INCOMPLETE = "\ufffd"
_WINDOW = 16  # tokens that are decoded again with each new one, at most


class BaseStreamer(ABC):
    """What `generate(streamer=)` takes: `put` gets the prompts, then the tokens of every step; `end` closes."""

    @abstractmethod
    def put(self, value: Any) -> None:
        """Take token ids: [batch, length] of the prompts first, then one a sequence."""

    @abstractmethod
    def end(self) -> None:
        """Nothing more comes."""


class IncrementalDecoder:
    """Text of tokens as they come: whole characters, each once, and no part of a stop string.

    What might be the beginning of one of `stop_strings` waits for what follows; after a whole one nothing comes.
    """

    def __init__(self, tokenizer: Any, stop_strings: str | Sequence[str] = (), **decode_options: Any) -> None:
        self._decode: Callable[[list[int]], str] = tokenizer.text_decoder(**decode_options)
        self._stops = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
        self._window: list[int] = []  # the last tokens, which are decoded again, as a token's text depends on others
        self._given = 0  # tokens of these whose text has been given
        self._before = ""  # that text
        self._held = ""
        self.stopped = False

    def put(self, ids: Sequence[int]) -> str:
        """The text that is certain now."""
        self._window.extend(ids)
        text = self._decode(self._window)
        # A character still missing bytes decodes to the replacement character.
        if len(text) <= len(self._before) or text.endswith(_INCOMPLETE):
            return ""
        return self._without_stops(self._give(text))

    def end(self) -> str:
        """The rest."""
        text = self._without_stops(self._give(self._decode(self._window))) + self._held
        self._held = ""
        return "" if self.stopped and not text else text

    def _give(self, text: str) -> str:
        """What is new in the text of the window."""
        new = text[len(self._before) :]
        if len(self._window) > _WINDOW:
            self._window, text = self._window[self._given :], ""
        self._given = len(self._window)
        self._before = text or self._decode(self._window)
        return new

    def _without_stops(self, text: str) -> str:
        if not self._stops:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        ends = [i for i in (text.find(stop) for stop in self._stops) if i >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


class TextStreamer(BaseStreamer):
    """Prints the text of one sequence as soon as it is certain.

    `skip_prompt` leaves the prompt out; `stop_strings` and what comes after them, too; `decode_options` are those of
    the tokenizer's `decode`.
    """

    def __init__(
        self, tokenizer: Any, skip_prompt: bool = False, stop_strings: str | Sequence[str] = (), **decode_options: Any
    ) -> None:
        self.tokenizer = tokenizer
        self.skip_prompt = skip_prompt
        self.stop_strings = stop_strings
        self.decode_options = decode_options
        self._decoder: IncrementalDecoder | None = None
        self._prompt_next = True

    def put(self, value: Any) -> None:
        ids = _single(value)
        if self._prompt_next:
            self._prompt_next = False
            self._decoder = IncrementalDecoder(self.tokenizer, self.stop_strings, **self.decode_options)
            if not self.skip_prompt:
                self.on_finalized_text(self.tokenizer.decode(ids, **self.decode_options))
            return
        text = self._decoder.put(ids) if self._decoder else ""
        if text:
            self.on_finalized_text(text)

    def end(self) -> None:
        text = self._decoder.end() if self._decoder else ""
        self._decoder, self._prompt_next = None, True
        self.on_finalized_text(text, stream_end=True)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Print text that will not change, and a line's end after the last."""
        print(text, end="\n" if stream_end else "", flush=True)


class CallbackStreamer(TextStreamer):
    """Gives each piece of text to `callback(text)`, new tokens to `token_callback(ids)`."""

    def __init__(
        self,
        tokenizer: Any,
        callback: Callable[[str], Any] | None = None,
        token_callback: Callable[[list[int]], Any] | None = None,
        skip_prompt: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, skip_prompt, **options)
        self._callback = callback
        self._token_callback = token_callback

    def put(self, value: Any) -> None:
        if self._token_callback is not None and not self._prompt_next:
            self._token_callback(_single(value))
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text and self._callback is not None:
            self._callback(text)


class TextIteratorStreamer(TextStreamer):
    """Iterates over pieces of text, while `generate` runs in another thread (CPython).

    `timeout` is how many seconds to wait for a piece; queue.Empty is raised after it.
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, timeout: float | None = None, **options: Any) -> None:
        super().__init__(tokenizer, skip_prompt, **options)
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._timeout = timeout

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self._queue.put(text)
        if stream_end:
            self._queue.put(None)

    def __iter__(self) -> Iterator[str]:
        while (text := self._queue.get(timeout=self._timeout)) is not None:
            yield text


def _single(value: Any) -> list[int]:
    """Ids of the only sequence."""
    ids = value.tolist() if hasattr(value, "tolist") else list(value)
    if ids and isinstance(ids[0], list):
        if len(ids) > 1:
            raise InputError("A text streamer takes a single sequence, not a batch.", hint="Generate one at a time.")
        ids = ids[0]
    return ids


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[len(text) - n :])), 0)
