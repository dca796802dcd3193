"""Files made from those of a repository, and kept in the store for later loads.

Such a file has its place under the repository's URL and a key. Its manifest has what the host stated about the files
that it was made of: it counts only while the host states the same. Offline it is taken as it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from ..errors import FileNotFoundInRepositoryError, NetworkError, OutdatedError, StoreError
from ..runtime import gather
from .backends import Backend, MemoryBackend
from .chunk import Chunk
from .download import stored
from .progress import Progress
from .store import Identity, Manifest, Store, Writer, read_stored
from .stream import FileStream
from .transport import FileInfo, look

_QUERY = "?inpage-kept="


def kept_url(folder: str, key: str) -> str:
    """Where the store has what was made from a repository's files."""
    return f"{folder}{_QUERY}{key}"


class KeptFile:
    """A complete file of the store; reads as a repository of this one file.

    `known` is what the hosts of the files that it was made of have stated already, by URL.
    """

    def __init__(
        self,
        backend: Backend,
        manifest: Manifest,
        store: Store,
        token: str,
        progress: Progress,
        *,
        offline: bool,
        known: Mapping[str, FileInfo],
    ) -> None:
        self._backend, self._manifest, self._store, self._progress = backend, manifest, store, progress
        self._token, self._offline, self._known = token, offline, known

    @property
    def file(self) -> str:
        return self._manifest.file

    @property
    def name(self) -> str:
        return self._manifest.name

    async def size(self, filename: str) -> int:
        return self._manifest.size or 0

    def stream(self, filename: str, start: int = 0, stop: int | None = None) -> FileStream:
        return FileStream(self._chunks(start, stop))

    async def check(self) -> None:
        """Raise `OutdatedError` if the files that it was made of have changed. To be awaited before it is trusted.

        Where their hosts cannot be asked, they count as the same.
        """
        if self._offline:
            return
        try:
            same = await gather(*(self._is_same(url, old) for url, old in self._manifest.sources.items()))
        except NetworkError:
            return
        if not all(same):
            raise OutdatedError(f"What {self.file} of {self.name} was made of has changed.", hint="Load again.")

    async def forget(self) -> None:
        """Remove the file from the store."""
        self._progress.replace([self.file], {})
        async with self._store.lock(self._manifest.url):
            await self._store.remove(self._manifest)

    async def _is_same(self, url: str, old: list[Any]) -> bool:
        known = self._known
        try:
            now = Identity.of(known[url]) if url in known else await _identity(self._store, url, self._token, known)
            return Identity(*old).matches(now) is True
        except FileNotFoundInRepositoryError:
            return False

    def _chunks(self, start: int, stop: int | None) -> AsyncGenerator[Chunk, None]:
        if stop is not None:
            return read_stored(self._backend, self._manifest, start, stop)
        report = self._progress.file(self.name, self.file, cached=True)
        return stored(self._backend, self._manifest, report, start)


async def write(store: Store, manifest: Manifest, size: int, pieces: Iterable[bytes]) -> None:
    """Keep `size` bytes, unless another tab did so. Nothing is there before all of it is. Raises `StoreError`."""
    async with store.lock(manifest.url):
        found = await store.find(manifest.url)
        if found and found[1].complete and found[1].sources == manifest.sources:
            return
        if found:
            await store.remove(found[1])
        writer = Writer(manifest, [store.backends[0]], on_failure=_raise)
        try:
            for piece in pieces:
                await writer.write(Chunk.from_bytes(piece))
            await writer.publish(size)
        except BaseException:
            await writer.discard()
            raise


async def has_room(store: Store, size: int) -> bool:
    """Whether `size` bytes can be kept where they outlast the page."""
    if not store.backends or isinstance(store.backends[0], MemoryBackend):
        return False
    free = await store.backends[0].free()
    return free is None or free >= size


async def identities(
    store: Store, urls: Iterable[str], token: str, known: Mapping[str, FileInfo]
) -> Mapping[str, Identity]:
    """What tells the versions of files, by their URL: of those in the store, else as `known`, else as asked for."""
    urls = list(urls)
    return dict(zip(urls, await gather(*(_identity(store, url, token, known) for url in urls)), strict=True))


async def _identity(store: Store, url: str, token: str, known: Mapping[str, FileInfo]) -> Identity:
    found = await store.find_complete(url)
    return Identity.of(found[1] if found else known[url] if url in known else await look(url, token))


def _raise(error: StoreError) -> None:
    raise error
