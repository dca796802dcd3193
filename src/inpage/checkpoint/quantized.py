"""The format of quantised checkpoints: safetensors files that say in their metadata which weights are quantised, how.

A repository offers one as `model.<dtype>.safetensors` beside its `config.json`: `model.q4.safetensors` is what a load
with dtype="q4" takes, `model.fp16.safetensors` holds plain F16 tensors. `inpage quantize` writes such files, and
anybody else may, by this description. What the store keeps of float weights is another format, of `checkpoint.image`.

Metadata (all values of safetensors' metadata are strings):

    "format"                "pt", as in other checkpoints
    "inpage.format"         "3", the version of this format
    "inpage.quantization"   JSON: {name of a weight: {"layout": layout, "group_size": number}, ...}

A weight "name" of shape [N, K] is kept in up to three tensors; the others of the file are plain F32, F16 or BF16. Names
are those of the model's parameters in transformers; weights of layers are [out, in], in GPT-2 as well.

    layout  "name"                "name.scale"             "name.offset"     group_size  weight
    q8      I8 [N, K]             F32 [N]                                    K           scale * q
    q8g     I8 [N, K]             F16 [N, ceil(K / 32)]                      32          rotated(scale * q)
    q4      U8 [N, ceil(K / 2)]   F16 [N, ceil(K / 32)]                      32          scale * (q - 8)
    q4z     U8 [N, ceil(K / 2)]   F16 [N, ceil(K / 32)]    as scale          32          scale * q + offset

A byte of U8 holds two quants of 0 .. 15, the one of the even column in its low half. A group is `group_size` columns
of a row that share a scale; the last one may be shorter. A scale of q4 may be negative. Quants of q8g are
-63 .. 63; for "rotated" see `inpage.optable`. K is not part of the shape of U8, so the model's shape decides whether
the last half byte counts.

Tensors may come in any order. Scale and offset directly before their weight let a reader pack it while it arrives.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import CheckpointError
from ..optable import GROUP_SIZE, QUANTIZED
from .files import CheckpointFile
from .safetensors import TensorInfo

VERSION = "3"
FORMAT_KEY = "inpage.format"
QUANTIZATION_KEY = "inpage.quantization"


class Bundle(NamedTuple):
    """A quantised weight [N, K] with the tensors it is made of, by their roles: q, scale, offset, zero, order.

    `packing` is "plain" for the format above, else one of `optable.PUBLISHED` or "int8". `group` is the number of
    columns that share a scale.
    """

    layout: str
    shape: tuple[int, int]
    packing: str
    group: int
    parts: dict[str, str]


class Entry(NamedTuple):
    """Dtype and shape of a tensor of this format."""

    dtype: str
    shape: tuple[int, ...]


def file_name(dtype: str) -> str:
    """Name of the file that offers a dtype."""
    return f"model.{dtype}.safetensors"


def entries(name: str, layout: str, shape: tuple[int, int]) -> dict[str, Entry]:
    """Tensors that hold a weight, in the order in which they are best written."""
    rows, inner = shape
    groups = -(-inner // GROUP_SIZE)
    scale = Entry("F32", (rows,)) if layout == "q8" else Entry("F16", (rows, groups))
    quants = Entry("I8", shape) if layout in ("q8", "q8g") else Entry("U8", (rows, -(-inner // 2)))
    offset = {f"{name}.offset": Entry("F16", (rows, groups))} if layout == "q4z" else {}
    return {f"{name}.scale": scale, **offset, name: quants}


def group_size(layout: str, inner: int) -> int:
    return inner if layout == "q8" else GROUP_SIZE


def describe(weights: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """Metadata of a file in which these weights, by name, have a layout and an inner dimension."""
    described = {
        name: {"layout": layout, "group_size": group_size(layout, inner)} for name, (layout, inner) in weights.items()
    }
    return {"format": "pt", FORMAT_KEY: VERSION, QUANTIZATION_KEY: json.dumps(described)}


def bundles_of(file: CheckpointFile, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Bundle]:
    """Quantised weights that a file's metadata tell of; none if it is an ordinary file.

    `shapes` are those of the model's parameters by name, for an odd K. Raises CheckpointError for another version of
    the format, and for tensors that are not what the metadata say.
    """
    if QUANTIZATION_KEY not in file.metadata and FORMAT_KEY not in file.metadata:
        return {}
    version = file.metadata.get(FORMAT_KEY)
    if version != VERSION:
        raise _wrong(file.name, f"has format version {version!r}; this version of inpage reads {VERSION!r}")
    try:
        described = json.loads(file.metadata.get(QUANTIZATION_KEY, "{}"))
        layouts = {name: (each["layout"], each["group_size"]) for name, each in described.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _wrong(file.name, f"has a malformed {QUANTIZATION_KEY}") from None
    return {name: _bundle(file, name, *each, shapes.get(name)) for name, each in layouts.items()}


def _bundle(file: CheckpointFile, name: str, layout: Any, each: Any, expected: tuple[int, ...] | None) -> Bundle:
    if layout not in QUANTIZED:
        raise _wrong(file.name, f"has {name!r} in layout {layout!r}; known are {', '.join(QUANTIZED)}")
    info = file.tensors.get(name)
    if info is None or len(info.shape) != 2:
        raise _wrong(file.name, f"lacks the matrix {name!r} of which its metadata tell")
    rows, columns = info.shape
    inner = columns if layout in ("q8", "q8g") else 2 * columns
    if expected is not None and len(expected) == 2 and -(-expected[1] // 2) * 2 == inner:
        inner = expected[1]
    shape = (rows, inner)
    if each != group_size(layout, inner):
        raise _wrong(file.name, f"has {name!r} in groups of {each}; {layout} has {group_size(layout, inner)}")
    for part, entry in entries(name, layout, shape).items():
        _check(file, part, entry)
    parts = {"q": name, "scale": f"{name}.scale"} | ({"offset": f"{name}.offset"} if layout == "q4z" else {})
    return Bundle(layout, shape, "plain", each, parts)


def _check(file: CheckpointFile, name: str, entry: Entry) -> None:
    found: TensorInfo | None = file.tensors.get(name)
    if found is None or (found.dtype, found.shape) != entry:
        what = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
        raise _wrong(file.name, f"has {what} as {name!r}, expected {entry.dtype} {list(entry.shape)}")


def _wrong(file: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{file} {problem}.", hint="Quantise the checkpoint anew.", file=file)
