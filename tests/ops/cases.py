"""The case table: for every op shapes, dtypes, expected results, allowed error and flops.

It drives the correctness tests of all executors (CPython and browser) and the kernel benchmark. Expected results come
from formulas over the logical arrays, written apart from the reference executor, in float64.
"""

import math
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from inpage.optable import (
    ACTIVATIONS,
    BINARY,
    CACHE_DTYPES,
    DTYPES,
    OPS,
    PANEL,
    POOLING,
    QUANTIZED,
    activation_nbytes,
    cache_head_words,
    weight_nbytes,
)
from inpage.program import REGISTERS
from tests.ops.job import GUARD, Job

Array = npt.NDArray[Any]
LOWEST = float(np.finfo(np.float32).min)
ALIGNMENT = 64


@dataclass
class Case:
    """One instruction.

    inputs, outputs: arrays as they lie in memory, by operand name; an absent input is None
    values: the operands that are no arrays; a negative `int` goes through a register
    tolerance: largest error of a float output, relative to the largest finite magnitude expected in it
    initial: what outputs hold before the run, for ops that write a part of them
    refused: the op must refuse its operands
    scratch: outputs whose values do not matter
    """

    op: str
    label: str
    inputs: Mapping[str, Array | None]
    outputs: dict[str, Array]
    values: Mapping[str, int | float]
    tolerance: float = 1e-5
    flops: int = 0
    initial: dict[str, Array] = field(default_factory=dict[str, Array])
    refused: bool = False
    scratch: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.op}-{self.label}"

    def job(self, chunks: int = 1) -> Job:
        """The case as a relocatable block."""
        return assemble([self], chunks)

    def errors(self, status: int, outputs: list[bytes]) -> list[str]:
        """What is wrong with the results of `run_job`, in words; empty if nothing is."""
        if self.refused:
            return [] if status == 1 else [f"status {status}, expected a refusal (1)"]
        if status:
            return [f"status {status}, expected 0"]
        problems = (self._compare(name, data) for name, data in zip(self.outputs, outputs, strict=True))
        return [problem for problem in problems if problem]

    def _compare(self, name: str, data: bytes) -> str:
        expected = self.outputs[name]
        if data[expected.nbytes :] != GUARD:
            return f"{name}: wrote past its end"
        if name in self.scratch:
            return ""
        got = np.frombuffer(data[: expected.nbytes], expected.dtype).reshape(expected.shape)
        if expected.dtype.kind != "f":
            wrong = np.argwhere(got != expected)
            return f"{name}: {len(wrong)} differ, first at {wrong[0]}: {got[tuple(wrong[0])]}" if len(wrong) else ""
        return compare(name, got, expected, self.tolerance)


def compare(name: str, got: Array, expected: Array, tolerance: float) -> str:
    """Problem with a float array, or an empty string. Infinities and NaN must be where they are expected."""
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite].astype(got.dtype), equal_nan=True):
        return f"{name}: infinities or NaN differ"
    if not np.isfinite(got[finite]).all():
        return f"{name}: {np.count_nonzero(~np.isfinite(got[finite]))} elements are not finite"
    error = np.abs(got[finite].astype(np.float64) - expected[finite])
    allowed = tolerance * np.abs(expected[finite]).max(initial=0.0)
    if error.max(initial=0.0) <= allowed:
        return ""
    return f"{name}: error {error.max():.3g}, allowed {allowed:.3g}"


def assemble(cases: list[Case], chunks: int = 1) -> Job:
    """Instructions of several cases, each cut into `chunks` parts, one after the other, as one block."""
    words, registers, relocations = array("I"), array("i"), list[int]()
    code = sum(OPS[case.op].length for case in cases)
    blob = bytearray(_aligned(4 * code) + _aligned(4 * REGISTERS))
    places: list[tuple[int, int]] = []

    def place(data: bytes) -> int:
        offset = len(blob)
        blob.extend(data + b"\0" * (_aligned(len(data)) - len(data)))
        return offset

    for case in cases:
        op = OPS[case.op]
        words.extend([op.number | op.length << 16, chunks])
        for name, kind, _ in op.operands:
            if kind == "float":
                words.append(struct.unpack("<I", struct.pack("<f", case.values[name]))[0])
            elif kind == "int":
                value = int(case.values[name])
                if value < 0:
                    registers.append(value)
                    value = -len(registers)
                words.append(value & 0xFFFFFFFF)
            elif kind == "literal":
                words.append(int(case.values[name]) & 0xFFFFFFFF)
            elif kind == "in" and case.inputs[name] is None:
                words.append(0)
            else:
                relocations.append(len(words))
                if kind == "in":
                    data = np.ascontiguousarray(case.inputs[name]).tobytes()
                    words.append(place(data))
                else:
                    nbytes = case.outputs[name].nbytes
                    data = case.initial[name].tobytes() if name in case.initial else b"\xa5" * nbytes
                    words.append(place(data + GUARD))
                    places.append((words[-1], nbytes))
    blob[: 4 * code] = words.tobytes()
    at = _aligned(4 * code)
    blob[at : at + 4 * len(registers)] = registers.tobytes()
    return Job(bytes(blob), code, relocations, at, places)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


# Making inputs


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng([20, *seed])


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (rng(seed, *shape).normal(size=shape) * scale).astype(np.float32)


def integers(low: int, high: int, *shape: int, seed: int = 0) -> Array:
    return rng(seed, *shape).integers(low, high, shape, dtype=np.int32)


