"""HTTP as the hub needs it: redirects that keep the token at home, what a response states about a file, and bodies
that survive interruptions. The clients (urllib3 in CPython, fetch in browsers, http of node) differ only in `request`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urljoin

from ..env import IN_NODE
from ..errors import AccessDeniedError, CorruptFileError, FileNotFoundInRepositoryError, InpageError, NetworkError
from ..runtime import IN_PYODIDE
from .chunk import Chunk
from .resolve import hub_origin, origin

OPEN_DELAYS = (0.3, 1.0)  # seconds before each new try to reach the host
RESUME_DELAYS = (0.3, 1.0, 2.0, 4.0)  # seconds before each resume that follows one without progress

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 8
_RETRIED = (408, 429, 500, 502, 503, 504)
_HUB_HEADERS = ("x-linked-size", "x-linked-etag", "x-repo-commit")
_TEXT = (".json", ".txt", ".jinja", ".md")
_HTML = re.compile(rb"\s*<(!doctype\s+html|html|head)\b", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9]{1,15}")


class Unreachable(Exception):
    """The host gave no response, or broke off the body. Both may pass."""


class Response(Protocol):
    """An open HTTP response of a client."""

    status: int
    url: str
    headers: dict[str, str]  # names in lower case
    length_is_exact: bool  # Content-Length, if stated, counts the bytes that `read` gives

    async def read(self) -> Chunk | None:
        """The next bytes, or None at the end. Raises `Unreachable` if the connection broke."""
        ...

    def close(self) -> None:
        """End the transfer. Safe to call twice."""
        ...


async def request(method: str, url: str, headers: Mapping[str, str] | None = None, token: str = "") -> Response:
    """Send a request and follow redirects. The token goes to the hub's host and nowhere else."""
    if IN_NODE:
        from . import node_client as client
    elif IN_PYODIDE:
        from . import fetch as client
    else:
        from . import urllib3_client as client

    linked: dict[str, str] = {}
    for _ in range(_MAX_REDIRECTS):
        if origin(url) != hub_origin():
            token = ""
        sent = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        response = await client.request(method, url, sent)
        if response.status not in _REDIRECTS or "location" not in response.headers:
            response.headers = {**response.headers, **linked}
            return response
        # A hub states the file's hash on its own redirect; the host it leads to does not know it.
        linked.update({name: response.headers[name] for name in _HUB_HEADERS if name in response.headers})
        response.close()
        try:
            url = urljoin(url, response.headers["location"])
        except ValueError as error:
            raise NetworkError(f"{url} leads to no address: {error}.", url=url) from error
    raise NetworkError(f"{url} redirects too many times.", url=url)


@dataclass(frozen=True)
class FileInfo:
    """What a response states about a file."""

    size: int | None = None  # of the whole file, where it is certain
    validator: str | None = None  # equal validators: equal bytes
    etag: str | None = None
    sha256: str | None = None
    commit: str | None = None

    @classmethod
    def of(cls, response: Response, asked_url: str, first: int | None = 0) -> FileInfo:
        """`first` is the byte that was asked to be the first one; None if the last one was given as well."""
        headers = response.headers
        etag = headers.get("etag")
        last_modified = headers.get("last-modified")
        strong = etag if etag and not etag.startswith("W/") else None
        # The plain ETag is a sha256 only where the hub itself answered: elsewhere 64 digits may be another hash.
        hashes = [headers.get("x-linked-etag"), etag if origin(response.url) == origin(asked_url) else None]
        digests = [value.strip('"') for value in hashes if value]
        return cls(
            size=_stated_size(response, first),
            validator=strong or last_modified,
            etag=(headers.get("x-linked-etag") or etag or last_modified),
            sha256=next((digest for digest in digests if _SHA256.fullmatch(digest)), None),
            commit=headers.get("x-repo-commit"),
        )


def _stated_size(response: Response, first: int | None) -> int | None:
    size = _content_range(response)[1]
    length = _number(response, "content-length") if response.length_is_exact else None
    if size is None and length is not None:
        # A host may hide Content-Range; the length of a partial response still tells the size.
        skipped = first if response.status == 206 else 0
        size = None if skipped is None else length + skipped
    linked = _number(response, "x-linked-size")
    if linked is not None and size is not None and linked != size:
        raise CorruptFileError(f"{response.url} has {size} bytes; the hub states {linked}.", url=response.url)
    return size if linked is None else linked


