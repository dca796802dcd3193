"""The store: files kept as segments, published by their manifest.

A file is a row of segments of equal length (the last may be shorter) and a manifest. The manifest is marked complete
last, in one step: that publishes the file. Before that the segments are only what a later load continues from.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from ..env import IN_BROWSER, IN_NODE, env
from ..errors import StoreError
from .backends import Backend, CacheBackend, FileBackend, MemoryBackend
from .chunk import Chunk
from .disk import host_folder
from .locks import file_lock
from .transport import FileInfo

SEGMENT = 16 << 20
MEMORY_LIMIT = 512 << 20  # bytes of files kept in memory when nothing else can keep them
QUICK = 3.0  # seconds of a download that is rather begun anew than continued
ABSENT_FOR = 24 * 3600  # seconds for which a file that a repository lacks is not asked for again


class StoreWarning(UserWarning):
    """Files are kept in memory only, or not at all."""


class Identity(NamedTuple):
    """What tells one version of a file from another, as far as its host states it."""

    sha256: str | None
    etag: str | None
    size: int | None

    @classmethod
    def of(cls, stated: Manifest | FileInfo) -> Identity:
        return cls(stated.sha256, stated.etag, stated.size)

    def matches(self, other: Identity) -> bool | None:
        """Whether both are of one version; None if they state nothing that could be compared."""
        for mine, its in zip(self, other, strict=True):
            if mine is not None and its is not None:
                return mine == its
        return None


@dataclass
class Manifest:
    """What the store knows about one file."""

    name: str
    revision: str
    file: str
    url: str
    complete: bool = False
    absent: bool = False  # the repository has no such file
    size: int | None = None
    segment: int = field(default_factory=lambda: SEGMENT)
    segments: int = 0
    etag: str | None = None
    validator: str | None = None
    sha256: str | None = None
    commit: str | None = None
    time: float = 0.0  # of the last change, in seconds since 1970
    # Of a file that was made here: the identities of those it was made of, by URL. It is no file of the host then.
    sources: dict[str, list[Any]] = field(default_factory=dict)

    def state(self, info: FileInfo) -> None:
        """Take over what a response states."""
        self.size, self.etag, self.validator = info.size, info.etag, info.validator
        self.sha256, self.commit = info.sha256, info.commit

    @property
    def stored(self) -> int:
        """Bytes in the store: of a file that is not complete, those in full segments."""
        return self.size or 0 if self.complete else self.segments * self.segment

    def says_absent(self, within: float = ABSENT_FOR) -> bool:
        """Whether the repository lacked this file when it was asked in the last `within` seconds."""
        return self.absent and time.time() - self.time < within

    def to_chunk(self) -> Chunk:
        return Chunk.from_bytes(json.dumps(asdict(self)).encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest | None:
        """None for what another version, or a broken disk, left behind."""
        try:
            values = json.loads(data)
            found = cls(**{each.name: values[each.name] for each in fields(cls) if each.name != "sources"},
                        sources=values.get("sources", {}))  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return found if found._is_sound() else None

    def _is_sound(self) -> bool:
        """Whether every value is of its kind, and the segments are those of the size."""
        texts = (self.name, self.revision, self.file, self.url)
        stated = (self.etag, self.validator, self.sha256, self.commit)
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(text, str | None) for text in stated):
            return False
        if not (isinstance(self.complete, bool) and isinstance(self.absent, bool) and type(self.time) in (int, float)):
            return False
        if not isinstance(self.sources, dict) or not all(
            isinstance(each, list) and len(each) == len(Identity._fields) for each in self.sources.values()
        ):
            return False
        if type(self.segment) is not int or type(self.segments) is not int or self.segment < 1 or self.segments < 0:
            return False
        if self.size is None:
            return not self.complete
        most = -(-self.size // self.segment) if type(self.size) is int and self.size >= 0 else -1
        return self.segments == most if self.complete else self.segments <= most


class Store:
    """Finds, reads, writes and removes files in the backends of the present environment, the preferred one first."""

    def __init__(self, backends: list[Backend]) -> None:
        self.backends = backends

    async def find(self, url: str) -> tuple[Backend, Manifest] | None:
        """Manifest of a complete file, or else of a partial or absent one, and where it is."""
        others = []
        for backend in self.backends:
            data = await backend.get(url, "manifest")
            manifest = Manifest.from_bytes(data.to_bytes()) if data else None
            if manifest is None or manifest.url != url:
                continue
            if manifest.complete:
                return backend, manifest
            others.append((backend, manifest))
        return others[0] if others else None

    async def find_complete(self, url: str) -> tuple[Backend, Manifest] | None:
        found = await self.find(url)
        return found if found and found[1].complete else None

    async def known_absent(self, url: str, *, within: float = ABSENT_FOR) -> bool:
        """Whether the repository lacked this file when it was asked in the last `within` seconds."""
        found = await self.find(url)
        return bool(found and found[1].says_absent(within))

    async def remember_absent(self, manifest: Manifest) -> None:
        """Store that the repository lacks the file `manifest` names."""
        manifest.absent, manifest.time = True, time.time()
        found = await self.find(manifest.url)
        if found:
            await self.remove(found[1])
        if self.backends:
            with suppress(StoreError):  # then it is asked for again
                await self.backends[0].put(manifest.url, "manifest", [manifest.to_chunk()])

    async def manifests(self) -> list[Manifest]:
        found = [Manifest.from_bytes(data) for backend in self.backends for data in await backend.manifests()]
        return sorted((manifest for manifest in found if manifest), key=lambda manifest: manifest.url)

    async def remove(self, manifest: Manifest) -> None:
        for backend in self.backends:
            await _remove(backend, manifest)

    def writer(self, manifest: Manifest, backend: Backend | None = None, is_transient: bool = False) -> Writer:
        """Writes segments of a file from `manifest.segments` on; `backend` is where the earlier ones are."""
        rest = self.backends if backend is None else self.backends[self.backends.index(backend) :]
        if is_transient:
            return Writer(manifest, rest[:1], is_transient=True, on_failure=lambda error: None)
        return Writer(manifest, list(rest))

    def lock(self, url: str) -> Any:
        """Asynchronous context manager: one loader of `url` at a time."""
        return file_lock(f"inpage {url}", self.backends[0].lock_path(url) if self.backends else None)


async def read_stored(backend: Backend, manifest: Manifest, start: int, stop: int) -> AsyncGenerator[Chunk, None]:
    """The bytes [start, stop) of a file, a segment at a time. Raises `StoreError` if a segment is gone or cut."""
    stop = min(stop, manifest.stored)
    while start < stop:
        number, first = divmod(start, manifest.segment)
        last = min(manifest.segment, stop - number * manifest.segment)
        chunk = await backend.get(manifest.url, str(number), first, last)
        if chunk is None or chunk.nbytes != last - first:
            await _remove(backend, manifest)
            raise StoreError(f"{manifest.file} in {backend.title} lacks segment {number}.", hint="Load again.")
        yield chunk
        start += chunk.nbytes


class Writer:
    """Collects chunks into segments. Moves on to the next backend when one is full, keeps nothing when all are.

    A transient file is of no use once it has been read. Its segments are for a load that is interrupted, and are not
    stored if the download is quick; it is never published. `on_failure` gets the error of a backend before it is left.
    """

    def __init__(
        self,
        manifest: Manifest,
        backends: list[Backend],
        *,
        is_transient: bool = False,
        on_failure: Callable[[StoreError], None] | None = None,
    ) -> None:
        self.manifest = manifest
        self._backends = backends
        self._is_transient = is_transient
        self._on_failure = on_failure or warn_once
        self._pending: list[Chunk] = []
        self._pending_bytes = 0
        self._began = time.monotonic()

    async def reserve(self, nbytes: int | None) -> None:
        """Pass over backends that have no room for `nbytes` more."""
        while self._backends:
            free = await self._backends[0].free()
            if free is None or nbytes is None or nbytes <= free:
                return
            title = self._backends[0].title
            await self._give_up(StoreError(f"{nbytes} bytes are needed and {free} are free in {title}."))

    async def write(self, chunk: Chunk) -> None:
        while self._pending_bytes + chunk.nbytes >= self.manifest.segment:
            room = self.manifest.segment - self._pending_bytes
            self._pending.append(chunk.slice(0, room))
            chunk = chunk.slice(room, chunk.nbytes)
            await self._put_segment()
        if chunk.nbytes and self._backends:
            self._pending.append(chunk)
            self._pending_bytes += chunk.nbytes

    async def publish(self, size: int) -> None:
        """Store the last segment and mark the file complete, unless it is transient."""
        if self._is_transient:
            return
        if self._pending:
            await self._put_segment(is_last=True)
        self.manifest.size, self.manifest.complete = size, True
        await self._put_manifest()

    async def discard(self) -> None:
        """Remove all that was written."""
        if self._backends:
            await _remove(self._backends[0], self.manifest)
        self.manifest.segments = 0

    async def _put_segment(self, is_last: bool = False) -> None:
        chunks, self._pending, self._pending_bytes = self._pending, [], 0
        if self._is_transient and self._is_quick():
            self._backends = []
        if self.manifest.segments == 0 and not is_last:
            await self._put_manifest()  # before any segment, so that none is ever without one
        await self._put(str(self.manifest.segments), chunks)
        self.manifest.segments += 1
        if not is_last:
            await self._put_manifest()

    def _is_quick(self) -> bool:
        """Whether, by its first segment, the whole file comes in a short time."""
        is_first, size = self.manifest.segments == 0, self.manifest.size
        return (
            is_first and size is not None and (time.monotonic() - self._began) * size <= QUICK * self.manifest.segment
        )

    async def _put_manifest(self) -> None:
        self.manifest.time = time.time()
        await self._put("manifest", [self.manifest.to_chunk()])

    async def _put(self, part: str, chunks: list[Chunk]) -> None:
        while self._backends:
            try:
                await self._backends[0].put(self.manifest.url, part, chunks)
                return
            except StoreError as error:
                await self._give_up(error)

    async def _give_up(self, error: StoreError) -> None:
        """Move what is written so far to the next backend."""
        self._on_failure(error)
        full = self._backends.pop(0)
        for number in range(self.manifest.segments):
            chunk = await full.get(self.manifest.url, str(number))
            await full.delete(self.manifest.url, str(number))
            if chunk is not None:
                await self._put(str(number), [chunk])
        await full.delete(self.manifest.url, "manifest")


async def _remove(backend: Backend, manifest: Manifest) -> None:
    await backend.delete(manifest.url, "manifest")  # first: from here on the file is not served
    for number in range(manifest.segments + 1):  # one more may be there than the manifest knows of
        await backend.delete(manifest.url, str(number))


_memory = MemoryBackend(MEMORY_LIMIT)
_stores: dict[Any, Store] = {}
_warned = False


async def open_store() -> Store:
    """The store that the settings ask for. One that cannot be used is replaced by memory, with one warning."""
    if not (env.use_browser_cache if IN_BROWSER else env.use_fs_cache):
        return Store([])
    key = (env.cache_dir, env.cache_name)
    if key not in _stores:
        backends: list[Backend] = [_memory]
        try:
            backends.insert(0, await _open_preferred())
        except StoreError as error:
            warn_once(error)
        _stores[key] = Store(backends)
    return _stores[key]


async def _open_preferred() -> Backend:
    if IN_BROWSER:
        return await CacheBackend.open(env.cache_name)
    if env.cache_dir is None:
        raise StoreError("env.cache_dir is None.", hint="Set it to a folder, or env.use_fs_cache to False.")
    folder = f"{env.cache_dir}/{env.cache_name}"
    if IN_NODE:
        folder = host_folder(folder, create=True) or folder
    return FileBackend.open(folder)


def warn_once(error: StoreError) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"{error} Models are kept in memory only, as far as they fit.", StoreWarning, stacklevel=2)
