"""A piece of a file on its way from the network or the store to its consumer, outside the Python heap in Pyodide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

from ..runtime import IN_PYODIDE


class Chunk:
    """Bytes as they arrived. `raw` is a memoryview (CPython) or a JavaScript Uint8Array (Pyodide); do not change it."""

    __slots__ = ("nbytes", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.nbytes: int = raw.byteLength if IN_PYODIDE else raw.nbytes

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> Chunk:
        if not IN_PYODIDE:
            return cls(memoryview(data))
        array = _new_array(len(data))
        array.assign(data)
        return cls(array)

    @classmethod
    def from_file(cls, file: IO[bytes], nbytes: int) -> Chunk:
        """The next `nbytes` of an unbuffered file, which must be there."""
        if not IN_PYODIDE:
            return cls(memoryview(file.read(nbytes)))
        array = _new_array(nbytes)
        array.from_file(file)
        return cls(array)

    def to_file(self, file: IO[bytes]) -> None:
        if IN_PYODIDE:
            self.raw.to_file(file)
        else:
            file.write(self.raw)

    def slice(self, start: int, stop: int) -> Chunk:
        """The bytes [start, stop), without a copy."""
        return Chunk(self.raw.subarray(start, stop) if IN_PYODIDE else self.raw[start:stop])

    def to_bytes(self) -> bytes:
        return self.raw.to_bytes() if IN_PYODIDE else self.raw.tobytes()


def concatenate(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk of all bytes."""
    if len(chunks) == 1:
        return chunks[0]
    if not IN_PYODIDE:
        return Chunk.from_bytes(b"".join(chunk.raw for chunk in chunks))
    array = _new_array(sum(chunk.nbytes for chunk in chunks))
    position = 0
    for chunk in chunks:
        array.set(chunk.raw, position)
        position += chunk.nbytes
    return Chunk(array)


def _new_array(nbytes: int) -> Any:
    import js  # pyright: ignore[reportMissingImports]

    return js.Uint8Array.new(nbytes)
