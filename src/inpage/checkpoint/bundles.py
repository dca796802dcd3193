"""Quantised weights on their way from a file to the layout of a parameter, unchanged.

The quants go through the staging buffer; what belongs to them (scales, offsets, zero points) waits in small blocks of
its own until they are there. What a file has behind the quants is fetched before the rest.
"""

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .. import ops
from ..errors import UnsupportedError
from ..nn import HeapBlock, Parameter
from ..optable import DTYPES, LAYOUTS, PANEL, PUBLISHED, panel_nbytes
from ..program import run_once
from ..tensor import Tensor
from .files import CheckpointFile
from .packing import BLOCK_BYTES, operand_at
from .plan import SOURCE_DTYPES
from .quantized import Bundle
from .safetensors import TensorInfo
from .stream import Direct, Files, Region, Staged, stream_into

if TYPE_CHECKING:
    from ..executors.base import Executor

Place = Callable[[int], Tensor]  # operand for the bytes from a position of the file on, which are staged
GAP = 1 << 18  # bytes that are rather read over than left out by another request


class BundleLoader:
    """Loads the weights `bundles` of the given files into `parameters`, both by name."""

    def __init__(
        self,
        executor: "Executor",
        files: Sequence[CheckpointFile],
        bundles: Mapping[str, Bundle],
        parameters: Mapping[str, Parameter],
    ) -> None:
        self._executor = executor
        self._files = files
        self._infos = {name: info for file in files for name, info in file.tensors.items()}
        self._weights = [_Weight(executor, bundle, parameters[name], self._infos) for name, bundle in bundles.items()]
        self._owners = {part: (weight, role) for weight in self._weights for role, part in weight.bundle.parts.items()}
        self._early: set[str] = set()

    def owns(self, name: str) -> bool:
        """Whether a tensor of the file is part of a weight."""
        return name in self._owners

    @property
    def staged_bytes(self) -> int:
        return max((weight.block for weight in self._weights), default=0)

    async def load_early(self, source: Files) -> None:
        """Fetch what comes after the quants it belongs to, and what may rule the checkpoint out."""
        order = {name: (number, info.start) for number, file in enumerate(self._files)
                 for name, info in file.tensors.items()}  # fmt: skip
        self._early = {
            part
            for part, (weight, role) in self._owners.items()
            if role == "order" or (role != "q" and order[part] > order[weight.bundle.parts["q"]])
        }
        for file in self._files:
            early = [name for name in file.tensors if name in self._early]
            for names in _runs(early, file.tensors):
                regions = [self._companion(name) for name in names]
                await stream_into(source, file.name, regions, regions[-1].end)

    def unit(self, file: CheckpointFile, name: str) -> Iterator[tuple[list[str], Callable[[Place], None]]]:
        """The tensors of the weight that ends with `name`, if they are small neighbours, and what packs them."""
        weight, _ = self._owners[name]
        names = sorted(weight.bundle.parts.values(), key=lambda part: self._infos[part].start)
        is_near = all(self._infos[a].end == self._infos[b].start and a in file.tensors for a, b in pairwise(names))
        if is_near and names[-1] == name == weight.bundle.parts["q"] and weight.is_small:
            yield names, weight.emit

    def regions(self, file: CheckpointFile, name: str, staging: HeapBlock) -> Iterator[Region]:
        """The region of a tensor that a weight owns, unless it was fetched early."""
        if name in self._early:
            return
        weight, role = self._owners[name]
        if role != "q":
            yield self._companion(name)
            return
        info = file.tensors[name]
        sink = Staged(staging, weight.block, info.nbytes, lambda start, nbytes: weight.pack(staging, start, nbytes))
        yield Region(info.start, info.end, sink.write)

    def free(self) -> None:
        """Give back all blocks that wait for quants."""
        for weight in self._weights:
            weight.free()

    def _companion(self, name: str) -> Region:
        weight, role = self._owners[name]
        return Region(self._infos[name].start, self._infos[name].end, weight.sink(role))


