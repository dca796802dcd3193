"""The hub in Pyodide under node: fetch, and the store on the real disk."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import FaultyServer, faulty_server

ROOT = Path(__file__).resolve().parent.parent.parent
RUNTIME = Path(os.environ.get("INPAGE_RUNTIME", ROOT / "dist" / "runtime"))
NAME = "org/tiny"
SEGMENT = 1 << 16
WEIGHTS = bytes(hashlib.shake_256(b"weights").digest(5 * SEGMENT + 1234))
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()

SCRIPT = """
import { pathToFileURL } from "node:url";
const [runtime, code] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(runtime + "/pyodide.mjs").href);
const pyodide = await loadPyodide({ indexURL: runtime, packages: ["inpage"], stdout: console.error });
console.log(await pyodide.runPythonAsync(code));
"""

PRELUDE = """
import asyncio, hashlib, json
import inpage.hub.store as store, inpage.hub.transport as transport
from inpage import env
from inpage.errors import InpageError
from inpage.hub import Repository, list_cached

store.SEGMENT = 1 << 16
transport.OPEN_DELAYS, transport.RESUME_DELAYS = (0, 0), (0, 0, 0, 0)

async def load(fault, name="org/tiny", started=None, delay=0, **options):
    env.remote_host = url + fault + "/"
    digest = hashlib.sha256()
    try:
        async with Repository(name, **options).stream("model.safetensors") as chunks:
            await asyncio.sleep(delay)
            async for chunk in chunks:
                digest.update(chunk.to_bytes())
                if started:
                    started.set()
                await asyncio.sleep(delay)
        return digest.hexdigest()
    except InpageError as error:
        return error.code

async def main():
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    with faulty_server({NAME: str(folder)}) as server:
        yield server


def run(body: str, server: FaultyServer, tmp_path: Path) -> Any:
    """What the body of an async function returns, in a process of its own."""
    settings = f"url = {server.url!r}\n"
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    code = settings + PRELUDE + f"    env.cache_dir = {str(tmp_path / 'cache')!r}\n" + indented
    script = tmp_path / "run.mjs"
    script.write_text(SCRIPT)
    node = shutil.which("node")
    assert node, "no node found; install the package nodejs"
    command = [node, str(script), str(RUNTIME), code + "\njson.dumps(await main())"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_downloads_are_kept_on_disk(server: FaultyServer, tmp_path: Path) -> None:
    body = """
results = [await load("ok"), await load("ok")]
made = Repository("org/tiny")
return [*results, (await made.json("config.json"))["model_type"],
        await made.json("absent.json", required=False), len(await list_cached())]
"""
    assert run(body, server, tmp_path) == [SHA256, SHA256, "bert", None, 2]
    assert len(server.downloads("model.safetensors")) == 1
    names = [path.name.rpartition(".")[2] for path in (tmp_path / "cache" / "inpage").iterdir()]
    assert sorted(names) == sorted(["0", "manifest", "manifest", *"012345", "manifest"])
    server.is_down = True
    asked = len(server.requests)
    assert run(body, server, tmp_path) == [SHA256, SHA256, "bert", None, 2]  # another process, without a network
    assert len(server.requests) == asked


def test_faults(server: FaultyServer, tmp_path: Path) -> None:
    faults = ["cut", "gzip", "redirect", "wrong-hash", "wrong-length", "html", "denied", "cut-always"]
    body = f"""
results = {{}}
for fault in {faults!r}:
    results[fault] = await load(fault, token="secret")
complete = [entry["url"] for entry in await list_cached() if entry["complete"]]
shared = await asyncio.gather(load("slow"), load("slow"))
started = asyncio.Event()
task = asyncio.ensure_future(load("slow", revision="v2", started=started))
await started.wait()
task.cancel()
await asyncio.gather(task, return_exceptions=True)
return [results, len(complete), shared, task.cancelled(), await load("slow", revision="v2")]
"""
    results, complete, shared, cancelled, resumed = run(body, server, tmp_path)
    assert results == {
        "cut": SHA256,
        "gzip": SHA256,
        "redirect": SHA256,
        "wrong-hash": "corrupt_file",
        "wrong-length": "corrupt_file",
        "html": "corrupt_file",
        "denied": "access_denied",
        "cut-always": "network",
    }
    assert complete == 3
    assert shared == [SHA256] * 2 and cancelled and resumed == SHA256
    slow = [request.path for request in server.downloads("model.safetensors") if request.fault == "slow"]
    assert len([path for path in slow if "/main/" in path]) == 1
    followed = [request.headers.get("authorization") for request in server.requests if request.fault == "ok"]
    assert followed == [None]


def test_reading_slower_than_the_host_sends(server: FaultyServer, tmp_path: Path) -> None:
    """The connection is closed while most of the body waits to be read."""
    results = run('return [await load("closing", delay=0.1), await load("cut", delay=0.1)]', server, tmp_path)
    assert results == [SHA256, SHA256]


def test_folders_of_the_disk(server: FaultyServer, tmp_path: Path) -> None:
    body = f"""
env.local_model_path = {str(tmp_path)!r}
by_path = Repository({str(tmp_path / "model")!r})
return [await load("ok", {str(tmp_path / "model")!r}), await load("ok", "model"),
        await by_path.size("model.safetensors"), (await by_path.json("config.json"))["model_type"],
        await by_path.exists("absent.json")]
"""
    assert run(body, server, tmp_path) == [SHA256, SHA256, len(WEIGHTS), "bert", False]
    assert not server.requests
