"""Streaming a checkpoint into kernel memory.

Tensors arrive in file order, chunk by chunk, and never pass the Python heap. What is already as the parameter wants it
is written in place; the rest goes through a staging buffer in kernel memory, from which kernels convert, pack and move
it. Small tensors that are neighbours in the file take this way together.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from .. import ops
from ..errors import CheckpointError, OutOfMemoryError, StoreError
from ..nn import HeapBlock, Parameter
from ..optable import DTYPES, PANEL
from ..program import Part, run_once
from ..runtime import gather
from ..tensor import Tensor, row_major
from .bundles import BundleLoader, Place
from .conversion import whole
from .files import CheckpointFile
from .initialize import DEFAULT_STD, initialize, owners
from .keep import Keeper, Kept
from .layouts import Dtype, check_dtype, choose_layouts, layouts_as_stored
from .packing import emit_pack
from .plan import SOURCE_DTYPES, LoadingInfo, Plan, Task, is_dense, make_plan, set_parameter, tie
from .safetensors import TensorInfo
from .selection import Checkpoint, open_checkpoint
from .stream import Direct, Files, Region, Staged, stream_into
from .zero_points import need_zero_points

if TYPE_CHECKING:
    from ..executors.base import Executor
    from ..hub import Repository
    from ..models.modeling import PreTrainedModel

BLOCK_BYTES = 1 << 22
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


async def load_weights(
    model: "PreTrainedModel",
    repository: "Repository",
    *,
    dtype: Dtype = None,
    ignore_mismatched_sizes: bool = False,
) -> LoadingInfo:
    """Place the parameters of `model` on its executor and fill them from the checkpoint of `repository`.

    What the repository offers in `dtype` is read; else float weights are quantised while they arrive, and the result
    is kept in the store, from which the next load takes it. The plan is complete, and memory for all of it there,
    before weights are fetched. Parameters that the checkpoint lacks are initialised, with one warning. If anything
    fails, or the task is cancelled, all memory is given back. Raises CheckpointError, MismatchedShapesError,
    OutOfMemoryError, UnsupportedError, and what the repository raises.
    """
    check_dtype(dtype)
    keeper = Keeper(model, repository, dtype, ignore_mismatched_sizes)
    info = await _load_kept(model, await keeper.find())
    if info is None:
        checkpoint = await open_checkpoint(repository, model, dtype)
        plan = await _plan(model, repository, checkpoint, dtype, ignore_mismatched_sizes)
        info = plan.info
        new = await keeper.prepare(checkpoint)
        stored = await keeper.stored(checkpoint) if new else set()
        await _fill(model, repository.transient() if new else repository, checkpoint, plan)
        if new:
            try:
                await keeper.keep(new, info, {file.name for file in checkpoint.files} - stored)
            except BaseException:
                _free(model)
                raise
    _warn(model, info, repository.name)
    return info


async def load_parameters(
    executor: "Executor", repository: "Repository", file: CheckpointFile, parameters: dict[str, Parameter]
) -> None:
    """Place parameters that are in no model's tree, and fill each from the tensor of `file` that it is listed by.

    Shapes and dtypes must have been checked. If it fails, or the task is cancelled, all memory is given back.
    """
    tasks = {name: [Task(parameter, whole(name, parameter.shape).pieces[0])] for name, parameter in parameters.items()}
    plan = Plan(tasks, {}, {}, [], LoadingInfo())
    try:
        await _Loader(executor, plan, Checkpoint([file], {}, False, False)).load(repository, list(parameters.values()))
    except BaseException:
        for parameter in parameters.values():
            parameter.free()
        raise


async def _load_kept(model: "PreTrainedModel", kept: Kept | None) -> LoadingInfo | None:
    """Fill the model from what an earlier load kept; None if there is nothing, or if it is damaged or outdated."""
    if kept is None:
        return None
    restore = _skeleton(model)
    try:
        await gather(kept.source.check(), _copy(model, kept))
    except (CheckpointError, StoreError):  # outdated, damaged, or deleted while it was read
        restore()
        await kept.source.forget()
        return None
    return kept.info


async def _copy(model: "PreTrainedModel", kept: Kept) -> None:
    """Place the parameters of a skeleton and copy what is kept into them. Gives all memory back if that fails."""
    parameters = kept.image.shape(model)
    try:
        _place(model.executor, parameters).free()
        await stream_into(kept.source, kept.source.file, kept.image.regions(parameters, model.executor))
    except BaseException:
        _free(model)
        raise
    for target, source in model.tied_weights_keys.items():
        if model.config.tie_word_embeddings and kept.image.tied.keys().isdisjoint((target, source)):
            _warn_of_copies(target, source)


async def _plan(
    model: "PreTrainedModel",
    source: Files,
    checkpoint: Checkpoint,
    dtype: Dtype,
    ignore_mismatched_sizes: bool,
) -> Plan:
    """The plan for a skeleton, whose parameters get their layouts."""
    files, bundles, as_stored, is_own = checkpoint
    plan = make_plan(model, files, bundles=bundles, is_own=is_own, ignore_mismatched_sizes=ignore_mismatched_sizes)
    if as_stored:
        layouts_as_stored(model, plan, files)
    else:
        symmetric = choose_layouts(model, dtype)
        if symmetric and await need_zero_points(model.executor, source, files, plan, symmetric):
            for parameter in symmetric:
                parameter.layout = "q4z"
    return plan


async def _fill(model: "PreTrainedModel", source: Files, checkpoint: Checkpoint, plan: Plan) -> None:
    """Place and fill the parameters of a skeleton. Gives all memory back if that fails."""
    try:
        await _Loader(model.executor, plan, checkpoint).load(source, model.parameters())
        _initialize(model, plan)
        for target, origin in plan.copies:
            _tie_copies(model, target, origin)
    except BaseException:
        _free(model)
        raise


def _place(executor: "Executor", parameters: list[Parameter], staged: int = 0) -> HeapBlock:
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


def _free(model: "PreTrainedModel") -> None:
    for parameter in model.parameters():
        parameter.free()


def _skeleton(model: "PreTrainedModel") -> Callable[[], None]:
    """What puts the parameters of an unfilled model back as they are now."""
    before = [(name, parameter, parameter.layout) for name, parameter in model.named_parameters()]

    def restore() -> None:
        for name, parameter, layout in before:
            parameter.layout = layout
            set_parameter(model, name, parameter)

    return restore


class _Loader:
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
        staging = _place(self.executor, parameters, max([*alone, *together, self.bundles.staged_bytes]))
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
        y = _at(task.parameter.storage, 4 * _destination(task)[0])
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
        run_once(lambda: _emit_block(parameter, info, _at(staging), start, nbytes), self.executor)

    def _pieces(self, tasks: list[Task], info: TensorInfo, staging: HeapBlock) -> None:
        """Do all tasks of a tensor that is staged as a whole."""
        plain = HeapBlock(self.executor, 4 * prod(info.shape))
        try:
            self._run("convert", y=_at(plain), x=_at(staging), count=prod(info.shape), source=_source(info), target=0)
            for task in tasks:
                self._piece(task, plain)
        finally:
            plain.free()

    def _piece(self, task: Task, plain: HeapBlock) -> None:
        parameter, piece = task
        assembly = self.assemblies.get(id(parameter))
        if parameter.layout != "rows" and assembly is None:
            self._pack(parameter, _at(plain, 4 * piece.offset), piece.strides)
            return
        target = parameter.storage if assembly is None else assembly.block(self.executor)
        offset, strides = _destination(task)
        y, x = _at(target, 4 * offset), _at(plain, 4 * piece.offset)
        run_once(lambda: ops.copy_into(y, x, piece.shape, strides, piece.strides), self.executor)
        if assembly is not None:
            assembly.left -= 1
            if not assembly.left:
                self._pack(parameter, _at(target), row_major(parameter.shape))
                assembly.free()

    def _pack(self, parameter: Parameter, x: Tensor, strides: tuple[int, ...]) -> None:
        """Pack float32 elements at x, by strides, into a parameter."""
        row, column = strides
        run_once(lambda: emit_pack(parameter, x, parameter.shape[0], (row, column)), self.executor)

    def _run(self, op: str, **operands: Any) -> None:
        run_once(lambda: ops.emit(op, **operands), self.executor)


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
                each(lambda position: _at(staging, position - self.start))

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


def _initialize(model: "PreTrainedModel", plan: Plan) -> None:
    modules = dict(owners(model))
    std = getattr(model.config, "initializer_range", None) or DEFAULT_STD
    for name, parameter in plan.untouched.items():
        initialize(parameter, name, modules[name], std, model.executor)


def _tie_copies(model: "PreTrainedModel", target: str, source: str) -> None:
    """Tie a weight of which the checkpoint has two tensors, unless they differ: then the model keeps both."""
    parameters = dict(model.named_parameters())
    copy, kept = parameters[target], parameters[source]
    if _equal(copy, kept, model.executor):
        tie(model, target, source)
        copy.free()
        return
    _warn_of_copies(target, source)


def _warn_of_copies(target: str, source: str) -> None:
    warnings.warn(
        f"The configuration ties {target!r} to {source!r}, but the checkpoint has different values for them, so that "
        "both are kept. Set tie_word_embeddings=False to say so.",
        stacklevel=2,
    )


def _equal(a: Parameter, b: Parameter, executor: "Executor") -> bool:
    """Whether two placed parameters of one layout hold the same bytes."""
    return all(
        executor.read(a.address + at, min(BLOCK_BYTES, a.nbytes - at))
        == executor.read(b.address + at, min(BLOCK_BYTES, b.nbytes - at))
        for at in range(0, a.nbytes, BLOCK_BYTES)
    )


def _warn(model: "PreTrainedModel", info: LoadingInfo, name: str) -> None:
    new = sorted([*info.missing_keys, *(name for name, _, _ in info.mismatched_keys)])
    if new:
        warnings.warn(
            f"{name} has no fitting weights for {len(new)} parameters of {type(model).__name__}; they have random or "
            f"constant first values, and the model must be trained to be of use: {', '.join(new)}.",
            stacklevel=2,
        )


def _emit_block(parameter: Parameter, info: TensorInfo, x: Tensor, start: int, nbytes: int) -> None:
    """Record the converting or packing of the rows at x, which begin at byte `start` of the tensor."""
    item = ITEM_BYTES[info.dtype]
    if parameter.layout == "rows":
        y = _at(parameter.storage, start // item * 4)
        ops.emit("convert", y=y, x=x, count=nbytes // item, source=_source(info), target=0)
        return
    inner = parameter.shape[1]
    emit_pack(parameter, x, nbytes // (item * inner), (inner, 1), _source(info), start // (item * inner))


def _at(storage: Any, start: int = 0) -> Tensor:
    """Operand for the bytes of a heap block from `start` on."""
    return Tensor((), "float32", Part(storage, start))


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
