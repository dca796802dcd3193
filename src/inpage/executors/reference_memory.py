"""Kernel memory as the ops of the reference executor see it: arrays of any element type."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..optable import PANEL

Array = npt.NDArray[Any]

LOWEST = float(np.finfo(np.float32).min)


class Refused(Exception):
    """An op cannot work on what it finds in its inputs."""


class Memory:
    """Kernel memory, seen as arrays."""

    def __init__(self, nbytes: int) -> None:
        self.bytes: npt.NDArray[np.uint8] = np.zeros(nbytes, np.uint8)

    def array(self, address: int, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """The dense array at an address, as a writable view."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self.bytes[address : address + nbytes].view(dtype).reshape(shape)

    def strided(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: npt.DTypeLike = np.float32
    ) -> Array:
        """The array at an address whose axes step by `strides` elements, as a writable view."""
        extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if all(shape) else 0
        dense = self.array(address, (extent,), dtype)
        return np.lib.stride_tricks.as_strided(dense, shape, [stride * dense.itemsize for stride in strides])

    def floats(self, address: int, *shape: int) -> Array:
        """A float64 copy of the dense float32 array at an address."""
        return self.array(address, shape).astype(np.float64)

    def integers(self, address: int, *shape: int) -> Array:
        """A copy of the dense int32 array at an address."""
        return self.array(address, shape, np.int32).copy()

    def panels(self, address: int, rows: int, inner: int) -> Array:
        """The packed float32 matrix at an address as a [rows, inner] float64 copy."""
        packed = self.floats(address, -(-rows // PANEL), inner, PANEL)
        return packed.transpose(0, 2, 1).reshape(-1, inner)[:rows]

    def put(self, address: int, values: Array, dtype: npt.DTypeLike = np.float32) -> None:
        """Store values as a dense array, rounded to its element type."""
        self.array(address, values.shape, dtype)[...] = values


def load(memory: Memory, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Array:
    """Elements of any dtype: float64 if it is a floating-point one, else int64."""
    if dtype == "bfloat16":
        high = memory.strided(address, shape, strides, np.uint16).astype(np.uint32) << 16
        return high.view(np.float32).astype(np.float64)
    values = memory.strided(address, shape, strides, np.uint8 if dtype == "bool" else dtype)
    return values.astype(np.float64 if dtype.startswith("float") else np.int64)


def store(memory: Memory, address: int, values: Array, dtype: str) -> None:
    """The opposite of `load`, dense: floats round to nearest even; integers truncate and saturate, NaN gives 0."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = np.where(np.isnan(values), 0x7FC0, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
        memory.put(address, rounded, np.uint16)
    elif dtype.startswith("float"):
        with np.errstate(over="ignore"):
            memory.put(address, values, dtype)
    elif dtype == "bool":
        memory.put(address, values != 0, np.uint8)
    else:
        limits = np.iinfo(dtype)
        whole = np.trunc(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf))
        out = memory.array(address, values.shape, dtype)
        # The upper limit of int64 is not a float64: compare, as clipping would round it up and overflow.
        inside = (whole > limits.min) & (whole < limits.max)
        out[...] = np.where(whole > 0, limits.max, limits.min)
        out[inside] = whole[inside].astype(dtype)
