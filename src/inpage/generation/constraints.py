"""Constrained output: only tokens that a text of the wanted form can go on with, by masking logits.

A pattern becomes an automaton over bytes, a tokenizer's vocabulary a sorted list of bytes. Where a sequence stands in
the automaton, one walk of both finds the tokens that may follow; it is kept for when the same place is reached again.
Near the longest length only tokens stay that leave room for the end, so that what is generated is always whole.
"""

import re
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from sys import maxsize
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..errors import InputError, UnsupportedError
from .automaton import DEAD, Automaton
from .json_schema import json_schema_pattern
from .logits_process import SparseProcessor, mask_nbytes
from .scores import Ids, Row, Rows
from .token_bytes import TokenBytes

_MASKS = 256  # walks that are kept


class Vocabulary:
    """The bytes of a tokenizer's tokens, in order, as a trie laid flat. Special tokens have none.

    `entries[i]` is (bytes, token), `shared[i]` how many bytes it has in common with the one before; the entries that
    begin with a byte are those from `bounds[byte]` to `bounds[byte + 1]`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokens = TokenBytes(tokenizer).written()
        self.entries = sorted((text, token) for token, text in enumerate(self.tokens) if text)
        self.shared = array("i", [0])
        self.shared.extend(_common(a[0], b[0]) for a, b in pairwise(self.entries))
        self.bounds = [bisect_left(self.entries, (bytes([byte]), -1)) for byte in range(256)] + [len(self.entries)]


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


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a tokenizer, made once."""
    if tokenizer not in _vocabularies:
        _vocabularies[tokenizer] = Vocabulary(tokenizer)
    return _vocabularies[tokenizer]


class Constraint:
    """What texts a tokenizer's tokens may make up: those that match a pattern in full."""

    def __init__(self, tokenizer: Any, pattern: str) -> None:
        self.automaton = Automaton(pattern)
        self.vocabulary = vocabulary_of(tokenizer)
        self._masks: OrderedDict[int, Mask] = OrderedDict()

    def mask(self, state: int) -> Mask:
        """The tokens that may follow in a state."""
        found = self._masks.get(state)
        if found is None:
            found = self._masks[state] = self._walk(state)
            if len(self._masks) > _MASKS:
                self._masks.popitem(last=False)
        return found

    def advance(self, state: int, token: int) -> int:
        """The state after a token."""
        tokens = self.vocabulary.tokens
        text = tokens[token] if token < len(tokens) else None
        return self.automaton.walk(state, text) if text else DEAD

    def _walk(self, state: int) -> Mask:
        automaton, vocabulary = self.automaton, self.vocabulary
        tokens, states = array("i"), array("i")
        for byte, reached in enumerate(automaton.row(state)):
            if reached != DEAD:
                self._walk_part(state, vocabulary.bounds[byte], vocabulary.bounds[byte + 1], tokens, states)
        farthest = max((automaton.distance[reached] for reached in set(states)), default=0)
        blocked = None
        if 2 * len(tokens) > len(vocabulary.tokens):
            blocked = array("i", sorted(set(range(len(vocabulary.tokens))).difference(tokens)))
        return Mask(tokens, states, blocked, bytes(_bits(tokens, len(vocabulary.tokens))), farthest)

    def _walk_part(self, state: int, start: int, stop: int, tokens: "array[int]", states: "array[int]") -> None:
        """Append the possible ones of the tokens number `start` to `stop`, and the states after them."""
        entries, shared, row = self.vocabulary.entries, self.vocabulary.shared, self.automaton.row
        path, alive = [state], maxsize  # states after each byte; tokens that share more than `alive` bytes are out
        for i in range(start, stop):
            common = shared[i] if i > start else 0
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
        if not self.ends:
            raise InputError("Constrained output needs a token that ends it.", hint="Set eos_token_id.")
        needed = constraint.automaton.distance[0]
        if max_length is not None and needed > max_length - prompt_length:
            raise InputError(
                f"The wanted form may take {needed} tokens, and {max_length - prompt_length} are allowed.",
                hint="Set a greater max_new_tokens.",
            )

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
                masked[token] = row[token]
        if max(masked) == -inf:
            raise _stuck()
        return masked

    def _allowed(self, state: int, size: int, length: int) -> bytearray:
        mask = self.constraint.mask(state)
        room = self._room(mask, length)
        nbytes = mask_nbytes(size)
        bits = bytearray(mask.bits if room is None else _bits(self._fitting(mask, room), 8 * nbytes))[:nbytes]
        bits.extend(bytes(nbytes - len(bits)))
        if self.constraint.automaton.accepting[state]:
            for token in self.ends:
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
    if choices is not None:
        if isinstance(choices, str) or not choices or not all(isinstance(c, str) and c for c in choices):
            raise InputError(f"choices must be a list of texts, none empty, not {choices!r:.60}.")
        return Constraint(tokenizer, "|".join(map(re.escape, choices)))
    return Constraint(tokenizer, json_schema_pattern(json_schema) if regex is None else regex)


def _bits(tokens: Iterable[int], size: int) -> bytearray:
    """Bits of tokens, lowest first; those from `size` on are left out."""
    bits = bytearray(mask_nbytes(size))
    for token in tokens:
        if token < size:
            bits[token >> 3] |= 1 << (token & 7)
    return bits


def _stuck() -> UnsupportedError:
    return UnsupportedError("No token of this vocabulary goes on with the wanted form.")


def _common(a: bytes, b: bytes) -> int:
    """Length of the common beginning."""
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)
