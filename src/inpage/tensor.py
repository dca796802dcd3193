"""The tensor: a shape, a dtype and a place where the elements are.

Three places exist. *Host*: bytes of Python's own, which is what every result is and what inputs are made into.
*Scratch*: part of the arena of a program that is being recorded; such a tensor is symbolic. *Heap*: a parameter in
kernel memory (`nn.Parameter`).
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any, Literal

from .errors import InputError

FORMATS: dict[str, Literal["f", "i"]] = {"float32": "f", "int32": "i"}
_BUFFER_DTYPES = {"f": "float32", "d": "float32", "e": "float32"} | dict.fromkeys("bBhHiIlLqQ?", "int32")


class Tensor:
    """A dense row-major array of float32 or int32.

    `shape` (`dims`) is a tuple, `dtype` (`type`) a NumPy-style name, `data` a flat memoryview of a host tensor's
    elements. `np.asarray(tensor)` and the buffer of `data` share memory with the tensor.
    """

    __slots__ = ("__weakref__", "dtype", "shape", "storage")

    def __init__(self, shape: tuple[int, ...], dtype: str, storage: Any) -> None:
        self.shape = shape
        self.dtype = dtype
        self.storage = storage

    @staticmethod
    def from_values(values: Any, dtype: str | None = None) -> "Tensor":
        """Host tensor of nested lists, a NumPy array, anything with a buffer, or a tensor.

        Integers and booleans become int32, floats float32, unless `dtype` asks for the other. Raises InputError for
        ragged lists, other element types, and integers that int32 cannot hold.
        """
        if dtype is not None and dtype not in FORMATS:
            raise InputError(f"Tensors hold {' or '.join(FORMATS)}, not {dtype!r}.", hint="Convert the values first.")
        if isinstance(values, Tensor):
            return values if dtype in (None, values.dtype) else Tensor.from_values(values.tolist(), dtype)
        if not isinstance(values, list | tuple | int | float):
            values = _array_like(values)
            if isinstance(values, memoryview):
                return _from_buffer(values, dtype)
        values = _plain(values)
        shape = _shape_of(values)
        flat: Any = values if shape else (values,)
        for _ in shape[1:]:
            flat = chain.from_iterable(flat)
        return Tensor(shape, *_elements(list(flat), dtype, shape))

    @property
    def dims(self) -> tuple[int, ...]:
        return self.shape

    @property
    def type(self) -> str:
        return self.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return 4 * self.size

    @property
    def data(self) -> memoryview:
        """The elements of a host tensor, flat, without a copy."""
        if not isinstance(self.storage, memoryview):
            raise InputError(
                f"A tensor of shape {list(self.shape)} that is being recorded has no values yet.",
                hint="Return it from the recorded function and read the result of the call.",
            )
        return self.storage

    def tolist(self) -> Any:
        """Elements as nested lists; a number for a tensor without dimensions."""
        flat = self.data.tolist()
        if not self.shape:
            return flat[0]
        for dim in reversed(self.shape[1:]):
            count = len(flat) // dim if dim else prod(self.shape[:-1])
            flat = [flat[i * dim : (i + 1) * dim] for i in range(count)]
        return flat

    def item(self) -> float | int:
        """The value of a tensor with one element."""
        if self.size != 1:
            raise InputError(f"item() needs a tensor with one element; this one has shape {list(self.shape)}.")
        return self.data[0]

    def reshape(self, *shape: int | tuple[int, ...]) -> "Tensor":
        """The same elements under another shape; one dimension may be -1."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        dims = [int(d) for d in wanted]  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
        if dims.count(-1) == 1:
            known = -prod(dims)
            dims[dims.index(-1)] = self.size // known if known else 0
        if prod(dims) != self.size or min(dims, default=0) < 0:
            raise InputError(f"A tensor of shape {list(self.shape)} cannot be reshaped to {list(wanted)}.")
        return Tensor(tuple(dims), self.dtype, self.storage)

    def numpy(self) -> Any:
        """NumPy array that shares memory with this tensor (read-only where the tensor is a result)."""
        import numpy as np

        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        return np.array(self.numpy(), dtype=dtype, copy=True if copy is None and dtype is not None else copy)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int | slice | tuple[int, ...]) -> "Tensor":
        """Host view of one row, of consecutive rows, or of one element or block by several integers."""
        if isinstance(index, tuple):
            tensor = self
            for i in index:
                tensor = tensor[i]
            return tensor
        rows, row = len(self), prod(self.shape[1:])
        if isinstance(index, slice):
            start, stop, step = index.indices(rows)
            if step != 1:
                raise InputError(f"Rows of a tensor are sliced with step 1, not {step}.")
            stop = max(start, stop)
            return Tensor((stop - start, *self.shape[1:]), self.dtype, self.data[start * row : stop * row])
        if not -rows <= index < rows:
            raise IndexError(f"index {index} is out of range for a first dimension of {rows}")
        start = index % rows * row
        return Tensor(self.shape[1:], self.dtype, self.data[start : start + row])

    def __repr__(self) -> str:
        if not isinstance(self.storage, memoryview):
            return f"Tensor(shape={list(self.shape)}, dtype={self.dtype})"
        shown = self.tolist() if self.size <= 32 else f"[{', '.join(f'{v:.6g}' for v in self.data[:6])}, ...]"
        return f"Tensor({shown}, shape={list(self.shape)}, dtype={self.dtype})"


