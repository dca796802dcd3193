"""Whether the 4 bits of a checkpoint get zero points, by samples of its weights.

Weights that were trained in floats lie around zero, and zero points gain them little. Weights that were in 4 bits with
zero points before, as GGUF and others have them, still lie on such a grid, which symmetric steps cannot hit.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import OutOfMemoryError
from ..nn import HeapBlock, Parameter
from ..optable import DTYPES, PANEL
from ..program import run_once
from .files import CheckpointFile
from .packing import emit_pack, operand_at
from .plan import SOURCE_DTYPES, Plan, is_dense
from .safetensors import TensorInfo
from .stream import Direct, Files, Region, stream_into

if TYPE_CHECKING:
    from ..executors.base import Executor

SAMPLES = 4
LARGEST_PART = 0.5  # of the squared error without zero points, up to which zero points pay for their half bit


async def need_zero_points(
    executor: "Executor", source: Files, files: Sequence[CheckpointFile], plan: Plan, parameters: Sequence[Parameter]
) -> bool:
    """Whether zero points leave at most half of the squared error, on average over samples of the weights.

    A sample are the first 8 rows of a tensor that is one of `parameters`, or a part of it, as it is; without any, the
    answer is no.
    """
    wanted = {id(parameter) for parameter in parameters}
    tensors = [
        (file.name, info)
        for file in files
        for name, info in file.tensors.items()
        if any(id(task.parameter) in wanted and is_dense(task.piece, info) for task in plan.tasks.get(name, ()))
    ]
    chosen = tensors[:: max(len(tensors) // SAMPLES, 1)][:SAMPLES]
    try:
        parts = [await _remaining_part(executor, source, *tensor) for tensor in chosen]
    except OutOfMemoryError:  # then placing the weights will fail as well, and tell of all that is needed
        return False
    return bool(parts) and sum(parts) / len(parts) <= LARGEST_PART


async def _remaining_part(executor: "Executor", source: Files, file: str, info: TensorInfo) -> float:
    """The squared error of a tensor's first rows in q4z over that in q4."""
    rows, inner = min(PANEL, info.shape[0]), info.shape[1]
    end = info.start + rows * (info.nbytes // info.shape[0])
    sample = HeapBlock(executor, end - info.start)
    try:
        await stream_into(source, file, [Region(info.start, end, Direct(executor, sample.address).write)], end)
        exact = _packed(executor, sample, rows, inner, info.dtype, "panels")
        q4, q4z = (_packed(executor, sample, rows, inner, info.dtype, layout) for layout in ("q4", "q4z"))
    finally:
        sample.free()
    error = sum((x - y) ** 2 for x, y in zip(exact, q4, strict=True))
    return sum((x - y) ** 2 for x, y in zip(exact, q4z, strict=True)) / error if error else 1


def _packed(executor: "Executor", sample: HeapBlock, rows: int, inner: int, dtype: str, layout: str) -> Iterable[float]:
    """What the sample's values are after packing."""
    parameter = Parameter((rows, inner), layout)
    parameter.place(executor)
    x, source = operand_at(sample), DTYPES.index(SOURCE_DTYPES[dtype])
    try:
        run_once(lambda: emit_pack(parameter, x, rows, (inner, 1), source), executor)
        return parameter.data
    finally:
        parameter.free()
