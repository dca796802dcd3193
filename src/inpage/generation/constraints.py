"""Constrained output: only tokens that a text of the wanted form can go on with, by masking logits.

A pattern becomes an automaton over bytes, a tokenizer's vocabulary a sorted list of bytes. Where a sequence stands in
the automaton, one walk of both finds the tokens that may follow; it is kept for when the same place is reached again.
Near the longest length only tokens stay that leave room for the end, so that what is generated is always whole.
"""

import re
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Generator, Iterable, Sequence
from math import inf
from sys import maxsize
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..errors import InputError, UnsupportedError
from ..runtime import Slices, result_of
from .automaton import DEAD, Automaton
from .json_schema import json_schema_pattern
from .logits_process import Pieces, SparseProcessor, mask_nbytes
from .scores import Ids, Row, Rows
from .token_bytes import TokenBytes

_MASKS = 256  # walks that are kept


class Vocabulary:
    """The bytes of a tokenizer's tokens, in order, as a trie laid flat. Special tokens have none.

    `entries[i]` is (bytes, token), `shared[i]` how many bytes it has in common with the one before; the entries that
    begin with a byte are those from `bounds[byte]` to `bounds[byte + 1]`.
    """

    def __init__(self, tokens: list[bytes | None], entries: list[tuple[bytes, int]], shared: "array[int]") -> None:
        self.tokens = tokens
        self.entries = entries
        self.shared = shared
        self.bounds = [bisect_left(entries, (bytes([byte]), -1)) for byte in range(256)] + [len(entries)]


class Mask(NamedTuple):
    """Tokens that may follow, with the automaton's states after them.

    `blocked` are the others, where they are fewer; `bits` has those that may follow. `farthest` is how many bytes it
    takes at most from one of the states to the end.
    """

    tokens: "array[int]"
    states: "array[int]"
    blocked: "array[int] | None"
    bits: bytes
    farthest: int


_vocabularies: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Any) -> Generator[None, None, Vocabulary]:
    """The vocabulary of a tokenizer, made once; yields between slices of that."""
    found = _vocabularies.get(tokenizer)
    if found is None:
        tokens = yield from TokenBytes(tokenizer).written()
        found = _vocabularies[tokenizer] = yield from _sorted(tokens)
    return found


def _sorted(tokens: list[bytes | None]) -> Generator[None, None, Vocabulary]:
    slices, beginnings = Slices(), dict[bytes, list[tuple[bytes, int]]]()
    for token, text in enumerate(tokens):
        if text:
            beginnings.setdefault(text[:2], []).append((text, token))
        if token % 1024 == 0 and slices.over():
            yield
    entries, shared = list[tuple[bytes, int]](), array("i")
    for _, part in sorted(beginnings.items()):
        for entry in sorted(part):
            shared.append(_common(entries[-1][0], entry[0]) if entries else 0)
            entries.append(entry)
        if slices.over():
            yield
    return Vocabulary(tokens, entries, shared)


