"""The reference executor: every op of the op table in plain NumPy. It is the specification of the ops.

It works on the same bytes as the kernels (dense row-major arrays, panels for packed weights), computes in float64 and
rounds once, at the end, to the element type of the output. What the ops have in common:

* Arrays are float32 unless the op says otherwise; strides count elements, not bytes.
* `activation`, `binary`, `layer_norm`, `softmax` and `normalize` may write over an input of the output's size; lines of
  `copy` with steps of 1 may move to lower addresses in place; any other output must not overlap an input.
* A masked position is one whose mask is 0. Its score is *replaced* by the lowest float32, so a row of which
  everything is masked attends uniformly, as in transformers. A bias lowers a score no further than that either.
* An op that refuses its operands writes nothing.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..optable import ACTIVATIONS, BINARY, BY_NUMBER, DTYPES, LAYOUTS, PANEL, POOLING, QUANTIZED, Op
from ..program import REGISTERS
from . import reference_attention as attention
from . import reference_quantized as quantized
from .base import Executor
from .pages import MAXIMUM, PAGE, growth
from .reference_memory import LOWEST, Array, Memory, Refused, load, store
from .reference_published import pack_published

HEAP_START = 64  # address 0 means "absent"


# Functions of arrays


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def activate(x: Array, activation: int) -> Array:
    """The activations by their names in `ACTIVATIONS`; "gelu" is the exact one, "gelu_tanh" its approximation."""
    name = ACTIVATIONS[activation]
    if name == "gelu":
        return 0.5 * x * (1 + erf(x / np.sqrt(2.0)))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if name == "relu":
        return np.maximum(x, 0)
    if name == "silu":
        return x * sigmoid(x)
    if name == "tanh":
        return np.tanh(x)
    if name == "sigmoid":
        return sigmoid(x)
    return x


def sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


# Ops


def linear_in(layout: str) -> Callable[..., None]:
    """The linear op for weights in a layout."""

    def linear(m: Memory, y: int, x: int, weight: int, bias: int, residual: int, rows: int, columns: int, inner: int,
               activation: int) -> None:  # fmt: skip
        """y [rows, columns] = activation(x [rows, inner] @ weight.T + bias [columns]) + residual [rows, columns].

        weight is a [columns, inner] matrix in the layout; for quantised ones x is the result of `quantize_rows`.
        """
        matrix = quantized.decode(m, weight, columns, inner, layout)
        result = quantized.activations(m, x, rows, inner, layout) @ matrix.T
        if bias:
            result += m.floats(bias, columns)
        result = activate(result, activation)
        if residual:
            result += m.floats(residual, rows, columns)
        m.put(y, result)

    return linear


def embedding(m: Memory, y: int, ids: int, table: int, residual: int, count: int, dim: int, vocabulary: int,
              layout: int) -> None:  # fmt: skip
    """y [count, dim] = table[ids] + residual [count, dim].

    ids is int32 [count]; table is [vocabulary, dim] in any layout. Refuses an id outside 0 .. vocabulary - 1.
    """
    rows = m.integers(ids, count)
    if ((rows < 0) | (rows >= vocabulary)).any():
        raise Refused
    if LAYOUTS[layout] == "rows":
        result = m.array(table, (vocabulary, dim))[rows].astype(np.float64)
    else:
        result = quantized.decode(m, table, vocabulary, dim, LAYOUTS[layout])[rows]
    if residual:
        result += m.floats(residual, count, dim)
    m.put(y, result)


def layer_norm(m: Memory, y: int, x: int, residual: int, weight: int, bias: int, rows: int, dim: int,
               eps: float) -> None:  # fmt: skip
    """y [rows, dim] = normalised (x + residual) * weight [dim] + bias [dim], with the biased variance plus eps."""
    values = m.floats(x, rows, dim)
    if residual:
        values += m.floats(residual, rows, dim)
    centred = values - values.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    m.put(y, centred * scale * m.floats(weight, dim) + m.floats(bias, dim))


def matmul(m: Memory, c: int, a: int, b: int, outer: int, middle: int, rows: int, columns: int, inner: int,
           a_outer: int, a_middle: int, a_row: int, b_outer: int, b_middle: int, b_row: int, b_inner: int,
           c_outer: int, c_middle: int, c_row: int, alpha: float) -> None:  # fmt: skip
    """c[o, p, i, j] = alpha * sum over k of a[o, p, i, k] * b[o, p, j, k], for o < outer and p < middle.

    a steps by (a_outer, a_middle, a_row, 1), b by (b_outer, b_middle, b_row, b_inner), c by (c_outer, c_middle, c_row,
    1). b with b_inner = 1 is multiplied transposed; with b_row = 1 it is an [inner, columns] matrix as it stands.
    """
    left = m.strided(a, (outer, middle, rows, inner), (a_outer, a_middle, a_row, 1)).astype(np.float64)
    right = m.strided(b, (outer, middle, columns, inner), (b_outer, b_middle, b_row, b_inner)).astype(np.float64)
    result = m.strided(c, (outer, middle, rows, columns), (c_outer, c_middle, c_row, 1))
    result[...] = alpha * np.einsum("opik,opjk->opij", left, right)


def activation(m: Memory, y: int, x: int, count: int, activation: int) -> None:
    """y [count] = activation(x [count])."""
    m.put(y, activate(m.floats(x, count), activation))


def binary(m: Memory, y: int, a: int, b: int, count: int, b_count: int, operation: int) -> None:
    """y [count] = a [count] (operation) b [b_count]; b repeats, and count is a multiple of b_count."""
    left, right = m.floats(a, count // b_count, b_count), m.floats(b, b_count)
    functions: dict[str, Callable[[Array, Array], Array]] = {
        "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    }  # fmt: skip
    m.put(y, functions[BINARY[operation]](left, right))


def copy(m: Memory, y: int, x: int, d0: int, d1: int, d2: int, d3: int, y0: int, y1: int, y2: int, y3: int,
         x0: int, x1: int, x2: int, x3: int) -> None:  # fmt: skip
    """Copy 32-bit elements of any type from x, stepping by x0 .. x3, to y, stepping by y0 .. y3; [d0, d1, d2, d3]."""
    shape = (d0, d1, d2, d3)
    source = m.strided(x, shape, (x0, x1, x2, x3), np.uint32).copy()
    m.strided(y, shape, (y0, y1, y2, y3), np.uint32)[...] = source


def convert(m: Memory, y: int, x: int, count: int, source: int, target: int) -> None:
    """y [count] of dtype `target` = x [count] of dtype `source`.

    To a float: rounded to nearest even. To an integer: truncated towards zero, saturated, NaN gives 0. To bool:
    whether it is not 0.
    """
    store(m, y, load(m, x, (count,), (1,), DTYPES[source]), DTYPES[target])


def pack(m: Memory, y: int, x: int, rows: int, inner: int, source: int, row_stride: int, column_stride: int) -> None:
    """y = float32 panels [ceil(rows / 8)][inner][8] of the [rows, inner] matrix x of dtype `source`.

    Element (r, i) of x is `r * row_stride + i * column_stride` elements from its start. Rows past the end are zero.
    """
    values = load(m, x, (rows, inner), (row_stride, column_stride), DTYPES[source])
    panels = -(-rows // PANEL)
    padded = np.zeros((panels * PANEL, inner))
    padded[:rows] = values
    m.put(y, padded.reshape(panels, PANEL, inner).transpose(0, 2, 1))


def unpack(m: Memory, y: int, x: int, rows: int, inner: int, layout: int) -> None:
    """y [rows, inner] = the matrix in the panels x, of any layout but rows."""
    m.put(y, quantized.decode(m, x, rows, inner, LAYOUTS[layout]))


def pool(m: Memory, y: int, x: int, mask: int, batch: int, length: int, dim: int, pooling: int) -> None:
    """y [batch, dim] from x [batch, length, dim]; mask is int32 [batch, length], without it all positions count.

    mean: sum of the unmasked over their number, which counts as at least 1e-9. max: over the unmasked, the lowest
    float32 if there are none. first: position 0, whatever the mask. last: the last unmasked position, 0 if there are
    none.
    """
    values = m.floats(x, batch, length, dim)
    keep = (m.integers(mask, batch, length) if mask else np.ones((batch, length), np.int32)) != 0
    name = POOLING[pooling]
    if name == "mean":
        total = (values * keep[:, :, None]).sum(1)
        result = total / np.maximum(keep.sum(1), 1e-9)[:, None]
    elif name == "max":
        result = np.where(keep[:, :, None], values, LOWEST).max(1)
    elif name == "last":
        last = np.where(keep, np.arange(length), 0).max(1)
        result = values[np.arange(batch), last]
    else:
        result = values[:, 0]
    m.put(y, result)


def normalize(m: Memory, y: int, x: int, rows: int, dim: int, eps: float) -> None:
    """y [rows, dim] = each row of x over its Euclidean norm, which counts as at least eps."""
    values = m.floats(x, rows, dim)
    m.put(y, values / np.maximum(np.sqrt((values**2).sum(-1, keepdims=True)), eps))


def position_ids(m: Memory, y: int, ids: int, rows: int, length: int, padding_id: int) -> None:
    """y, int32 [rows, length]: 1 + padding_id + number of tokens before that are not padding; padding_id at padding.

    ids is int32 [rows, length]. These are RoBERTa's positions.
    """
    real = m.integers(ids, rows, length) != padding_id
    m.put(y, np.where(real, np.cumsum(real, 1) + padding_id, padding_id), np.int32)


def cross_entropy(m: Memory, loss: int, logits: int, labels: int, rows: int, classes: int, ignore_index: int) -> None:
    """loss [1] = mean of -log_softmax(logits [rows, classes])[label] over rows whose label is not ignore_index.

    labels is int32 [rows]. NaN if every row is ignored. Refuses any other label outside 0 .. classes - 1.
    """
    targets = m.integers(labels, rows)
    kept = targets != ignore_index
    targets = targets[kept]
    if ((targets < 0) | (targets >= classes)).any():
        raise Refused
    rows_kept = attention.log_softmax(m.floats(logits, rows, classes))[kept]
    losses = -rows_kept[np.arange(len(targets)), targets]
    m.put(loss, np.array([losses.mean() if len(losses) else np.nan]))


def mse_loss(m: Memory, loss: int, x: int, target: int, count: int) -> None:
    """loss [1] = mean of (x [count] - target [count]) squared."""
    m.put(loss, np.array([((m.floats(x, count) - m.floats(target, count)) ** 2).mean()]))


def bce_loss(m: Memory, loss: int, logits: int, target: int, count: int) -> None:
    """loss [1] = mean binary cross-entropy of sigmoid(logits [count]) against target [count]."""
    x, t = m.floats(logits, count), m.floats(target, count)
    m.put(loss, np.array([(np.maximum(x, 0) - x * t + np.log1p(np.exp(-np.abs(x)))).mean()]))


def topk(m: Memory, values: int, indices: int, x: int, rows: int, columns: int, k: int) -> None:
    """The k largest of each row of x [rows, columns], largest first: values [rows, k] and int32 indices [rows, k].

    Of equal ones the lower index comes first.
    """
    scores = m.floats(x, rows, columns)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    m.put(values, np.take_along_axis(scores, order, 1))
    m.put(indices, order, np.int32)


def random_normal(m: Memory, y: int, count: int, seed: int, mean: float, std: float) -> None:
    """y [count] drawn from a normal distribution; the same seed gives the same values on the same executor."""
    m.put(y, np.random.default_rng(seed & 0xFFFFFFFF).normal(mean, std, count))


def fill(m: Memory, y: int, count: int, value: float) -> None:
    """y [count] = value."""
    m.put(y, np.full(count, value))


def rms_norm(m: Memory, y: int, x: int, weight: int, rows: int, dim: int, eps: float, offset: float) -> None:
    """y [rows, dim] = x / sqrt(mean of x squared + eps) * (weight [dim] + offset)."""
    values = m.floats(x, rows, dim)
    scale = 1 / np.sqrt((values**2).mean(-1, keepdims=True) + eps)
    m.put(y, values * scale * (m.floats(weight, dim) + offset))


def positions(m: Memory, y: int, rows: int, length: int, start: int) -> None:
    """y, int32 [rows, length]: start, start + 1, ... in every row."""
    m.put(y, np.tile(np.arange(start, start + length), (rows, 1)), np.int32)


def rotary_tables(m: Memory, y: int, positions: int, frequencies: int, count: int, half: int, scale: float) -> None:
    """y [count, 2, half] = cosines and sines of positions (int32 [count]) times frequencies [half], times scale.

    The angle is rounded to float32 before its cosine is taken.
    """
    places = m.integers(positions, count).astype(np.float32)
    angles = (places[:, None] * m.array(frequencies, (half,))).astype(np.float64)
    m.put(y, scale * np.stack([np.cos(angles), np.sin(angles)], 1))


def rope(m: Memory, y: int, x: int, tables: int, rows: int, heads: int, head_dim: int, half: int,
         interleaved: int) -> None:  # fmt: skip
    """y [rows, heads, head_dim]: pairs (a, b) of x become (a cos - b sin, b cos + a sin); tables are [rows, 2, half].

    Pair j is elements j and half + j, or 2 j and 2 j + 1 if interleaved; elements from 2 * half on stay.
    """
    if 2 * half > head_dim:
        raise Refused
    result = m.floats(x, rows, heads, head_dim)
    cosines, sines = m.floats(tables, rows, 2, 1, half).transpose(1, 0, 2, 3)
    first, second = (np.s_[..., : 2 * half : 2], np.s_[..., 1 : 2 * half : 2]) if interleaved else (
        np.s_[..., :half], np.s_[..., half : 2 * half])  # fmt: skip
    a, b = result[first].copy(), result[second].copy()
    result[first], result[second] = a * cosines - b * sines, b * cosines + a * sines
    m.put(y, result)


def gated(m: Memory, y: int, gate: int, up: int, rows: int, columns: int, gate_stride: int, up_stride: int,
          activation: int) -> None:  # fmt: skip
    """y [rows, columns] = activation(gate) * up, whose rows are `gate_stride` and `up_stride` apart."""
    left = m.strided(gate, (rows, columns), (gate_stride, 1)).astype(np.float64)
    m.put(y, activate(left, activation) * m.strided(up, (rows, columns), (up_stride, 1)))


def gather(m: Memory, y: int, x: int, index: int, count: int, rows: int, words: int, stride: int) -> None:
    """y[i] = x[index[i]] for i < count: the first rows * words 32-bit elements of items `stride` elements apart.

    index is int32 [count]. Refuses an index outside 0 .. count - 1.
    """
    places = m.integers(index, count)
    if ((places < 0) | (places >= count)).any():
        raise Refused
    shape, strides = (count, rows * words), (stride, 1)
    m.strided(y, shape, strides, np.uint32)[...] = m.strided(x, shape, strides, np.uint32)[places]


def argmax(m: Memory, y: int, x: int, rows: int, columns: int) -> None:
    """y, int32 [rows]: index of the largest of each row of x [rows, columns], the first if there are several."""
    m.put(y, m.array(x, (rows, columns)).argmax(1), np.int32)


def sample(m: Memory, y: int, order: int, weights: int, x: int, uniform: int, rows: int, columns: int, k: int,
           temperature: float, top_p: float, min_p: float) -> None:  # fmt: skip
    """y, int32 [rows]: an index of each row of x [rows, columns], drawn by softmax(x / temperature).

    Only the k largest take part; of these, in descending order, those before which less than top_p lies; and of these
    those with at least min_p times the probability of the largest. `uniform` [rows] in [0, 1) chooses: the first index
    at which the sum of probabilities exceeds it, in descending order, or in order of the indices if k = columns and
    top_p = 1. `order` int32 [rows, k] and `weights` [rows, k] are scratch. Refuses k outside 1 .. columns and
    temperatures that are not positive.
    """
    if not 1 <= k <= columns or not temperature > 0:
        raise Refused
    sorts = k < columns or top_p < 1
    chosen: list[int] = []
    for row, u in zip(m.floats(x, rows, columns), m.floats(uniform, rows), strict=True):
        ids = np.argsort(-row, kind="stable")[:k] if sorts else np.arange(columns)
        p = np.exp((row[ids] - row.max()) / temperature)
        kept = p >= min_p
        if sorts:
            kept[1:] &= (np.cumsum(p) - p)[1:] < top_p * p.sum()
        p[~kept] = 0
        chosen.append(int(ids[np.argmax(np.cumsum(p) > u * p.sum())]))
    m.put(y, np.array(chosen), np.int32)


def edit_scores(m: Memory, y: int, index: int, factors: int, count: int, size: int) -> None:
    """y [size], in place: y[index[j]] times factors[j, 0] where it is negative, else factors[j, 1], plus factors[j, 2].

    One edit after the other, j < count; an index outside 0 .. size - 1 is passed over. A score that is not finite stays
    as it is, but a summand of -inf makes any score -inf.
    """
    scores = m.array(y, (size,))
    for at, (below, above, summand) in zip(m.integers(index, count), m.floats(factors, count, 3), strict=True):
        if not 0 <= at < size:
            continue
        if summand == -np.inf:
            scores[at] = summand
        elif np.isfinite(scores[at]):
            scores[at] = scores[at] * (below if scores[at] < 0 else above) + summand


def mask_scores(m: Memory, y: int, bits: int, rows: int, columns: int) -> None:
    """y [rows, columns], in place: -inf where a bit of bits int32 [rows, ceil(columns / 32)], lowest first, is 0."""
    words = m.array(bits, (rows, -(-columns // 32)), np.uint32)
    kept = (words[:, :, None] >> np.arange(32, dtype=np.uint32) & 1).reshape(rows, -1)[:, :columns]
    m.put(y, np.where(kept, m.array(y, (rows, columns)), np.float32(-np.inf)))


FUNCTIONS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        embedding, layer_norm, matmul, activation, binary, copy, convert, pack, unpack, pool, normalize,
        position_ids, cross_entropy, mse_loss, bce_loss, topk, random_normal, fill, rms_norm, positions,
        rotary_tables, rope, gated, gather, argmax, sample, edit_scores, mask_scores,
        attention.attention, attention.join_attention, attention.softmax, attention.cache_append, attention.cache_read,
        quantized.quantize_rows, quantized.quantize_weight, quantized.pack_quantized, quantized.unpack_quantized,
        pack_published,
    )
}  # fmt: skip
FUNCTIONS["linear"] = linear_in("panels")
FUNCTIONS |= {f"linear_{layout}": linear_in(layout) for layout in ("f16", *QUANTIZED)}


def decode(op: Op, words: npt.NDArray[np.int32], registers: npt.NDArray[np.int32]) -> list[int | float]:
    """Operand values of one instruction."""
    operands: list[int | float] = []
    for operand, word in zip(op.operands, words, strict=True):
        if operand.kind == "float":
            operands.append(float(word.view(np.float32)))
        elif operand.kind == "int":
            operands.append(int(registers[-1 - word] if word < 0 else word))
        elif operand.kind == "literal":
            operands.append(int(word))
        else:
            operands.append(int(word.view(np.uint32)))
    return operands


class ReferenceExecutor(Executor):
    """Runs programs in NumPy: slow and exact."""

    name = "reference"

    def __init__(self) -> None:
        super().__init__(HEAP_START)
        self._memory = Memory(PAGE)

    @property
    def size(self) -> int:
        return len(self._memory.bytes)

    def grow(self, nbytes: int) -> None:
        grown = Memory(growth(nbytes, self.size, MAXIMUM)[0])
        grown.bytes[: self.size] = self._memory.bytes
        self._memory = grown

    def write(self, address: int, data: Any) -> None:
        values = np.frombuffer(data, np.uint8)
        self._memory.bytes[address : address + len(values)] = values

    def read(self, address: int, nbytes: int) -> bytes:
        return self._memory.array(address, (nbytes,), np.uint8).tobytes()

    def execute(self, address: int, words: int, registers: int, begin: int = 0, end: int | None = None) -> int:
        memory = self._memory
        program = memory.integers(address, words)
        file = memory.array(registers, (REGISTERS,), np.int32)
        position, end = begin, words if end is None else end
        while position < end:
            op = BY_NUMBER[int(program[position]) & 0xFFFF]
            operands = decode(op, program[position + 2 : position + op.length], file)
            try:
                FUNCTIONS[op.name](memory, *operands)
            except Refused:
                return 1 + position
            position += op.length
        return 0

    def close(self) -> None:
        self._memory = Memory(0)
