"""The development server."""

import hashlib
import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inpage.serve import Server, Site, main

BIG = bytes(range(256)) * 8192


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("serve")
    site, model = root / "site", root / "model"
    for folder in (site / "sub", model / "onnx"):
        folder.mkdir(parents=True)
    (root / "secret.txt").write_text("secret")
    (site / "index.html").write_text("<!doctype html>home")
    (site / "sub" / "index.html").write_text("<!doctype html>sub")
    for name in ("x.wasm", "x.mjs", "x.whl", "x y.json", "big.bin"):
        (site / name).write_bytes(b"0123456789")
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(BIG)
    (model / "onnx" / "a.bin").write_bytes(b"a")
    with Server(Site(str(site), {"org/name": str(model), "gpt2": str(model)}), quiet=True) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    found = {name.lower(): value for name, value in response.getheaders()}
    body = response.read()
    connection.close()
    return response.status, found, body


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/sub/", "text/html; charset=utf-8"),
        ("/x.wasm", "application/wasm"),
        ("/x.mjs", "text/javascript; charset=utf-8"),
        ("/x.whl", "application/zip"),
        ("/x%20y.json?v=1", "application/json"),
        ("/big.bin", "application/octet-stream"),
    ],
)
def test_files_have_types_and_isolation(server: Server, path: str, kind: str) -> None:
    status, headers, body = ask(server, path)
    assert (status, headers["content-type"]) == (200, kind)
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-embedder-policy"] == "require-corp"
    assert headers["access-control-allow-origin"] == "*"
    assert int(headers["content-length"]) == len(body) > 0


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/sub/../../secret.txt",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/org/name/resolve/main/../../secret.txt",
        "/org/name/resolve/main/%2e%2e/secret.txt",
        "/org/name/resolve/main/..%2fsecret.txt",
        "/org/name/resolve/main//etc/passwd",
        "/sub/%00",
        "/sub",
        "/none.txt",
    ],
)
def test_nothing_outside_the_folders(server: Server, path: str) -> None:
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/org/name/resolve/main/config.json",
        "/org/name/resolve/refs%2Fpr%2F1/config.json",
        "/gpt2/resolve/main/config.json",
        "/org%2Fname/resolve/main/onnx/a.bin",
    ],
)
def test_hub_layout(server: Server, path: str) -> None:
    assert ask(server, path)[0] == 200


def test_large_files_state_their_hash(server: Server) -> None:
    status, headers, body = ask(server, "/org/name/resolve/main/model.safetensors", "HEAD")
    assert status == 200 and body == b""
    assert headers["x-linked-etag"] == headers["etag"] == f'"{hashlib.sha256(BIG).hexdigest()}"'
    assert headers["x-linked-size"] == headers["content-length"] == str(len(BIG))
    exposed = headers["access-control-expose-headers"].lower()
    assert all(name in exposed for name in ("etag", "x-linked-etag", "content-range"))
    assert "x-linked-etag" not in ask(server, "/org/name/resolve/main/config.json")[1]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("bytes=0-", (0, 10)),
        ("bytes=2-4", (2, 5)),
        ("bytes=7-99", (7, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
    ],
)
def test_ranges(server: Server, asked: str, expected: tuple[int, int]) -> None:
    start, stop = expected
    status, headers, body = ask(server, "/big.bin", Range=asked)
    assert (status, body) == (206, b"0123456789"[start:stop])
    assert headers["content-range"] == f"bytes {start}-{stop - 1}/10"


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=5-3", "bytes=-0"])
def test_ranges_that_hold_nothing(server: Server, asked: str) -> None:
    status, headers, _ = ask(server, "/big.bin", Range=asked)
    assert (status, headers["content-range"]) == (416, "bytes */10")


@pytest.mark.parametrize("asked", ["bytes=-", "bytes=1-2,4-5", "lines=1-2"])
def test_other_ranges_get_the_whole_file(server: Server, asked: str) -> None:
    assert ask(server, "/big.bin", Range=asked)[::2] == (200, b"0123456789")


def test_conditions(server: Server) -> None:
    etag = ask(server, "/big.bin")[1]["etag"]
    assert ask(server, "/big.bin", If_None_Match=etag)[::2] == (304, b"")
    assert ask(server, "/big.bin", Range="bytes=1-", If_Range=etag)[0] == 206
    assert ask(server, "/big.bin", Range="bytes=1-", If_Range='"other"')[0] == 200


def test_preflight(server: Server) -> None:
    status, headers, _ = ask(server, "/big.bin", "OPTIONS")
    assert status == 204
    assert "authorization" in headers["access-control-allow-headers"].lower()


def test_without_isolation(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with Server(Site(str(tmp_path), isolation=False), quiet=True) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        headers = ask(server, "/a.txt")[1]
        server.shutdown()
    assert "cross-origin-opener-policy" not in headers and "cross-origin-embedder-policy" not in headers


@pytest.mark.parametrize("arguments", [["--models", "name"], ["--models", "a/b/c=."], ["/not/there"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "not" in capsys.readouterr().err
