"""Which files of a repository give a dtype.

    dtype               files, the first that exists
    q8, q8g, q4, q4z    model.<dtype>.safetensors, else quantised from the float weights
    fp16                model.fp16.safetensors, else converted from the float weights
    fp32, a dict        the float weights
    auto, None          the weights as they are; without float weights, the most precise of the files above

The float weights are model.safetensors or its shards, else model.fp16.safetensors. If model.safetensors is itself
quantised, in the format of `checkpoint.quantized` or by the `quantization_config` of config.json, only its own layout
and "auto" can be had. A layout counts as that of all weights where output layers alone are spared it, and q4 with zero
points counts as q4.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import FileNotFoundInRepositoryError, UnsupportedError
from ..runtime import gather
from .files import INDEX, SINGLE, CheckpointFile, read_file, read_headers
from .layouts import HEAD_LAYOUT_OF, LAYOUT_OF, Dtype
from .published import published_bundles
from .quantized import FORMAT_KEY, Bundle, bundles_of, file_name

if TYPE_CHECKING:
    from ..hub import Repository
    from ..models.modeling import PreTrainedModel

OFFERED = ("fp16", "q8g", "q8", "q4z", "q4")
"""Dtypes of which a repository may have a file, the most precise first."""


class Checkpoint(NamedTuple):
    """Files with the quantised weights in them.

    `as_stored`: their layouts are to be taken as they are; `is_own`: the tensors are those of the model, as this
    library writes them.
    """

    files: list[CheckpointFile]
    bundles: dict[str, Bundle]
    as_stored: bool
    is_own: bool


async def open_checkpoint(repository: "Repository", model: "PreTrainedModel", dtype: Dtype) -> Checkpoint:
    """The checkpoint for a dtype. Raises UnsupportedError, naming what there is, if the repository cannot give it."""
    wanted = _canonical(dtype)
    if wanted in OFFERED and await repository.exists(file_name(wanted)):
        return await _from_file(repository, model, wanted)
    try:
        files = await read_headers(repository)
    except FileNotFoundInRepositoryError as error:
        return await _without_floats(repository, model, dtype, error)
    checkpoint = _as_it_is(files, model)
    if wanted == "auto":
        return checkpoint
    if checkpoint.bundles:
        layouts = _layouts(checkpoint)
        if not layouts <= _stands_for(wanted):
            exist = await _existing(repository)
            raise _cannot(repository, dtype, exist, f"{files[0].name} has its weights in {', '.join(sorted(layouts))}")
    return checkpoint._replace(as_stored=bool(checkpoint.bundles))


def _canonical(dtype: Dtype) -> str:
    """The dtype by its short name; "mixed" for a dict."""
    if isinstance(dtype, Mapping):
        return "mixed"
    return {None: "auto", "float32": "fp32", "float16": "fp16"}.get(dtype, dtype or "auto")


def _layouts(checkpoint: Checkpoint) -> set[str]:
    """Layouts of quantised weights, without those that output layers have instead."""
    layouts = {bundle.layout for bundle in checkpoint.bundles.values()}
    return layouts - {HEAD_LAYOUT_OF.get(layout) for layout in layouts}


def _stands_for(dtype: str) -> set[str]:
    """Layouts that a load with a dtype chooses of."""
    return {"q4", "q4z"} if dtype == "q4" else {dtype}


def _as_it_is(files: list[CheckpointFile], model: "PreTrainedModel") -> Checkpoint:
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    bundles: dict[str, Bundle] = {}
    for file in files:
        bundles |= bundles_of(file, shapes)
    config: Any = vars(model.config).get("quantization_config")
    if not bundles and isinstance(config, Mapping):
        bundles = published_bundles(config, {name: info for file in files for name, info in file.tensors.items()})
    is_own = any(FORMAT_KEY in file.metadata for file in files)
    return Checkpoint(files, bundles, bool(bundles) or is_own, is_own)


async def _from_file(repository: "Repository", model: "PreTrainedModel", dtype: str) -> Checkpoint:
    files = [await read_file(repository, file_name(dtype))]
    await repository.expect_instead(file_name(dtype))
    checkpoint = _as_it_is(files, model)
    if dtype != "fp16" and _layouts(checkpoint).isdisjoint(_stands_for(dtype)):
        found = ", ".join(sorted(_layouts(checkpoint)))
        what = f"has its weights in {found}" if found else "does not say which of its weights are quantised, and how"
        raise UnsupportedError(
            f"{file_name(dtype)} of {repository.name} {what}.",
            hint="Write it with `inpage quantize`, or as inpage.checkpoint.quantized describes.",
        )
    return checkpoint._replace(as_stored=True)


async def _without_floats(
    repository: "Repository", model: "PreTrainedModel", dtype: Dtype, error: FileNotFoundInRepositoryError
) -> Checkpoint:
    wanted, existing = _canonical(dtype), await _existing(repository)
    if wanted == "auto" and existing:
        return await _from_file(repository, model, existing[0])
    if "fp16" in existing:
        return _as_it_is([await read_file(repository, file_name("fp16"))], model)._replace(as_stored=False)
    if existing:
        raise _cannot(repository, dtype, existing, "there are no float weights to make it from") from error
    tried = f", {file_name(wanted)}" if wanted in OFFERED else ""
    raise FileNotFoundInRepositoryError(error.message.rstrip(".") + f"{tried}.", hint=error.hint) from error


async def _existing(repository: "Repository") -> list[str]:
    found = await gather(*(repository.exists(file_name(dtype)) for dtype in OFFERED))
    return [dtype for dtype, exists in zip(OFFERED, found, strict=True) if exists]


def _cannot(repository: "Repository", dtype: Dtype, existing: list[str], why: str) -> UnsupportedError:
    wanted = _canonical(dtype)
    tried = ([file_name(wanted)] if wanted in OFFERED else []) + [SINGLE, INDEX]
    files = [file_name(dtype) for dtype in existing]
    return UnsupportedError(
        f"{repository.name} cannot give dtype {dtype!r}: {why}. Tried {', '.join(tried)}; "
        f"besides, it has {', '.join(files) or 'no file of another dtype'}.",
        hint=f'Use dtype="auto"{"".join(f" or {dtype!r}" for dtype in existing)}, or another repository. '
        f"Dtypes are {', '.join(LAYOUT_OF)}.",
        dtype=dtype,
        tried=tried,
        existing=files,
    )
