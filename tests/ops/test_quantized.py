"""Quantised weights on every executor and kernel variant, against quantisation written down here in NumPy."""

from array import array
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest

from inpage import nn, ops
from inpage.executors.base import Executor
from inpage.executors.reference import ReferenceExecutor
from inpage.executors.wasm import VARIANTS, WasmExecutor
from inpage.nn import HeapBlock
from inpage.optable import GROUP_SIZE, LAYOUTS, OPS, QUANTIZED, activation_nbytes, weight_nbytes
from inpage.program import Part, jit, run_once
from inpage.tensor import Tensor

Array = np.ndarray[Any, np.dtype[np.floating[Any]]]
SHAPES = [
    (1, 48, 64),
    (1, 13, 40),
    (2, 9, 33),
    (3, 72, 64),
    (5, 24, 7),
    (7, 21, 96),
    (6, 8, 32),
    (101, 64, 100),
    (22, 9, 1600),
]
# A largest error relative to the norm: half a step of a group's range, for weights from a normal distribution.
LARGEST_ERROR = {"f16": 5e-4, "q8": 0.008, "q8g": 0.013, "q4": 0.1, "q4z": 0.09}


@pytest.fixture(scope="module", params=["reference", *VARIANTS])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    executor = ReferenceExecutor() if request.param == "reference" else WasmExecutor(variant=request.param)
    yield executor
    executor.close()


