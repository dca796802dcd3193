"""One file on its way from the web through the store to its consumer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from hashlib import sha256
from typing import Any

from ..errors import CorruptFileError, InpageError
from .backends import Backend
from .chunk import Chunk
from .progress import FileProgress
from .store import Manifest, Store, Writer, read_stored
from .transport import Body, FileInfo, look


async def download(
    wanted: Manifest,
    store: Store,
    token: str,
    progress: FileProgress,
    expected: int | None = None,
    is_transient: bool = False,
) -> AsyncGenerator[Chunk, None]:
    """All chunks of the file that `wanted` names, stored as they pass.

    Continues from the segments of an interrupted load if the file is still the same. The last chunk is given only after
    length and hash are verified and the file is published, which a transient one (see `Writer`) is not. Raises as
    `Body`, and `CorruptFileError` for a wrong hash.
    """
    async with store.lock(wanted.url):
        found = await store.find(wanted.url)
        if found and found[1].complete:  # another loader was faster
            async for chunk in stored(*found, progress):
                yield chunk
            return
        body = Body(wanted.url, token)
        try:
            earlier = await _open(body, found)
            if found and not earlier:
                await store.remove(found[1])
            manifest = earlier[1] if earlier else replace(wanted)
            manifest.state(body.info)
            writer = store.writer(manifest, earlier and earlier[0], is_transient)
            await writer.reserve(None if body.info.size is None else body.info.size - body.position)
            progress.start(body.info.size or expected or await _size_for(progress, wanted.url, token))
            async for chunk in _verified(_all_chunks(earlier, body, writer), writer, body.info):
                progress.advance(chunk.nbytes)
                yield chunk
        finally:
            body.close()
    progress.done()


async def stored(
    backend: Backend, manifest: Manifest, progress: FileProgress, start: int = 0
) -> AsyncGenerator[Chunk, None]:
    """Chunks of a complete file in the store, from byte `start` on."""
    assert manifest.size is not None
    progress.cached = True
    progress.start(manifest.size, loaded=start)
    async for chunk in read_stored(backend, manifest, start, manifest.size):
        progress.advance(chunk.nbytes)
        yield chunk
    progress.done()


async def _open(body: Body, found: tuple[Backend, Manifest] | None) -> tuple[Backend, Manifest] | None:
    """Open `body` where the stored segments end. Returns them if the host's file is the one they belong to."""
    if found and found[1].stored and found[1].validator:
        partial = found[1]
        body.position = partial.stored
        try:
            info = await body.open()
        except CorruptFileError:  # the file is shorter now
            pass
        else:
            if info.validator == partial.validator and info.size in (None, partial.size):
                return found
        body.restart()
    await body.open()
    return None


async def _size_for(progress: FileProgress, url: str, token: str) -> int | None:
    """Ask for the length of a file that comes compressed, if somebody watches."""
    if not progress.wanted:
        return None
    try:
        return (await look(url, token)).size
    except InpageError:
        return None


async def _all_chunks(
    earlier: tuple[Backend, Manifest] | None, body: Body, writer: Writer
) -> AsyncGenerator[Chunk, None]:
    if earlier:
        async for chunk in read_stored(*earlier, 0, body.position):
            yield chunk
    async for chunk in body.chunks():
        await writer.write(chunk)
        yield chunk


async def _verified(chunks: AsyncGenerator[Chunk, None], writer: Writer, info: FileInfo) -> AsyncGenerator[Chunk, None]:
    """Hand on all chunks but the last, verify and publish, then hand on the last."""
    digest: Any = sha256() if info.sha256 else None
    last: Chunk | None = None
    size = 0
    try:
        async for chunk in chunks:
            size += chunk.nbytes
            if digest:
                digest.update(chunk.raw if isinstance(chunk.raw, memoryview) else chunk.to_bytes())
            if last is not None:
                yield last
            last = chunk
        if digest and digest.hexdigest() != info.sha256:
            raise CorruptFileError(
                f"{writer.manifest.url} has the sha256 {digest.hexdigest()}; the hub states {info.sha256}.",
                hint="Load again; nothing of it was kept.",
                url=writer.manifest.url,
            )
    except CorruptFileError:
        await writer.discard()
        raise
    await writer.publish(size)
    if last is not None:
        yield last
