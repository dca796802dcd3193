"""Cutting the instructions of a program into chunks for several threads.

Threads wait for each other between groups of entries, of which none needs what another makes. An entry is an
instruction, or several on the same rows: a thread goes on with those rows that it has in its cache, without a wait.
"""

import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..optable import BY_NUMBER, CACHE_DTYPES, LAYOUTS, QUANTIZED, activation_nbytes, cache_head_words

SPLIT_NS = 1_500  # for each thread: less work is not worth the claims
CHUNK_NS = 50_000  # more work is worth further claims, as a thread may come late or be slow
CHUNKS_A_THREAD = 6  # at most

# Nanoseconds of an instruction on one thread, roughly, by its integer operands; other ops are one chunk.
_ESTIMATES: dict[str, Callable[[dict[str, int]], float]] = {
    "linear": lambda o: o["rows"] * o["columns"] * o["inner"] / 18,
    "attention": lambda o: o["batch"] * o["heads"] * o["q_len"] * o["kv_len"] * o["head_dim"] / 5,
    "matmul": lambda o: o["outer"] * o["middle"] * o["rows"] * o["columns"] * o["inner"] / 10,
    "softmax": lambda o: 2 * o["batch"] * o["heads"] * o["q_len"] * o["kv_len"],
    "embedding": lambda o: o["count"] * o["dim"],
    "layer_norm": lambda o: o["rows"] * o["dim"] / 2,
    "rms_norm": lambda o: o["rows"] * o["dim"] / 4,
    "rotary_tables": lambda o: 20 * o["count"] * o["half"],
    "rope": lambda o: o["rows"] * o["heads"] * o["head_dim"] / 2,
    "gated": lambda o: 2 * o["rows"] * o["columns"],
    "cache_append": lambda o: (1, 5, 3)[o["dtype"]] * o["batch"] * o["length"] * o["heads"] * o["head_dim"],
    "activation": lambda o: 2 * o["count"],
    "binary": lambda o: o["count"] / 2,
    "copy": lambda o: o["d0"] * o["d1"] * o["d2"] * o["d3"],
    "pool": lambda o: o["batch"] * o["length"] * o["dim"] / 2,
    "topk": lambda o: o["rows"] * o["columns"],
    "quantize_rows": lambda o: o["rows"] * o["inner"] / 2,
    "quantize_weight": lambda o: 6 * o["rows"] * o["inner"],
    "pack_quantized": lambda o: 4 * o["rows"] * o["inner"],
    "pack_published": lambda o: 6 * o["rows"] * o["inner"],
    "pack": lambda o: o["rows"] * o["inner"] / 2,
    "convert": lambda o: o["count"],
}
_ESTIMATES |= {f"linear_{layout}": _ESTIMATES["linear"] for layout in ("f16", "q8g", "q4", "q4z")}
_ESTIMATES["linear_q8"] = lambda o: o["rows"] * o["columns"] * o["inner"] / 70


class Span(NamedTuple):
    """Memory of an operand. `row` is the bytes of each row, 0 where it does not lie by rows."""

    start: int
    end: int
    row: int


@dataclass
class Entry:
    """Instructions with chunks in common: the words where they begin, nanoseconds, rows (0: not by rows), memory."""

    at: int
    nanoseconds: float
    rows: int = 0
    reads: list[Span] = field(default_factory=list)
    writes: list[Span] = field(default_factory=list)
    more: list[int] = field(default_factory=list)
    """Where the instructions after the first begin."""

    def needs(self, other: "Entry") -> bool:
        """Whether this must wait for the other."""
        return _overlap(self.reads, other.writes) or _overlap(self.writes, other.reads + other.writes)

    def follows(self, other: "Entry") -> bool:
        """Whether rows of this need only the same rows of the other, and harm none."""
        return (
            0 < self.rows == other.rows
            and not _overlap(self.writes, other.reads + other.writes)
            and all(a == b and a.row for a in self.reads for b in other.writes if _overlap([a], [b]))
        )

    def append(self, other: "Entry") -> None:
        self.more.append(other.at)
        self.nanoseconds += other.nanoseconds
        self.reads += other.reads
        self.writes += other.writes


def _overlap(some: list[Span], others: list[Span]) -> bool:
    return any(a.start < b.end and b.start < a.end for a in some for b in others)


# Of the operations on rows, their number and the bytes of a row of each operand that programs write to.
_ROWS: dict[str, Callable[[dict[str, int]], tuple[int, dict[str, int]]]] = {
    "layer_norm": lambda o: (o["rows"], dict.fromkeys(("y", "x", "residual"), 4 * o["dim"])),
    "rms_norm": lambda o: (o["rows"], dict.fromkeys(("y", "x"), 4 * o["dim"])),
    "rope": lambda o: (
        o["rows"],
        dict.fromkeys(("y", "x"), 4 * o["heads"] * o["head_dim"]) | {"tables": 8 * o["half"]},
    ),
    "gated": lambda o: (
        o["rows"],
        {"y": 4 * o["columns"], "gate": 4 * o["gate_stride"], "up": 4 * o["up_stride"]},
    ),
    "quantize_rows": lambda o: (o["rows"], {"x": 4 * o["inner"]}),
    "cache_append": lambda o: (o["batch"] * o["length"], {"x": 4 * o["heads"] * o["head_dim"]}),
}


