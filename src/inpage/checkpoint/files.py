"""Which safetensors files a repository has, and what is in them, by their headers alone."""

from typing import TYPE_CHECKING, NamedTuple

from ..errors import CheckpointError, FileNotFoundInRepositoryError, UnsupportedError
from .safetensors import LENGTH_BYTES, TensorInfo, header_length, parse_file
from .stream import Files

if TYPE_CHECKING:
    from ..hub import Repository

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
FIRST_READ = 1 << 16  # holds the header of most files, so that one request is enough


class CheckpointFile(NamedTuple):
    """A file, its tensors in the order of their data, and its metadata."""

    name: str
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


async def read_headers(repository: "Repository") -> list[CheckpointFile]:
    """The files of the checkpoint. A tensor's name occurs once among them.

    Raises FileNotFoundInRepositoryError, UnsupportedError for pickled weights, CheckpointError for broken files.
    """
    if await repository.exists(SINGLE):
        return [await read_file(repository, SINGLE)]
    index = await repository.json(INDEX, required=False)
    if index is not None:
        return await _read_shards(repository, _weight_map(index))
    for name in PICKLED:
        if await repository.exists(name):
            raise UnsupportedError(
                f"{repository.name} has its weights in {name} only; pickled files can run code and are never read.",
                hint="Convert the weights to safetensors, or use a revision that has them.",
                file=name,
            )
    raise FileNotFoundInRepositoryError(
        f"{repository.name} has no weights: tried {', '.join((SINGLE, INDEX, *PICKLED))}.",
        hint="Check the name, the revision and the subfolder.",
    )


async def read_file(files: Files, name: str) -> CheckpointFile:
    """One file by its header. Raises CheckpointError, and what the repository raises."""
    size = await files.size(name)
    start = await _read(files, name, 0, min(size, FIRST_READ))
    end = LENGTH_BYTES + header_length(start, file=name, size=size)
    if end > len(start):
        start += await _read(files, name, len(start), end)
    return CheckpointFile(name, *parse_file(start[LENGTH_BYTES:end], file=name, size=size))


async def _read(files: Files, name: str, start: int, stop: int) -> bytes:
    async with files.stream(name, start, stop) as chunks:
        return b"".join([chunk.to_bytes() async for chunk in chunks])


async def _read_shards(repository: "Repository", weight_map: dict[str, str]) -> list[CheckpointFile]:
    await repository.expect(*sorted(set(weight_map.values())))
    files: list[CheckpointFile] = []
    seen: dict[str, str] = {}
    for name in sorted(set(weight_map.values())):
        file = await read_file(repository, name)
        for tensor in file.tensors:
            if tensor in seen:
                raise CheckpointError(
                    f"Tensor {tensor!r} is in both {seen[tensor]} and {name}.", hint="Fetch the checkpoint anew."
                )
            seen[tensor] = name
        files.append(file)
    if misplaced := [tensor for tensor, name in weight_map.items() if seen.get(tensor) != name]:
        first = misplaced[0]
        raise CheckpointError(
            f"{INDEX} says that {first!r} is in {weight_map[first]}, but it is {_where(seen.get(first))} "
            f"({len(misplaced)} such tensors).",
            hint="The index and the files belong to different checkpoints.",
        )
    return files


def _where(file: str | None) -> str:
    return f"in {file}" if file else "in none of the files"


def _weight_map(index: object) -> dict[str, str]:
    """The checked `weight_map` of an index."""
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX} has no weight_map from tensor names to files.", hint="Fetch it anew.")
    for tensor, name in weight_map.items():
        plain = isinstance(name, str) and name.endswith(".safetensors") and not {"/", "\\", ":"} & set(name)
        if not plain:
            raise CheckpointError(
                f"{INDEX} puts {tensor!r} into {name!r}, which is no safetensors file beside it.", hint="Fetch it anew."
            )
    return weight_map
