"""A small development server: a folder as a cross-origin isolated site, and local model folders in a hub's layout.

    python -m inpage.serve --port 8000 --models sentence-transformers/all-MiniLM-L6-v2=models/minilm site

serves `site` at / and the model at /sentence-transformers/all-MiniLM-L6-v2/resolve/main/..., so that a page on it
needs `env.remote_host = "/"` only. Ranges, ETags, and sha256 of large files are stated as a hub states them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from .hub.resolve import stays_inside

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".wav": "audio/wav",
    ".webp": "image/webp",
    ".whl": "application/zip",
    ".zip": "application/zip",
}
_EXPOSED = "Accept-Ranges, Content-Encoding, Content-Range, ETag, X-Linked-ETag, X-Linked-Size, X-Repo-Commit"
_HUB_PATH = re.compile(r"(?P<name>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_LARGE = 1 << 20  # a hub keeps larger files, and weights, apart, and states their sha256
_BLOCK = 1 << 18


class Site:
    """What is served: a folder, model folders by name, and whether pages are cross-origin isolated."""

    def __init__(self, folder: str, models: Mapping[str, str] | None = None, isolation: bool = True) -> None:
        self.folder, self.models, self.isolation = folder, dict(models or {}), isolation
        self._hashes: dict[tuple[str, int, int], str] = {}
        self._lock = threading.Lock()

    def find(self, path: str) -> tuple[str, bool] | None:
        """Path on disk of what the (quoted) URL path `path` means, and whether it is a file of a model."""
        match = _HUB_PATH.fullmatch(path.lstrip("/"))
        if match and unquote(match["name"]) in self.models:
            file = _inside(self.models[unquote(match["name"])], unquote(match["file"]))
            return (file, True) if file else None
        path = unquote(path).lstrip("/")
        if path == "" or path.endswith("/"):
            path += "index.html"
        file = _inside(self.folder, path)
        return (file, False) if file else None

    def sha256(self, path: str) -> str:
        """Hash of a file, computed once for each version of it."""
        status = os.stat(path)
        key = (path, status.st_size, status.st_mtime_ns)
        with self._lock:
            if key not in self._hashes:
                with open(path, "rb") as file:
                    self._hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
            return self._hashes[key]


def _inside(folder: str, path: str) -> str | None:
    """The file `path` of `folder`, if it is a file and the path does not lead out of it.

    Links are followed: the folders of hub caches are made of them.
    """
    if not stays_inside(path):
        return None
    found = os.path.join(folder, *path.split("/"))
    return found if os.path.isfile(found) else None


class Handler(BaseHTTPRequestHandler):
    """Answers GET, HEAD and OPTIONS for a `Site`."""

    protocol_version = "HTTP/1.1"
    server_version = "inpage"
    # An answer is several small writes; without this, each waits for the last one's acknowledgement.
    disable_nagle_algorithm = True

    def __init__(self, site: Site, *arguments: object, quiet: bool = False) -> None:
        self.site, self.quiet = site, quiet
        super().__init__(*arguments)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_OPTIONS(self) -> None:
        self.begin(HTTPStatus.NO_CONTENT, {"Access-Control-Allow-Methods": "GET, HEAD, OPTIONS"})

    def answer(self, with_body: bool) -> None:
        found = self.site.find(urlsplit(self.path).path)
        if found is None:
            self.refuse(HTTPStatus.NOT_FOUND, with_body)
            return
        path, is_model = found
        size = os.path.getsize(path)
        headers = self.describe(path, is_model)
        if self.headers.get("If-None-Match") == headers["ETag"]:
            self.begin(HTTPStatus.NOT_MODIFIED, headers)
            return
        try:
            span = self.requested_range(size, headers["ETag"])
        except ValueError:
            headers["Content-Range"] = f"bytes */{size}"
            self.refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, with_body, headers)
            return
        start, stop = span or (0, size)
        if span:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        headers["Content-Length"] = str(stop - start)
        self.begin(HTTPStatus.PARTIAL_CONTENT if span else HTTPStatus.OK, headers)
        if with_body:
            with open(path, "rb") as file:
                file.seek(start)
                self.send_body(file, stop - start)

    def describe(self, path: str, is_model: bool) -> dict[str, str]:
        """Headers of a file apart from those of its body."""
        status = os.stat(path)
        suffix = os.path.splitext(path)[1].lower()
        headers = {
            "Content-Type": _TYPES.get(suffix, "application/octet-stream"),
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
            "ETag": f'"{status.st_mtime_ns:x}-{status.st_size:x}"',
            "Accept-Ranges": "bytes",
        }
        if is_model and (status.st_size >= _LARGE or suffix == ".safetensors"):
            headers["ETag"] = headers["X-Linked-ETag"] = f'"{self.site.sha256(path)}"'
            headers["X-Linked-Size"] = str(status.st_size)
        return headers

    def requested_range(self, size: int, etag: str) -> tuple[int, int] | None:
        """First byte and end of the one range asked for; None for the whole file. ValueError if it is not there."""
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not match or match[0] == "bytes=-" or self.headers.get("If-Range", etag) != etag:
            return None
        if match[1]:
            start, stop = int(match[1]), int(match[2]) + 1 if match[2] else size
        else:
            start, stop = max(0, size - int(match[2])), size
        if start >= min(stop, size):
            raise ValueError("the range holds no byte")
        return start, min(stop, size)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer."""
        self.send_response(status)
        self.send_cross_origin_headers()
        self.send_header("Cache-Control", "no-cache")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def send_cross_origin_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Headers", "Authorization, If-None-Match, If-Range, Range")
        self.send_header("Access-Control-Expose-Headers", _EXPOSED)
        self.send_header("Cross-Origin-Resource-Policy", "cross-origin")
        if self.site.isolation:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")

    def send_body(self, file: BinaryIO, nbytes: int) -> None:
        while nbytes > 0:
            block = file.read(min(_BLOCK, nbytes))
            if not block:  # the file was cut just now
                self.close_connection = True
                return
            self.wfile.write(block)
            nbytes -= len(block)

    def refuse(self, status: int, with_body: bool, headers: Mapping[str, str] | None = None) -> None:
        body = f"{int(status)} {HTTPStatus(status).phrase}\n".encode()
        kind = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body))}
        self.begin(status, {**kind, **(headers or {})})
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        if not self.quiet:
            super().log_message(format, *arguments)


