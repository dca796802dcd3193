"""What reading a file gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Self

from .chunk import Chunk


class FileStream:
    """Chunks of a file. Closing it (or dropping it) ends the transfer and frees the file for other loaders."""

    def __init__(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        return self._chunks

    async def aclose(self) -> None:
        await self._chunks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
