"""Loading the weights of a model: a copy of what an earlier load kept, else the files of the repository by a plan."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import CheckpointError, OutdatedError, StoreError
from ..nn import Parameter
from ..runtime import gather
from .conversion import whole
from .files import CheckpointFile
from .initialize import DEFAULT_STD, initialize, owners
from .keep import Keeper, Kept
from .layouts import Dtype, check_dtype, choose_layouts, layouts_as_stored
from .packing import BLOCK_BYTES
from .plan import LoadingInfo, Plan, Task, make_plan, set_parameter, tie
from .selection import Checkpoint, open_checkpoint
from .stream import Files, stream_into
from .transfer import Transfer, place
from .zero_points import need_zero_points

if TYPE_CHECKING:
    from ..executors.base import Executor
    from ..hub import Repository
    from ..models.modeling import PreTrainedModel


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
    OutOfMemoryError, UnsupportedError, OutdatedError, and what the repository raises.
    """
    check_dtype(dtype)
    keeper = Keeper(model, repository, dtype, ignore_mismatched_sizes)
    info = await _load_kept(model, repository, await keeper.find())
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
        await Transfer(executor, plan, Checkpoint([file], {}, False, False)).load(repository, list(parameters.values()))
    except BaseException:
        for parameter in parameters.values():
            parameter.free()
        raise


async def _load_kept(model: "PreTrainedModel", repository: "Repository", kept: Kept | None) -> LoadingInfo | None:
    """Fill the model from what an earlier load kept; None if there is nothing, or if it is damaged or outdated.

    Raises OutdatedError if other files are outdated as well, of which the configuration may be one.
    """
    if kept is None:
        return None
    restore = _skeleton(model)
    try:
        await gather(kept.source.check(), _copy(model, kept))
    except (CheckpointError, StoreError) as error:  # outdated, damaged, or deleted while it was read
        restore()
        await kept.source.forget()
        if isinstance(error, OutdatedError) and await repository.forget_outdated():
            raise
        return None
    return kept.info


async def _copy(model: "PreTrainedModel", kept: Kept) -> None:
    """Place the parameters of a skeleton and copy what is kept into them. Gives all memory back if that fails."""
    parameters = kept.image.shape(model)
    try:
        place(model.executor, parameters).free()
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
        symmetric = choose_layouts(model, dtype, plan.copies)
        if symmetric and await need_zero_points(model.executor, source, files, plan, symmetric):
            for parameter in symmetric:
                parameter.layout = "q4z"
    return plan


async def _fill(model: "PreTrainedModel", source: Files, checkpoint: Checkpoint, plan: Plan) -> None:
    """Place and fill the parameters of a skeleton. Gives all memory back if that fails."""
    try:
        await Transfer(model.executor, plan, checkpoint).load(source, model.parameters())
        _initialize(model, plan)
        for target, origin in plan.copies:
            _tie_copies(model, target, origin)
    except BaseException:
        _free(model)
        raise


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