class Constraint:
    """What texts a tokenizer's tokens may make up: those that match a pattern in full. `prepare` makes it ready."""

    automaton: Automaton
    vocabulary: Vocabulary

    def __init__(self, tokenizer: Any, pattern: str) -> None:
        self._tokenizer = tokenizer
        self._pattern = pattern
        self._ready = False
        self._masks: OrderedDict[int, Mask] = OrderedDict()

    def prepare(self) -> Pieces:
        """Make the automaton and the vocabulary; yields between slices."""
        if not self._ready:
            self.automaton = yield from Automaton.in_slices(self._pattern)
            self.vocabulary = yield from vocabulary_of(self._tokenizer)
            self._ready = True

    def walk(self, state: int) -> Pieces:
        """Find the tokens that may follow in a state; yields between slices."""
        if state not in self._masks:
            self._masks[state] = yield from self._walk(state)
            if len(self._masks) > _MASKS:
                self._masks.popitem(last=False)

    def mask(self, state: int) -> Mask:
        """The tokens that may follow in a state."""
        result_of(self.walk(state))
        return self._masks[state]

    def advance(self, state: int, token: int) -> int:
        """The state after a token."""
        tokens = self.vocabulary.tokens
        text = tokens[token] if token < len(tokens) else None
        return self.automaton.walk(state, text) if text else DEAD

    def _walk(self, state: int) -> Generator[None, None, Mask]:
        automaton, vocabulary, slices = self.automaton, self.vocabulary, Slices()
        tokens, states = array("i"), array("i")
        for byte, reached in enumerate(automaton.row(state)):
            if reached != DEAD:
                part = range(vocabulary.bounds[byte], vocabulary.bounds[byte + 1])
                yield from self._walk_part(state, part, tokens, states, slices)
        farthest = max((automaton.distance[reached] for reached in set(states)), default=0)
        size = len(vocabulary.tokens)
        bits = yield from _bits(tokens, size)
        blocked = None
        if 2 * len(tokens) > size:
            blocked = array("i", [token for token in range(size) if not bits[token >> 3] >> (token & 7) & 1])
        return Mask(tokens, states, blocked, bytes(bits), farthest)

    def _walk_part(self, state: int, part: range, tokens: "array[int]", states: "array[int]", slices: Slices) -> Pieces:
        """Append the possible ones of the entries `part`, and the states after them."""
        entries, shared, row = self.vocabulary.entries, self.vocabulary.shared, self.automaton.row
        path, alive = [state], maxsize  # states after each byte; tokens that share more than `alive` bytes are out
        for i in part:
            if i % 256 == 0 and slices.over():
                yield
            common = shared[i] if i > part.start else 0
            if common > alive:
                continue
            text, token = entries[i]
            del path[common + 1 :]
            reached, alive = path[common], maxsize
            for place in range(common, len(text)):
                reached = row(reached)[text[place]]
                if reached == DEAD:
                    alive = place
                    break
                path.append(reached)
            else:
                tokens.append(token)
                states.append(reached)


