"""Where the store keeps its entries: Cache Storage, a folder, or memory. Each is a map from (url, part) to bytes.

A part is "manifest" or the number of a segment. `put` replaces an entry as a whole or leaves it as it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Protocol

from ..errors import StoreError
from .chunk import Chunk, concatenate

_QUERY = "?inpage="


class Backend(Protocol):
    title: str

    async def get(self, url: str, part: str, start: int = 0, stop: int | None = None) -> Chunk | None:
        """The bytes [start, stop) of an entry, or None if there is none."""
        ...

    async def put(self, url: str, part: str, chunks: Sequence[Chunk]) -> None:
        """Raises `StoreError` if there is no room or no permission."""
        ...

    async def delete(self, url: str, part: str) -> None: ...

    async def manifests(self) -> list[bytes]:
        """The contents of all entries "manifest"."""
        ...

    async def free(self) -> int | None:
        """Bytes that can still be put, if that is known."""
        ...

    def lock_path(self, url: str) -> str | None:
        """A file by which processes that share this backend can lock `url`."""
        ...


class MemoryBackend(Backend):
    """Keeps entries for as long as the interpreter runs; in Pyodide outside the Python heap."""

    title = "memory"

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._entries: dict[tuple[str, str], Chunk] = {}

    async def get(self, url: str, part: str, start: int = 0, stop: int | None = None) -> Chunk | None:
        chunk = self._entries.get((url, part))
        return chunk and chunk.slice(start, chunk.nbytes if stop is None else stop)

    async def put(self, url: str, part: str, chunks: Sequence[Chunk]) -> None:
        await self.delete(url, part)
        nbytes = sum(chunk.nbytes for chunk in chunks)
        if self._used + nbytes > self._limit:
            raise StoreError(f"{url} does not fit into the {self._limit} bytes that may be kept in memory.")
        self._used += nbytes
        self._entries[url, part] = concatenate(chunks)

    async def delete(self, url: str, part: str) -> None:
        chunk = self._entries.pop((url, part), None)
        self._used -= chunk.nbytes if chunk else 0

    async def manifests(self) -> list[bytes]:
        return [chunk.to_bytes() for (_, part), chunk in self._entries.items() if part == "manifest"]

    async def free(self) -> int | None:
        return self._limit - self._used

    def lock_path(self, url: str) -> str | None:
        return None


class FileBackend(Backend):
    """One file an entry in a folder, named by a hash of its URL."""

    title = "the file system"

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @classmethod
    def open(cls, folder: str) -> FileBackend:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made: {error}.", hint="Set env.cache_dir.") from error
        return cls(folder)

    async def get(self, url: str, part: str, start: int = 0, stop: int | None = None) -> Chunk | None:
        try:
            with open(self._path(url, part), "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                stop = size if stop is None else min(stop, size)
                file.seek(start)
                return Chunk.from_file(file, max(0, stop - start))
        except OSError:
            return None

    async def put(self, url: str, part: str, chunks: Sequence[Chunk]) -> None:
        path = self._path(url, part)
        temporary = f"{path}.{os.getpid()}.new"
        try:
            with open(temporary, "wb") as file:
                for chunk in chunks:
                    chunk.to_file(file)
            os.replace(temporary, path)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}.", hint="Set env.cache_dir.") from error
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    async def delete(self, url: str, part: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(url, part))

    async def manifests(self) -> list[bytes]:
        found = []
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(".manifest"):
                # Another process may have deleted it meanwhile.
                with suppress(FileNotFoundError), open(os.path.join(self._folder, name), "rb") as file:
                    found.append(file.read())
        return found

    async def free(self) -> int | None:
        import shutil

        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return None

    def lock_path(self, url: str) -> str | None:
        return self._path(url, "lock")

    def _path(self, url: str, part: str) -> str:
        return os.path.join(self._folder, f"{sha256(url.encode()).hexdigest()[:40]}.{part}")


class CacheBackend(Backend):
    """Entries of the browser's Cache Storage.

    `ahead` is the worker's `ReadAhead`, which may have read an entry while Python started; it is told of all there are.
    """

    title = "Cache Storage"

    def __init__(self, cache: Any, ahead: Any = None) -> None:
        self._cache, self._ahead = cache, ahead

    @classmethod
    async def open(cls, name: str) -> CacheBackend:
        import js  # pyright: ignore[reportMissingImports]
        from pyodide.ffi import JsException  # pyright: ignore[reportMissingImports]

        try:
            return cls(await js.caches.open(name), getattr(js, "readAhead", None))
        except (JsException, AttributeError) as error:
            hint = "It needs https or localhost, and the visitor's permission."
            raise StoreError(f"Cache Storage cannot be used: {error}.", hint=hint) from error

    async def get(self, url: str, part: str, start: int = 0, stop: int | None = None) -> Chunk | None:
        import js  # pyright: ignore[reportMissingImports]

        key = url + _QUERY + part
        early = await self._ahead.take(key, start, stop) if self._ahead else None
        if early is not None:
            return Chunk(early) if early.byteLength else None
        response = await self._cache.match(key)
        if not response:
            self._note(key, 0)
            return None
        if start > 0 or stop is not None:
            blob = await response.blob()
            response = blob.slice(start, blob.size if stop is None else stop)
        chunk = Chunk(js.Uint8Array.new(await response.arrayBuffer()))
        self._note(key, start + chunk.nbytes)
        return chunk

    async def put(self, url: str, part: str, chunks: Sequence[Chunk]) -> None:
        import js  # pyright: ignore[reportMissingImports]
        from pyodide.ffi import JsException, to_js  # pyright: ignore[reportMissingImports]

        pieces, key = to_js([chunk.raw for chunk in chunks]), url + _QUERY + part
        self._note(key, sum(chunk.nbytes for chunk in chunks))
        try:
            await self._cache.put(key, js.Response.new(js.Blob.new(pieces)))
        except JsException as error:
            self._note(key, 0)
            raise StoreError(f"Cache Storage took no more of {url}: {error.message}.") from error

    async def delete(self, url: str, part: str) -> None:
        self._note(url + _QUERY + part, 0)
        await self._cache.delete(url + _QUERY + part)

    def _note(self, key: str, nbytes: int) -> None:
        if self._ahead:
            self._ahead.note(key, nbytes)

    async def manifests(self) -> list[bytes]:
        found = []
        for request in await self._cache.keys():
            url, _, part = request.url.rpartition(_QUERY)
            if part == "manifest":
                chunk = await self.get(url, part)
                found.append(chunk.to_bytes() if chunk else b"")
        return found

    async def free(self) -> int | None:
        import js  # pyright: ignore[reportMissingImports]

        storage = getattr(js.navigator, "storage", None)
        if storage is None:
            return None
        estimate = await storage.estimate()
        return int(estimate.quota - estimate.usage)

    def lock_path(self, url: str) -> str | None:
        return None
