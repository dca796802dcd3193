"""The files of one model repository: in a hub, in a folder on the web, or in a folder on disk."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from copy import copy
from typing import Any

from ..checks import check_flags
from ..env import env
from ..errors import CorruptFileError, FileNotFoundInRepositoryError, InpageError, InputError
from ..runtime import gather
from . import kept
from .cache import forget_outdated
from .chunk import Chunk
from .kept import KeptFile
from .progress import Progress, ProgressCallback
from .resolve import Location, check_path, locate
from .sources import DiskFile, Source, WebFile
from .store import Manifest, open_store
from .stream import FileStream
from .transport import FileInfo


class Repository:
    """Files of the repository `name`: a hub id ("org/name"), the path of a folder, or the http(s) URL of a folder.

    `revision` (branch, tag or commit; by default "main") is for hub ids; `subfolder` is a path inside the repository;
    `token` goes to the host of `env.remote_host` only. `progress_callback` is called with events (see
    `inpage.hub.progress`); loaders that are to be counted together share one `Progress`. `local_files_only` forbids the
    network, as `env.allow_remote_models = False` does; files in the store can still be had.

    Methods raise `FileNotFoundInRepositoryError`, `AccessDeniedError`, `NetworkError`, `CorruptFileError`, and
    `InputError` for names that lead out of the repository.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        revision: str | None = None,
        subfolder: str | None = None,
        token: str | None = None,
        progress_callback: ProgressCallback | Progress | None = None,
        local_files_only: bool = False,
    ) -> None:
        self.name, self.revision = _check_name(name), _check_text("revision", revision) or "main"
        self.progress = Progress.of(progress_callback)
        check_flags(local_files_only=local_files_only)
        self._local_files_only = local_files_only
        self._token = _check_token(token)
        self._subfolder = _check_text("subfolder", subfolder)
        self._locations = locate(self.name, self.revision, self._subfolder)
        self._expected: set[str] = set()
        self._known: dict[str, list[Source]] = {}
        self._is_transient = False

    def transient(self) -> Repository:
        """The same repository, of which the store gets no more than what lets an interrupted load go on."""
        other = copy(self)
        other._known, other._is_transient = {}, True
        return other

    async def exists(self, filename: str) -> bool:
        """Whether the repository has the file. A start page in its place counts as no."""
        try:
            await self._stated_size(filename)
        except InpageError as error:
            _if_absent(error)
            return False
        return True

    async def size(self, filename: str) -> int:
        """Length of a file in bytes. Reads the file if its host does not state one."""
        size = await self._stated_size(filename)
        return sum([chunk.nbytes async for chunk in self.stream(filename)]) if size is None else size

    async def expect(self, *filenames: str) -> None:
        """Count those of the files that exist in `progress_total` from its first event on.

        In the place of a safetensors file that does not exist, its index and the files that this names are counted.
        """
        names = [name for name in filenames if name not in self._expected]
        if not self.progress.wanted or not names:
            return
        self._expected.update(names)
        for name, size in zip(names, await gather(*map(self._size_or_none, names)), strict=True):
            if size is not None:
                self.progress.expect({self._shown(name): size})
            elif name.endswith(".safetensors"):
                index = name + ".index.json"
                await self.expect(index, *await self._shards(index))

    async def expect_instead(self, filename: str) -> None:
        """Count a file in the place of all other weights that were expected."""
        if self.progress.wanted:
            self._replace_expected(self._shown(filename), await self.size(filename))

    def _replace_expected(self, shown: str, size: int) -> None:
        weights = [self._shown(name) for name in self._expected if ".safetensors" in name]
        self.progress.replace(weights, {shown: size})

    async def _shards(self, index: str) -> set[str]:
        """The files that an index names, if there is one."""
        quiet = copy(self)
        quiet.progress, quiet._known = Progress(None), {}
        contents = await quiet.json(index, required=False)
        weight_map = contents.get("weight_map") if isinstance(contents, dict) else None
        return set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()

    async def json(self, filename: str, required: bool = True) -> Any:
        """The parsed file; None if it is not required and absent."""
        text = await self.text(filename, required)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            await self.forget(filename)
            raise CorruptFileError(f"{filename} of {self.name} is not JSON: {error}.", file=filename) from error

    async def text(self, filename: str, required: bool = True) -> str | None:
        """The file as text (UTF-8); None if it is not required and absent."""
        data = await self.read(filename, required)
        if data is None:
            return None
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            await self.forget(filename)
            raise CorruptFileError(f"{filename} of {self.name} is not UTF-8 text: {error}.", file=filename) from error

    async def read(self, filename: str, required: bool = True) -> bytes | None:
        """The whole file; None if it is not required and absent. For small files: large ones are streamed."""
        try:
            async with FileStream(self._chunks(self._sources(filename), 0, None, ask=required)) as chunks:
                return b"".join([chunk.to_bytes() async for chunk in chunks])
        except InpageError as error:
            if required:
                raise
            _if_absent(error)
            return None

    def stream(self, filename: str, start: int = 0, stop: int | None = None) -> FileStream:
        """The bytes [start, stop) of a file in chunks, for `async for`; best inside `async with`, which closes it.

        A file on the web that is not in the store yet is stored on the way if it is read to its end (`stop` None, or
        its length), and its last chunk comes only after its length and hash are verified. Otherwise only the bytes in
        question are requested, and nothing is stored.
        """
        return FileStream(self._chunks(self._sources(filename), start, stop))

    async def _chunks(
        self, sources: list[Source], start: int, stop: int | None, ask: bool = True
    ) -> AsyncGenerator[Chunk, None]:
        missing: list[InpageError] = []
        for source in sources:
            try:
                async for chunk in source.chunks(start, stop, ask):
                    yield chunk
                return
            except InpageError as error:
                missing.append(_if_absent(error))
        raise missing[0]

    async def _stated_size(self, filename: str) -> int | None:
        missing: list[InpageError] = []
        for source in self._sources(filename):
            try:
                return await source.size()
            except InpageError as error:
                missing.append(_if_absent(error))
        raise missing[0]

    async def _url(self, filename: str) -> str | None:
        """URL of a file that exists; None if it is on the disk."""
        for source in self._sources(filename):
            try:
                await source.size()
            except InpageError as error:
                _if_absent(error)
            else:
                return source.url
        return None

    async def _size_or_none(self, filename: str) -> int | None:
        try:
            return await self._stated_size(filename)
        except InpageError:  # if it is more than an absent file, the load that follows will tell
            return None

    async def is_stored(self, filename: str) -> bool:
        """Whether the store has the whole file."""
        store = await open_store()
        return any([await store.find_complete(source.url) for source in self._sources(filename) if source.url])

    async def find_kept(self, key: str) -> KeptFile | None:
        """The file that was kept under the key. Its `check` tells whether the files it was made of are the same."""
        folder = self._locations[0]
        if folder.on_disk:
            return None
        store, url = await open_store(), kept.kept_url(folder.base, key)
        found = await store.find_complete(url)
        if not found:
            return None
        offline = bool(self._why_offline())
        kept_file = KeptFile(*found, store, self._token, self.progress, offline=offline, known=self._stated())
        self._replace_expected(kept_file.file, await kept_file.size(kept_file.file))
        return kept_file

    async def new_kept(self, key: str, filename: str, made_of: Sequence[str], size: int) -> Manifest | None:
        """A file of up to `size` bytes to be kept, made of files of this repository, for `write_kept`.

        None where that is impossible: where the store does not outlast the page, has no room, or cannot tell when those
        files change.
        """
        folder, store = self._locations[0], await open_store()
        urls = [await self._url(name) for name in made_of]
        if folder.on_disk or not all(urls) or not await kept.has_room(store, size):
            return None
        identities = await kept.identities(store, [url for url in urls if url], self._token, self._stated())
        if not all(identity.sha256 or identity.etag for identity in identities.values()):
            return None
        manifest = Manifest(self.name, self.revision, self._shown(filename), kept.kept_url(folder.base, key))
        manifest.sources = {url: list(identity) for url, identity in identities.items()}
        return manifest

    async def write_kept(self, manifest: Manifest, size: int, pieces: Iterable[bytes]) -> None:
        """Write a file to be kept, `size` bytes, all of it or nothing. Raises `StoreError`."""
        await kept.write(await open_store(), manifest, size, pieces)

    def _stated(self) -> dict[str, FileInfo]:
        """What hosts have stated of files, by their URLs."""
        sources = [source for known in self._known.values() for source in known]
        return {source.url: source.info for source in sources if source.url and source.info}

    async def forget(self, filename: str) -> None:
        """Remove what the store has of a file."""
        for source in self._sources(filename):
            await source.forget()

    async def forget_outdated(self) -> bool:
        """Remove what the store has of this revision and the host has in another version; whether there was any."""
        self._known = {}
        return await forget_outdated(self.name, self.revision, self._token)

    def _sources(self, filename: str) -> list[Source]:
        """The places where the file may be, in order."""
        check_path(filename)
        if filename not in self._known:
            self._known[filename] = [self._source(location, filename) for location in self._locations]
        return self._known[filename]

    def _source(self, location: Location, filename: str) -> Source:
        shown = self._shown(filename)
        if location.on_disk:
            return DiskFile(location.file(filename), self.name, shown, self.progress)
        manifest = Manifest(self.name, self.revision, shown, location.file(filename))
        offline = self._why_offline() if location.remote else ""
        return WebFile(manifest, self._token, self.progress, offline, self._is_transient)

    def _why_offline(self) -> str:
        if self._local_files_only:
            return "local_files_only is True"
        return "" if env.allow_remote_models else "env.allow_remote_models is False"

    def _shown(self, filename: str) -> str:
        return f"{self._subfolder}/{filename}" if self._subfolder else filename


def _if_absent(error: InpageError) -> InpageError:
    """`error` if it means that the file is not there; else raises it. A start page in its place means that too."""
    if isinstance(error, FileNotFoundInRepositoryError) or error.details.get("html"):
        return error
    raise error


def _check_name(name: Any) -> str:
    path = os.fspath(name) if isinstance(name, str | os.PathLike) else None
    if not isinstance(path, str):
        raise InputError(
            f"A repository is named by a text or a path, not by {name!r:.60}.",
            hint="Give a hub id (org/name), the path of a folder, or the http(s) URL of one.",
        )
    return path


def _check_text(what: str, value: Any) -> str:
    if not isinstance(value, str | None):
        raise InputError(f"{what} is a text, not {value!r:.60}.")
    return value or ""


def _check_token(token: str | None) -> str:
    if token is not None and (not isinstance(token, str) or not token.isascii() or not token.isprintable()):
        raise InputError("token is not a string of printable ASCII characters.")
    return token or ""
