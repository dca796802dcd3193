"""First values of parameters that a checkpoint lacks: those of transformers, up to the random numbers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from zlib import crc32

from .. import nn, ops
from ..program import run_once
from ..tensor import Tensor
from .packing import emit_pack

if TYPE_CHECKING:
    from ..executors.base import Executor

DEFAULT_STD = 0.02


def initialize(parameter: nn.Parameter, name: str, module: nn.Module, std: float, executor: "Executor") -> None:
    """Fill a placed parameter: weights of layers and tables from a normal distribution, norms with 1, the rest with 0.

    The random numbers depend on the name alone, so that two loads agree.
    """
    attribute = name.rpartition(".")[2]
    if attribute == "weight" and isinstance(module, nn.Linear | nn.Embedding):
        _fill_normal(parameter, crc32(name.encode()) & 0x7FFFFFFF, std, executor)
        return
    scales = attribute == "weight" and isinstance(module, nn.LayerNorm | nn.RMSNorm)
    value = 1.0 - getattr(module, "offset", 0.0) if scales else 0.0
    run_once(lambda: ops.emit("fill", y=parameter, count=parameter.nbytes // 4, value=value), executor)


def owners(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Dotted names of parameters with the modules that have them as attributes."""
    for name, value in vars(module).items():
        if isinstance(value, nn.Parameter):
            yield prefix + name, module
    for name, child in module.named_children():
        yield from owners(child, f"{prefix}{name}.")


def _fill_normal(parameter: nn.Parameter, seed: int, std: float, executor: "Executor") -> None:
    def draw(target: Tensor) -> None:
        ops.emit("random_normal", y=target, count=parameter.size, seed=seed, mean=0.0, std=std)

    def draw_and_pack() -> None:
        plain = Tensor(parameter.shape, "float32", block)
        draw(plain)
        emit_pack(parameter, plain, parameter.shape[0], (parameter.shape[1], 1))

    if parameter.layout == "rows":
        run_once(lambda: draw(parameter), executor)
        return
    block = nn.HeapBlock(executor, 4 * parameter.size)
    try:
        run_once(draw_and_pack, executor)
    finally:
        block.free()