def from_bytes(shape: tuple[int, ...], dtype: str, data: bytes | bytearray | memoryview) -> Tensor:
    """Host tensor over the little-endian bytes of its elements."""
    return Tensor(shape, dtype, memoryview(data).cast("B").cast(FORMATS[dtype]))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a dense array."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _array_like(values: Any) -> Any:
    """Buffer or nested list of an array-like object."""
    if hasattr(values, "__array_interface__"):
        kind = values.dtype.kind
        if kind not in "fiub":
            raise InputError(
                f"An array of dtype {values.dtype} cannot become a tensor.", hint="Use floats or integers."
            )
        if kind == "f":
            values = values.astype("float32", order="C")
        elif values.size and not -(2**31) <= int(values.min()) <= int(values.max()) < 2**31:
            raise InputError("Integers of a tensor must fit into 32 bits.")
        else:
            values = values.astype("int32", order="C")
        return memoryview(values)
    try:
        return memoryview(values)
    except TypeError:
        if hasattr(values, "tolist"):
            return values.tolist()
        raise InputError(
            f"A {type(values).__name__} cannot become a tensor.",
            hint="Give nested lists of numbers, an array or a tensor.",
        ) from None


def _from_buffer(view: memoryview, dtype: str | None) -> Tensor:
    found = _BUFFER_DTYPES.get(view.format)
    if found is None:
        raise InputError(f"A buffer of format {view.format!r} cannot become a tensor.", hint="Use floats or integers.")
    shape = tuple(view.shape or ())
    wanted = dtype or found
    if not view.nbytes:
        return from_bytes(shape, wanted, b"")
    if view.format in ("f", "i") and FORMATS[wanted] == view.format and view.c_contiguous:
        return Tensor(shape, wanted, view.cast("B").cast(FORMATS[wanted]))
    flat: Any = view.tolist()
    for _ in shape[1:]:
        flat = list(chain.from_iterable(flat))
    return Tensor(shape, *_elements(flat if shape else [flat], wanted, shape))


def _plain(values: Any) -> Any:
    """`values` with the tensors in its outermost list as lists."""
    return [v.tolist() if isinstance(v, Tensor) else v for v in values] if isinstance(values, list | tuple) else values


def _shape_of(values: Any) -> tuple[int, ...]:
    """Shape of nested lists, every level checked."""
    shape: list[int] = []
    level = [values]
    while level and isinstance(level[0], list | tuple):
        length = len(level[0])
        if any(not isinstance(v, list | tuple) or len(v) != length for v in level):
            lengths = sorted({len(v) if isinstance(v, list | tuple) else 0 for v in level})
            raise InputError(
                f"Rows of a tensor must have one length, found lengths {lengths}.",
                hint="Pad the batch (padding=True) or pass one sequence at a time.",
            )
        shape.append(length)
        level = list(chain.from_iterable(level))
    return tuple(shape)


def _elements(flat: list[Any], dtype: str | None, shape: tuple[int, ...]) -> tuple[str, memoryview]:
    if dtype is None:
        dtype = "float32" if any(isinstance(v, float) for v in flat) else "int32"
    try:
        return dtype, memoryview(array(FORMATS[dtype], flat))
    except OverflowError:
        raise InputError("Integers of a tensor must fit into 32 bits.") from None
    except TypeError:
        raise InputError(
            f"The values for a tensor of shape {list(shape)} and dtype {dtype} are not all numbers of that kind."
        ) from None
