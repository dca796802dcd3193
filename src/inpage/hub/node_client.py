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

from .disk import node_module
from .fetch import StreamedBody
from .transport import Unreachable, is_compressed, sent_headers

_IDLE_MILLISECONDS = 60_000


async def request(method: str, url: str, headers: Mapping[str, str]) -> NodeResponse:
    client = node_module("https" if urlsplit(url).scheme == "https" else "http")
    options = to_js(
        {"method": method, "headers": sent_headers(method, url, headers)}, dict_converter=js.Object.fromEntries
    )
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


class NodeResponse(StreamedBody):
    def __init__(self, incoming: Any, url: str, *, has_body: bool) -> None:
        self._incoming = incoming
        self.status: int = incoming.statusCode
        self.url = url
        self.headers: dict[str, str] = incoming.headers.to_py()
        self.length_is_exact = not is_compressed(self)
        if not has_body:
            incoming.resume()
            return
        body = node_module("stream").Readable.toWeb(incoming)
        if not self.length_is_exact:
            body = body.pipeThrough(js.DecompressionStream.new("gzip"))
        self._reader = body.getReader()

    def close(self) -> None:
        self._reader = None
        self._incoming.destroy()
