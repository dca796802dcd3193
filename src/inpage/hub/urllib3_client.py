"""HTTP client of CPython: blocking requests by urllib3, behind coroutines that never suspend."""

from __future__ import annotations

import urllib.request
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import urllib3

from .chunk import Chunk
from .transport import Unreachable, is_compressed, sent_headers

_TIMEOUT = urllib3.Timeout(connect=15, read=60)
_CHUNK = 1 << 18


@lru_cache
def _pool(proxy: str) -> Any:
    options: dict[str, Any] = {"timeout": _TIMEOUT, "maxsize": 8}
    return urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)


def _proxy(url: str) -> str:
    parts = urlsplit(url)
    if not parts.hostname or urllib.request.proxy_bypass(parts.hostname):
        return ""
    return urllib.request.getproxies().get(parts.scheme, "")


async def request(method: str, url: str, headers: Mapping[str, str]) -> Urllib3Response:
    sent = sent_headers(method, url, headers)
    try:
        response = _pool(_proxy(url)).request(
            method, url, headers=sent, redirect=False, retries=False, preload_content=False, decode_content=False
        )
    except urllib3.exceptions.HTTPError as error:
        raise Unreachable(str(error)) from error
    return Urllib3Response(response, url, has_ended=method == "HEAD")


class Urllib3Response:
    def __init__(self, response: Any, url: str, *, has_ended: bool) -> None:
        self._response = response
        self._has_ended = has_ended
        self.status: int = response.status
        self.url = url
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._gzip = zlib.decompressobj(31) if is_compressed(self) else None
        self.length_is_exact = self._gzip is None

    async def read(self) -> Chunk | None:
        while True:
            try:
                data = self._response.read(_CHUNK)
            except urllib3.exceptions.HTTPError as error:
                raise Unreachable(str(error)) from error
            self._has_ended = not data
            if self._gzip is None:
                return Chunk.from_bytes(data) if data else None
            if not data:
                if not self._gzip.eof:
                    raise Unreachable("the compressed body broke off")
                return None
            data = self._gzip.decompress(data)
            if data:
                return Chunk.from_bytes(data)

    def close(self) -> None:
        if self._has_ended:
            self._response.drain_conn()
            self._response.release_conn()
        else:
            self._response.close()  # the rest of the body is still on the connection
