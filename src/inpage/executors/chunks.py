"""Cutting the instructions of a program into chunks for several threads."""

import struct
from array import array
from collections.abc import Callable, Iterator

from ..optable import BY_NUMBER

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


def cut(words: "array[int]", threads: int) -> "array[int]":
    """Set the number of chunks of each instruction in `words`; returns the table of tickets that follows a program.

    The table is [instructions, (first word, first ticket) of each, (all words, all tickets)].
    """
    table = array("I", [0])
    ticket = 0
    for at in _instructions(words):
        words[at + 1] = _chunks(words, at, threads)
        table.extend((at, ticket))
        ticket += words[at + 1]
    table[0] = len(table) // 2
    table.extend((len(words), ticket))
    return table


def _instructions(words: "array[int]") -> Iterator[int]:
    at = 0
    while at < len(words):
        yield at
        at += words[at] >> 16


def _chunks(words: "array[int]", at: int, threads: int) -> int:
    op = BY_NUMBER[words[at] & 0xFFFF]
    estimate = _ESTIMATES.get(op.name)
    if estimate is None:
        return 1
    signed = struct.unpack(f"{len(op.operands)}i", words[at + 2 : at + op.length].tobytes())
    # What a register holds is not known yet; a power of two stands for it.
    sizes = {
        o.name: value if value >= 0 else 256 for o, value in zip(op.operands, signed, strict=True) if o.kind == "int"
    }
    nanoseconds = estimate(sizes)
    if nanoseconds < SPLIT_NS * threads:
        return 1
    # As many for every thread, as none is busy while another does the odd one.
    return threads * max(1, min(CHUNKS_A_THREAD, round(nanoseconds / CHUNK_NS / threads)))
