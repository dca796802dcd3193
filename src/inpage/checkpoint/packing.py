"""Packing float rows into the layout of a parameter."""

from .. import nn, ops
from ..optable import LAYOUTS, panel_nbytes
from ..program import Part
from ..tensor import Tensor


def emit_pack(
    parameter: nn.Parameter, x: Tensor, rows: int, strides: tuple[int, int], source: int = 0, first_row: int = 0
) -> None:
    """Record the packing of `rows` rows at x, from `first_row` of the parameter on, a multiple of 8.

    Element (r, c) of x is at r * strides[0] + c * strides[1], in elements of dtype number `source`.
    """
    inner, layout = parameter.shape[1], parameter.layout
    target = Tensor((), "float32", Part(parameter.storage, first_row // 8 * panel_nbytes(layout, inner)))
    operands = {"x": x, "rows": rows, "inner": inner, "source": source}
    operands |= {"row_stride": strides[0], "column_stride": strides[1]}
    if layout == "panels":
        ops.emit("pack", y=target, **operands)
    else:
        ops.emit("quantize_weight", w=target, layout=LAYOUTS.index(layout), **operands)