class Server(ThreadingHTTPServer):
    """Serves a `Site`. Port 0 takes a free one; `url` tells which."""

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0, *, quiet: bool = False, handler: type[Handler] = Handler) -> None:
        self.site = site
        super().__init__(("127.0.0.1", port), partial(handler, site, quiet=quiet))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may leave at any time: that is no error of the server."""
        import sys

        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]


def _model(argument: str) -> tuple[str, str]:
    name, separator, folder = argument.partition("=")
    if not separator or not os.path.isdir(folder) or not re.fullmatch(r"[^/]+(/[^/]+)?", name):
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=FOLDER with an existing folder")
    return name, folder


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m inpage.serve", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", default=".", help="folder of the site (default: the current one)")
    parser.add_argument("--port", type=int, default=8000, help="port on this machine (0: any free one)")
    parser.add_argument("--no-isolation", action="store_true", help="send no COOP and COEP headers")
    parser.add_argument(
        "--models",
        action="append",
        default=[],
        type=_model,
        metavar="NAME=FOLDER",
        help="serve FOLDER as the repository NAME (may be given several times)",
    )
    options = parser.parse_args(arguments)
    if not os.path.isdir(options.folder):
        parser.error(f"{options.folder!r} is not a folder")
    site = Site(options.folder, dict(options.models), isolation=not options.no_isolation)
    with Server(site, options.port) as server:
        print(f"Serving {options.folder} at {server.url} (Ctrl+C ends it)", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
