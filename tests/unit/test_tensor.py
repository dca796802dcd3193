"""Host tensors: made of anything, read as lists and as NumPy arrays."""

from array import array
from typing import Any

import numpy as np
import pytest

from inpage.errors import InputError
from inpage.tensor import Tensor, from_bytes


@pytest.mark.parametrize(
    ("values", "shape", "dtype"),
    [
        ([[1, 2, 3], [4, 5, 6]], (2, 3), "int32"),
        ([[1, 2.5]], (1, 2), "float32"),
        (3, (), "int32"),
        (2.5, (), "float32"),
        ([True, False], (2,), "int32"),
        ([], (0,), "int32"),
        ([[], []], (2, 0), "int32"),
        (np.arange(6, dtype=np.int64).reshape(1, 2, 3), (1, 2, 3), "int32"),
        (np.ones((2, 2), np.float64), (2, 2), "float32"),
        (np.ones((4, 4), np.float32)[::2, ::2], (2, 2), "float32"),
        (np.zeros((0, 3), np.float32), (0, 3), "float32"),
        (array("q", [1, 2]), (2,), "int32"),
        (array("f", [1, 2]), (2,), "float32"),
    ],
)
def test_from_values(values: Any, shape: tuple[int, ...], dtype: str) -> None:
    tensor = Tensor.from_values(values)
    assert (tensor.dims, tensor.type) == (shape, dtype)
    np.testing.assert_array_equal(np.asarray(tensor), np.asarray(values, dtype=dtype).reshape(shape))
    np.testing.assert_array_equal(np.asarray(tensor.tolist(), dtype=dtype).reshape(shape), np.asarray(tensor))


def test_list_of_tensors_is_stacked() -> None:
    rows = [Tensor.from_values([1, 2]), Tensor.from_values([3, 4])]
    assert Tensor.from_values(rows).tolist() == [[1, 2], [3, 4]]


def test_dtype_is_asked_for() -> None:
    assert Tensor.from_values([1, 0], "float32").tolist() == [1.0, 0.0]
    assert Tensor.from_values(Tensor.from_values([1, 0]), "float32").dtype == "float32"


@pytest.mark.parametrize(
    "values", [[[1], [2, 3]], [1, [2]], ["a"], [None], [2**31], np.array([2**40]), np.array(["x"]), "text", {}]
)
def test_bad_values_are_refused(values: Any) -> None:
    with pytest.raises(InputError):
        Tensor.from_values(values)


def test_indexing_and_iteration() -> None:
    array_ = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensor = Tensor.from_values(array_)
    np.testing.assert_array_equal(tensor[1], array_[1])
    np.testing.assert_array_equal(tensor[-1][1:], array_[-1][1:])
    np.testing.assert_array_equal(tensor[1, 2], array_[1, 2])
    assert [row.tolist() for row in tensor] == array_.tolist()
    assert tensor[0, 1, 2].item() == 6.0
    with pytest.raises(IndexError):
        tensor[2]
    with pytest.raises(InputError):
        tensor.item()


def test_numpy_shares_memory() -> None:
    tensor = from_bytes((2,), "float32", bytearray(8))
    tensor.numpy()[1] = 5
    assert tensor.tolist() == [0.0, 5.0]
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64


def test_reshape() -> None:
    tensor = Tensor.from_values(list(range(6)))
    assert tensor.reshape(2, -1).shape == (2, 3)
    with pytest.raises(InputError):
        tensor.reshape(4, 2)
