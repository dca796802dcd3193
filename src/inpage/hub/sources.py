"""A file in one place: on the disk, or on the web with the store before it."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator
from typing import Protocol

from ..errors import CorruptFileError, FileNotFoundInRepositoryError, NetworkError, StoreError
from .backends import Backend
from .chunk import Chunk
from .download import download, stored
from .progress import FileProgress, Progress
from .store import Manifest, Store, open_store, read_stored
from .transport import Body, FileInfo, look

_DISK_CHUNK = 4 << 20


class Source(Protocol):
    url: str | None  # None if the file is on the disk
    info: FileInfo | None  # what the host stated, if it was asked

    async def size(self) -> int | None:
        """Length in bytes, None if it is not stated. Raises if the file does not exist or cannot be read."""
        ...

    def chunks(self, start: int, stop: int | None, ask: bool = True) -> AsyncGenerator[Chunk, None]:
        """The bytes [start, stop). Reports progress if they reach to the end.

        Without `ask`, a file that is known to be missing is not asked for again.
        """
        ...

    async def forget(self) -> None:
        """Remove what the store has of the file."""
        ...


class DiskFile:
    """A file of a local folder."""

    url: str | None = None
    info: FileInfo | None = None

    def __init__(self, path: str, name: str, file: str, progress: Progress) -> None:
        self._path, self._name, self._file, self._progress = path, name, file, progress

    async def size(self) -> int | None:
        if not os.path.isfile(self._path):
            raise FileNotFoundInRepositoryError(f"{self._path} does not exist.", path=self._path)
        return os.path.getsize(self._path)

    async def chunks(self, start: int, stop: int | None, ask: bool = True) -> AsyncGenerator[Chunk, None]:
        size = await self.size()
        assert size is not None
        to_end = stop is None or stop >= size
        progress = self._progress.file(self._name, self._file, cached=False) if to_end else None
        if progress:
            progress.start(size, loaded=start)
        with open(self._path, "rb", buffering=0) as file:
            file.seek(start)
            left = (size if stop is None else min(stop, size)) - start
            while left > 0:
                self._check_size(os.fstat(file.fileno()).st_size, size)
                chunk = Chunk.from_file(file, min(_DISK_CHUNK, left))
                left -= chunk.nbytes
                if progress:
                    progress.advance(chunk.nbytes)
                yield chunk
        if progress:
            progress.done()

    async def forget(self) -> None:
        """Nothing: what is on the disk is the user's."""

    def _check_size(self, found: int, expected: int) -> None:
        if found < expected:
            raise CorruptFileError(
                f"{self._path} was cut to {found} of the {expected} bytes it had.", hint="Load again.", path=self._path
            )


class WebFile:
    """A file at a URL. `offline` says why it may only come from the store; empty if the network may be used.

    A transient file is stored only as far as an interrupted load needs it.
    """

    def __init__(
        self, manifest: Manifest, token: str, progress: Progress, offline: str, is_transient: bool = False
    ) -> None:
        self._wanted, self._url = manifest, manifest.url
        self.url: str | None = manifest.url
        self.info: FileInfo | None = None
        self._token, self._progress, self._offline = token, progress, offline
        self._is_transient = is_transient
        self._size: int | None = None

    async def chunks(self, start: int, stop: int | None, ask: bool = True) -> AsyncGenerator[Chunk, None]:
        store = await open_store()
        found = await store.find(self._url)
        if found and not ask and found[1].says_absent():
            raise self._not_found()
        found = found if found and found[1].complete else None
        size = found[1].size if found else self._size
        if stop is not None and size is not None and stop >= size:
            stop = None
        if stop is not None and start >= stop:
            return
        if self._offline and not found:
            raise self._not_found()
        report = self._progress.file(self._wanted.name, self._wanted.file, cached=bool(found)) if stop is None else None
        if found:
            try:
                async for chunk in self._stored(*found, start, stop, report):
                    start += chunk.nbytes
                    yield chunk
                return
            except StoreError:  # somebody removed a part of it; the rest comes from the web
                pass
        if self._offline:
            raise self._not_found()
        try:
            if report:
                report.cached = False
                try:
                    async for chunk in self._download(store, start, report):
                        start += chunk.nbytes
                        yield chunk
                except StoreError:  # a segment of an interrupted download was damaged; it is removed by now
                    async for chunk in self._download(store, start, report):
                        yield chunk
            else:
                async for chunk in Body(self._url, self._token, start, stop).chunks():
                    yield chunk
        except FileNotFoundInRepositoryError:
            await store.remember_absent(self._wanted)
            raise
        except NetworkError as error:
            await self._raise_if_absent(store, error)
            raise

    async def size(self) -> int | None:
        store = await open_store()
        found = await store.find_complete(self._url)
        if found:
            return found[1].size
        if self._size is None:
            self._size = await self._ask_size(store)
        return self._size

    async def forget(self) -> None:
        store = await open_store()
        found = await store.find(self._url)
        if found:
            await store.remove(found[1])

    async def _ask_size(self, store: Store) -> int | None:
        if self._offline or await store.known_absent(self._url):
            raise self._not_found()
        try:
            self.info = await look(self._url, self._token)
            return self.info.size
        except FileNotFoundInRepositoryError:
            await store.remember_absent(self._wanted)
            raise
        except NetworkError as error:
            await self._raise_if_absent(store, error)
            raise

    async def _raise_if_absent(self, store: Store, error: NetworkError) -> None:
        """Without a network, believe what the host once said."""
        if await store.known_absent(self._url, within=math.inf):
            raise self._not_found() from error

    def _not_found(self) -> FileNotFoundInRepositoryError:
        reason = f"is not in the store, and {self._offline}" if self._offline else "does not exist"
        return FileNotFoundInRepositoryError(f"{self._url} {reason}.", url=self._url)

    async def _download(self, store: Store, start: int, report: FileProgress) -> AsyncGenerator[Chunk, None]:
        async for chunk in download(self._wanted, store, self._token, report, self._size, self._is_transient):
            skipped = min(start, chunk.nbytes)
            start -= skipped
            if skipped < chunk.nbytes:
                yield chunk.slice(skipped, chunk.nbytes)

    def _stored(
        self, backend: Backend, manifest: Manifest, start: int, stop: int | None, report: FileProgress | None
    ) -> AsyncGenerator[Chunk, None]:
        if report:
            return stored(backend, manifest, report, start)
        return read_stored(backend, manifest, start, manifest.stored if stop is None else stop)
