"""What the store holds: listing, deleting, and asking whether the hub has something newer.

`await` the functions in Pyodide; where the platform can block, and in CPython, that is not necessary.
"""

from __future__ import annotations

from typing import Any

from ..errors import FileNotFoundInRepositoryError
from ..runtime import Awaitable, gather, resolve
from .store import Identity, Manifest, open_store
from .transport import look


class CachedFiles(list[dict[str, Any]], Awaitable):
    """A list of files in the store."""


def list_cached(name: str | None = None, revision: str | None = None) -> CachedFiles:
    """Files in the store, of one repository (and revision) or of all, as dicts.

    Keys: `name`, `revision`, `file`, `url`, `size`, `stored`, `etag`, `sha256`, `commit`, `time` (seconds since 1970)
    and `complete`. An incomplete file is what an interrupted load left; the next one continues from `stored` bytes.
    """
    return resolve(_list_cached(name, revision))


def delete_cached(name: str | None = None, revision: str | None = None) -> CachedFiles:
    """Delete files from the store, of one repository (and revision) or of all. Gives those that were there."""
    return resolve(_delete_cached(name, revision))


def find_outdated(name: str | None = None, revision: str | None = None, token: str = "") -> CachedFiles:
    """Those of `list_cached` that the host no longer has, or has another version of. Nothing is deleted."""
    return resolve(_find_outdated(name, revision, token))


async def _list_cached(name: str | None, revision: str | None) -> CachedFiles:
    return CachedFiles(_public(manifest) for manifest in await _manifests(name, revision) if not manifest.absent)


async def _delete_cached(name: str | None, revision: str | None) -> CachedFiles:
    manifests = await _manifests(name, revision)
    await _remove(manifests)
    return CachedFiles(_public(manifest) for manifest in manifests if not manifest.absent)


async def _find_outdated(name: str | None, revision: str | None, token: str) -> CachedFiles:
    return CachedFiles(map(_public, await _changed(await _manifests(name, revision), token)))


async def forget_outdated(name: str, revision: str, token: str) -> bool:
    """Delete those of `find_outdated`, and what is known to be absent; returns whether any file was outdated."""
    manifests = await _manifests(name, revision)
    outdated = await _changed(manifests, token)
    await _remove(outdated + [manifest for manifest in manifests if manifest.absent])
    return bool(outdated)


async def _remove(manifests: list[Manifest]) -> None:
    store = await open_store()
    for manifest in manifests:
        async with store.lock(manifest.url):
            await store.remove(manifest)


async def _manifests(name: str | None, revision: str | None) -> list[Manifest]:
    store = await open_store()
    return [
        manifest
        for manifest in await store.manifests()
        if name in (None, manifest.name) and revision in (None, manifest.revision)
    ]


async def _changed(manifests: list[Manifest], token: str) -> list[Manifest]:
    """Those of complete files that the host no longer has, or has another version of."""
    complete = [manifest for manifest in manifests if manifest.complete]
    changed = await gather(*(_has_changed(manifest, token) for manifest in complete))
    return [manifest for manifest, new in zip(complete, changed, strict=True) if new]


async def _has_changed(manifest: Manifest, token: str) -> bool:
    known = manifest.sources or {manifest.url: list(Identity.of(manifest))}
    try:
        return any([Identity(*old).matches(Identity.of(await look(url, token))) is False for url, old in known.items()])
    except FileNotFoundInRepositoryError:
        return True


def _public(manifest: Manifest) -> dict[str, Any]:
    keys = ("name", "revision", "file", "url", "size", "stored", "etag", "sha256", "commit", "time", "complete")
    return {key: getattr(manifest, key) for key in keys}
