"""The quantised ops of the reference executor. Layouts and their meaning are in `optable.py`."""

from typing import NamedTuple

import numpy as np

from ..optable import DTYPES, GROUP_SIZE, GROUPED, LAYOUTS, PANEL, padded_inner, panel_nbytes
from .reference_memory import Array, Memory, load

ZERO = {"q8g": 64, "q4": 8, "q4z": 0}
QUANTS = {"q8g": (-63, 63), "q4": (-8, 7), "q4z": (0, 15)}


class Quantized(NamedTuple):
    """A weight as plain arrays: quants [rows, inner], scale and offset [rows, groups] (q8: one group, no offset)."""

    quants: Array
    scale: Array
    offset: Array


def _panels(m: Memory, address: int, rows: int, inner: int, layout: str) -> Array:
    """The panels at an address as bytes [panels, panel bytes], writable."""
    count = -(-rows // PANEL)
    return m.array(address, (count, panel_nbytes(layout, inner)), np.uint8)


def _groups(panels: Array, layout: str) -> tuple[Array, Array, Array]:
    """Writable views of grouped panels: scales and offsets [panels, groups, 8], bytes [panels, groups, steps, 8, 4]."""
    steps = 8 if layout == "q8g" else 4
    head = 32 if layout == "q4z" else 16
    groups = panels.reshape(len(panels), -1, head + steps * 32)
    scales = groups[..., :head].view(np.float16)
    return scales[..., :8], scales[..., 8:], groups[..., head:].reshape(*groups.shape[:2], steps, 8, 4)


def read_weight(m: Memory, address: int, rows: int, inner: int, layout: str) -> Quantized:
    """Plain arrays of a packed quantised weight."""
    panels, padded = _panels(m, address, rows, inner, layout), padded_inner(layout, inner)
    if layout == "q8":
        quants = panels[:, : 8 * padded].view(np.int8).reshape(-1, padded // 4, 8, 4).transpose(0, 2, 1, 3)
        scale = np.ascontiguousarray(panels[:, 8 * padded : 8 * padded + 32]).view(np.float32).reshape(-1, 1)
        return Quantized(quants.reshape(-1, padded)[:rows, :inner].astype(np.int64), scale[:rows], np.zeros((rows, 1)))
    scales, offsets, data = _groups(panels, layout)
    if layout != "q8g":
        data = np.stack([data & 15, data >> 4], axis=3)
    quants = np.moveaxis(data, -2, 1).reshape(-1, padded)[:rows, :inner].astype(np.int64)
    scale = scales.transpose(0, 2, 1).reshape(-1, padded // GROUP_SIZE)[:rows].astype(np.float64)
    if layout != "q4z":
        return Quantized(quants - ZERO[layout], scale, np.zeros_like(scale))
    return Quantized(quants, scale, offsets.transpose(0, 2, 1).reshape(scale.shape[0] + -rows % PANEL, -1)[:rows] * 1.0)


def write_weight(m: Memory, address: int, weight: Quantized, layout: str) -> None:
    """The opposite of `read_weight`."""
    rows, inner = weight.quants.shape
    panels, padded = _panels(m, address, rows, inner, layout), padded_inner(layout, inner)
    quants = np.zeros((len(panels) * PANEL, padded), np.int64)
    quants[:rows, :inner] = weight.quants
    if layout != "q8":
        quants[:, inner:] = 0
        quants += ZERO[layout]
    if layout == "q8":
        packed = quants.astype(np.int8).reshape(-1, 8, padded // 4, 4).transpose(0, 2, 1, 3)
        panels[:, : 8 * padded] = np.ascontiguousarray(packed).reshape(len(panels), -1).view(np.uint8)
        tail = np.zeros((len(panels), 16), np.float32)
        scale = np.zeros(len(panels) * PANEL, np.float32)
        scale[:rows] = weight.scale[:, 0]
        tail[:, :8], tail[:, 8:] = scale.reshape(-1, 8), quants.sum(1).reshape(-1, 8)
        panels[:, 8 * padded :] = tail.view(np.uint8)
        return
    scales, offsets, data = _groups(panels, layout)
    for target, values in ((scales, weight.scale), (offsets, weight.offset)):
        if target.size:
            full = np.zeros((quants.shape[0], padded // GROUP_SIZE), np.float16)
            full[:rows] = values
            target[...] = full.reshape(-1, 8, full.shape[1]).transpose(0, 2, 1)
    steps = quants.astype(np.uint8).reshape(len(panels), 8, padded // GROUP_SIZE, -1, 4)
    if layout == "q8g":
        data[...] = steps.transpose(0, 2, 3, 1, 4)
        return
    halves = steps.reshape(*steps.shape[:3], 4, 2, 4).transpose(0, 2, 3, 4, 1, 5)
    data[...] = halves[:, :, :, 0] | halves[:, :, :, 1] << 4


def decode(m: Memory, address: int, rows: int, inner: int, layout: str) -> Array:
    """A weight in any layout but rows as float64 [rows, inner]."""
    if layout == "panels":
        return m.panels(address, rows, inner)
    if layout == "f16":
        packed = m.array(address, (-(-rows // PANEL), inner, PANEL), np.float16).astype(np.float64)
        return packed.transpose(0, 2, 1).reshape(-1, inner)[:rows]
    weight = read_weight(m, address, rows, inner, layout)
    each = inner if layout == "q8" else GROUP_SIZE
    values = weight.quants * _spread(weight.scale, each, inner) + _spread(weight.offset, each, inner)
    return _rotated(values) if layout == "q8g" else values


def _rotated(x: Array, factor: float = 1) -> Array:
    """[rows, inner] with the whole groups of each row times `factor` and rotated."""
    rows, inner = x.shape
    whole = inner // GROUP_SIZE * GROUP_SIZE
    y = x[:, :whole] * x.dtype.type(factor / 4)
    for step in (4, 8, 16, 1, 2):
        pairs = y.reshape(-1, 2, step)
        y = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1)
    return np.concatenate([y.reshape(rows, whole), x[:, whole:]], 1)


def _spread(values: Array, each: int, inner: int) -> Array:
    """One value a group as one value an element."""
    return np.repeat(values.astype(np.float64), each, axis=1)[:, :inner]


def quantize_weight(m: Memory, w: int, x: int, rows: int, inner: int, source: int, row_stride: int,
                    column_stride: int, layout: int) -> None:  # fmt: skip
    """w = x packed in a layout; element (r, c) of x is at r * row_stride + c * column_stride, of dtype `source`."""
    values = load(m, x, (rows, inner), (row_stride, column_stride), DTYPES[source]).astype(np.float32)
    name = LAYOUTS[layout]
    if name == "f16":
        panels = np.zeros((-(-rows // PANEL) * PANEL, inner), np.float16)
        panels[:rows] = values
        m.put(w, panels.reshape(-1, PANEL, inner).transpose(0, 2, 1), np.float16)
        return
    write_weight(m, w, _quantize_rows(values) if name == "q8" else _quantize_groups(values, name), name)


def _quantize_rows(x: Array) -> Quantized:
    """One scale a row: the largest magnitude is 127."""
    most = np.abs(x).max(1, keepdims=True)
    inverse = np.divide(127, most, out=np.zeros_like(most), where=most > 0)
    return Quantized(np.rint(x * inverse).clip(-127, 127).astype(np.int64), most / 127, np.zeros_like(most))


def _quantize_groups(x: Array, layout: str) -> Quantized:
    """Quants, scales and offsets of groups of 32, in float32 and in the order of the kernels' additions."""
    rows, inner = x.shape
    if layout == "q8g":
        x = _rotated(x, 0.5)
    groups = np.pad(x, ((0, 0), (0, padded_inner(layout, inner) - inner))).reshape(rows, -1, GROUP_SIZE)
    counts = np.minimum(GROUP_SIZE, inner - GROUP_SIZE * np.arange(groups.shape[1])).astype(np.float32)
    search = {"q8g": _symmetric_8bit, "q4": _symmetric_4bit, "q4z": _asymmetric_4bit}[layout]
    with np.errstate(all="ignore"):
        scale, offset = (values.astype(np.float16).astype(np.float32) for values in search(groups, counts))
        inverse = np.where(scale != 0, 1 / scale, np.float32(0))[..., None]
        quants = np.rint((groups - offset[..., None]) * inverse).clip(*QUANTS[layout])
    return Quantized(quants.reshape(rows, -1)[:, :inner].astype(np.int64), scale, offset)


def _symmetric_8bit(x: Array, counts: Array) -> tuple[Array, Array]:
    """Scale and offset with the least squared errors, of those tried."""
    magnitude = np.abs(x).max(2)
    y = x * np.where(magnitude > np.float32(1e-30), 1 / magnitude, np.float32(0))[..., None]
    best, scale = np.zeros_like(magnitude), np.zeros_like(magnitude)
    for n in range(34, 64):
        q = np.rint(y * np.float32(n))
        yq, qq = _sum(y * q), _sum(q * q)
        score = yq * yq / qq
        better = score > best
        best, scale = np.where(better, score, best), np.where(better, yq / qq, scale)
    return scale * magnitude, np.zeros_like(scale)


def _symmetric_4bit(x: Array, counts: Array) -> tuple[Array, Array]:
    """Scale and offset with the least squared errors, of those tried."""
    most = np.take_along_axis(x, np.abs(x).argmax(2)[..., None], 2)
    y = x * np.where(np.abs(most) > np.float32(1e-30), 1 / most, np.float32(0))
    best, scale = np.zeros(x.shape[:2], np.float32), np.zeros(x.shape[:2], np.float32)
    for n in range(26, 37):
        steps = np.rint(y * np.float32(0.25 * n))
        for side, sign in ((0, 1), (1, -1)):  # a scale of the sign of `most`, and one of the other sign
            q = steps.clip(side - 8, side + 7)
            yq, qq = _sum(y * q), _sum(q * q)
            score = yq * yq / qq
            better = score > best
            best, scale = np.where(better, score, best), np.where(better, sign * yq / qq, scale)
    return scale * most[..., 0], np.zeros_like(scale)


def _asymmetric_4bit(x: Array, counts: Array) -> tuple[Array, Array]:
    """Scale and offset with the least squared errors, of those tried."""
    exists = np.arange(GROUP_SIZE) < counts[:, None]
    low, high = np.where(exists, x, np.inf).min(2), np.where(exists, x, -np.inf).max(2)
    extent = high - low
    inverse = np.where(extent > np.float32(1e-30), 1 / extent, np.float32(0))[..., None]
    y = (np.where(exists, x, low[..., None]) - low[..., None]) * inverse
    sum_y = _sum(y)
    best, scale, offset = np.full_like(sum_y, -1), np.zeros_like(sum_y), np.zeros_like(sum_y)
    for n in range(54, 69):
        q = np.rint(y * np.float32(0.25 * n)).clip(0, 15)
        sum_q, qq, yq = _sum(q), _sum(q * q), _sum(y * q)
        determinant = counts * qq - sum_q * sum_q
        slope, start = (counts * yq - sum_y * sum_q) / determinant, (qq * sum_y - sum_q * yq) / determinant
        score = slope * yq + start * sum_y
        better = (determinant > 0) & (score > best)
        best, scale, offset = (np.where(better, *v) for v in ((score, best), (slope, scale), (start, offset)))
    return scale * extent, offset * extent + low


def _sum(x: Array) -> Array:
    """Sums over groups, as vectors of four lanes add them up."""
    lanes = x.reshape(*x.shape[:2], -1, 4)
    total = lanes[:, :, 0]
    for j in range(1, lanes.shape[2]):
        total = total + lanes[:, :, j]
    return (total[..., 0] + total[..., 1]) + (total[..., 2] + total[..., 3])


def pack_quantized(m: Memory, w: int, q: int, scale: int, offset: int, rows: int, inner: int, layout: int) -> None:
    """w = the plain arrays q, scale and offset packed."""
    name, groups = LAYOUTS[layout], -(-inner // GROUP_SIZE)
    if name == "q8":
        quants, scales = m.array(q, (rows, inner), np.int8), m.array(scale, (rows, 1))
    else:
        scales = m.array(scale, (rows, groups), np.float16)
        quants = m.array(q, (rows, inner), np.int8) if name == "q8g" else _nibbles(m, q, rows, inner)
    offsets = m.array(offset, (rows, groups), np.float16) if offset else np.zeros_like(scales)
    quants = quants.astype(np.int64) - (8 if name == "q4" else 0)
    write_weight(m, w, Quantized(quants, scales, offsets), name)


def _nibbles(m: Memory, address: int, rows: int, inner: int) -> Array:
    data = m.array(address, (rows, -(-inner // 2)), np.uint8)
    return np.stack([data & 15, data >> 4], axis=2).reshape(rows, -1)[:, :inner]


def unpack_quantized(m: Memory, q: int, scale: int, offset: int, w: int, rows: int, inner: int, layout: int) -> None:
    """The plain arrays q, scale and (q4z) offset of the packed weight w."""
    name = LAYOUTS[layout]
    weight = read_weight(m, w, rows, inner, name)
    m.put(scale, weight.scale, np.float32 if name == "q8" else np.float16)
    if name == "q4z":
        m.put(offset, weight.offset, np.float16)
    if name in ("q8", "q8g"):
        m.put(q, weight.quants, np.int8)
        return
    quants = np.zeros((rows, -(-inner // 2) * 2), np.uint8)
    quants[:, :inner] = weight.quants + (8 if name == "q4" else 0)
    m.put(q, quants[:, ::2] | quants[:, 1::2] << 4, np.uint8)


def quantize_rows(m: Memory, xq: int, x: int, rows: int, inner: int, layout: int) -> None:
    """xq = quants int16 [rows, padded inner], scale [rows, groups], then (q8) the rows' lowest values."""
    name = LAYOUTS[layout]
    values = np.zeros((rows, padded_inner(name, inner)), np.float32)
    values[:, :inner] = m.array(x, (rows, inner))
    low = np.zeros((rows, 1), np.float32)
    if name == "q8":
        low = values[:, :inner].min(1, keepdims=True)
        scale = (values[:, :inner].max(1, keepdims=True) - low) / np.float32(127)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 1e-30)
        quants = np.floor((values - low) * inverse + np.float32(0.5)).clip(0, 127)
    else:
        if name == "q8g":
            values[:, :inner] = _rotated(values[:, :inner])
        groups = values.reshape(rows, -1, GROUP_SIZE)
        mantissa, exponent = np.frexp(np.abs(groups).max(2) * np.float32(1 / 127))
        scale = np.exp2((exponent - (mantissa == 0.5)).clip(-100, 100), dtype=np.float32)
        quants = np.rint(groups / scale[..., None]).reshape(rows, -1)
    scale_at = xq + -(-2 * quants.size // 16) * 16
    m.put(xq, quants, np.int16)
    m.put(scale_at, scale)
    m.put(scale_at + 4 * scale.size, low if name == "q8" else np.zeros_like(scale))


def activations(m: Memory, address: int, rows: int, inner: int, layout: str) -> Array:
    """What `quantize_rows` left at an address, as float64 [rows, inner]."""
    if layout not in ("q8", *GROUPED):
        return m.floats(address, rows, inner)
    padded = padded_inner(layout, inner)
    groups = 1 if layout == "q8" else padded // GROUP_SIZE
    quants = m.array(address, (rows, padded), np.int16)
    scale_at = address + -(-quants.nbytes // 16) * 16
    scale = m.floats(scale_at, rows, groups)
    low = m.floats(scale_at + 4 * rows * groups, rows, groups)
    each = padded // groups
    values = quants[:, :inner] * _spread(scale, each, inner) + (_spread(low, each, inner) if layout == "q8" else 0)
    return _rotated(values, 0.5) if layout == "q8g" else values
