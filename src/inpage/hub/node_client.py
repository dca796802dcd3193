"""HTTP client of Pyodide under node: the module http(s), with the body read chunk by chunk as Uint8Arrays.

Not node's `fetch`: its client (undici 7, https://github.com/nodejs/undici/issues/5360) ends the whole process where a
server closes the connection of a response that is read slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import js  # pyright: ignore[reportMissingImports]
from pyodide.ffi import JsException, to_js  # pyright: ignore[reportMissingImports]

from ..errors import NetworkError
from .chunk import Chunk
from .disk import node_module
from .transport import Unreachable, compressible

_IDLE_MILLISECONDS = 60_000


async def request(method: str, url: str, headers: Mapping[str, str]) -> NodeResponse:
    encoding = "gzip" if method == "GET" and compressible(url) and "Range" not in headers else "identity"
    sent = {"User-Agent": "inpage", "Accept-Encoding": encoding, **headers}
    client = node_module("https" if urlsplit(url).scheme == "https" else "http")
    options = to_js({"method": method, "headers": sent}, dict_converter=js.Object.fromEntries)
    try:
        outgoing = client.request(url, options)
    except JsException as error:  # not an address of the web
        raise Unreachable(error.message) from error
    outgoing.on("error", js.Function.prototype)  # a function that does nothing: node ends at an error nobody listens to
    idle = js.Error.new(f"nothing came for {_IDLE_MILLISECONDS // 1000} s")
    outgoing.setTimeout(_IDLE_MILLISECONDS, outgoing.destroy.bind(outgoing, idle))
    answer = node_module("events").once(outgoing, "response")
    outgoing.end()
    try:
        (incoming,) = await answer
    except JsException as error:
        raise Unreachable(error.message) from error
    except BaseException:  # cancelled
        outgoing.destroy()
        raise
    return NodeResponse(incoming, url, has_body=method != "HEAD")


class NodeResponse:
    def __init__(self, incoming: Any, url: str, *, has_body: bool) -> None:
        self._incoming = incoming
        self.status: int = incoming.statusCode
        self.url = url
        self.headers: dict[str, str] = incoming.headers.to_py()
        encoding = self.headers.get("content-encoding", "identity")
        if encoding not in ("identity", "gzip", "x-gzip"):
            self.close()
            raise NetworkError(f"{url} came with the content encoding {encoding!r}, which was not asked for.", url=url)
        self.length_is_exact = encoding == "identity"
        self._reader = None
        if not has_body:
            incoming.resume()
            return
        body = node_module("stream").Readable.toWeb(incoming)
        if not self.length_is_exact:
            body = body.pipeThrough(js.DecompressionStream.new("gzip"))
        self._reader = body.getReader()

    async def read(self) -> Chunk | None:
        if self._reader is None:
            return None
        try:
            result = await self._reader.read()
        except JsException as error:
            raise Unreachable(error.message) from error
        return None if result.done else Chunk(result.value)

    def close(self) -> None:
        self._reader = None
        self._incoming.destroy()
