"""Writing the weights of a loaded model as a safetensors file, a piece at a time, out of kernel memory."""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from .. import ops
from ..nn import HeapBlock, Parameter
from ..optable import DTYPES, LAYOUTS, PANEL, QUANTIZED, panel_nbytes
from ..program import run_once
from ..tensor import Tensor
from .packing import BLOCK_BYTES, operand_at
from .quantized import Entry, describe, entries
from .safetensors import BITS, encode_header

if TYPE_CHECKING:
    from ..executors.base import Executor
    from ..models.modeling import PreTrainedModel


class CheckpointWriter:
    """The file of a model: `nbytes` long, its bytes given by `pieces`. Parameters are in their own order."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._executor = model.executor
        self._parameters: dict[str, Parameter] = {}
        seen: set[int] = set()
        for name, parameter in model.named_parameters():
            if id(parameter) not in seen:
                self._parameters[name] = parameter
            seen.add(id(parameter))
        quantized = {n: (p.layout, p.shape[1]) for n, p in self._parameters.items() if p.layout in QUANTIZED}
        tensors = {n: entry for name, p in self._parameters.items() for n, entry in _entries(name, p).items()}
        self._header, length = encode_header(tensors, describe(quantized))
        self.nbytes = len(self._header) + length

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the file, a few megabytes at a time."""
        yield self._header
        for parameter in self._parameters.values():
            if parameter.layout in QUANTIZED:
                yield from _quantized(self._executor, parameter)
            elif parameter.layout == "rows":
                for at in range(0, parameter.nbytes, BLOCK_BYTES):
                    nbytes = min(BLOCK_BYTES, parameter.nbytes - at)
                    yield self._executor.read(parameter.address + at, nbytes)
            else:
                yield from _floats(self._executor, parameter)


def _entries(name: str, parameter: Parameter) -> dict[str, Entry]:
    if parameter.layout in QUANTIZED:
        return entries(name, parameter.layout, (parameter.shape[0], parameter.shape[1]))
    return {name: Entry("F16" if parameter.layout == "f16" else "F32", parameter.shape)}


def _blocks(parameter: Parameter, row_bytes: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of pieces near BLOCK_BYTES, in whole panels."""
    each = max(BLOCK_BYTES // (PANEL * row_bytes), 1) * PANEL
    for first in range(0, parameter.shape[0], each):
        yield first, min(each, parameter.shape[0] - first)


def _quantized(executor: "Executor", parameter: Parameter) -> Iterator[bytes]:
    """Scales, offsets, quants. The former are kept in kernel memory while the quants are taken apart once, unread."""
    rows, inner = parameter.shape
    tensors = list(entries("", parameter.layout, (rows, inner)).values())
    sizes = [prod(entry.shape) * BITS[entry.dtype] // 8 // rows for entry in tensors]
    scale = HeapBlock(executor, sizes[0] * rows)
    offset = HeapBlock(executor, scale.nbytes) if parameter.layout == "q4z" else scale  # then it is not written
    blocks = list(_blocks(parameter, sizes[-1]))
    quants = HeapBlock(executor, sizes[-1] * blocks[0][1])

    def unpack(first: int, count: int) -> None:
        run_once(
            lambda: ops.emit(
                "unpack_quantized", q=operand_at(quants), scale=operand_at(scale, first * sizes[0]),
                offset=operand_at(offset, first * sizes[0]), w=_panels(parameter, first), rows=count, inner=inner,
                layout=LAYOUTS.index(parameter.layout),
            ),
            executor,
        )  # fmt: skip

    try:
        for first, count in blocks:
            unpack(first, count)
        yield executor.read(scale.address, scale.nbytes)
        if parameter.layout == "q4z":
            yield executor.read(offset.address, offset.nbytes)
        for first, count in blocks:
            unpack(first, count)
            yield executor.read(quants.address, sizes[-1] * count)
    finally:
        for block in (scale, offset, quants):
            block.free()


def _floats(executor: "Executor", parameter: Parameter) -> Iterator[bytes]:
    """Rows of panels in float32 or float16."""
    inner, is_half = parameter.shape[1], parameter.layout == "f16"
    layout = LAYOUTS.index(parameter.layout)
    blocks = list(_blocks(parameter, 4 * inner))
    plain, half = HeapBlock(executor, 4 * inner * blocks[0][1]), HeapBlock(executor, 2 * inner * blocks[0][1])

    def unpack(first: int, count: int) -> None:
        x, y = _panels(parameter, first), operand_at(plain)
        ops.emit("unpack", y=y, x=x, rows=count, inner=inner, layout=layout)
        if is_half:
            target = DTYPES.index("float16")
            ops.emit("convert", y=operand_at(half), x=y, count=count * inner, source=0, target=target)

    try:
        for first, count in blocks:
            run_once(lambda first=first, count=count: unpack(first, count), executor)
            yield executor.read((half if is_half else plain).address, (2 if is_half else 4) * inner * count)
    finally:
        plain.free()
        half.free()


def _panels(parameter: Parameter, first: int) -> Tensor:
    """Operand for a weight from row `first` on, a multiple of 8."""
    return operand_at(parameter.storage, first // PANEL * panel_nbytes(parameter.layout, parameter.shape[1]))