def panels(matrix: Array) -> Array:
    """[rows, inner] -> [ceil(rows / 8), inner, 8]."""
    rows, inner = matrix.shape
    out = np.zeros((-(-rows // PANEL), inner, PANEL), np.float32)
    for row in range(rows):
        out[row // PANEL, :, row % PANEL] = matrix[row]
    return out


def activated(x: Array, name: str) -> Array:
    with np.errstate(over="ignore"):
        formulas = {
            "none": lambda: x,
            "gelu": lambda: x * np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.ravel()]).reshape(x.shape),
            "gelu_tanh": lambda: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            "relu": lambda: np.where(x > 0, x, 0),
            "silu": lambda: x / (1 + np.exp(-x)),
            "tanh": lambda: np.tanh(x),
            "sigmoid": lambda: 1 / (1 + np.exp(-x)),
        }
        return formulas[name]()


def probabilities(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def mask_of(batch: int, kv_len: int, kind: str) -> Array | None:
    """None, or int32 [batch, kv_len]: padded right or left (a little, or "long"), with holes, or one row "full"."""
    if kind == "no":
        return None
    mask = np.ones((batch, kv_len), np.int32)
    for item in range(batch):
        pad = min(kv_len - 1, 1 + item * 2 + ("long" in kind) * kv_len * 3 // 4)
        if "right" in kind:
            mask[item, kv_len - pad :] = 0
        elif "left" in kind:
            mask[item, :pad] = 0
        elif kind == "holes":
            mask[item, 1::2] = 0
    if kind == "full":
        mask[-1] = 0
    return mask


def attended(scores: Array, mask: Array | None, causal: int, window: int = 0) -> Array:
    """Probabilities of scores [batch, heads, q_len, kv_len], query by query."""
    scores = scores.copy()
    batch, _, q_len, kv_len = scores.shape
    for b, i in product(range(batch), range(q_len)):
        if mask is not None:
            scores[b, :, i, mask[b] == 0] = LOWEST
        if causal:
            scores[b, :, i, max(0, i + 1 + kv_len - q_len) :] = LOWEST
        if window:
            scores[b, :, i, : max(0, i + 1 + kv_len - q_len - window)] = LOWEST
    return probabilities(scores)


# One generator of cases for each op


def linear_case(rows: int, columns: int, inner: int, bias: bool = False, residual: bool = False,
                activation: str = "none", label: str = "") -> Case:  # fmt: skip
    x, weight = normal(rows, inner, seed=1), normal(columns, inner, seed=2, scale=inner**-0.5)
    b = normal(columns, seed=3) if bias else None
    r = normal(rows, columns, seed=4) if residual else None
    y = x.astype(np.float64) @ weight.T.astype(np.float64)
    if b is not None:
        y = y + b
    y = activated(y, activation)
    if r is not None:
        y = y + r
    return Case(
        "linear",
        label or f"{rows}x{columns}x{inner}{'-bias' * bias}{'-residual' * residual}-{activation}",
        {"x": x, "weight": panels(weight), "bias": b, "residual": r},
        {"y": y.astype(np.float32)},
        {"rows": rows, "columns": columns, "inner": inner, "activation": ACTIVATIONS.index(activation)},
        flops=2 * rows * columns * inner,
    )


def linear_cases() -> Iterator[Case]:
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 17, 32):
        yield linear_case(rows, 24, 20)
    for columns, inner in ((1, 1), (3, 7), (8, 1), (9, 33), (31, 5), (33, 64), (64, 31), (100, 17), (72, 2)):
        for rows in (1, 7):
            yield linear_case(rows, columns, inner, bias=columns % 2 == 1)
    for activation, rows in product(ACTIVATIONS, (1, 9)):
        yield linear_case(rows, 29, 19, True, True, activation)
    yield linear_case(6, 12, 16, residual=True)
    yield linear_case(128, 384, 384, True, True)
    yield linear_case(1, 1536, 384, True, False, "gelu")
    yield linear_case(37, 64, 1536, True)


def embedding_cases() -> Iterator[Case]:
    for vocabulary, dim, count, layout, residual in (
        (11, 5, 7, "rows", False),
        (16, 32, 9, "rows", True),
        (1, 1, 3, "rows", False),
        (11, 5, 7, "panels", False),
        (50, 33, 12, "panels", True),
        (8, 1, 2, "panels", False),
    ):
        table = normal(vocabulary, dim)
        ids = integers(0, vocabulary, count)
        ids[-1] = vocabulary - 1
        r = normal(count, dim, seed=5) if residual else None
        yield Case(
            "embedding",
            f"{vocabulary}x{dim}-{count}-{layout}{'-residual' * residual}",
            {"ids": ids, "table": panels(table) if layout == "panels" else table, "residual": r},
            {"y": table[ids] if r is None else table[ids] + r},
            {"count": count, "dim": dim, "vocabulary": vocabulary, "layout": ("rows", "panels").index(layout)},
            tolerance=1e-7,
        )
    for bad, layout in product((-1, 11, 2**31 - 1, -(2**31)), (0, 1)):
        yield Case(
            "embedding",
            f"refuses-{bad}-{layout}",
            {"ids": np.array([0, 3, bad], np.int32), "table": panels(normal(11, 5)), "residual": None},
            {"y": np.zeros((3, 5), np.float32)},
            {"count": 3, "dim": 5, "vocabulary": 11, "layout": layout},
            refused=True,
        )


def layer_norm_cases() -> Iterator[Case]:
    for rows, dim, residual, shift in (
        (1, 1, False, 0), (3, 3, True, 0), (2, 8, False, 0), (5, 37, True, 0), (4, 384, True, 0), (2, 100, False, 100),
    ):  # fmt: skip
        x = normal(rows, dim) + np.float32(shift)
        r = normal(rows, dim, seed=6) if residual else None
        weight, bias = normal(dim, seed=7), normal(dim, seed=8)
        values = x.astype(np.float64) + (0 if r is None else r)
        y = (values - values.mean(1)[:, None]) / np.sqrt(values.var(1) + 1e-5)[:, None] * weight + bias
        yield Case(
            "layer_norm",
            f"{rows}x{dim}{'-residual' * residual}{'-shifted' * bool(shift)}",
            {"x": x, "residual": r, "weight": weight, "bias": bias},
            {"y": y.astype(np.float32)},
            {"rows": rows, "dim": dim, "eps": 1e-5},
            flops=8 * rows * dim,
        )


def attention_case(batch: int, heads: int, q_len: int, kv_len: int, head_dim: int, kv_heads: int = 0, mask: str = "no",
                   bias: str = "no", causal: int = 0, fused: bool = False, scale: float = 0.0,
                   spread: float = 1.0, label: str = "", hidden: Any = None, hidden_by: float = LOWEST,
                   window: int = 0, softcap: float = 0.0, capacity: int = 0, dtype: str = "f32",
                   shares: int = 1) -> Case:  # fmt: skip
    """bias: "no", "shared" by the batch, or "batched"; fused: q, k, v side by side, as one projection gives them.

    capacity: keys and values, of `dtype`, and the mask are the first rows of larger blocks, as in a cache.
    """
    kv_heads = kv_heads or heads
    scale = scale or head_dim**-0.5
    widths = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
    q, k, v = (
        normal(batch, length, width, seed=9 + i, scale=spread)
        for i, (length, width) in enumerate(zip((q_len, kv_len, kv_len), widths, strict=True))
    )
    b = normal(1 if bias == "shared" else batch, heads, q_len, kv_len, seed=12) if bias != "no" else None
    if b is not None and hidden is not None:
        b[hidden] = hidden_by
    m = mask_of(batch, kv_len, mask)
    y = np.zeros((batch, q_len, heads, head_dim))
    parts = np.zeros((batch, heads, shares, head_dim + 2))
    q4 = q.reshape(batch, q_len, heads, head_dim).astype(np.float64)
    if dtype != "f32" or capacity:
        (k, k4), (v, v4) = (cached(a.reshape(batch, kv_len, kv_heads, head_dim), dtype, capacity) for a in (k, v))
        m = m if m is None else np.pad(m, ((0, 0), (0, capacity - kv_len)), constant_values=7)
    else:
        k4, v4 = (a.reshape(batch, kv_len, kv_heads, head_dim).astype(np.float64) for a in (k, v))
    for h in range(heads):
        g = h // (heads // kv_heads)
        scores = scale * (q4[:, :, h] @ k4[:, :, g].transpose(0, 2, 1))
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if b is not None:
            scores = np.maximum(scores + b[:, h], LOWEST)
        seen = m if m is None else m[:, :kv_len]
        y[:, :, h] = attended(scores[:, None], seen, causal, window)[:, 0] @ v4[:, :, g]
        for s in range(shares if shares > 1 else 0):
            here = slice(kv_len * s // shares, kv_len * (s + 1) // shares)
            powers = scores[:, 0, here] / math.log(2)  # a score is this power of 2, or is hidden
            if seen is not None:
                powers = np.where(seen[:, here] == 0, LOWEST, powers)
            highest = powers.max(1, initial=LOWEST)
            weights = 2 ** (powers - highest[:, None])
            parts[:, h, s, :head_dim] = (weights[:, None] @ v4[:, here, g])[:, 0]
            parts[:, h, s, head_dim:] = np.stack([highest, weights.sum(1)], 1)
    strides = (widths[0], *(kv_heads * cache_head_words(dtype, head_dim),) * 2)
    if fused:
        together = np.concatenate([q, k, v], axis=2).reshape(-1)
        q, k, v = together, together[widths[0] :], together[widths[0] + widths[1] :]
        strides = (sum(widths),) * 3
    shape = f"{batch}x{heads}x{q_len}x{kv_len}x{head_dim}-kv{kv_heads}"
    return Case(
        "attention",
        label or f"{shape}-{mask}mask-{bias}bias{'-causal' * causal}{'-fused' * fused}",
        {"q": q, "k": k, "v": v, "mask": m, "bias": b},
        {"y": (parts if shares > 1 else y).astype(np.float32)},
        {
            "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
            "head_dim": head_dim, "q_stride": strides[0], "k_stride": strides[1], "v_stride": strides[2],
            "bias_batch_stride": heads * q_len * kv_len if bias == "batched" else 0, "causal": causal, "scale": scale,
            "capacity": capacity or kv_len, "mask_stride": capacity or kv_len, "window": window,
            "cache_dtype": CACHE_DTYPES.index(dtype), "softcap": softcap, "shares": shares,
        },
        flops=4 * batch * heads * q_len * kv_len * head_dim,
    )  # fmt: skip


def join_attention_cases() -> Iterator[Case]:
    for rows, shares, head_dim in ((1, 2, 1), (6, 3, 6), (9, 2, 64)):
        x = normal(rows, shares, head_dim + 2, seed=2)
        x[..., head_dim:] = abs(x[..., head_dim:]) + 1
        x[1::3, 0, head_dim] += 200  # beside which the others are nothing
        x[2::3, 1:, head_dim], x[2::3, 1:, head_dim + 1], x[2::3, 1:, :head_dim] = LOWEST, 0, 0  # no keys there
        factors = 2.0 ** (x[..., head_dim].astype(np.float64) - x[..., head_dim].max(1, keepdims=True))
        y = np.einsum("rs,rsd->rd", factors, x[..., :head_dim]) / (factors * x[..., head_dim + 1]).sum(1)[:, None]
        values = {"rows": rows, "shares": shares, "head_dim": head_dim}
        yield Case("join_attention", f"{rows}x{shares}x{head_dim}", {"x": x}, {"y": y.astype(np.float32)}, values)


def cached(x: Array, dtype: str, capacity: int) -> tuple[Array, Array]:
    """x [batch, length, heads, head_dim] as the first rows of a cache, and what it is there.

    Rows behind them are filled with bits that would show.
    """
    batch, length, heads, head_dim = x.shape
    cache = np.full((batch, capacity, heads, cache_head_words(dtype, head_dim)), 0x7F7F7F7F, np.uint32)
    values = x.astype(np.float64)
    for place in np.ndindex(batch, length, heads):
        head = x[place]
        if dtype == "f32":
            data = head.tobytes()
        elif dtype == "f16":
            data = head.astype(np.float16).tobytes()
            values[place] = head.astype(np.float16)
        else:
            largest = float(np.abs(head).max())
            quants = [round(float(v) / largest * 127) if largest else 0 for v in head]
            scale = np.float32(largest / 127)
            data = scale.tobytes() + struct.pack(f"{head_dim}b", *quants)
            values[place] = np.array(quants) * float(scale)
        words = np.frombuffer(data + b"\0" * (-len(data) % 4), np.uint32)
        cache[place] = words
    return cache, values


def cached_attention_cases() -> Iterator[Case]:
    for dtype, head_dim, (heads, kv_heads) in product(("f32", "f16", "q8"), (8, 6, 20, 64), ((2, 2), (6, 2), (7, 1))):
        label = f"cache-{dtype}-{head_dim}-{heads}-{kv_heads}"
        options: dict[str, Any] = {"kv_heads": kv_heads, "causal": 1, "dtype": dtype}
        yield attention_case(2, heads, 1, 13, head_dim, capacity=20, mask="left", label=f"{label}-one", **options)
        yield attention_case(2, heads, 5, 13, head_dim, capacity=20, mask="left", label=f"{label}-some", **options)
    for q_len, kv_len, window in product((1, 3, 40), (40, 300), (1, 7, 150, 500)):
        label = f"window-{q_len}-{kv_len}-{window}"
        options = {"window": window, "causal": 1, "kv_heads": 2}
        yield attention_case(1, 4, q_len, kv_len, 16, label=label, **options)
        yield attention_case(2, 2, q_len, kv_len, 16, label=f"{label}-left", mask="long-left", capacity=310, **options)
        yield attention_case(2, 2, q_len, kv_len, 16, label=f"{label}-holes", mask="holes", capacity=310, **options)
    for q_len in (1, 9):
        yield attention_case(1, 4, q_len, 33, 8, kv_heads=2, causal=1, softcap=1.5, spread=3, label=f"softcap-{q_len}")
        yield attention_case(1, 2, q_len, 33, 8, causal=1, softcap=0.5, window=4, bias="shared", mask="right",
                             label=f"softcap-window-{q_len}")  # fmt: skip
    yield attention_case(1, 2, 1, 700, 64, causal=1, capacity=1024, label="cache-long")
    for dtype, head_dim, (heads, kv_heads), shares in product(CACHE_DTYPES, (6, 20), ((6, 2), (7, 1)), (2, 5)):
        options = {"kv_heads": kv_heads, "causal": 1, "dtype": dtype, "shares": shares}
        for kv_len in (5, 300):
            yield attention_case(
                2,
                heads,
                1,
                kv_len,
                head_dim,
                capacity=310,
                label=f"shares-{dtype}-{head_dim}-{heads}-{kv_heads}-{shares}-{kv_len}",
                **options,
            )
    yield attention_case(2, 2, 1, 300, 8, capacity=300, mask="holes", softcap=1.5, shares=3, label="shares-holes")
    for label, options in (("queries", {"q_len": 2}), ("window", {"q_len": 1, "window": 4})):
        refused = attention_case(1, 2, kv_len=9, head_dim=8, causal=1, label=f"shares-{label}", **options)
        yield replace(refused, values={**refused.values, "shares": 2}, refused=True)
    refused = attention_case(1, 2, 3, 9, 8, label="more-keys-than-capacity")
    yield replace(refused, values={**refused.values, "capacity": 8}, refused=True)


def cache_cases() -> Iterator[Case]:
    for dtype, (batch, length, heads, head_dim), position in product(
        ("f32", "f16", "q8"), ((1, 1, 3, 64), (2, 3, 2, 6), (2, 4, 1, 5), (1, 2, 1, 1)), (0, 3)
    ):
        x = normal(batch, length, heads, head_dim)
        x[0, 0, 0] = 0
        capacity = length + position + 2
        stored_rows, values = cached(x, dtype, length)
        before = integers(0, 1 << 30, batch, capacity, *stored_rows.shape[2:]).view(np.uint32)
        after = before.copy()
        after[:, position : position + length] = stored_rows
        operands = {"batch": batch, "length": length, "heads": heads, "head_dim": head_dim, "capacity": capacity,
                    "position": position, "dtype": CACHE_DTYPES.index(dtype)}  # fmt: skip
        label = f"{dtype}-{batch}x{length}x{heads}x{head_dim}-{position}"
        yield Case("cache_append", label, {"x": x}, {"y": after}, operands, initial={"y": before})
        full = Case("cache_append", f"refuses-{label}", {"x": x}, {"y": after}, {**operands, "position": position + 3},
                    refused=True)  # fmt: skip
        yield full
        if not position:
            read = {name: value for name, value in operands.items() if name != "position"}
            yield Case("cache_read", label, {"x": after}, {"y": values.astype(np.float32)}, read, 1e-6)
    x = integers(0, 1000, 3, 20)
    y = np.zeros_like(x)
    y[:, :6] = x[[2, 0, 0], :6]
    operands = {"count": 3, "rows": 2, "words": 3, "stride": 20}
    for label, index in (("3", [2, 0, 0]), ("refuses-3", [2, 3, 0]), ("refuses--1", [2, -1, 0])):
        yield Case("gather", label, {"x": x, "index": np.array(index, np.int32)}, {"y": y}, operands,
                   initial={"y": np.zeros_like(x)}, refused="refuses" in label)  # fmt: skip


def rms_norm_cases() -> Iterator[Case]:
    for rows, dim, offset in ((1, 1, 0.0), (3, 7, 1.0), (2, 16, 0.0), (5, 37, 0.0), (4, 576, 1.0)):
        x, weight = normal(rows, dim, scale=2.0), normal(dim, seed=1)
        values = x.astype(np.float64)
        y = values / np.sqrt((values**2).mean(1) + 1e-5)[:, None] * (weight.astype(np.float64) + offset)
        yield Case("rms_norm", f"{rows}x{dim}-{offset}", {"x": x, "weight": weight}, {"y": y.astype(np.float32)},
                   {"rows": rows, "dim": dim, "eps": 1e-5, "offset": offset}, 1e-6, flops=4 * x.size)  # fmt: skip


def rope_cases() -> Iterator[Case]:
    for rows, length, start in ((1, 1, 0), (3, 4, 7), (2, 9, 100_000)):
        y = np.tile(np.arange(start, start + length, dtype=np.int32), (rows, 1))
        yield Case("positions", f"{rows}x{length}-{start}", {}, {"y": y},
                   {"rows": rows, "length": length, "start": start})  # fmt: skip
    places = np.array([0, 1, 2, 77, 8191, 131071], np.int32)
    for half, scale in ((1, 1.0), (5, 1.5), (32, 1.0)):
        frequencies = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)
        angles = places[:, None].astype(np.float32) * frequencies
        y = np.stack([[[scale * f(float(a)) for a in row] for f in (math.cos, math.sin)] for row in angles])
        yield Case("rotary_tables", f"{half}-{scale}", {"positions": places, "frequencies": frequencies},
                   {"y": y.astype(np.float32)}, {"count": len(places), "half": half, "scale": scale}, 1e-6)  # fmt: skip
    for (rows, heads, head_dim, half), pairs in product(
        ((1, 3, 64, 32), (3, 2, 8, 4), (2, 1, 11, 3), (4, 2, 6, 1)), (0, 1)
    ):
        x, angles = normal(rows, heads, head_dim), normal(rows, half, seed=1).astype(np.float64)
        tables = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
        y = x.astype(np.complex128)
        for j in range(half):
            a, b = (2 * j, 2 * j + 1) if pairs else (j, half + j)
            turned = (x[..., a] + 1j * x[..., b].astype(np.float64)) * np.exp(1j * angles[:, j])[:, None]
            y[..., a], y[..., b] = turned.real, turned.imag
        yield Case("rope", f"{rows}x{heads}x{head_dim}-{half}{'-pairs' * pairs}", {"x": x, "tables": tables},
                   {"y": y.real.astype(np.float32)}, {"rows": rows, "heads": heads, "head_dim": head_dim, "half": half,
                   "interleaved": pairs}, 1e-6)  # fmt: skip
    yield Case("rope", "refuses", {"x": normal(1, 1, 4), "tables": normal(1, 2, 3)}, {"y": normal(1, 1, 4)},
               {"rows": 1, "heads": 1, "head_dim": 4, "half": 3, "interleaved": 0}, refused=True)  # fmt: skip


def gated_cases() -> Iterator[Case]:
    for name, (rows, columns), side_by_side in product(
        ("silu", "gelu_tanh"), ((1, 1), (1, 100), (3, 7), (5, 64)), (0, 1)
    ):
        both = normal(rows, 2, columns, scale=2.0)
        y = activated(both[:, 0].astype(np.float64), name) * both[:, 1]
        gate, up = (both, both.reshape(-1)[columns:]) if side_by_side else (both[:, 0], both[:, 1])
        stride = columns * (1 + side_by_side)
        yield Case("gated", f"{name}-{rows}x{columns}{'-together' * side_by_side}", {"gate": gate, "up": up},
                   {"y": y.astype(np.float32)}, {"rows": rows, "columns": columns, "gate_stride": stride,
                   "up_stride": stride, "activation": ACTIVATIONS.index(name)}, 2e-6)  # fmt: skip


def argmax_cases() -> Iterator[Case]:
    for label, x in (
        ("1x1", normal(1, 1)), ("3x9", normal(3, 9)), ("2x1000", normal(2, 1000)),
        ("equal", np.zeros((2, 17), np.float32)), ("negative", -10 - abs(normal(4, 33))),
        ("infinite", np.array([[-np.inf, -np.inf, -1.0]], np.float32)),
    ):  # fmt: skip
        y = np.array([max(range(x.shape[1]), key=lambda j, row=row: (row[j], -j)) for row in x], np.int32)
        yield Case("argmax", label, {"x": x}, {"y": y}, {"rows": x.shape[0], "columns": x.shape[1]})


def sample_cases() -> Iterator[Case]:
    """What is drawn is found by going through the candidates; numbers near a limit between two are left out."""
    narrow = normal(7, 200, scale=2.0)
    narrow[3, ::2] = -np.inf
    wide = normal(3, 5000, scale=0.5)  # of so many the best are not enough at first
    for x, temperature, top_k, top_p, min_p in (
        (wide, 1.0, 0, 0.9, 0.0), (wide, 1.0, 0, 0.05, 0.0), (wide, 0.2, 0, 0.999, 1e-6), (wide, 1.0, 0, 1.0, 0.0),
        *((narrow, *options) for options in (
        (1.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (1.0, 5, 1.0, 0.0), (1.3, 50, 0.9, 0.0), (1.0, 0, 0.6, 0.0),
        (1.0, 0, 1.0, 0.2), (0.9, 20, 1.0, 0.1), (1.0, 0, 1e-9, 0.0), (2.0, 1, 1.0, 0.0), (1.0, 200, 0.5, 0.3),
        )),
    ):  # fmt: skip
        k = top_k or x.shape[1]
        uniform = rng(3).random(len(x)).astype(np.float32)
        uniform[:2] = (0.0, np.nextafter(np.float32(1), np.float32(0)))
        y = np.array(
            [drawn(row, float(u), temperature, top_k, top_p, min_p) for row, u in zip(x, uniform, strict=True)]
        )
        yield Case(
            "sample", f"{x.shape[1]}-{temperature}-{top_k}-{top_p}-{min_p}", {"x": x, "uniform": uniform},
            {"y": y.astype(np.int32), "order": np.zeros((len(x), k), np.int32), "weights": normal(len(x), k)},
            {"rows": len(x), "columns": x.shape[1], "k": k, "temperature": temperature, "top_p": top_p, "min_p": min_p},
            scratch=("order", "weights"),
        )  # fmt: skip


def edit_cases() -> Iterator[Case]:
    x = normal(40)
    x[[4, 5, 6]] = np.inf, -np.inf, 0
    edits = [
        (0, 2.0, 0.5, 0.0), (1, 2.0, 0.5, 0.0), (2, 1.0, 1.0, -np.inf), (2, 3.0, 3.0, 1.0), (4, 1.0, 1.0, -np.inf),
        (5, -1.0, 2.0, 7.0), (6, 3.0, 4.0, -1.5), (3, 1.0, 1.0, 2.5), (3, 2.0, 3.0, 0.0), (39, 0.1, 0.2, 0.0),
        (-1, 0.0, 0.0, 0.0), (40, 0.0, 0.0, 0.0),
    ]  # fmt: skip
    y = [float(v) for v in x]
    for at, below, above, summand in edits:
        if at in range(40) and (math.isfinite(y[at]) or summand == -math.inf):
            y[at] = y[at] * (below if y[at] < 0 else above) + summand if math.isfinite(summand) else summand
    index = np.array([edit[0] for edit in edits], np.int32)
    factors = np.array([edit[1:] for edit in edits], np.float32)
    for count in (0, 1, len(edits)):
        expected = np.array(y if count == len(edits) else [y[0], *x[1:]] if count else x, np.float32)
        yield Case("edit_scores", f"{count}", {"index": index, "factors": factors}, {"y": expected},
                   {"count": count, "size": 40}, 1e-6, initial={"y": x})  # fmt: skip


def mask_cases() -> Iterator[Case]:
    for rows, columns in ((1, 1), (2, 32), (3, 75)):
        x, kept = normal(rows, columns), rng(5).random((rows, columns)) < 0.5
        kept[0, 0] = False
        words = np.zeros((rows, -(-columns // 32) * 32), np.uint8)
        words[:, :columns] = kept
        bits = np.packbits(words, axis=1, bitorder="little").view(np.int32)
        yield Case("mask_scores", f"{rows}x{columns}", {"bits": bits}, {"y": np.where(kept, x, np.float32(-np.inf))},
                   {"rows": rows, "columns": columns}, 0, initial={"y": x})  # fmt: skip


def drawn(row: Array, u: float, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
    p = probabilities(row.astype(np.float64) / temperature)
    sorts = 0 < top_k < len(row) or top_p < 1
    ids = sorted(range(len(row)), key=lambda j: (-row[j], j))[: top_k or None] if sorts else list(range(len(row)))
    p /= p[ids].sum()
    kept, before = list[int](), 0.0
    for j in ids:
        if not sorts or not kept or before < top_p:
            kept.append(j)
        before += p[j]
    kept = [j for j in kept if p[j] >= min_p * p.max()]
    left = u * p[kept].sum()
    for j in kept:
        left -= p[j]
        if left < 0:
            return j
    return kept[-1]


def attention_cases() -> Iterator[Case]:
    for mask, bias, causal in product(("no", "right", "left", "holes", "full"), ("no", "shared", "batched"), (0, 1)):
        yield attention_case(2, 2, 5, 5, 8, mask=mask, bias=bias, causal=causal)
    for head_dim in (1, 3, 7, 16, 20, 33, 64):
        yield attention_case(1, 2, 3, 9, head_dim, mask="right")
    for q_len, kv_len in ((1, 1), (1, 33), (4, 65), (9, 8), (17, 40), (70, 130)):
        yield attention_case(2, 3, q_len, kv_len, 12, mask="left", fused=False)
        yield attention_case(1, 2, q_len, max(kv_len, q_len), 16, causal=1)
    yield attention_case(2, 4, 6, 11, 8, kv_heads=2, causal=1, mask="left")
    yield attention_case(1, 6, 3, 7, 5, kv_heads=1)
    yield attention_case(2, 3, 10, 10, 8, fused=True, mask="right", bias="shared")
    yield attention_case(2, 4, 7, 7, 12, kv_heads=2, fused=True, causal=1)
    yield attention_case(1, 1, 4, 20, 8, spread=8.0, label="peaked")
    yield attention_case(1, 2, 4, 6, 8, scale=1.0, label="scale-1")
    yield attention_case(1, 2, 6, 4, 8, causal=1, label="causal-rows-that-see-nothing")
    for mask, causal in product(("long-left", "long-right", "holes", "full"), (0, 1)):
        yield attention_case(2, 1, 300, 300, 8, mask=mask, causal=causal)
        yield attention_case(2, 2, 3, 270, 130, mask=mask, causal=causal, bias="batched")
    yield attention_case(1, 1, 1, 400, 256)
    yield attention_case(2, 12, 128, 128, 32, mask="right")
    for label, hidden in (("some", np.s_[:, :, :, 3:9]), ("some-rows-whole", np.s_[:, 0, 2:4])):
        for kind, value in (("lowest", LOWEST), ("infinite", -np.inf)):
            name = f"{kind}-bias-for-{label}"
            yield attention_case(2, 2, 5, 20, 8, 0, "right", "batched", hidden=hidden, hidden_by=value, label=name)
    for window, hidden in ((0, np.s_[:, 0, 0, :1]), (3, np.s_[:, 1, 40, 38:41])):
        label = f"bias-hides-all-seen-{window}"
        yield attention_case(2, 2, 70, 70, 8, 0, "no", "batched", 1, window=window, hidden=hidden, label=label)


def matmul_case(label: str, outer: int, middle: int, rows: int, columns: int, inner: int, a: Array, b: Array,
                c_shape: tuple[int, ...], strides: dict[str, int], alpha: float) -> Case:  # fmt: skip
    """`strides` locate the logical a [o, p, i, k], b [o, p, j, k], c [o, p, i, j] in the flat arrays."""
    o, p, i, j, k = np.ogrid[:outer, :middle, :rows, :columns, :inner]
    at_a = o * strides["a_outer"] + p * strides["a_middle"] + i * strides["a_row"] + k
    at_b = o * strides["b_outer"] + p * strides["b_middle"] + j * strides["b_row"] + k * strides["b_inner"]
    at_c = (o * strides["c_outer"] + p * strides["c_middle"] + i * strides["c_row"] + j)[..., 0]
    before = normal(*c_shape, seed=15)
    c = before.copy().reshape(-1)
    c[at_c] = alpha * (a.reshape(-1).astype(np.float64)[at_a] * b.reshape(-1).astype(np.float64)[at_b]).sum(-1)
    sizes = {"outer": outer, "middle": middle, "rows": rows, "columns": columns, "inner": inner}
    return Case(
        "matmul", label, {"a": a, "b": b}, {"c": c.reshape(c_shape)}, {**sizes, **strides, "alpha": alpha},
        flops=2 * outer * middle * rows * columns * inner, initial={"c": before},
    )  # fmt: skip


def matmul_cases() -> Iterator[Case]:
    shapes = ((1, 1, 1, 1, 1), (2, 3, 5, 7, 9), (1, 2, 13, 33, 16), (2, 2, 8, 8, 8))
    for n, (batch, heads, q, kv, dim) in enumerate(shapes):
        values = normal(batch, kv, heads, dim, seed=1)
        # Scores: q [batch, q, heads, dim] times k [batch, kv, heads, dim] transposed, into [batch, heads, q, kv].
        yield matmul_case(
            f"scores-{n}", batch, heads, q, kv, dim, normal(batch, q, heads, dim), values,
            (batch, heads, q, kv),
            {"a_outer": q * heads * dim, "a_middle": dim, "a_row": heads * dim, "b_outer": kv * heads * dim,
             "b_middle": dim, "b_row": heads * dim, "b_inner": 1, "c_outer": heads * q * kv, "c_middle": q * kv,
             "c_row": kv}, dim**-0.5,
        )  # fmt: skip
        # Context: probabilities [batch, heads, q, kv] times v [batch, kv, heads, dim], into [batch, q, heads, dim].
        yield matmul_case(
            f"context-{n}", batch, heads, q, dim, kv, normal(batch, heads, q, kv), values,
            (batch, q, heads, dim),
            {"a_outer": heads * q * kv, "a_middle": q * kv, "a_row": kv, "b_outer": kv * heads * dim,
             "b_middle": dim, "b_row": 1, "b_inner": heads * dim, "c_outer": q * heads * dim, "c_middle": dim,
             "c_row": heads * dim}, 1.0,
        )  # fmt: skip
    yield matmul_case(
        "shared-b-with-gaps", 3, 1, 4, 6, 5, normal(3, 4, 9), normal(5, 8, seed=1), (3, 4, 10),
        {"a_outer": 36, "a_middle": 0, "a_row": 9, "b_outer": 0, "b_middle": 0, "b_row": 1, "b_inner": 8, "c_outer": 40,
         "c_middle": 0, "c_row": 10}, -2.0,
    )  # fmt: skip


def softmax_cases() -> Iterator[Case]:
    for (batch, heads, q_len, kv_len), mask, bias, causal, log in (
        ((1, 1, 1, 1), "no", "no", 0, 0),
        ((5, 1, 1, 2), "no", "no", 0, 0),
        ((5, 1, 1, 3), "no", "no", 0, 1),
        ((2, 2, 3, 9), "right", "no", 0, 0),
        ((2, 2, 3, 9), "left", "shared", 0, 0),
        ((2, 2, 9, 9), "holes", "batched", 1, 0),
        ((2, 3, 4, 33), "full", "shared", 0, 0),
        ((2, 3, 4, 33), "full", "no", 0, 1),
        ((1, 2, 5, 8), "no", "batched", 1, 0),
        ((3, 1, 7, 128), "no", "no", 0, 1),
        ((1, 1, 2, 1000), "no", "no", 0, 0),
        ((1, 2, 9, 13), "no", "no", 3, 0),
    ):
        window = causal if causal > 1 else 0
        x = normal(batch, heads, q_len, kv_len, scale=3.0)
        b = normal(1 if bias == "shared" else batch, heads, q_len, kv_len, seed=1) if bias != "no" else None
        m = mask_of(batch, kv_len, mask)
        y = attended(x.astype(np.float64) + (0 if b is None else b), m, causal, window)
        yield Case(
            "softmax",
            f"{batch}x{heads}x{q_len}x{kv_len}-{mask}mask-{bias}bias{'-causal' * causal}{'-log' * log}",
            {"x": x, "mask": m, "bias": b},
            {"y": (np.log(y) if log else y).astype(np.float32)},
            {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len,
             "bias_batch_stride": heads * q_len * kv_len if bias == "batched" else 0, "causal": causal,
             "window": window, "log": log},
            flops=5 * x.size,
        )  # fmt: skip
    hidden = np.array([[1, -np.inf, 2, -np.inf]], np.float32)
    for log, y in ((0, [[0.26894142, 0, 0.73105858, 0]]), (1, [[-1.31326169, -np.inf, -0.31326169, -np.inf]])):
        yield Case(
            "softmax", f"infinite{'-log' * log}", {"x": hidden, "mask": None, "bias": None},
            {"y": np.array(y, np.float32)},
            {"batch": 1, "heads": 1, "q_len": 1, "kv_len": 4, "bias_batch_stride": 0, "causal": 0, "window": 0,
             "log": log},
        )  # fmt: skip
    far = np.array([[1e4, 0, -1e4, 5], [-1e38, -1e38, 1e38, 0]], np.float32)
    for log in (0, 1):
        y = probabilities(far.astype(np.float64)) if not log else far - far.max(1, keepdims=True).astype(np.float64)
        yield Case(
            "softmax", f"far-apart{'-log' * log}", {"x": far, "mask": None, "bias": None}, {"y": y.astype(np.float32)},
            {"batch": 2, "heads": 1, "q_len": 1, "kv_len": 4, "bias_batch_stride": 0, "causal": 0, "window": 0,
             "log": log},
        )  # fmt: skip


def activation_cases() -> Iterator[Case]:
    special = [0.0, -0.0, 1e-30, -1e-30, 1e-6, 88.0, -88.0, 104.0, -104.0, 1e4, -1e4, 3e38, -3e38]
    for name, count in product(ACTIVATIONS, (1, 2, 3, 7, 64, 1003)):
        yield activation_case(name, f"{name}-{count}", abs(normal(count, scale=3.0)), 2e-6)
    for name in ACTIVATIONS:
        # Where 1 + erf(x) cancels, and away from the positive results, which would hide the error.
        yield activation_case(name, f"{name}-tail", np.linspace(-9, 0, 403, dtype=np.float32), 4e-6)
        # Away from the large ones, which would hide the error of the small ones.
        yield activation_case(name, f"{name}-small", normal(203, scale=0.01), 4e-6)
        yield activation_case(name, f"{name}-special", np.array(special, np.float32), 1e-6)


def activation_case(name: str, label: str, x: Array, tolerance: float) -> Case:
    values = {"count": x.size, "activation": ACTIVATIONS.index(name)}
    y = activated(x.astype(np.float64), name).astype(np.float32)
    return Case("activation", label, {"x": x}, {"y": y}, values, tolerance, flops=x.size)


def binary_cases() -> Iterator[Case]:
    functions = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
    for name, (outer, b_count) in product(BINARY, ((1, 1), (1, 37), (7, 1), (3, 5), (4, 8), (5, 33), (2, 4))):
        a, b = normal(outer, b_count), normal(b_count, seed=1)
        yield Case(
            "binary", f"{name}-{outer}x{b_count}", {"a": a, "b": b}, {"y": functions[name](a, b)},
            {"count": a.size, "b_count": b_count, "operation": BINARY.index(name)}, tolerance=1e-7, flops=a.size,
        )  # fmt: skip


def copy_cases() -> Iterator[Case]:
    for shape, axes in (
        ((3, 5), (1, 0)),
        ((9, 16), (1, 0)),
        ((7,), (0,)),
        ((2, 3, 4, 5), (0, 2, 1, 3)),
        ((2, 3, 4, 5), (3, 2, 1, 0)),
    ):
        x = integers(-(2**31), 2**31 - 1, *shape)
        y = x.transpose(axes)
        strides = [x.strides[axis] // 4 for axis in axes]
        dense = np.ascontiguousarray(y)
        yield copy_case(f"transpose-{shape}-{axes}", x, dense, None, y.shape, [s // 4 for s in dense.strides], strides)
    x = integers(0, 100, 4, 6, 5)
    yield copy_case("slice", x[1:, 2], np.ascontiguousarray(x[1:4, 2, :]), None, (3, 5), (5, 1), (5, 1))
    before = integers(0, 9, 3, 11)
    after = before.copy()
    part = integers(100, 200, 3, 4)
    after[:, :4] = part
    yield copy_case("into-a-part", part, after, before, (3, 4), (11, 1), (4, 1))
    row = integers(0, 100, 5)
    yield copy_case("repeated-by-stride-0", row, np.tile(row, (3, 1)), None, (3, 5), (5, 1), (0, 1))
    bits = np.array([0x7FC12345, 0xFFFFFFFF, 0x7F800001, 0x80000000, 1], np.uint32).view(np.int32)
    yield copy_case("any-bits", bits, bits, None, (5,), (1,), (1,))
    large = integers(0, 1000, 33, 48)
    yield copy_case("rows", large[:, :32].copy(), large[:, :32].copy(), None, (33, 32), (32, 1), (32, 1))


def copy_case(label: str, x: Array, y: Array, before: Array | None, shape: Any, y_strides: Any, x_strides: Any) -> Case:
    lead = 4 - len(shape)
    values: dict[str, int | float] = {}
    for letter, numbers, filler in (("d", shape, 1), ("y", y_strides, 0), ("x", x_strides, 0)):
        values |= {f"{letter}{i}": int(n) for i, n in enumerate([filler] * lead + list(numbers))}
    return Case("copy", label, {"x": x}, {"y": y}, values, initial={} if before is None else {"y": before})


# Element types as NumPy sees them; bfloat16 lies in memory as its upper 16 bits.


def stored(values: Array, dtype: str) -> Array:
    """Values, which the dtype holds exactly, as they lie in memory."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.uint8 if dtype == "bool" else dtype)


def samples(dtype: str, count: int) -> Array:
    """Values that the dtype holds exactly, as float64, its extremes among them."""
    if dtype == "bool":
        return (integers(0, 2, count)).astype(np.float64)
    if dtype in ("float32", "float64"):
        values = normal(count, scale=30).astype(np.float64)
        values[:4] = [0.0, 1.5, -2.5, 65504.0][: len(values[:4])]
        return values
    if dtype == "float16":
        values = normal(count, scale=30).astype(np.float16).astype(np.float64)
        values[:7] = [0.0, 2**-24, -(2**-14), 65504, -65504, 1023 * 2.0**-24, 1.0][: len(values[:7])]
        return values
    if dtype == "bfloat16":
        values = normal(count, scale=30)
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -(2**31)), min(limits.max, 2**31 - 1)
    values = rng(count).integers(low, high, count, dtype=np.int64).astype(np.float64)
    values[:2] = [low, high][: len(values[:2])]
    return values


def convert_cases() -> Iterator[Case]:
    pairs = {(source, target) for source in DTYPES for target in ("float32", "int32")}
    pairs |= {(target, source) for source, target in pairs}
    for source, target in sorted(pairs):
        yield convert_case(f"{source}-{target}", samples(source, 67), source, target)
    special = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.9, -0.9, -0.0, 2147483520.0, -2147483648.0, 254.7])
    special = special.astype(np.float32).astype(np.float64)
    for target in DTYPES:
        if target != "float64":
            yield convert_case(f"special-float32-{target}", special, "float32", target)
    halves = np.arange(512) * 2.0**-12 + 1  # float16 steps by 2^-10 there and bfloat16 by 2^-7: ties are included
    halves = np.concatenate([halves, -halves, halves * 2.0**-15])
    for target in ("float16", "bfloat16"):
        yield convert_case(f"rounding-float32-{target}", halves, "float32", target)
    for target in ("float32", "int32"):
        values = np.array([2**62, -(2**62), 2**31, -(2**31) - 1, 2**24 + 1, -5], np.float64)
        yield convert_case(f"large-int64-{target}", values, "int64", target)
        infinite = np.array([np.inf, -np.inf, np.nan])
        yield convert_case(f"special-float16-{target}", infinite, "float16", target)
        yield convert_case(f"special-bfloat16-{target}", infinite, "bfloat16", target)
        yield convert_case(f"special-float64-{target}", np.array([1e300, -1e300, 1e-300, 3e9]), "float64", target)


def convert_case(label: str, values: Array, source: str, target: str) -> Case:
    y = np.array([converted(float(value), target) for value in values])
    operands = {"count": values.size, "source": DTYPES.index(source), "target": DTYPES.index(target)}
    with np.errstate(over="ignore"):
        return Case("convert", label, {"x": stored(values, source)}, {"y": stored(y, target)}, operands, tolerance=0)


def converted(value: float, target: str) -> float | int:
    """A value rounded to the target dtype."""
    if target == "bool":
        return float(value != 0)
    if target in ("float16", "float32", "float64"):
        with np.errstate(over="ignore"):
            return float(np.dtype(target).type(value))
    if target == "bfloat16":
        if not math.isfinite(value) or not value:
            return value
        step = 2.0 ** max(math.frexp(value)[1] - 8, -133)
        return round(value / step) * step
    if math.isnan(value):
        return 0
    limits = np.iinfo(target)
    return int(max(limits.min, min(limits.max, math.trunc(max(-1e30, min(1e30, value))))))


def pack_cases() -> Iterator[Case]:
    for source in DTYPES:
        yield pack_case(f"{source}", samples(source, 13 * 9).reshape(13, 9), source, transposed=False)
        yield pack_case(f"{source}-transposed", samples(source, 13 * 9).reshape(13, 9), source, transposed=True)
    for rows, inner in ((1, 1), (8, 8), (16, 3), (7, 64), (65, 20)):
        yield pack_case(f"float32-{rows}x{inner}", normal(rows, inner), "float32", transposed=False)
    wide = normal(10, 12)
    yield Case(
        "pack", "float32-part-of-wider-rows", {"x": wide}, {"y": panels(wide[:, :7])},
        {"rows": 10, "inner": 7, "source": 0, "row_stride": 12, "column_stride": 1}, tolerance=0,
    )  # fmt: skip


def pack_case(label: str, values: Array, source: str, transposed: bool) -> Case:
    rows, inner = values.shape
    x = stored(values, source)
    strides = {"row_stride": 1, "column_stride": rows} if transposed else {"row_stride": inner, "column_stride": 1}
    operands = {"rows": rows, "inner": inner, "source": DTYPES.index(source), **strides}
    return Case("pack", label, {"x": x.T if transposed else x}, {"y": panels(values)}, operands, tolerance=0)


def unpack_cases() -> Iterator[Case]:
    for rows, inner in ((1, 1), (8, 5), (13, 9), (30, 16)):
        matrix = normal(rows, inner)
        yield Case(
            "unpack",
            f"{rows}x{inner}",
            {"x": panels(matrix)},
            {"y": matrix},
            {"rows": rows, "inner": inner, "layout": 1},
            0,
        )


def pool_cases() -> Iterator[Case]:
    for pooling, mask, (batch, length, dim) in product(
        POOLING, ("no", "right", "left", "holes", "full"), ((1, 1, 1), (3, 5, 7), (2, 9, 40))
    ):
        x = normal(batch, length, dim) - np.float32(3)
        m = mask_of(batch, length, mask)
        y = np.zeros((batch, dim))
        for b in range(batch):
            kept = [j for j in range(length) if m is None or m[b, j]]
            values = x[b].astype(np.float64)
            if pooling == "first":
                y[b] = values[0]
            elif pooling == "last":
                y[b] = values[kept[-1] if kept else 0]
            elif kept:
                y[b] = values[kept].mean(0) if pooling == "mean" else values[kept].max(0)
            else:
                y[b] = 0 if pooling == "mean" else LOWEST
        yield Case(
            "pool", f"{pooling}-{mask}mask-{batch}x{length}x{dim}", {"x": x, "mask": m}, {"y": y.astype(np.float32)},
            {"batch": batch, "length": length, "dim": dim, "pooling": POOLING.index(pooling)}, 1e-6, flops=x.size,
        )  # fmt: skip


def normalize_cases() -> Iterator[Case]:
    for rows, dim in ((1, 1), (3, 7), (2, 384)):
        x = normal(rows, dim)
        x[-1] *= 1e-3
        y = x / np.sqrt((x.astype(np.float64) ** 2).sum(1))[:, None]
        yield normalize_case(f"{rows}x{dim}", x, y)
    yield normalize_case("zero-row", np.zeros((2, 9), np.float32), np.zeros((2, 9)))
    tiny = np.full((1, 4), 1e-14, np.float32)
    yield normalize_case("norm-below-eps", tiny, tiny.astype(np.float64) / 1e-12)


def normalize_case(label: str, x: Array, y: Array) -> Case:
    values = {"rows": x.shape[0], "dim": x.shape[1], "eps": 1e-12}
    return Case("normalize", label, {"x": x}, {"y": y.astype(np.float32)}, values, 1e-6, flops=3 * x.size)


def position_ids_cases() -> Iterator[Case]:
    for padding, ids, expected in (
        (1, [[5, 6, 7, 1, 1], [1, 1, 8, 9, 4]], [[2, 3, 4, 1, 1], [1, 1, 2, 3, 4]]),
        (0, [[3, 0, 3]], [[1, 0, 2]]),
        (-1, [[3, 0, 3]], [[0, 1, 2]]),
        (1, [[1]], [[1]]),
    ):
        x = np.array(ids, np.int32)
        values = {"rows": x.shape[0], "length": x.shape[1], "padding_id": padding}
        yield Case("position_ids", f"{padding}-{x.shape}", {"ids": x}, {"y": np.array(expected, np.int32)}, values)


def cross_entropy_cases() -> Iterator[Case]:
    for label, rows, classes, labels, ignore in (
        ("all", 3, 5, [0, 4, 2], -100),
        ("some-ignored", 4, 7, [-100, 3, -100, 6], -100),
        ("other-ignored", 3, 4, [3, 2, 1], 2),
        ("none-left", 2, 4, [-100, -100], -100),
        ("wide", 2, 1001, [1000, 7], -100),
        ("one-class", 2, 1, [0, 0], -100),
        ("refuses-large", 2, 4, [1, 4], -100),
        ("refuses-negative", 2, 4, [-1, 2], -100),
    ):
        logits = normal(rows, classes, scale=4.0)
        p = probabilities(logits.astype(np.float64))
        refused = label.startswith("refuses")
        losses = [] if refused else [-math.log(p[i, c]) for i, c in enumerate(labels) if c != ignore]
        loss = np.array([np.mean(losses) if losses else np.nan], np.float32)
        yield Case(
            "cross_entropy", label, {"logits": logits, "labels": np.array(labels, np.int32)}, {"loss": loss},
            {"rows": rows, "classes": classes, "ignore_index": ignore}, 2e-6, refused=refused,
        )  # fmt: skip


def loss_cases() -> Iterator[Case]:
    for count in (1, 7, 300):
        x, target = normal(count, scale=5.0), normal(count, seed=1)
        loss = np.array([np.mean((x.astype(np.float64) - target) ** 2)], np.float32)
        values = {"count": count}
        yield Case("mse_loss", f"{count}", {"x": x, "target": target}, {"loss": loss}, values, 2e-6)
        labels = integers(0, 2, count).astype(np.float32)
        p = 1 / (1 + np.exp(-x.astype(np.float64)))
        loss = np.array([-np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p))], np.float32)
        yield Case("bce_loss", f"{count}", {"logits": x, "target": labels}, {"loss": loss}, values, 2e-6)
    arrays = {"logits": np.array([200.0, -200.0], np.float32), "target": np.array([1, 0], np.float32)}
    yield Case("bce_loss", "certain", arrays, {"loss": np.zeros(1, np.float32)}, {"count": 2}, 0)


def topk_cases() -> Iterator[Case]:
    ties = np.array([[1, 3, 3, 0, 3, 2, 1]], np.float32)
    for label, x, k in (
        ("1-of-1", normal(2, 1), 1), ("all", normal(3, 9), 9), ("3-of-50", normal(4, 50), 3), ("ties", ties, 7),
        ("ties-cut", ties, 2), ("5-of-1000", normal(1, 1000), 5), ("equal", np.zeros((2, 6), np.float32), 4),
        ("infinite", np.array([[-np.inf, 2, np.inf, -np.inf]], np.float32), 4),
    ):  # fmt: skip
        order = np.array([sorted(range(x.shape[1]), key=lambda i, row=row: (-row[i], i))[:k] for row in x])
        yield Case(
            "topk", label, {"x": x},
            {"values": np.take_along_axis(x, order, 1), "indices": order.astype(np.int32)},
            {"rows": x.shape[0], "columns": x.shape[1], "k": k}, tolerance=0,
        )  # fmt: skip


def fill_cases() -> Iterator[Case]:
    for count, value in ((1, 0.0), (7, -1.5), (1000, 3.25)):
        expected = np.full(count, value, np.float32)
        yield Case("fill", f"{count}-{value}", {}, {"y": expected}, {"count": count, "value": value}, 0)


def quantized_case(layout: str, rows: int, columns: int, inner: int) -> Case:
    """A quantised linear over zeros, for timing: what it gives is tested in test_quantized.py."""
    blob = np.zeros(activation_nbytes(layout, rows, inner), np.uint8)
    return Case(
        f"linear_{layout}",
        f"{rows}x{columns}x{inner}",
        {
            "x": blob,
            "weight": np.zeros(weight_nbytes(layout, columns, inner), np.uint8),
            "bias": normal(columns),
            "residual": None,
        },
        {"y": np.zeros((rows, columns), np.float32)},
        {"rows": rows, "columns": columns, "inner": inner, "activation": 0},
        flops=2 * rows * columns * inner,
    )


def benchmark_cases() -> list[Case]:
    """What the kernel benchmark times: the shapes of MiniLM (384 wide) and of BERT base (768) at several lengths."""
    shapes = [(1, 384, 384), (8, 384, 384), (16, 1536, 384), (32, 384, 1536), (128, 384, 384), (128, 1536, 384),
              (128, 384, 1536), (256, 768, 768), (256, 3072, 768), (1024, 384, 384)]  # fmt: skip
    return [
        *(linear_case(*shape, bias=True, label="x".join(map(str, shape))) for shape in shapes),
        linear_case(128, 1536, 384, bias=True, activation="gelu", label="128x1536x384-gelu"),
        *(quantized_case(layout, *shape) for layout in QUANTIZED for shape in shapes[:7]),
        linear_case(128, 384, 384, bias=True, residual=True, label="128x384x384-residual"),
        *(attention_case(1, 12, n, n, 32, mask="right", label=f"12x{n}x{n}x32") for n in (16, 128, 256)),
        attention_case(1, 12, 128, 128, 64, mask="right", label="12x128x128x64"),
        *(case for case in layer_norm_cases() if case.label == "4x384-residual"),
        activation_case("gelu", "gelu-49152", normal(49152, scale=3.0), 2e-6),
        activation_case("tanh", "tanh-49152", normal(49152, scale=3.0), 2e-6),
    ]


def all_cases() -> list[Case]:
    """Every case. `random_normal` has none, as its values are only specified as a distribution."""
    return [
        case
        for cases in (
            join_attention_cases,
            linear_cases, embedding_cases, layer_norm_cases, attention_cases, matmul_cases, softmax_cases,
            activation_cases, binary_cases, copy_cases, convert_cases, pack_cases, unpack_cases, pool_cases,
            normalize_cases, position_ids_cases, cross_entropy_cases, loss_cases, topk_cases, fill_cases,
            cached_attention_cases, cache_cases, rms_norm_cases, rope_cases, gated_cases, argmax_cases, sample_cases,
            edit_cases, mask_cases,
        )
        for case in cases()
    ]  # fmt: skip