def _number(response: Response, header: str) -> int | None:
    """What a header states, None where it is no number."""
    value = response.headers.get(header, "")
    return int(value) if _NUMBER.fullmatch(value) else None


def _content_range(response: Response) -> tuple[int | None, int | None]:
    """First byte and total size that a partial response states, None where it does not."""
    match = re.fullmatch(r"bytes ([0-9]{1,15})-[0-9]+/([0-9]{1,15}|\*)", response.headers.get("content-range", ""))
    if response.status != 206 or not match:
        return None, None
    return int(match[1]), None if match[2] == "*" else int(match[2])


def compressible(url: str) -> bool:
    return url.endswith(_TEXT)


def sent_headers(method: str, url: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of a request by a client that adds none: text may come compressed, and what has a range never does."""
    encoding = "gzip" if method == "GET" and compressible(url) and "Range" not in headers else "identity"
    return {"User-Agent": "inpage", "Accept-Encoding": encoding, **headers}


def is_compressed(response: Response) -> bool:
    """Whether the client must unpack the body, by gzip. Raises NetworkError for what `sent_headers` never asks for."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding not in ("identity", "gzip", "x-gzip"):
        response.close()
        raise NetworkError(
            f"{response.url} came with the content encoding {encoding!r}, which was not asked for.", url=response.url
        )
    return encoding != "identity"


async def look(url: str, token: str) -> FileInfo:
    """What the host states about a file without sending it. Raises as `Body.open`."""
    # With a Range header the length is that of the file itself, not of a compressed form.
    headers = {"Range": "bytes=0-"}
    response = await _request_patiently("HEAD", url, headers, token)
    if response.status in (403, 405, 501):  # some hosts, and links signed for GET, know no HEAD
        response.close()
        response = await _request_patiently("GET", url, headers, token)
    try:
        if response.status == 416:  # an empty file has no byte 0
            return FileInfo(size=0)
        _check_status(response, url)
        _check_type(response, url)
        return FileInfo.of(response, url)
    finally:
        response.close()


class Body:
    """The bytes [start, stop) of a file on the web, in chunks. Resumes when the connection breaks."""

    def __init__(self, url: str, token: str, start: int = 0, stop: int | None = None) -> None:
        self._url, self._token, self._stop = url, token, stop
        self._response: Response | None = None
        self._skip = 0
        self.position = start
        self.info = FileInfo()

    async def open(self) -> FileInfo:
        """Send the request and check what comes back.

        Raises `FileNotFoundInRepositoryError`, `AccessDeniedError`, `NetworkError`, or `CorruptFileError` for an
        HTML page in the file's place.
        """
        headers = {}
        # A range is never compressed, so its length is known; text is worth compressing.
        if self.position or self._stop is not None or not compressible(self._url):
            headers["Range"] = f"bytes={self.position}-{'' if self._stop is None else self._stop - 1}"
        response = await _request_patiently("GET", self._url, headers, self._token)
        if response.status == 416 and self.position == 0:  # an empty file has no byte 0
            response.close()
            response = await _request_patiently("GET", self._url, {}, self._token)
        self._response = response
        try:
            if response.status == 416:
                raise CorruptFileError(f"{self._url} has no byte {self.position}.", url=self._url)
            _check_status(response, self._url)
            _check_type(response, self._url)
            self.info = FileInfo.of(response, self._url, self.position if self._stop is None else None)
            first = _content_range(response)[0]
            if first is not None and first != self.position:
                raise NetworkError(f"{self._url}: asked for byte {self.position}, got byte {first}.", url=self._url)
        except InpageError:
            self.close()
            raise
        self._skip = 0 if response.status == 206 else self.position
        return self.info

    def restart(self) -> None:
        """Take the file from its first byte, in the next `open`."""
        self.close()
        self.position = 0

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        failures = 0
        if self._response is None:
            await self.open()
        info = self.info
        try:
            while True:
                before = self.position
                broken = ""
                try:
                    async for chunk in self._rest():
                        yield chunk
                except Unreachable as error:
                    broken = str(error) or "the connection broke"
                if self._complete(broken):
                    return
                failures = 0 if self.position > before else failures + 1
                if failures > len(RESUME_DELAYS):
                    raise NetworkError(
                        f"{self._url} broke off at byte {self.position}: {broken}.",
                        hint="What has arrived is kept; load again to continue.",
                        url=self._url,
                        position=self.position,
                    )
                await pause(RESUME_DELAYS[max(0, failures - 1)])
                self.close()
                await self._reopen(info)
        finally:
            self.close()

    async def _rest(self) -> AsyncGenerator[Chunk, None]:
        """Chunks of the open response from `position` on."""
        assert self._response is not None
        while self._stop is None or self.position < self._stop:
            chunk = await self._response.read()
            if chunk is None:
                return
            if self._skip:
                skipped = min(self._skip, chunk.nbytes)
                self._skip -= skipped
                chunk = chunk.slice(skipped, chunk.nbytes)
            if self._stop is not None:
                chunk = chunk.slice(0, min(chunk.nbytes, self._stop - self.position))
            if chunk.nbytes == 0:
                continue
            if self.position == 0 and _HTML.match(chunk.slice(0, min(64, chunk.nbytes)).to_bytes()):
                raise _html_error(self._url)
            self.position += chunk.nbytes
            if self.info.size is not None and self.position > self.info.size:
                raise self._wrong_length("more")
            yield chunk

    def _complete(self, broken: str) -> bool:
        """Whether all bytes are here; raises if they never will be."""
        size = self.info.size
        if self._stop is not None and self.position >= min(self._stop, self._stop if size is None else size):
            return True
        if broken:
            return False
        if size is None or self.position == size:
            return True
        # The server ended the body in good order, yet too early.
        raise self._wrong_length(str(self.position))

    def _wrong_length(self, found: str) -> CorruptFileError:
        return CorruptFileError(
            f"{self._url} was stated to have {self.info.size} bytes; the host sent {found}.",
            url=self._url,
            expected=self.info.size,
        )

    async def _reopen(self, first: FileInfo) -> None:
        info = await self.open()
        both = [(first.size, info.size), (first.validator, info.validator)]
        if any(old is not None and new is not None and old != new for old, new in both):
            raise CorruptFileError(f"{self._url} changed while it was downloaded.", hint="Load again.", url=self._url)


async def pause(seconds: float) -> None:
    if IN_PYODIDE:
        import asyncio

        await asyncio.sleep(seconds)
    else:
        import time

        time.sleep(seconds)


async def _request_patiently(method: str, url: str, headers: Mapping[str, str], token: str) -> Response:
    """`request`, tried again where the failure may pass."""
    for delay in (*OPEN_DELAYS, None):
        if delay is None and headers.get("Range") == "bytes=0-":
            headers = {}  # browsers refuse a range that comes compressed; some hosts forbid the header to other origins
        try:
            response = await request(method, url, headers, token)
        except Unreachable as error:
            if delay is None:
                raise _unreachable_error(url, str(error)) from error
        else:
            if response.status not in _RETRIED or delay is None:
                return response
            response.close()
        await pause(delay)
    raise AssertionError


def _check_status(response: Response, url: str) -> None:
    status = response.status
    if status in (200, 206):
        return
    if status in (404, 410):
        raise FileNotFoundInRepositoryError(
            f"{url} does not exist.", hint="Check the model's name, the revision and the file.", url=url, status=status
        )
    if status in (401, 403):
        raise AccessDeniedError(
            f"{url} may not be read (HTTP {status}).",
            hint="The repository is private, gated, or does not exist; pass token= if you have access.",
            url=url,
            status=status,
        )
    raise NetworkError(f"{url} could not be read (HTTP {status}).", hint="Try again later.", url=url, status=status)


def _check_type(response: Response, url: str) -> None:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml"):
        raise _html_error(url)


def _html_error(url: str) -> CorruptFileError:
    return CorruptFileError(
        f"{url} is an HTML page, not a file of a model.",
        hint="A host that answers unknown paths with its start page does this; check the address and the login.",
        url=url,
        html=True,
    )


def _unreachable_error(url: str, reason: str) -> NetworkError:
    hint = "Check the connection and the address."
    if IN_PYODIDE:
        hint += " A host that sends no Access-Control-Allow-Origin header cannot be read from a page either."
    return NetworkError(f"{url} could not be reached: {reason}.", hint=hint, url=url)
