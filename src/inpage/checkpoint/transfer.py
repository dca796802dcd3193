"""The tensors of a checkpoint on their way into the parameters of a plan.

They arrive in file order, chunk by chunk, and never pass the Python heap. What is already as the parameter wants it
is written in place; the rest goes through a staging buffer in kernel memory, from which kernels convert, pack and move
it. Small tensors that are neighbours in the file take this way together.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from .. import ops
from ..errors import OutOfMemoryError
from ..nn import HeapBlock, Parameter
from ..optable import DTYPES, PANEL
from ..program import run_once
from ..tensor import Tensor, row_major
from .bundles import BundleLoader, Place
from .files import CheckpointFile
from .packing import BLOCK_BYTES, emit_pack, operand_at
from .plan import SOURCE_DTYPES, Plan, Task, is_dense
from .safetensors import TensorInfo
from .selection import Checkpoint
from .stream import Direct, Files, Region, Staged, stream_into

if TYPE_CHECKING:
    from ..executors.base import Executor

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def place(executor: "Executor", parameters: list[Parameter], staged: int = 0) -> HeapBlock:
    """Place all parameters; returns the staging buffer. An OutOfMemoryError tells of all that is needed."""
    before = executor.used_bytes
    try:
        for parameter in parameters:
            parameter.place(executor)
        return HeapBlock(executor, staged)
    except OutOfMemoryError as error:
        needed = sum(parameter.nbytes for parameter in parameters) + staged
        available = max(0, error.details.get("available", before) - before)
        raise OutOfMemoryError(
            f"The weights do not fit: they need {needed:,} bytes of kernel memory; {available:,} are available.",
            hint="Dispose of models that are not in use, load a smaller dtype, or raise env.wasm.max_memory.",
            needed=needed,
            available=available,
        ) from error


class Transfer:
    """One pass over the files of a plan."""

    def __init__(self, executor: "Executor", plan: Plan, checkpoint: Checkpoint) -> None:
        self.executor = executor
        self.tasks = plan.tasks
        self.files = checkpoint.files
        bundles = {name: checkpoint.bundles[name] for name in plan.quantized}
        self.bundles = BundleLoader(executor, checkpoint.files, bundles, plan.quantized)
        self.assemblies: dict[int, _Assembly] = {}
        for task in (task for tasks in plan.tasks.values() for task in tasks if _is_part_of_panels(task)):
            self.assemblies.setdefault(id(task.parameter), _Assembly(task.parameter)).left += 1

    async def load(self, source: Files, parameters: list[Parameter]) -> None:
        """Place the parameters and fill those that have tasks."""
        batches = {batch.names[0]: batch for file in self.files for batch in self._batches(file)}
        batched = {name for batch in batches.values() for name in batch.names}
        alone = [self._staged_bytes(name, info) for name, info in self._needed() if name not in batched]
        together = [batch.end - batch.start for batch in batches.values()]
        staging = place(self.executor, parameters, max([*alone, *together, self.bundles.staged_bytes]))
        try:
            await self.bundles.load_early(source)
            for file in self.files:
                regions: list[Region] = []
                for name in file.tensors:
                    if name in batches:
                        regions.append(batches[name].region(staging))
                    elif name not in batched:
                        regions += self._regions(file, name, staging)
                if regions:
                    await stream_into(source, file.name, regions)
        finally:
            staging.free()
            self.bundles.free()
            for assembly in self.assemblies.values():
                assembly.free()

    def _batches(self, file: CheckpointFile) -> Iterator["_Batch"]:
        """Small neighbours in a file, for which one write and one program do."""
        batch: _Batch | None = None
        for names, emit in self._units(file):
            start, end = file.tensors[names[0]].start, file.tensors[names[-1]].end
            if batch is None or start != batch.end or end - batch.start > BLOCK_BYTES:
                if batch is not None:
                    yield batch
                batch = _Batch(start)
            batch.add(names, end, emit)
        if batch is not None:
            yield batch

    def _units(self, file: CheckpointFile) -> Iterator[tuple[list[str], Callable[[Place], None]]]:
        """Tensors that are small, or those of one quantised weight, and what places their staged bytes."""
        for name, info in file.tensors.items():
            if self.bundles.owns(name):
                yield from self.bundles.unit(file, name)
            elif name in self.tasks and info.nbytes <= BLOCK_BYTES:
                tasks = self.tasks[name]
                if _is_in_place(info, tasks):
                    yield [name], partial(self._emit_copy, tasks[0], info)
                elif _is_whole(info, tasks):
                    yield [name], partial(self._emit_whole, tasks[0].parameter, info)

    def _emit_copy(self, task: Task, info: TensorInfo, at: Place) -> None:
        y = operand_at(task.parameter.storage, 4 * _destination(task)[0])
        ops.copy_into(y, at(info.start), (info.nbytes // 4,), (1,), (1,))

    def _emit_whole(self, parameter: Parameter, info: TensorInfo, at: Place) -> None:
        _emit_block(parameter, info, at(info.start), 0, info.nbytes)

    def _regions(self, file: CheckpointFile, name: str, staging: HeapBlock) -> Iterator[Region]:
        if self.bundles.owns(name):
            yield from self.bundles.regions(file, name, staging)
        elif name in self.tasks:
            yield self._region(name, file.tensors[name], staging)

    def _needed(self) -> Iterator[tuple[str, TensorInfo]]:
        for file in self.files:
            yield from ((name, info) for name, info in file.tensors.items() if name in self.tasks)

    def _staged_bytes(self, name: str, info: TensorInfo) -> int:
        tasks = self.tasks[name]
        if _is_in_place(info, tasks):
            return 0
        return min(_block_bytes(info), info.nbytes) if _is_whole(info, tasks) else info.nbytes

    def _region(self, name: str, info: TensorInfo, staging: HeapBlock) -> Region:
        tasks = self.tasks[name]
        if _is_in_place(info, tasks):
            address = tasks[0].parameter.address + 4 * _destination(tasks[0])[0]
            sink = Direct(self.executor, address)
        elif _is_whole(info, tasks):
            place_block = partial(self._block, tasks[0].parameter, info, staging)
            sink = Staged(staging, _block_bytes(info), info.nbytes, place_block)
        else:
            sink = Staged(staging, info.nbytes, info.nbytes, lambda _, __: self._pieces(tasks, info, staging))
        return Region(info.start, info.end, sink.write)

    def _block(self, parameter: Parameter, info: TensorInfo, staging: HeapBlock, start: int, nbytes: int) -> None:
        """Convert or pack the staged rows that begin at byte `start` of the tensor."""
        run_once(lambda: _emit_block(parameter, info, operand_at(staging), start, nbytes), self.executor)

    def _pieces(self, tasks: list[Task], info: TensorInfo, staging: HeapBlock) -> None:
        """Do all tasks of a tensor that is staged as a whole."""
        count, source = prod(info.shape), _source(info)
        if all(parameter.layout != "rows" and id(parameter) not in self.assemblies for parameter, _ in tasks):
            for parameter, piece in tasks:
                x = operand_at(staging, ITEM_BYTES[info.dtype] * piece.offset)
                self._pack(parameter, x, piece.strides, source)
            return
        plain = HeapBlock(self.executor, 4 * count)
        y, x = operand_at(plain), operand_at(staging)
        try:
            run_once(lambda: ops.emit("convert", y=y, x=x, count=count, source=source, target=0), self.executor)
            for task in tasks:
                self._piece(task, plain)
        finally:
            plain.free()

    def _piece(self, task: Task, plain: HeapBlock) -> None:
        parameter, piece = task
        assembly = self.assemblies.get(id(parameter))
        if parameter.layout != "rows" and assembly is None:
            self._pack(parameter, operand_at(plain, 4 * piece.offset), piece.strides)
            return
        target = parameter.storage if assembly is None else assembly.block(self.executor)
        offset, strides = _destination(task)
        y, x = operand_at(target, 4 * offset), operand_at(plain, 4 * piece.offset)
        run_once(lambda: ops.copy_into(y, x, piece.shape, strides, piece.strides), self.executor)
        if assembly is not None:
            assembly.left -= 1
            if not assembly.left:
                self._pack(parameter, operand_at(target), row_major(parameter.shape))
                assembly.free()

    def _pack(self, parameter: Parameter, x: Tensor, strides: tuple[int, ...], source: int = 0) -> None:
        """Pack elements at x of dtype number `source`, by strides, into a parameter."""
        row, column = strides
        run_once(lambda: emit_pack(parameter, x, parameter.shape[0], (row, column), source), self.executor)


class _Batch:
    """Neighbours in a file that are staged together, and placed by one program."""

    def __init__(self, start: int) -> None:
        self.names: list[str] = []
        self.start = self.end = start
        self._emits: list[Callable[[Place], None]] = []

    def add(self, names: list[str], end: int, emit: Callable[[Place], None]) -> None:
        self.names += names
        self.end = end
        self._emits.append(emit)

    def region(self, staging: HeapBlock) -> Region:
        def emit() -> None:
            for each in self._emits:
                each(lambda position: operand_at(staging, position - self.start))

        nbytes = self.end - self.start
        sink = Staged(staging, nbytes, nbytes, lambda _, __: run_once(emit, staging.executor))
        return Region(self.start, self.end, sink.write)


class _Assembly:
    """A parameter in panels that is put together row-major from several pieces, then packed."""

    def __init__(self, parameter: Parameter) -> None:
        self.left = 0
        self._nbytes = 4 * parameter.size
        self._block: HeapBlock | None = None

    def block(self, executor: "Executor") -> HeapBlock:
        if self._block is None:
            self._block = HeapBlock(executor, self._nbytes)
        return self._block

    def free(self) -> None:
        if self._block is not None:
            self._block.free()
            self._block = None


def _emit_block(parameter: Parameter, info: TensorInfo, x: Tensor, start: int, nbytes: int) -> None:
    """Record the converting or packing of the rows at x, which begin at byte `start` of the tensor."""
    item = ITEM_BYTES[info.dtype]
    if parameter.layout == "rows":
        y = operand_at(parameter.storage, start // item * 4)
        ops.emit("convert", y=y, x=x, count=nbytes // item, source=_source(info), target=0)
        return
    inner = parameter.shape[1]
    emit_pack(parameter, x, nbytes // (item * inner), (inner, 1), _source(info), start // (item * inner))


def _source(info: TensorInfo) -> int:
    return DTYPES.index(SOURCE_DTYPES[info.dtype])


def _block_bytes(info: TensorInfo) -> int:
    """Whole groups of 8 rows, near BLOCK_BYTES."""
    group = PANEL * (info.nbytes // info.shape[0]) if info.shape and info.shape[0] else 0
    return max(BLOCK_BYTES // group, 1) * group if group else info.nbytes


def _is_whole(info: TensorInfo, tasks: list[Task]) -> bool:
    """Whether the tensor is one parameter, elements in the same order."""
    (parameter, piece), *others = tasks
    return not others and is_dense(piece, info) and piece.shape == parameter.shape


def _is_in_place(info: TensorInfo, tasks: list[Task]) -> bool:
    """Whether the tensor's bytes are consecutive bytes of one parameter."""
    (parameter, piece), *others = tasks
    return (
        not others
        and info.dtype == "F32"
        and parameter.layout == "rows"
        and is_dense(piece, info)
        and piece.shape[1:] == parameter.shape[1:]
    )


def _is_part_of_panels(task: Task) -> bool:
    return task.parameter.layout != "rows" and task.piece.shape != task.parameter.shape


def _destination(task: Task) -> tuple[int, tuple[int, ...]]:
    """Offset and strides of a piece in its row-major parameter, in elements."""
    strides = row_major(task.parameter.shape)
    return sum(o * s for o, s in zip(task.piece.origin, strides, strict=True)), strides