def normal(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def block(executor: Executor, values: np.ndarray[Any, Any] | int) -> Tensor:
    """Operand for a heap block with these values, or of so many bytes."""
    nbytes = values if isinstance(values, int) else values.nbytes
    storage = HeapBlock(executor, nbytes)
    if not isinstance(values, int):
        executor.write(storage.address, np.ascontiguousarray(values))
    return Tensor((), "float32", Part(storage, 0))


def read(executor: Executor, operand: Tensor, dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(executor.read(operand.storage.whole.address, count), dtype).reshape(shape)


def run(executor: Executor, op: str, **operands: Any) -> None:
    run_once(lambda: ops.emit(op, **operands), executor)


def quantized(executor: Executor, values: np.ndarray[Any, Any], layout: str, source: str = "float32") -> nn.Parameter:
    """Parameter [N, K] that holds values in a layout. A Fortran-ordered array is read through its strides."""
    rows, inner = values.shape
    parameter = nn.Parameter((rows, inner), layout)
    parameter.place(executor)
    transposed = not values.flags.c_contiguous
    x = block(executor, values.T if transposed else values)
    strides = (1, rows) if transposed else (inner, 1)
    run(
        executor, "quantize_weight", w=parameter, x=x, rows=rows, inner=inner,
        source=("float32", "float16", "bfloat16").index(source), row_stride=strides[0], column_stride=strides[1],
        layout=LAYOUTS.index(layout),
    )  # fmt: skip
    return parameter


def rotated(x: Array) -> Array:
    """Whole groups of 32 in each row times a quarter of the Hadamard matrix."""
    two = np.array([[1, 1], [1, -1]])
    matrix = reduce(np.kron, [two] * 5) / 4
    whole = x.shape[1] // GROUP_SIZE * GROUP_SIZE
    groups = x[:, :whole].reshape(len(x), -1, GROUP_SIZE) @ matrix
    return np.concatenate([groups.reshape(len(x), whole), x[:, whole:]], 1)


def rotated_back(x: Array) -> Array:
    whole = np.arange(x.shape[1]) < x.shape[1] // GROUP_SIZE * GROUP_SIZE
    return rotated(x) / np.where(whole, 2, 1)


def activations(x: Array, layout: str) -> Array:
    """x after its quantisation: 128 steps over a row's range (q8), or groups of 32 by powers of two."""
    if layout == "f16":
        return x
    if layout == "q8g":
        return rotated_back(activations(rotated(x.astype(np.float64)), "q4"))
    if layout == "q8":
        low = x.min(1, keepdims=True)
        step = (x.max(1, keepdims=True) - low) / 127
        step[step == 0] = 1
        return low + step * np.floor((x - low) / step + 0.5)
    padded = np.zeros((len(x), -(-x.shape[1] // GROUP_SIZE) * GROUP_SIZE), x.dtype)
    padded[:, : x.shape[1]] = x
    groups = padded.reshape(len(x), -1, GROUP_SIZE)
    step = 2.0 ** np.ceil(np.log2(np.abs(groups).max(2, keepdims=True).clip(1e-30) / 127))
    return (np.rint(groups / step) * step).reshape(padded.shape)[:, : x.shape[1]]


@pytest.mark.parametrize("layout", ["f16", *QUANTIZED])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear(executor: Executor, shape: tuple[int, int, int], layout: str) -> None:
    rows, columns, inner = shape
    x = normal(rows, inner, seed=1) + 0.3
    weight = quantized(executor, normal(columns, inner, seed=2), layout)
    bias, residual = nn.Parameter((columns,)), normal(rows, columns, seed=4)
    bias.place(executor)
    executor.write(bias.address, normal(columns, seed=3))
    function = jit(lambda x, residual: ops.linear(x, weight, bias, "relu", residual), executor)
    y = np.asarray(function(x=Tensor.from_values(x), residual=Tensor.from_values(residual)))
    product = activations(x, layout).astype(np.float64) @ np.asarray(weight, np.float64).T
    expected = np.maximum(product + np.asarray(bias), 0) + residual
    # The quants of an activation exactly between two steps may differ by rounding: 1e-5, but for few elements.
    error = np.abs(y - expected) / np.abs(expected).max()
    assert np.quantile(error, 0.9) < 1e-6
    assert error.max() < 1e-2
    function.dispose()


@pytest.mark.parametrize("layout", QUANTIZED)
def test_linear_in_parts(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """Cut into bands of rows and columns as for several threads, a product is the same to the bit."""
    executor = WasmExecutor(variant="relaxed")
    weight = quantized(executor, normal(50, 100, seed=2), layout)
    x = normal(200, 100, seed=1)

    def product(x: Array, parts: int) -> Array:
        def cut(words: "array[int]") -> "array[int]":
            at = 0
            while at < len(words):
                words[at + 1] = parts
                at += words[at] >> 16
            return array("I")

        monkeypatch.setattr(executor, "_finish", cut)
        return np.asarray(jit(lambda x: ops.linear(x, weight), executor)(x=Tensor.from_values(x)))

    whole = product(x, 1)
    for parts in (2, 3, 8, 12):
        product(0 * x, 1)  # or what is left out could stand there from before
        np.testing.assert_array_equal(product(x, parts), whole)
    executor.close()


@pytest.mark.parametrize("layout", ["f16", *QUANTIZED])
@pytest.mark.parametrize(("rows", "inner"), [(13, 96), (8, 40), (1, 31), (70, 160)])
def test_weight_error(executor: Executor, rows: int, inner: int, layout: str) -> None:
    values = normal(rows, inner, seed=5)
    parameter = quantized(executor, values, layout)
    assert parameter.nbytes == weight_nbytes(layout, rows, inner)
    got = np.asarray(parameter)
    assert np.linalg.norm(got - values) / np.linalg.norm(values) < LARGEST_ERROR[layout]


@pytest.mark.parametrize("layout", QUANTIZED)
def test_executors_quantise_alike(layout: str) -> None:
    values = normal(21, 100, seed=6)
    values[3] = 0
    values[5, 40:] = 1e-9
    reference = np.asarray(quantized(ReferenceExecutor(), values, layout))
    for variant in VARIANTS:
        np.testing.assert_array_equal(np.asarray(quantized(WasmExecutor(variant=variant), values, layout)), reference)


@pytest.mark.parametrize("layout", ["f16", *QUANTIZED])
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "transposed"])
def test_sources(executor: Executor, source: str, layout: str) -> None:
    values = normal(19, 70, seed=7)
    values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float16).astype(np.float32)
    values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)  # exact in all three
    given: Any = values
    if source == "float16":
        given = values.astype(np.float16)
    elif source == "bfloat16":
        given = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif source == "transposed":
        given = np.asfortranarray(values)
    plain = np.asarray(quantized(executor, values, layout))
    dtype = "float32" if source == "transposed" else source
    np.testing.assert_array_equal(np.asarray(quantized(executor, given, layout, dtype)), plain)


@pytest.mark.parametrize("layout", QUANTIZED)
@pytest.mark.parametrize(("rows", "inner"), [(13, 96), (8, 64), (3, 50)])
def test_plain_arrays_and_back(executor: Executor, rows: int, inner: int, layout: str) -> None:
    parameter = quantized(executor, normal(rows, inner, seed=8), layout)
    groups = 1 if layout == "q8" else -(-inner // GROUP_SIZE)
    scale_type = "float32" if layout == "q8" else "float16"
    wide = layout in ("q8", "q8g")
    q, scale, offset = (block(executor, rows * inner * 4) for _ in range(3))
    sizes = {"rows": rows, "inner": inner, "layout": LAYOUTS.index(layout)}
    run(executor, "unpack_quantized", q=q, scale=scale, offset=offset, w=parameter, **sizes)
    scales = np.repeat(
        read(executor, scale, scale_type, rows, groups).astype(np.float64), inner if groups == 1 else 32, 1
    )
    if wide:
        quants = read(executor, q, "int8", rows, inner).astype(np.float64)
    else:
        data = read(executor, q, "uint8", rows, -(-inner // 2))
        quants = np.stack([data & 15, data >> 4], 2).reshape(rows, -1)[:, :inner] - (8.0 if layout == "q4" else 0.0)
    values = quants * scales[:, :inner]
    if layout == "q4z":
        values += np.repeat(read(executor, offset, "float16", rows, groups).astype(np.float64), 32, 1)[:, :inner]
    if layout == "q8g":
        values = rotated(values)
    np.testing.assert_allclose(np.asarray(parameter), values, rtol=0, atol=2e-6)
    again = nn.Parameter((rows, inner), layout)
    again.place(executor)
    operand = offset if layout == "q4z" else None
    run(executor, "pack_quantized", w=again, q=q, scale=scale, offset=operand, **sizes)
    assert executor.read(again.address, again.nbytes) == executor.read(parameter.address, parameter.nbytes)


@pytest.mark.parametrize("layout", LAYOUTS[2:])
def test_embedding(executor: Executor, layout: str) -> None:
    table = quantized(executor, normal(50, 33, seed=9), layout)
    residual = normal(3, 33, seed=10)
    function = jit(lambda ids, residual: ops.embedding(ids, table, residual), executor)
    got = function(ids=Tensor.from_values([0, 49, 17]), residual=Tensor.from_values(residual))
    np.testing.assert_allclose(np.asarray(got), np.asarray(table)[[0, 49, 17]] + residual, rtol=0, atol=1e-6)
    function.dispose()


def test_activations_of_another_shape_are_quantised_anew(executor: Executor) -> None:
    wide, narrow = (quantized(executor, normal(9, inner, seed=2), "q8") for inner in (64, 32))
    x = normal(3, 64, seed=1)

    def both(x: Tensor) -> list[Tensor]:
        x = ops.activation(x, "relu")
        return [ops.linear(x, wide), ops.linear(x.reshape((6, 32)), narrow)]

    one, other = (np.asarray(y) for y in jit(both, executor)(x=Tensor.from_values(x)))
    x = np.maximum(x, 0)
    for y, rows, weight in ((one, x, wide), (other, x.reshape(6, 32), narrow)):
        expected = activations(rows, "q8").astype(np.float64) @ np.asarray(weight, np.float64).T
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-2 * np.abs(expected).max())


def test_activations_are_quantised_once_for_all_that_take_them() -> None:
    executor = WasmExecutor()
    weights = [quantized(executor, normal(8, 32, seed=i), "q8") for i in range(3)]
    held = executor.used_bytes
    function = jit(lambda x: [ops.linear(x, weight) for weight in weights], executor)
    outputs = function(x=Tensor.from_values(normal(4, 32, seed=1)))
    ((program, _),) = function._programs.values()  # pyright: ignore[reportPrivateUsage]
    assert len(outputs) == 3
    lengths = [OPS["quantize_rows"].length, *3 * [OPS["linear_q8"].length]]
    assert len(program.words) == sum(lengths)
    assert program.arena_bytes < 3 * activation_nbytes("q8", 4, 32) + 2048
    function.dispose()
    assert executor.used_bytes - held < 8192
