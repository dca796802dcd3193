"""A deliberately bad server. The first part of the path names what goes wrong, the rest what is asked for:

    http://127.0.0.1:port/cut/org/name/resolve/main/model.safetensors

so that `env.remote_host = server.url + "cut/"` makes a hub with that fault. `server.requests` records what was asked.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from inpage.serve import Handler, Server, Site

HTML = b"<!DOCTYPE html><html><title>Welcome</title><p>You are not logged in.</html>"
CUT = 0.6  # part of the file after which the connection is cut


@dataclass
class Request:
    method: str
    fault: str
    path: str
    headers: dict[str, str]

    @property
    def file(self) -> str:
        return self.path.rpartition("/")[2]


class FaultyHandler(Handler):
    server: FaultyServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.body_limit: float | None = None
        self.fault = ""
        super().__init__(*arguments, **options)

    def answer(self, with_body: bool) -> None:
        self.body_limit = None
        self.fault, _, rest = self.path.lstrip("/").partition("/")
        self.path = "/" + rest
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Request(self.command, self.fault, self.path, headers))
        if self.server.is_down:
            self.close_connection = True
            return
        self.count = self.server.count(self.command, self.fault, self.path)
        act = getattr(self, "fault_" + self.fault.replace("-", "_"), None)
        (act or super().answer)(with_body)

    # Each of these is a fault; "ok" has none, "missing" asks for what is not there. Only bodies are ever cut.

    def fault_cut(self, with_body: bool) -> None:
        """The first answer breaks off; ranges work."""
        self.body_limit = CUT if self.count == 1 else None
        super().answer(with_body)

    def fault_closing(self, with_body: bool) -> None:
        """No fault of the host's: it keeps no connection."""
        self.close_connection = True
        super().answer(with_body)

    fault_cut_and_changed = fault_cut  # ... and later answers state another hash

    def fault_cut_then_whole(self, with_body: bool) -> None:
        """The first answer breaks off, and there are no ranges."""
        self.body_limit = CUT if self.count == 1 else None
        self.fault_no_range(with_body)

    def fault_cut_always(self, with_body: bool) -> None:
        """Each answer breaks off at the same byte, and there are no ranges."""
        self.body_limit = CUT
        self.fault_no_range(with_body)

    def fault_short(self, with_body: bool) -> None:
        """The file ends before the stated length, and the host knows no byte behind that."""
        if self.count > 1 and "Range" in self.headers:
            self.refuse(416, with_body)
            return
        self.body_limit = CUT
        super().answer(with_body)

    def fault_no_range(self, with_body: bool) -> None:
        del self.headers["Range"]
        super().answer(with_body)

    def fault_no_head(self, with_body: bool) -> None:
        if not with_body:
            self.refuse(405, with_body)
            return
        super().answer(with_body)

    def fault_denied(self, with_body: bool) -> None:
        self.refuse(401, with_body)

    def fault_forbidden(self, with_body: bool) -> None:
        self.refuse(403, with_body)

    def fault_busy(self, with_body: bool) -> None:
        """Overloaded at first."""
        if self.count == 1:
            self.refuse(503, with_body)
            return
        super().answer(with_body)

    def fault_html(self, with_body: bool) -> None:
        self.send_whole(HTML, {"Content-Type": "text/html; charset=utf-8"}, with_body)

    def fault_html_unlabelled(self, with_body: bool) -> None:
        self.send_whole(HTML, {"Content-Type": "application/octet-stream"}, with_body)

    def fault_gzip(self, with_body: bool) -> None:
        """Everything compressed, asked for or not, and no length stated."""
        found = self.site.find(self.path)
        if found is None:
            super().answer(with_body)
            return
        self.begin(200, {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip", "Connection": "close"})
        self.close_connection = True
        if with_body:
            with open(found[0], "rb") as file:
                self.wfile.write(gzip.compress(file.read(), 1))

    def fault_redirect(self, with_body: bool) -> None:
        """Files lie on another host, which does not know their hash."""
        found = self.site.find(self.path)
        if found is None:
            super().answer(with_body)
            return
        stated = self.describe(found[0], is_model=True)
        kept = {name: value for name, value in stated.items() if name.startswith("X-")}
        target = self.server.other_host + "ok" + self.path
        self.begin(302, {"Location": target, "Content-Length": "0", **kept})

    def fault_redirect_nowhere(self, with_body: bool) -> None:
        self.begin(302, {"Location": "http://[", "Content-Length": "0"})

    def fault_odd_length(self, with_body: bool) -> None:
        """The length is no number."""
        found = self.site.find(self.path)
        assert found is not None
        self.begin(200, {"Content-Length": "many", "X-Linked-Size": "\xb2", "Connection": "close"})
        self.close_connection = True
        if with_body:
            with open(found[0], "rb") as file:
                self.wfile.write(file.read())

    def describe(self, path: str, is_model: bool) -> dict[str, str]:
        headers = super().describe(path, is_model)
        if self.fault == "wrong-length":
            headers["X-Linked-Size"] = str(int(headers.get("X-Linked-Size", "0")) + 100)
        if self.fault == "wrong-hash":
            headers["X-Linked-ETag"] = f'"{"0" * 64}"'
        if self.fault == "cut-and-changed" and self.count > 1:
            headers["ETag"] = headers["X-Linked-ETag"] = f'"{"1" * 64}"'
        return headers

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        if self.fault == "no-validator":
            headers = {name: value for name, value in headers.items() if "ETag" not in name and name != "Last-Modified"}
        if self.fault == "closing":
            headers = {**headers, "Connection": "close"}
        super().begin(status, headers)

    def send_cross_origin_headers(self) -> None:
        if self.path.startswith("/no-cors/") or self.fault == "no-cors":
            return
        super().send_cross_origin_headers()

    def send_whole(self, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.begin(200, {**headers, "Content-Length": str(len(body))})
        if with_body:
            self.wfile.write(body)

    def send_body(self, file: Any, nbytes: int) -> None:
        if self.body_limit is not None:
            super().send_body(file, int(nbytes * self.body_limit))
            self.close_connection = True
            time.sleep(0.2)  # a browser drops what it has not handed on when a connection breaks
            return
        if self.fault != "slow":
            super().send_body(file, nbytes)
            return
        while nbytes > 0:
            block = file.read(min(nbytes, 1 << 16))
            self.wfile.write(block)
            nbytes -= len(block)
            time.sleep(0.05)


class FaultyServer(Server):
    """Serves `models` (name -> folder) with every fault there is."""

    def __init__(self, models: dict[str, str]) -> None:
        super().__init__(Site("/nonexistent", models), quiet=True, handler=FaultyHandler)
        self.requests: list[Request] = []
        self.is_down = False  # True: connections are closed without an answer
        self._counts: Counter[tuple[str, str, str]] = Counter()

    @property
    def other_host(self) -> str:
        """The same server under another host name."""
        return f"http://localhost:{self.server_address[1]}/"

    def count(self, *key: str) -> int:
        self._counts[key] += 1  # pyright: ignore[reportArgumentType]
        return self._counts[key]  # pyright: ignore[reportArgumentType]

    def downloads(self, file: str) -> list[Request]:
        return [request for request in self.requests if request.method == "GET" and request.file == file]


@contextmanager
def faulty_server(models: dict[str, str]) -> Iterator[FaultyServer]:
    with FaultyServer(models) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
