"""What loading and writing record: operands in heap blocks, and the packing of float rows into a parameter's layout."""

from typing import Any

from .. import nn, ops
from ..optable import LAYOUTS, PANEL, panel_nbytes
from ..program import Part
from ..tensor import Tensor

BLOCK_BYTES = 1 << 22  # about what is staged, packed or written at a time


def operand_at(storage: Any, start: int = 0) -> Tensor:
    """Operand for the bytes of a heap block from `start` on."""
    return Tensor((), "float32", Part(storage, start))


def emit_pack(
    parameter: nn.Parameter, x: Tensor, rows: int, strides: tuple[int, int], source: int = 0, first_row: int = 0
) -> None:
    """Record the packing of `rows` rows at x, from `first_row` of the parameter on, a multiple of 8.

    Element (r, c) of x is at r * strides[0] + c * strides[1], in elements of dtype number `source`.
    """
    inner, layout = parameter.shape[1], parameter.layout
    target = operand_at(parameter.storage, first_row // PANEL * panel_nbytes(layout, inner))
    operands = {"x": x, "rows": rows, "inner": inner, "source": source}
    operands |= {"row_stride": strides[0], "column_stride": strides[1]}
    if layout == "panels":
        ops.emit("pack", y=target, **operands)
    else:
        ops.emit("quantize_weight", w=target, layout=LAYOUTS.index(layout), **operands)