class _Weight:
    """One quantised weight."""

    def __init__(
        self, executor: "Executor", bundle: Bundle, parameter: Parameter, infos: Mapping[str, TensorInfo]
    ) -> None:
        self.bundle = bundle
        self._executor = executor
        self._parameter = parameter
        self._infos = {role: infos[part] for role, part in bundle.parts.items()}
        self._blocks: dict[str, HeapBlock] = {}
        q = self._infos["q"]
        self._row_bytes = q.nbytes // bundle.shape[0] if bundle.packing in ("plain", "compressed", "int8") else 0
        group = PANEL * self._row_bytes
        self.block = min(max(BLOCK_BYTES // group, 1) * group, q.nbytes) if group else q.nbytes

    @property
    def is_small(self) -> bool:
        """Whether it can be packed at once as it is."""
        return self.bundle.packing == "plain" and self._infos["q"].nbytes <= self.block

    def emit(self, at: Place) -> None:
        """Record the packing of all of it."""
        rows, inner = self.bundle.shape
        parts = {role: at(info.start) for role, info in self._infos.items()}
        layout = LAYOUTS.index(self.bundle.layout)
        ops.emit("pack_quantized", w=self._parameter, rows=rows, inner=inner, layout=layout, **parts)

    def sink(self, role: str) -> Callable[[Any], None]:
        """Takes the chunks of a companion into a block of its own, made when they come."""
        if role == "order":
            return _Order(self.bundle, self._infos[role].nbytes).write
        direct: list[Direct] = []

        def write(chunk: Any) -> None:
            if not direct:
                block = self._blocks[role] = HeapBlock(self._executor, self._infos[role].nbytes)
                direct.append(Direct(self._executor, block.address))
            direct[0].write(chunk)

        return write

    def pack(self, staging: HeapBlock, start: int, nbytes: int) -> None:
        """Pack the staged quants that begin at byte `start`."""
        rows, inner = self.bundle.shape
        first = start // self._row_bytes if self._row_bytes else 0
        count = nbytes // self._row_bytes if self._row_bytes else rows
        panels = first // PANEL * panel_nbytes(self.bundle.layout, inner)
        operands: dict[str, Any] = {
            "w": operand_at(self._parameter.storage, panels), "q": operand_at(staging), "rows": count, "inner": inner,
            "scale": self._companion("scale", first), "layout": LAYOUTS.index(self.bundle.layout),
        }  # fmt: skip
        source = DTYPES.index(SOURCE_DTYPES[self._infos["scale"].dtype])
        if self.bundle.packing == "plain":
            self._run("pack_quantized", offset=self._companion("offset", first), **operands)
        elif self.bundle.packing == "int8":
            scale, stored = HeapBlock(self._executor, 4 * rows), self._companion("scale", 0)
            try:
                self._run("convert", y=operand_at(scale), x=stored, count=rows, source=source, target=0)
                self._run("pack_quantized", **{**operands, "scale": operand_at(scale, 4 * first)})
            finally:
                scale.free()
        else:
            self._run(
                "pack_published", zero=self._companion("zero", first), group=self.bundle.group, source=source,
                format=PUBLISHED.index(self.bundle.packing), **operands,
            )  # fmt: skip
        if first + count == rows:
            self.free()

    def free(self) -> None:
        while self._blocks:
            self._blocks.popitem()[1].free()

    def _companion(self, role: str, first_row: int) -> Tensor | None:
        """Operand for a companion from the part on that belongs to a row, a multiple of 8."""
        if role not in self._blocks:
            return None
        return operand_at(self._blocks[role], self._infos[role].nbytes * first_row // _rounded(self.bundle, role))

    def _run(self, op: str, **operands: Any) -> None:
        run_once(lambda: ops.emit(op, **operands), self._executor)


class _Order:
    """Checks that GPTQ's g_idx puts every column into the group where it lies."""

    def __init__(self, bundle: Bundle, nbytes: int) -> None:
        self._bundle = bundle
        self._nbytes = nbytes
        self._data = b""

    def write(self, chunk: Any) -> None:
        self._data += chunk.to_bytes()
        if len(self._data) < self._nbytes:
            return
        found = array("i", self._data)
        if sys.byteorder == "big":
            found.byteswap()
        if any(group != column // self._bundle.group for column, group in enumerate(found)):
            raise UnsupportedError(
                f"The columns of {self._bundle.parts['q']} are permuted (desc_act); they cannot be read as groups.",
                hint="Use a GPTQ checkpoint with desc_act false.",
            )


def _rounded(bundle: Bundle, role: str) -> int:
    """Rows over which a companion is spread: words of zero points hold 8 of them."""
    rows = bundle.shape[0]
    return -(-rows // 8) * 8 if role == "zero" else rows


def _runs(names: list[str], tensors: Mapping[str, TensorInfo]) -> Iterator[list[str]]:
    """Names of tensors that are close enough to be read together."""
    run: list[str] = []
    for name in names:
        if run and tensors[name].start - tensors[run[-1]].end > GAP:
            yield run
            run = []
        run.append(name)
    if run:
        yield run
