"""HTTP client of Pyodide in browsers: `fetch`, with the body read chunk by chunk as Uint8Arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import js  # pyright: ignore[reportMissingImports]
from pyodide.ffi import JsException, to_js  # pyright: ignore[reportMissingImports]

from ..env import env
from .chunk import Chunk
from .transport import Unreachable


async def request(method: str, url: str, headers: Mapping[str, str]) -> FetchResponse:
    early = await _prefetched(method, url, headers)
    if early:
        return FetchResponse(early.response, early.abort, identity="Range" in headers)
    abort = js.AbortController.new()
    init: dict[str, Any] = {"method": method, "headers": dict(headers), "signal": abort.signal}
    if env.use_browser_cache:
        init["cache"] = "no-store"  # the store keeps the file; the browser's own cache need not
    try:
        response = await js.fetch(url, to_js(init, dict_converter=js.Object.fromEntries))
    except JsException as error:
        raise Unreachable(error.message) from error
    except BaseException:  # cancelled
        abort.abort()
        raise
    return FetchResponse(response, abort, identity="Range" in headers)


async def _prefetched(method: str, url: str, headers: Mapping[str, str]) -> Any:
    """The response to the very same request that the worker sent while Python started, if it did."""
    prefetch = getattr(js, "prefetch", None)
    if prefetch is None or headers.keys() - {"Range"}:
        return None
    return await prefetch.take(method, url, headers.get("Range", ""))


class StreamedBody:
    """The part of a response that reads its body by the reader of a JavaScript ReadableStream, if it has one."""

    _reader: Any = None

    async def read(self) -> Chunk | None:
        if self._reader is None:
            return None
        try:
            result = await self._reader.read()
        except JsException as error:
            raise Unreachable(error.message) from error
        return None if result.done else Chunk(result.value)


class FetchResponse(StreamedBody):
    def __init__(self, response: Any, abort: Any, *, identity: bool) -> None:
        self._abort = abort
        self._reader = response.body.getReader() if response.body else None
        self.status: int = response.status
        self.url: str = response.url
        self.headers = {entry[0].lower(): entry[1] for entry in response.headers}
        # A response of another origin hides its Content-Encoding; a range is always asked for without one.
        known = identity or response.type == "basic"
        self.length_is_exact = known and self.headers.get("content-encoding", "identity") == "identity"

    def close(self) -> None:
        if self._reader is not None:
            self._reader = None
            self._abort.abort()
