"""What will be loaded where, decided from names, shapes and dtypes before anything is allocated or fetched."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import CheckpointError, MismatchedShapesError, UnsupportedError
from ..nn import Parameter
from ..optable import QUANTIZED
from ..tensor import row_major
from .conversion import (
    LEGACY_RENAMINGS,
    Layout,
    Piece,
    WeightConversion,
    WeightConverter,
    WeightRenaming,
    whole,
)
from .files import CheckpointFile
from .quantized import Bundle
from .safetensors import TensorInfo

if TYPE_CHECKING:
    from ..models.modeling import PreTrainedModel

SOURCE_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass
class LoadingInfo:
    """The report of a load, with the meanings of transformers. Lists are sorted by name.

    `missing_keys` are parameters that the checkpoint lacks, `unexpected_keys` tensors that the model lacks,
    `mismatched_keys` (name, shape in the checkpoint, shape in the model), `error_msgs` what else went wrong.
    """

    missing_keys: list[str] = field(default_factory=list)
    unexpected_keys: list[str] = field(default_factory=list)
    mismatched_keys: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    error_msgs: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> "LoadingInfo":
        """The opposite of `to_json`. Raises ValueError, TypeError."""
        info = cls(**json.loads(text))
        info.mismatched_keys = [(name, tuple(found), tuple(wanted)) for name, found, wanted in info.mismatched_keys]
        return info


class Task(NamedTuple):
    """One piece of one parameter."""

    parameter: Parameter
    piece: Piece


@dataclass
class Plan:
    """`tasks` are the tensors that are needed, each with what becomes of it; `untouched` get initial values by name.

    `copies` are pairs of tied parameters that both have a tensor of their own: (name, name to tie it to). `quantized`
    are the parameters of the quantised weights by name, which are among no tasks.
    """

    tasks: dict[str, list[Task]]
    quantized: dict[str, Parameter]
    untouched: dict[str, Parameter]
    copies: list[tuple[str, str]]
    info: LoadingInfo


def make_plan(
    model: "PreTrainedModel",
    files: Sequence[CheckpointFile],
    *,
    bundles: Mapping[str, Bundle] | None = None,
    is_own: bool = False,
    ignore_mismatched_sizes: bool = False,
) -> Plan:
    """The plan for an unplaced model. Ties its weights where the checkpoint has one tensor for them.

    `bundles` are quantised weights, which stand for the tensors they are made of; `is_own` says that the tensors are
    the model's parameters as they are, so that none is to be converted. Raises MismatchedShapesError unless
    told to ignore it, UnsupportedError for dtypes that are not floats, and for quantised weights that are no parameter.
    """
    bundles = bundles or {}
    tensors = _logical_tensors(files, bundles)
    parameters = dict(model.named_parameters())
    info = LoadingInfo()
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    conversions = () if is_own else model.weight_conversions
    layouts, unexpected = resolve_names(tensors, shapes, conversions, model.base_model_prefix, info)
    for name in [name for name, layout in layouts.items() if layout.shape != parameters[name].shape]:
        info.mismatched_keys.append((name, layouts[name].shape, parameters[name].shape))
    _check_mismatches(info, type(model).__name__, ignore_mismatched_sizes)
    present = set(layouts)
    missing = set(parameters) - present
    copies = _tie(model, missing)
    info.missing_keys = _filtered(missing, model.keys_to_ignore_on_load_missing)
    info.unexpected_keys = _filtered(unexpected, model.keys_to_ignore_on_load_unexpected)
    mismatched = {name for name, _, _ in info.mismatched_keys}
    tasks: dict[str, list[Task]] = {}
    quantized: dict[str, Parameter] = {}
    for name in present - mismatched:
        if bundled := [piece.tensor for piece in layouts[name].pieces if piece.tensor in bundles]:
            if layouts[name] != whole(bundled[0], parameters[name].shape):
                raise UnsupportedError(f"{name!r} would have to be put together from quantised weights.")
            quantized[bundled[0]] = parameters[name]
            parameters[name].layout = bundles[bundled[0]].layout
            continue
        for piece in layouts[name].pieces:
            _check_dtype(piece.tensor, tensors[piece.tensor])
            tasks.setdefault(piece.tensor, []).append(Task(parameters[name], piece))
    filled = {id(parameters[name]) for name in present - mismatched}
    names = {id(parameter): name for name, parameter in model.named_parameters()}  # one for each, if it is tied
    untouched = {names[id(p)]: p for p in model.parameters() if id(p) not in filled}
    return Plan(tasks, quantized, untouched, copies, info)


def _logical_tensors(files: Sequence[CheckpointFile], bundles: Mapping[str, Bundle]) -> dict[str, TensorInfo]:
    """Tensors of the files by name, quantised weights in the place of their parts."""
    parts = {part for bundle in bundles.values() for part in bundle.parts.values()}
    tensors = {name: info for file in files for name, info in file.tensors.items() if name not in parts}
    ignored = {f"{part.rpartition('.')[0]}.{extra}" for part in parts for extra in ("weight_shape", "g_idx")}
    tensors = {name: info for name, info in tensors.items() if name not in ignored}
    return tensors | {name: TensorInfo(bundle.layout, bundle.shape, 0, 0) for name, bundle in bundles.items()}


def resolve_names(
    tensors: dict[str, TensorInfo],
    parameters: dict[str, tuple[int, ...]],
    conversions: Iterable[WeightConversion],
    prefix: str,
    info: LoadingInfo,
) -> tuple[dict[str, Layout], list[str]]:
    """Layout of each parameter that the tensors make, and the names that make none.

    A tensor's name is renamed by every renaming, then by at most one converter; then the base model's `prefix` is added
    or removed if a parameter is found that way. A name that is a parameter's without all this is taken as it stands.
    """
    renamings = [*LEGACY_RENAMINGS, *(c for c in conversions if isinstance(c, WeightRenaming))]
    converters = [c for c in conversions if isinstance(c, WeightConverter)]
    layouts: dict[str, Layout] = {}
    unexpected: list[str] = []
    groups: dict[tuple[WeightConverter, tuple[str, ...]], dict[int, str]] = {}
    for original, tensor in tensors.items():
        name = reduce(lambda name, renaming: renaming.rename(name), renamings, original)
        # Those who quantise a weight have it as [out, in], whatever it was before.
        converter, source, made = _match(name, () if tensor.dtype in QUANTIZED else converters)
        targets = tuple(with_prefix(target, prefix, parameters) for target in made)
        if converter is not None and all(target in parameters for target in targets):
            groups.setdefault((converter, targets), {})[source] = original
            continue
        candidates = [with_prefix(candidate, prefix, parameters) for candidate in (name, original)]
        name = next((candidate for candidate in candidates if candidate in parameters), candidates[0])
        if name not in parameters:
            unexpected.append(name)
        elif name in layouts:
            raise CheckpointError(
                f"Two tensors of the checkpoint are {name!r} of the model; one of them is {original!r}.",
                hint="The checkpoint mixes old and new names.",
            )
        else:
            layouts[name] = whole(original, tensor.shape)
    for (converter, targets), sources in groups.items():
        lacking = [pattern for i, pattern in enumerate(converter.sources) if i not in sources]
        if lacking:
            info.error_msgs.append(f"{', '.join(targets)}: no tensors for {', '.join(lacking)}")
            continue
        wholes = [whole(sources[i], tensors[sources[i]].shape) for i in range(len(sources))]
        made = converter.convert(wholes, [parameters[target] for target in targets])
        layouts.update(zip(targets, made, strict=True))
    return layouts, unexpected


def _match(name: str, converters: Iterable[WeightConverter]) -> tuple[WeightConverter | None, int, tuple[str, ...]]:
    """The first converter that takes the tensor, the number of its source, and the parameters that it makes."""
    for converter in converters:
        if match := converter.match(name):
            return converter, *match
    return None, 0, ()


def with_prefix(name: str, prefix: str, parameters: dict[str, tuple[int, ...]]) -> str:
    """`name` with the base model's prefix removed or added, if that makes it a parameter."""
    if prefix and name.startswith(f"{prefix}.") and name[len(prefix) + 1 :] in parameters:
        return name[len(prefix) + 1 :]
    if prefix and f"{prefix}.{name}" in parameters:
        return f"{prefix}.{name}"
    return name


