"""HTTP client of Pyodide, in browsers and under node: `fetch`, with the body read chunk by chunk as Uint8Arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import js  # pyright: ignore[reportMissingImports]
from pyodide.ffi import JsException, to_js  # pyright: ignore[reportMissingImports]

from ..env import IN_NODE, env
from .chunk import Chunk
from .transport import Unreachable

CHUNK = 1 << 18  # bytes; a body left to itself comes in pieces of a quarter of that, each of which takes its time


class ByteReader:
    """Reads a stream in pieces of CHUNK bytes, the last one shorter; as they come where an engine cannot."""

    def __init__(self, stream: Any) -> None:
        try:
            self._reader = stream.getReader(to_js({"mode": "byob"}, dict_converter=js.Object.fromEntries))
            self._least = to_js({"min": CHUNK}, dict_converter=js.Object.fromEntries)
        except JsException:
            self._reader, self._least = stream.getReader(), None

    async def read(self) -> Any:
        """A Uint8Array, empty or None at the end."""
        if self._least is None:
            return (await self._reader.read()).value
        return (await self._reader.read(js.Uint8Array.new(CHUNK), self._least)).value


async def request(method: str, url: str, headers: Mapping[str, str]) -> FetchResponse:
    abort = js.AbortController.new()
    init: dict[str, Any] = {"method": method, "headers": dict(headers), "signal": abort.signal}
    if IN_NODE:
        init["redirect"] = "manual"  # its responses can be read there, and the hub's headers with them
    elif env.use_browser_cache:
        init["cache"] = "no-store"  # the store keeps the file; the browser's own cache need not
    try:
        response = await js.fetch(url, to_js(init, dict_converter=js.Object.fromEntries))
    except JsException as error:
        raise Unreachable(error.message) from error
    except BaseException:  # cancelled
        abort.abort()
        raise
    return FetchResponse(response, abort, identity="Range" in headers)


class FetchResponse:
    def __init__(self, response: Any, abort: Any, *, identity: bool) -> None:
        self._abort = abort
        self._reader = ByteReader(response.body) if response.body else None
        self.status: int = response.status
        self.url: str = response.url
        self.headers = {entry[0].lower(): entry[1] for entry in response.headers}
        # A response of another origin hides its Content-Encoding; a range is always asked for without one.
        known = identity or response.type == "basic" or IN_NODE
        self.length_is_exact = known and self.headers.get("content-encoding", "identity") == "identity"

    async def read(self) -> Chunk | None:
        if self._reader is None:
            return None
        try:
            value = await self._reader.read()
        except JsException as error:
            raise Unreachable(error.message) from error
        return Chunk(value) if value and value.byteLength else None

    def close(self) -> None:
        if self._reader is not None:
            self._reader = None
            self._abort.abort()
