"""Regular expressions as automata over the bytes of UTF-8.

Patterns are those of Python's `re`, matched in full, without look-around, references and flags. Beyond ASCII, `\\w`,
`\\d`, `\\s` and their opposites match nothing, so what is matched here is always matched by `re`, too.
"""

import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from functools import lru_cache
from re import _constants as ops  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any, Self

from ..errors import InputError, UnsupportedError
from ..runtime import Slices, result_of

DEAD = -1
_LAST = 0x10FFFF
_MAX_NODES = 200_000
_ENCODED_LENGTHS = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, _LAST))
_WORDS = [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACES = [(9, 13), (28, 32)]
_CATEGORIES = {
    "CATEGORY_DIGIT": [(48, 57)],
    "CATEGORY_WORD": _WORDS,
    "CATEGORY_SPACE": _SPACES,
}
_ANCHORS = ("AT_BEGINNING", "AT_END", "AT_BEGINNING_STRING", "AT_END_STRING")
Ranges = list[tuple[int, int]]


class Automaton:
    """The language of a pattern: deterministic states made on demand, numbered from 0, the start.

    `rows[state][byte]` is the next state or `DEAD`; `accepting[state]` whether the text may end; `distance[state]` how
    many bytes it takes at least to where it may.
    """

    def __init__(self, pattern: str) -> None:
        result_of(self._make(pattern))

    @classmethod
    def in_slices(cls, pattern: str) -> Generator[None, None, Self]:
        """As the constructor; yields between slices of the work."""
        automaton = cls.__new__(cls)
        yield from automaton._make(pattern)
        return automaton

    def _make(self, pattern: str) -> Generator[None, None, None]:
        self.pattern = pattern
        nodes = _Nodes()
        start, end = nodes.new(), nodes.new()
        yield from nodes.sequence(_parse(pattern), start, end)
        self._nodes = nodes
        self._end = end
        self._distances = yield from nodes.distances(end)
        if self._distances[start] is None:
            raise InputError(f"No text matches the pattern {pattern!r:.80}.")
        self._numbers: dict[frozenset[int], int] = {}
        self._sets: list[frozenset[int]] = []
        self._rows: list[list[int] | None] = []
        self.accepting: list[bool] = []
        self.distance: list[int] = []
        self._number(nodes.closure([start]))

    def row(self, state: int) -> list[int]:
        """Next states by byte."""
        row = self._rows[state]
        if row is None:
            row = self._rows[state] = self._make_row(self._sets[state])
        return row

    def walk(self, state: int, text: bytes) -> int:
        """The state after more bytes; DEAD where nothing that matches goes on like this."""
        for byte in text:
            if state == DEAD:
                break
            state = self.row(state)[byte]
        return state

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        state = self.walk(0, text.encode())
        return state != DEAD and self.accepting[state]

    def _make_row(self, members: frozenset[int]) -> list[int]:
        by_byte: dict[int, set[int]] = {}
        for node in members:
            for low, high, target in self._nodes.edges[node]:
                for byte in range(low, high + 1):
                    by_byte.setdefault(byte, set()).add(target)
        row, known = [DEAD] * 256, dict[frozenset[int], int]()
        for byte, targets in by_byte.items():
            key = frozenset(targets)
            if key not in known:
                known[key] = self._number(self._nodes.closure(key))
            row[byte] = known[key]
        return row

    def _number(self, members: frozenset[int]) -> int:
        # Only what leads to the end counts, so that equal languages are more often equal sets.
        live = frozenset(node for node in members if self._distances[node] is not None and self._matters(node))
        if not live:
            return DEAD
        if live not in self._numbers:
            self._numbers[live] = len(self._sets)
            self._sets.append(live)
            self._rows.append(None)
            self.accepting.append(self._end in live)
            self.distance.append(min(d for node in live if (d := self._distances[node]) is not None))
        return self._numbers[live]

    def _matters(self, node: int) -> bool:
        return bool(self._nodes.edges[node]) or node == self._end


class _Nodes:
    """A nondeterministic automaton: edges by bytes and jumps without any."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []
        self.jumps: list[list[int]] = []
        self._slices = Slices()

    def new(self) -> int:
        if len(self.edges) >= _MAX_NODES:
            raise UnsupportedError("The pattern is too large.", hint="Repeat less, or bound lengths more tightly.")
        self.edges.append([])
        self.jumps.append([])
        return len(self.edges) - 1

    def closure(self, nodes: Iterable[int]) -> frozenset[int]:
        found = set(nodes)
        stack = list(found)
        while stack:
            for target in self.jumps[stack.pop()]:
                if target not in found:
                    found.add(target)
                    stack.append(target)
        return frozenset(found)

    def distances(self, end: int) -> Generator[None, None, list[int | None]]:
        """Least number of bytes from every node to the end; yields between slices."""
        back: list[list[tuple[int, int]]] = [[] for _ in self.edges]
        for node, targets in enumerate(self.jumps):
            for target in targets:
                back[target].append((node, 0))
            for _, _, target in self.edges[node]:
                back[target].append((node, 1))
            if node % 256 == 0 and self._slices.over():
                yield
        found: list[int | None] = [None] * len(self.edges)
        queue = deque([(end, 0)])
        while queue:
            node, distance = queue.popleft()
            if found[node] is not None:
                continue
            found[node] = distance
            for source, cost in back[node]:
                if found[source] is None:
                    (queue.append if cost else queue.appendleft)((source, distance + cost))
            if node % 64 == 0 and self._slices.over():
                yield
        return found

    # From parsed patterns. Each puts what it matches between two nodes, and yields between slices.

    def sequence(self, items: Any, start: int, end: int) -> Generator[None, None, None]:
        items = list(items)
        for i, item in enumerate(items):
            following = end if i == len(items) - 1 else self.new()
            yield from self.item(item, start, following)
            start = following
        if not items:
            self.jumps[start].append(end)

    def item(self, item: Any, start: int, end: int) -> Generator[None, None, None]:
        if self._slices.over():
            yield
        kind, value = item
        if kind is ops.BRANCH:
            for branch in value[1]:
                yield from self.sequence(branch, start, end)
        elif kind is ops.SUBPATTERN:
            _, on, off, body = value
            if on or off:
                raise UnsupportedError("Flags in patterns are not supported.")
            yield from self.sequence(body, start, end)
        elif kind in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            least, most, body = value
            yield from self.repeat(least, most, body, start, end)
        elif kind is ops.AT:
            self.jumps[start].append(end)
        else:
            self.characters(_ranges(kind, value), start, end)

    def repeat(self, least: int, most: Any, body: Any, start: int, end: int) -> Generator[None, None, None]:
        for _ in range(least):
            following = self.new()
            yield from self.sequence(body, start, following)
            start = following
        if most is ops.MAXREPEAT:
            loop = self.new()
            self.jumps[start].append(loop)
            yield from self.sequence(body, loop, loop)
            self.jumps[loop].append(end)
            return
        for _ in range(most - least):
            self.jumps[start].append(end)
            following = self.new()
            yield from self.sequence(body, start, following)
            start = following
        self.jumps[start].append(end)

    def characters(self, ranges: Ranges, start: int, end: int) -> None:
        tails: dict[tuple[tuple[int, int], ...], int] = {(): end}
        for low, high in ranges:
            for steps in _encodings(low, high):
                # Encodings that end alike share nodes.
                for i in range(len(steps) - 1, 0, -1):
                    tail = steps[i:]
                    if tail not in tails:
                        tails[tail] = self.new()
                        self.edges[tails[tail]].append((*tail[0], tails[tail[1:]]))
                self.edges[start].append((*steps[0], tails[steps[1:]]))


def _parse(pattern: str) -> Any:
    try:
        parsed = parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"{pattern!r:.80} is no regular expression: {error}.") from None
    if parsed.state.flags & ~re.UNICODE:
        raise UnsupportedError("Flags in patterns are not supported.")
    _check_anchors(parsed, True, True)
    return parsed


def _check_anchors(items: Any, first: bool, last: bool) -> None:
    """Raise UnsupportedError for anchors elsewhere than where a full match has them: `first` or `last` of the text."""
    items = list(items)
    for i, (kind, value) in enumerate(items):
        begins = first and all(before is ops.AT for before, _ in items[:i])
        ends = last and all(after is ops.AT for after, _ in items[i + 1 :])
        if kind is ops.AT:
            if str(value) not in _ANCHORS:
                raise UnsupportedError("Word borders in patterns are not supported.")
            if not (begins if "BEGINNING" in str(value) else ends):
                raise UnsupportedError("Anchors within a pattern are not supported.", hint="It is matched in full.")
        elif kind is ops.BRANCH:
            for branch in value[1]:
                _check_anchors(branch, begins, ends)
        elif kind is ops.SUBPATTERN:
            _check_anchors(value[3], begins, ends)
        elif kind in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            once = value[1] is not ops.MAXREPEAT and value[1] <= 1
            _check_anchors(value[2], begins and once, ends and once)


def _ranges(kind: Any, value: Any) -> Ranges:
    """Code points that a character, class or dot matches."""
    if kind is ops.LITERAL:
        return [(value, value)]
    if kind is ops.NOT_LITERAL:
        return _complement([(value, value)])
    if kind is ops.ANY:
        return _complement([(10, 10)])
    if kind is not ops.IN:
        raise UnsupportedError(f"{str(kind).lower()} in a pattern is not supported.", hint="Use no look-around.")
    negated = bool(value) and value[0][0] is ops.NEGATE
    found: Ranges = []
    for part, what in value[negated:]:
        if part is ops.LITERAL:
            found.append((what, what))
        elif part is ops.RANGE:
            found.append(what)
        else:
            found += _category(str(what), negated)
    return _complement(found) if negated else found


def _category(name: str, negated: bool) -> Ranges:
    inverse = "_NOT_" in name
    ranges = _CATEGORIES[name.replace("_NOT_", "_")]
    if inverse:
        ranges = [(low, min(high, 0x7F)) for low, high in _complement(ranges) if low <= 0x7F]
    # In a negated class, what lies beyond ASCII might belong to the category.
    return [*ranges, (0x80, _LAST)] if negated else ranges


def _complement(ranges: Ranges) -> Ranges:
    found, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return [*found, (start, _LAST)] if start <= _LAST else found


@lru_cache(1024)
def _encodings(low: int, high: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    return tuple(_encoded(low, high))


def _encoded(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The UTF-8 of a range of code points as sequences of byte ranges, surrogates left out."""
    if low <= 0xDFFF and high >= 0xD800:
        if low < 0xD800:
            yield from _encoded(low, 0xD7FF)
        if high > 0xDFFF:
            yield from _encoded(0xE000, high)
        return
    for first, last in _ENCODED_LENGTHS:
        if low <= last and high >= first:
            yield from _split(max(low, first), min(high, last))


def _split(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """As `_encoded`, for code points with encodings of one length."""
    a, b = chr(low).encode(), chr(high).encode()
    for shift in range(6, 6 * len(a), 6):  # where the ranges of the last bytes are whole
        block = 1 << shift
        if low // block != high // block:
            if low % block:
                yield from _split(low, low // block * block + block - 1)
                yield from _split(low // block * block + block, high)
                return
            if high % block != block - 1:
                yield from _split(low, high // block * block - 1)
                yield from _split(high // block * block, high)
                return
    yield tuple(zip(a, b, strict=True))
