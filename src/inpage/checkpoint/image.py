"""The weights of a model as they lie in kernel memory, which is how the store keeps them: loading them is a copy.

A safetensors file with the bytes of every parameter as a tensor of U8, in the order of the model and padded with zeros
to what the heap allocates, so that neighbours in memory are neighbours in the file. The layouts are those of
`inpage.optable`, the same for all variants of the kernels and for the reference. Metadata:

    "inpage.memory"    FORMAT, so that a file of other layouts is told apart
    "inpage.layouts"   JSON {name of a parameter: its layout}
    "inpage.tied"      JSON {name of a parameter: name of the one that it is}

The file is for the store of this library alone; `quantized` describes one that can be hosted.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CheckpointError
from ..executors.memory import aligned
from ..nn import Parameter, layout_nbytes
from ..optable import GROUP_SIZE, LAYOUTS, PANEL
from .files import CheckpointFile
from .packing import BLOCK_BYTES
from .plan import set_parameter
from .safetensors import encode_header
from .stream import Direct, Region

if TYPE_CHECKING:
    from ..executors.base import Executor
    from ..models.modeling import PreTrainedModel

FORMAT = f"1, panels of {PANEL}, groups of {GROUP_SIZE}"
FORMAT_KEY = "inpage.memory"
LAYOUTS_KEY = "inpage.layouts"
TIED_KEY = "inpage.tied"


class Image(NamedTuple):
    """A file that fits a model."""

    file: CheckpointFile
    layouts: dict[str, str]
    tied: dict[str, str]

    @classmethod
    def of(cls, file: CheckpointFile, shapes: Mapping[str, tuple[int, ...]]) -> "Image":
        """What the file has for a model's parameters. Raises CheckpointError if it is not one of all of them."""
        found = file.metadata.get(FORMAT_KEY)
        if found != FORMAT:
            raise _unfit(file.name, f"memory {FORMAT!r}", repr(found))
        try:
            layouts, tied = (dict(json.loads(file.metadata[key])) for key in (LAYOUTS_KEY, TIED_KEY))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _unfit(file.name, "layouts and ties", "none that can be read") from None
        if layouts.keys() != file.tensors.keys() or layouts.keys() | tied.keys() != shapes.keys():
            raise _unfit(file.name, f"{len(shapes)} parameters", "others")
        for name, info in file.tensors.items():
            shape, layout = shapes[name], layouts[name]
            is_known = layout in LAYOUTS if len(shape) == 2 else layout == "rows"
            if not is_known or info.nbytes != aligned(layout_nbytes(layout, shape)):
                raise _unfit(file.name, f"{name!r} {list(shape)} in a known layout", f"{layout}, {info.nbytes:,} bytes")
        if any(source not in layouts or shapes[source] != shapes[name] for name, source in tied.items()):
            raise _unfit(file.name, "ties of parameters of one shape", str(tied))
        return cls(file, layouts, tied)

    def shape(self, model: "PreTrainedModel") -> list[Parameter]:
        """Give the parameters of a skeleton their layouts and ties; returns them in the order of the file."""
        parameters = dict(model.named_parameters())
        for name, source in self.tied.items():
            set_parameter(model, name, parameters[source])
        for name, layout in self.layouts.items():
            parameters[name].layout = layout
        return [parameters[name] for name in self.file.tensors]

    def regions(self, parameters: list[Parameter], executor: "Executor") -> list[Region]:
        """Where the bytes go, neighbours in memory together; the parameters are placed, and those of `shape`."""
        runs: list[list[int]] = []  # of start, end and address
        for info, parameter in zip(self.file.tensors.values(), parameters, strict=True):
            if runs and parameter.address - runs[-1][2] == info.start - runs[-1][0]:
                runs[-1][1] = info.end
            else:
                runs.append([info.start, info.end, parameter.address])
        return [Region(start, end, Direct(executor, address).write) for start, end, address in runs]


class ImageWriter:
    """The file of a loaded model: `nbytes` long, its bytes given by `pieces`."""

    def __init__(self, model: "PreTrainedModel", metadata: Mapping[str, str]) -> None:
        self._executor = model.executor
        names: dict[int, str] = {}
        self._parameters: list[Parameter] = []
        layouts: dict[str, str] = {}
        tied: dict[str, str] = {}
        for name, parameter in model.named_parameters():
            if id(parameter) in names:
                tied[name] = names[id(parameter)]
                continue
            names[id(parameter)] = name
            layouts[name] = parameter.layout
            self._parameters.append(parameter)
        tensors = {n: ("U8", (aligned(p.nbytes),)) for n, p in zip(layouts, self._parameters, strict=True)}
        described = {FORMAT_KEY: FORMAT, LAYOUTS_KEY: json.dumps(layouts), TIED_KEY: json.dumps(tied)}
        self._header, length = encode_header(tensors, {**described, **metadata})
        self.nbytes = len(self._header) + length

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the file, a few megabytes at a time, read when they are asked for."""
        yield self._header
        for parameter in self._parameters:
            nbytes = parameter.nbytes
            for at in range(0, nbytes, BLOCK_BYTES):
                yield self._executor.read(parameter.address + at, min(BLOCK_BYTES, nbytes - at))
            if padding := aligned(nbytes) - nbytes:
                yield bytes(padding)


def _unfit(file: str, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{file} is not a copy of these weights: expected {expected}, found {found}.", hint="Load the model again."
    )