def tie(model: "PreTrainedModel", target: str, source: str) -> None:
    """Let the module of `target` use the parameter `source`."""
    set_parameter(model, target, dict(model.named_parameters())[source])


def set_parameter(model: "PreTrainedModel", name: str, parameter: Parameter) -> None:
    """Let the module that has the parameter `name` have this one."""
    module: Any = model
    *path, attribute = name.split(".")
    for part in path:
        module = getattr(module, part)
    setattr(module, attribute, parameter)


def is_dense(piece: Piece, info: TensorInfo) -> bool:
    """Whether a piece is its whole tensor, elements in the same order."""
    return piece.shape == info.shape and piece.strides == row_major(info.shape)


def _tie(model: "PreTrainedModel", missing: set[str]) -> list[tuple[str, str]]:
    """Tie weights; returns the pairs of which the checkpoint has both, and takes the others out of `missing`."""
    copies: list[tuple[str, str]] = []
    if not model.config.tie_word_embeddings:
        return copies
    for target, source in model.tied_weights_keys.items():
        parameters = dict(model.named_parameters())
        layout = "panels" if "panels" in (parameters[target].layout, parameters[source].layout) else "rows"
        parameters[target].layout = parameters[source].layout = layout
        if target not in missing and source not in missing:
            copies.append((target, source))
        elif target in missing:
            tie(model, target, source)
            if source not in missing:
                missing.remove(target)
        else:
            tie(model, source, target)
            missing.remove(source)
    return copies


def _check_mismatches(info: LoadingInfo, model: str, ignore: bool) -> None:
    info.mismatched_keys.sort()
    if info.mismatched_keys and not ignore:
        rows = [f"{name}: {list(found)}, expected {list(wanted)}" for name, found, wanted in info.mismatched_keys]
        raise MismatchedShapesError(
            f"Tensors of the checkpoint do not fit {model}: {'; '.join(rows[:10])}{'; ...' if len(rows) > 10 else ''}.",
            hint="Check the configuration, or pass ignore_mismatched_sizes=True to initialise them afresh.",
            mismatched_keys=info.mismatched_keys,
        )


def _check_dtype(name: str, info: TensorInfo) -> None:
    if info.dtype not in SOURCE_DTYPES:
        raise UnsupportedError(
            f"Tensor {name!r} has dtype {info.dtype}; weights are read from {', '.join(SOURCE_DTYPES)}.",
            hint="Use a checkpoint in floats, or one that says how it is quantised.",
            dtype=info.dtype,
        )


def _filtered(names: Iterable[str], ignored: Iterable[str]) -> list[str]:
    return sorted(name for name in names if not any(re.search(pattern, name) for pattern in ignored))
