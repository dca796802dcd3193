"""The reference executor's op for quantised weights as other libraries publish them. Formats are in `optable.py`."""

import numpy as np

from ..optable import DTYPES, GROUP_SIZE, LAYOUTS, PUBLISHED
from .reference_memory import Array, Memory, Refused, load
from .reference_quantized import Quantized, write_weight

AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""Place in a word of each of eight columns."""


def pack_published(m: Memory, w: int, q: int, scale: int, zero: int, rows: int, inner: int, group: int,
                   source: int, format: int, layout: int) -> None:  # fmt: skip
    """w = scale * (q - zero) packed in a layout."""
    name, packing = LAYOUTS[layout], PUBLISHED[format]
    if name not in ("q4", "q4z") or group % GROUP_SIZE or inner % group:
        raise Refused
    groups = inner // group
    shape, strides = (rows, groups), (groups, 1) if packing == "compressed" else (1, rows)
    scales = load(m, scale, shape, strides, DTYPES[source])
    if packing == "compressed":
        quants = _nibbles(m.array(q, (rows, -(-inner // 8)), np.uint32))[:, :inner]
        zeros = _nibbles(m.array(zero, (-(-rows // 8), groups), np.uint32).T).T[:rows] if zero else np.full(shape, 8)
    else:
        order = AWQ_ORDER if packing == "awq" else list(range(8))
        if packing == "awq":
            quants = _nibbles(m.array(q, (inner, rows // 8), np.uint32), order).T
        else:
            quants = _nibbles(m.array(q, (inner // 8, rows), np.uint32).T)
        zeros = _nibbles(m.array(zero, (groups, rows // 8), np.uint32), order).T if zero else np.full(shape, 8)
        zeros = zeros + (packing == "gptq" and bool(zero))
    with np.errstate(over="ignore"):
        halves = np.repeat(scales.astype(np.float16), group // GROUP_SIZE, 1)
        offsets = (-halves.astype(np.float64) * np.repeat(zeros, group // GROUP_SIZE, 1)).astype(np.float16)
    if not (np.isfinite(halves).all() and np.isfinite(offsets).all()) or (name == "q4" and (zeros != 8).any()):
        raise Refused
    write_weight(m, w, Quantized(quants - (8 if name == "q4" else 0), halves, offsets), name)


def _nibbles(words: Array, order: list[int] | None = None) -> Array:
    """The eight quants of each word of a matrix, along its rows: word's nibble order[j] is element j."""
    shifts = 4 * np.array(order or range(8), np.uint32)
    return (words[..., None] >> shifts & 15).reshape(len(words), -1).astype(np.int64)
