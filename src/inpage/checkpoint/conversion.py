"""How the tensors of a file become the parameters of a model: renaming, and converters that move elements around.

A converter never touches data. It works on `Layout`s, which say of an array where its elements lie in the tensors of
the file; the loader copies by the result.
"""

import re
from typing import NamedTuple, Protocol

from ..errors import CheckpointError
from ..tensor import row_major


class Piece(NamedTuple):
    """A block of an array: elements of one tensor, from `offset` on, by `strides`, and the block's `origin`."""

    tensor: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    origin: tuple[int, ...]


class Layout(NamedTuple):
    """An array made of pieces that do not overlap and leave nothing out."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def whole(tensor: str, shape: tuple[int, ...]) -> Layout:
    """The layout of a tensor as it is."""
    return Layout(shape, (Piece(tensor, 0, shape, row_major(shape), (0,) * len(shape)),))


class Operation(Protocol):
    """Step of a converter: from layouts to layouts. `targets` are the shapes of the parameters in the end."""

    def __call__(self, layouts: list[Layout], targets: list[tuple[int, ...]]) -> list[Layout]: ...


class Transpose(NamedTuple):
    """Swap two dimensions of every array."""

    dim0: int = 0
    dim1: int = 1

    def __call__(self, layouts: list[Layout], targets: list[tuple[int, ...]]) -> list[Layout]:
        def swap(values: tuple[int, ...]) -> tuple[int, ...]:
            swapped = list(values)
            swapped[self.dim0], swapped[self.dim1] = swapped[self.dim1], swapped[self.dim0]
            return tuple(swapped)

        def swapped(piece: Piece) -> Piece:
            return Piece(piece.tensor, piece.offset, swap(piece.shape), swap(piece.strides), swap(piece.origin))

        return [Layout(swap(layout.shape), tuple(map(swapped, layout.pieces))) for layout in layouts]


class Concatenate(NamedTuple):
    """Join all arrays along a dimension, in the order of the converter's sources."""

    dim: int = 0

    def __call__(self, layouts: list[Layout], targets: list[tuple[int, ...]]) -> list[Layout]:
        pieces: list[Piece] = []
        length = 0
        for layout in layouts:
            if _without(layout.shape, self.dim) != _without(layouts[0].shape, self.dim):
                shapes = [list(layout.shape) for layout in layouts]
                raise CheckpointError(f"Tensors of shapes {shapes} cannot be concatenated along dimension {self.dim}.")
            pieces += [p._replace(origin=_moved(p.origin, self.dim, length)) for p in layout.pieces]
            length += layout.shape[self.dim]
        return [Layout(_with(layouts[0].shape, self.dim, length), tuple(pieces))]


class Split(NamedTuple):
    """Cut one array along a dimension, into parts as long as the targets."""

    dim: int = 0

    def __call__(self, layouts: list[Layout], targets: list[tuple[int, ...]]) -> list[Layout]:
        (layout,) = layouts
        lengths = [shape[self.dim] for shape in targets]
        if sum(lengths) != layout.shape[self.dim]:
            raise CheckpointError(
                f"A tensor of shape {list(layout.shape)} cannot be split along dimension {self.dim} into {lengths}."
            )
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        return [_cut(layout, self.dim, start, length) for start, length in zip(starts, lengths, strict=True)]


class WeightRenaming(NamedTuple):
    """Replace what `source`, a regular expression, matches in a tensor's name by `target`."""

    source: str
    target: str

    def rename(self, name: str) -> str:
        return re.sub(self.source, self.target, name)


class WeightConverter(NamedTuple):
    """Make the parameters `targets` of the tensors `sources` by operations, one after the other.

    Sources are regular expressions, searched in the names; what they match is replaced by each target in turn.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    operations: tuple[Operation, ...]

    def match(self, name: str) -> tuple[int, tuple[str, ...]] | None:
        """Index of the source that `name` is, and the names of the parameters it goes into."""
        for i, source in enumerate(self.sources):
            if re.search(source, name):
                return i, tuple(re.sub(source, target, name) for target in self.targets)
        return None

    def convert(self, layouts: list[Layout], targets: list[tuple[int, ...]]) -> list[Layout]:
        """Layouts of the parameters from those of the tensors, each in order. Raises CheckpointError."""
        try:
            for operation in self.operations:
                layouts = operation(layouts, targets)
        except IndexError:
            shapes = [list(layout.shape) for layout in layouts]
            raise CheckpointError(
                f"Tensors of shapes {shapes} have too few dimensions to become {', '.join(self.targets)}.",
                hint="The checkpoint does not fit its config.json.",
            ) from None
        return layouts


WeightConversion = WeightRenaming | WeightConverter

LEGACY_RENAMINGS = (
    WeightRenaming(r"LayerNorm\.gamma", "LayerNorm.weight"),
    WeightRenaming(r"LayerNorm\.beta", "LayerNorm.bias"),
)


def _cut(layout: Layout, dim: int, start: int, length: int) -> Layout:
    pieces: list[Piece] = []
    for p in layout.pieces:
        begin = max(start, p.origin[dim])
        end = min(start + length, p.origin[dim] + p.shape[dim])
        if begin < end:
            pieces.append(
                Piece(
                    p.tensor,
                    p.offset + (begin - p.origin[dim]) * p.strides[dim],
                    _with(p.shape, dim, end - begin),
                    p.strides,
                    _with(p.origin, dim, begin - start),
                )
            )
    return Layout(_with(layout.shape, dim, length), tuple(pieces))


def _with(values: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim + 1 :])


def _without(values: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*values[:dim], *values[dim + 1 :])


def _moved(origin: tuple[int, ...], dim: int, by: int) -> tuple[int, ...]:
    return _with(origin, dim, origin[dim] + by)
