"""From the `dtype` a caller asks for to the layouts of a model's parameters."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from .. import nn
from ..errors import InputError, UnsupportedError
from .initialize import owners

if TYPE_CHECKING:
    from ..models.modeling import PreTrainedModel
    from .files import CheckpointFile
    from .plan import Plan

LAYOUT_OF = {
    "auto": "panels",
    "fp32": "panels",
    "float32": "panels",
    "fp16": "f16",
    "float16": "f16",
    "q8": "q8",
    "q8g": "q8g",
    "q4": "q4",
    "q4z": "q4z",
}
"""Layout of linear weights by dtype."""
HEAD_LAYOUT_OF = {"q4": "q8g", "q4z": "q8g"}
"""Layouts that a vocabulary's output layer, and the table tied to it, has instead: it suffers most from 4 bits."""
SMALLEST_TABLE = 1 << 20
"""Elements from which on an embedding is packed as the linear weights are; smaller ones would save little."""

Dtype = str | Mapping[str, str] | None
"""A dtype for all, or dtypes by patterns of names of parameters or modules, such as "lm_head" and "layers.*.mlp".

The first that fits counts: of a tied parameter one of its names, of a module all that is in it.
"""


def check_dtype(dtype: Dtype) -> None:
    """Raise UnsupportedError for dtypes that models cannot be loaded in."""
    for name in dtype.values() if isinstance(dtype, Mapping) else ["fp32" if dtype is None else dtype]:
        if not isinstance(name, str) or name not in LAYOUT_OF:
            raise UnsupportedError(
                f"dtype {name!r} is not supported.", hint=f"Use one of {', '.join(LAYOUT_OF)}.", dtype=name
            )


def choose_layouts(
    model: "PreTrainedModel", dtype: Dtype, copies: Iterable[tuple[str, str]] = ()
) -> list[nn.Parameter]:
    """Set the layouts of a skeleton's parameters. Raises UnsupportedError for a pattern without effect.

    A dtype for all, also as the pattern "*", spares output layers the 4 bits (`HEAD_LAYOUT_OF`), and with q4 leaves
    open whether there are zero points (`zero_points`): the parameters in question, q4 so far, are returned. Other
    patterns are taken as they are. `copies` are pairs of names of parameters that are tied if they are equal.
    """
    dtypes = dtype if isinstance(dtype, Mapping) else {"*": dtype or "fp32"}
    if not all(isinstance(pattern, str) for pattern in dtypes):
        raise InputError(
            f"dtype has patterns of names as keys, not {next(p for p in dtypes if not isinstance(p, str))!r}."
        )
    unused = set(dtypes) if isinstance(dtype, Mapping) else set[str]()
    is_open: list[nn.Parameter] = []
    for tied in _weights(model, copies):
        pattern = next((pattern for pattern in dtypes if any(_fits(name, pattern) for name in tied.names)), None)
        layout = LAYOUT_OF[dtypes[pattern] if pattern else "fp32"]
        if layout == "panels" or tied.is_packed:
            unused.discard(pattern or "")
        if layout != "panels" and tied.is_packed:
            spare = pattern == "*" and not tied.names.isdisjoint(model.tied_weights_keys)
            layout = HEAD_LAYOUT_OF.get(layout, layout) if spare else layout
            for parameter in tied.parameters:
                parameter.layout = layout
            if pattern == "*" and layout == "q4":
                is_open += tied.parameters
    if unused:
        first = min(unused)
        raise UnsupportedError(
            f"No parameter of {type(model).__name__} that can have dtype {dtypes[first]!r} fits the pattern {first!r}, "
            "or the patterns before it fit them all.",
            hint="Patterns are of names such as those of model.named_parameters(), with * for any characters. Other "
            f"dtypes than fp32 are for weights of linear layers, and tables of {SMALLEST_TABLE:,} elements or more.",
        )
    return is_open


def layouts_as_stored(model: "PreTrainedModel", plan: "Plan", files: "Sequence[CheckpointFile]") -> None:
    """Set the layouts of a skeleton for a quantised checkpoint: what it has in float16 stays so where that is possible.

    Those of quantised weights are set by the plan.
    """
    halves = {name for file in files for name, info in file.tensors.items() if info.dtype == "F16"}
    stored = {id(task.parameter) for name in halves & plan.tasks.keys() for task in plan.tasks[name]}
    for tied in _weights(model, plan.copies):
        if tied.is_packed and all(id(parameter) in stored for parameter in tied.parameters):
            for parameter in tied.parameters:
                parameter.layout = "f16"


class _Weight(NamedTuple):
    """Parameters that are one, or are to be if they are equal: then they need one layout.

    `is_packed`: whether one of them takes the layout of linear weights.
    """

    names: set[str]
    parameters: list[nn.Parameter]
    is_packed: bool


def _weights(model: "PreTrainedModel", copies: Iterable[tuple[str, str]]) -> list[_Weight]:
    parameters = dict(model.named_parameters())
    same = {id(parameters[target]): id(parameters[source]) for target, source in copies}
    found: dict[int, _Weight] = {}
    for name, module in owners(model):
        parameter = parameters[name]
        key = same.get(id(parameter), id(parameter))
        weight = found.get(key, _Weight(set(), [], False))
        if all(parameter is not each for each in weight.parameters):
            weight.parameters.append(parameter)
        weight.names.add(name)
        found[key] = weight._replace(is_packed=weight.is_packed or _is_packed(parameter, module))
    return list(found.values())


def _fits(name: str, pattern: str) -> bool:
    """Whether a pattern is of a parameter or of a module that it is in."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _is_packed(parameter: nn.Parameter, module: nn.Module) -> bool:
    """Whether the parameter takes the layout of linear weights: those themselves, and large tables."""
    if isinstance(module, nn.Embedding):
        return parameter.size >= SMALLEST_TABLE
    return isinstance(module, nn.Linear) and len(parameter.shape) == 2