class ConstrainedLogitsProcessor(SparseProcessor):
    """Rules out tokens that no text of the constraint goes on with.

    `prompt_length` tokens come before the text, `eos_token_id` ends it, and it is whole within `max_length` tokens.
    """

    def __init__(
        self, constraint: Constraint, prompt_length: int, eos_token_id: Sequence[int], max_length: int | None = None
    ) -> None:
        self.constraint = constraint
        self.prompt_length = prompt_length
        self.ends = list(eos_token_id)
        self.max_length = max_length
        self._states: dict[tuple[int, ...], int] = {(): 0}
        self._fit: dict[tuple[int, int, int], bytearray] = {}  # bits of tokens that leave room, for the next step
        if not self.ends:
            raise InputError("Constrained output needs a token that ends it.", hint="Set eos_token_id.")

    def prepare(self, input_ids: Ids, size: int) -> Pieces:
        constraint = self.constraint
        yield from constraint.prepare()
        needed = constraint.automaton.distance[0]
        if self.max_length is not None and needed > self.max_length - self.prompt_length:
            raise InputError(
                f"The wanted form may take {needed} tokens, and {self.max_length - self.prompt_length} are allowed.",
                hint="Set a greater max_new_tokens.",
            )
        fit: dict[tuple[int, int, int], bytearray] = {}
        for state, ids in zip(self._reached(input_ids), input_ids, strict=True):
            if state != DEAD:
                yield from constraint.walk(state)
                room = self._room(constraint.mask(state), len(ids))
                if room is not None and (state, room, size) not in fit:
                    fit[state, room, size] = yield from _bits(self._fitting(constraint.mask(state), room), size)
        self._fit = fit

    def __call__(self, input_ids: Ids, scores: Rows) -> Rows:
        return [
            row if state == DEAD else self._masked(state, row, len(ids))
            for state, ids, row in zip(self._reached(input_ids), input_ids, scores, strict=True)
        ]

    def masks(self, input_ids: Ids, size: int) -> list[bytearray | None]:
        return [
            None if state == DEAD else self._allowed(state, size, len(ids))
            for state, ids in zip(self._reached(input_ids), input_ids, strict=True)
        ]

    def _reached(self, input_ids: Ids) -> list[int]:
        """The states after what has been written of each sequence."""
        texts = [tuple(ids[self.prompt_length :]) for ids in input_ids]
        for written in texts:
            self._states[written] = self._state(written)
        self._states = {(): 0} | {written: self._states[written] for written in texts}
        return [self._states[written] for written in texts]

    def _state(self, written: tuple[int, ...]) -> int:
        """The state after tokens, by that after all but the last; DEAD for what has ended."""
        if written in self._states:
            return self._states[written]
        before = self._states.get(written[:-1])
        if before is not None:
            return self.constraint.advance(before, written[-1]) if before != DEAD else DEAD
        state = 0
        for token in written:
            state = self.constraint.advance(state, token)
            if state == DEAD:
                break
        return state

    def _masked(self, state: int, row: Row, length: int) -> Row:
        mask = self.constraint.mask(state)
        room = self._room(mask, length)
        if mask.blocked is not None and room is None:
            known = min(len(row), len(self.constraint.vocabulary.tokens))
            masked = row[:known] + array("f", [-inf]) * (len(row) - known)
            for token in mask.blocked:
                if token < known:
                    masked[token] = -inf
        else:
            masked = array("f", [-inf]) * len(row)
            for token in self._fitting(mask, room):
                if token < len(row):
                    masked[token] = row[token]
        if self.constraint.automaton.accepting[state]:
            for token in self.ends:
                if token < len(row):
                    masked[token] = row[token]
        if max(masked) == -inf:
            raise _stuck()
        return masked

    def _allowed(self, state: int, size: int, length: int) -> bytearray:
        mask = self.constraint.mask(state)
        room = self._room(mask, length)
        nbytes = mask_nbytes(size)
        if room is None:
            bits = bytearray(mask.bits[:nbytes])
        elif (state, room, size) in self._fit:
            bits = bytearray(self._fit[state, room, size])
        else:
            bits = result_of(_bits(self._fitting(mask, room), size))
        bits.extend(bytes(nbytes - len(bits)))
        if self.constraint.automaton.accepting[state]:
            for token in self.ends:
                if token < size:
                    bits[token >> 3] |= 1 << (token & 7)
        if not any(bits):
            raise _stuck()
        return bits

    def _room(self, mask: Mask, length: int) -> int | None:
        """How many bytes the text may still need after the next token; None where no token can need more."""
        left = inf if self.max_length is None else self.max_length - length - 1
        return int(left) if left <= mask.farthest else None

    def _fitting(self, mask: Mask, room: int | None) -> Iterable[int]:
        """The tokens after which the text can still be finished."""
        if room is None:
            return mask.tokens
        distance = self.constraint.automaton.distance
        return [token for token, state in zip(mask.tokens, mask.states, strict=True) if distance[state] <= room]


def make_constraint(
    tokenizer: Any, *, json_schema: Any = None, regex: str | None = None, choices: Sequence[str] | None = None
) -> Constraint | None:
    """The constraint that one of the options asks for; None without any. Raises InputError for several."""
    given = [value for value in (json_schema, regex, choices) if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InputError("Only one of json_schema, regex and choices can be given.")
    if tokenizer is None:
        raise InputError("Constrained output needs the tokenizer.", hint="Give tokenizer=.")
    if regex is not None and not isinstance(regex, str):
        raise InputError(f"regex must be a text, not {regex!r:.60}.")
    if choices is not None:
        if isinstance(choices, str) or not choices or not all(isinstance(c, str) and c for c in choices):
            raise InputError(f"choices must be a list of texts, none empty, not {choices!r:.60}.")
        return Constraint(tokenizer, "|".join(map(re.escape, choices)))
    return Constraint(tokenizer, json_schema_pattern(json_schema) if regex is None else regex)


def _bits(tokens: Iterable[int], size: int) -> Generator[None, None, bytearray]:
    """Bits of tokens, lowest first; those from `size` on are left out. Yields between slices."""
    bits, slices = bytearray(mask_nbytes(size)), Slices()
    for count, token in enumerate(tokens):
        if token < size:
            bits[token >> 3] |= 1 << (token & 7)
        if count % 1024 == 0 and slices.over():
            yield
    return bits


def _stuck() -> UnsupportedError:
    return UnsupportedError("No token of this vocabulary goes on with the wanted form.")


def _common(a: bytes, b: bytes) -> int:
    """Length of the common beginning."""
    length = min(len(a), len(b))
    for i in range(length):
        if a[i] != b[i]:
            return i
    return length
