"""The bytes of a file on their way to kernel memory: which part of a chunk goes to whom."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import CheckpointError
from ..nn import HeapBlock
from ..runtime import Slices, pause

if TYPE_CHECKING:
    from ..executors.base import Executor
    from ..hub import FileStream

TURN = 0.05  # seconds of reading between two pauses, which take some milliseconds: an abort waits for them


class Files(Protocol):
    """Where files are read from: a repository, or one file that is kept in the store."""

    async def size(self, filename: str) -> int: ...
    def stream(self, filename: str, start: int = 0, stop: int | None = None) -> "FileStream": ...


class Region(NamedTuple):
    """Byte range of a file, and who takes its bytes."""

    start: int
    end: int
    write: Callable[[Any], None]


class Direct:
    """Writes to consecutive addresses."""

    def __init__(self, executor: "Executor", address: int) -> None:
        self._executor = executor
        self._address = address

    def write(self, chunk: Any) -> None:
        self._executor.write(self._address, chunk.raw)
        self._address += chunk.nbytes


class Staged:
    """Fills the staging buffer block by block and calls `flush(start, nbytes)`, in bytes of the tensor, for each."""

    def __init__(self, staging: HeapBlock, block: int, total: int, flush: Callable[[int, int], None]) -> None:
        self._staging = staging
        self._block = block
        self._total = total
        self._flush = flush
        self._start = 0  # of the block
        self._filled = 0

    def write(self, chunk: Any) -> None:
        while chunk.nbytes:
            end = min(self._block, self._total - self._start)
            part = chunk.slice(0, min(chunk.nbytes, end - self._filled))
            self._staging.executor.write(self._staging.address + self._filled, part.raw)
            self._filled += part.nbytes
            if self._filled == end:
                self._flush(self._start, end)
                self._start, self._filled = self._start + end, 0
            chunk = chunk.slice(part.nbytes, chunk.nbytes)


async def stream_into(files: Files, file: str, regions: list[Region], stop: int | None = None) -> None:
    """Hand the bytes of a file to its regions, which are in order.

    Reads on to the end, so that the file is stored, or only to byte `stop`.
    """
    position, number, slices = regions[0].start, 0, Slices(TURN)
    async with files.stream(file, position, stop) as chunks:
        async for chunk in chunks:
            if slices.over():
                await pause()
            begin = position
            position += chunk.nbytes
            while number < len(regions) and regions[number].start < position:
                region = regions[number]
                part = chunk.slice(max(region.start, begin) - begin, min(region.end, position) - begin)
                if part.nbytes:
                    region.write(part)
                if region.end > position:
                    break
                number += 1
    if number < len(regions) and regions[-1].end > position:
        raise CheckpointError(
            f"{file} ended at byte {position:,}; its header says {regions[-1].end:,}.",
            hint="Fetch it again.",
            file=file,
        )