def cut(words: "array[int]", threads: int) -> "array[int]":
    """Set the number of chunks of each instruction in `words`; returns the table of tickets that follows a program.

    The table is [entries, (first word, first ticket, ticket before which all must be done) of each, (all words, all
    tickets, all tickets)].
    """
    table = array("I", [0])
    ticket = 0
    for group in _groups(words, threads):
        after = ticket
        for entry in group:
            chunks = _chunks(entry.nanoseconds, threads)
            for at in (entry.at, *entry.more):
                words[at + 1] = chunks
            table.extend((entry.at, ticket, after))
            ticket += chunks
    table[0] = len(table) // 3
    table.extend((len(words), ticket, ticket))
    return table


def _groups(words: "array[int]", threads: int) -> Iterator[list[Entry]]:
    """Entries that need not wait for each other, in the order of the program."""
    group: list[Entry] = []
    for at in _instructions(words):
        entry = _entry(words, at)
        if group and entry.writes and group[-1].writes and not any(entry.needs(each) for each in group[:-1]):
            last = group[-1]
            # A single row is cut by its columns.
            if entry.follows(last) and (entry.rows > 1 or _chunks(last.nanoseconds + entry.nanoseconds, threads) == 1):
                last.append(entry)
                continue
            if not entry.needs(last):
                group.append(entry)
                continue
        if group:
            yield group
        group = [entry]
    if group:
        yield group


def _instructions(words: "array[int]") -> Iterator[int]:
    at = 0
    while at < len(words):
        yield at
        at += words[at] >> 16


def _entry(words: "array[int]", at: int) -> Entry:
    """The instruction at a word. It has no memory, and waits for all before it, where that is not known."""
    op = BY_NUMBER[words[at] & 0xFFFF]
    estimate = _ESTIMATES.get(op.name)
    signed = struct.unpack(f"{len(op.operands)}i", words[at + 2 : at + op.length].tobytes())
    # What a register holds is not known yet; a power of two stands for it.
    sizes = {
        o.name: value if value >= 0 else 256 for o, value in zip(op.operands, signed, strict=True) if o.kind == "int"
    }
    entry = Entry(at, estimate(sizes) if estimate else 0)
    if all(value >= 0 or o.name == "position" for o, value in zip(op.operands, signed, strict=True) if o.kind == "int"):
        addresses = {o.name: words[at + 2 + i] for i, o in enumerate(op.operands) if o.kind in ("in", "out")}
        _add_memory(entry, op.name, sizes, addresses)
    return entry


def _add_memory(entry: Entry, op: str, sizes: dict[str, int], addresses: dict[str, int]) -> None:
    """What an instruction reads and writes of the memory that programs write to, if that is known."""
    layout = op.removeprefix("linear_")
    wholes: dict[str, int] = {}
    if op in _ROWS:
        entry.rows, rows = _ROWS[op](sizes)
        for name in rows.keys() & {name for name, start in addresses.items() if start}:
            span = Span(addresses[name], addresses[name] + rows[name] * entry.rows, rows[name])
            (entry.writes if name == "y" else entry.reads).append(span)
        if op == "quantize_rows":
            wholes["xq"] = activation_nbytes(LAYOUTS[sizes["layout"]], sizes["rows"], sizes["inner"])
        elif op == "cache_append":
            row = sizes["heads"] * cache_head_words(CACHE_DTYPES[sizes["dtype"]], sizes["head_dim"])
            wholes["y"] = 4 * sizes["batch"] * sizes["capacity"] * row
    elif op == "linear" or op.startswith("linear_"):
        wholes["y"] = wholes["residual"] = 4 * sizes["rows"] * sizes["columns"]
        wholes["x"] = 4 * sizes["rows"] * sizes["inner"]
        if layout in QUANTIZED:
            wholes["x"] = activation_nbytes(layout, sizes["rows"], sizes["inner"])
    for name, nbytes in wholes.items():
        if start := addresses.get(name):
            (entry.writes if name in ("y", "xq") else entry.reads).append(Span(start, start + nbytes, 0))


def _chunks(nanoseconds: float, threads: int) -> int:
    if nanoseconds < SPLIT_NS * threads:
        return 1
    # As many for every thread, as none is busy while another does the odd one.
    return threads * max(1, min(CHUNKS_A_THREAD, round(nanoseconds / CHUNK_NS / threads)))
