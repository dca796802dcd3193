"""The harness that drives our engine and others in one Chromium: a folder of its own, set up once by its
`run.py --setup`, whose Python environment these benchmarks run in.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options of all that compares engines."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--peers", type=Path, required=True, help="folder of the harness")
    made.add_argument("--work", type=Path, default=cache / "inpage-peers", help="what its --setup made")
    made.add_argument("--site", type=Path, help="page, worker and runtime; built if it is not given")
    made.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--quick", action="store_true")
    return made


def enter(arguments: argparse.Namespace) -> None:
    """Go on in the harness's environment, with a site of the sources as they are.

    INPAGE_PYTHON is from then on the Python that has what inpage needs.
    """
    python = arguments.work / "venv" / "bin" / "python"
    if Path(sys.prefix) == arguments.work / "venv":
        return
    extra = [] if arguments.site else ["--site", str(build_site())]
    os.environ["INPAGE_PYTHON"] = sys.executable
    os.execv(python, [str(python), *sys.argv, *extra])


def build_site() -> Path:
    """The site without models."""
    sys.path.insert(0, str(ROOT))
    from tests import environment

    environment.ensure()
    import build_wheels
    from web.demo import build_site

    build_wheels.build("runtime")
    return build_site(build_wheels.DIST / "bench", build_wheels.DIST / "runtime", {})


@contextmanager
def engines(arguments: argparse.Namespace) -> Iterator[tuple[Any, Any, Any]]:
    """The harness's module `run`, a browser at its pages, and its reference outputs.

    The browser notes in `fetched` how many bytes the server sent for each visit.
    """
    peers, work = arguments.peers.resolve(), arguments.work
    sys.path.insert(0, str(peers))
    harness = import_module("run")
    chrome: Any = import_module("chrome")
    server: Any = import_module("server")
    server.Handler, browser_class = _counting(server.Handler, chrome.Chrome)
    mounts = {
        "/": peers / "web",
        "/npm/": work / "npm" / "node_modules",
        "/models/": work / "models",
        "/ours/": arguments.site,
        "/bench/": Path(__file__).parent,
    }
    base, stop = server.serve(mounts, work / "hub")
    try:
        with browser_class(base) as browser:
            yield harness, browser, json.loads((peers / "reference.json").read_text())
    finally:
        stop()


def _counting(handler: Any, browser: Any) -> tuple[Any, Any]:
    """The harness's classes of its server and its browser, which count bytes."""
    sent = [0]

    class Handler(handler):
        def send_header(self, keyword: str, value: str) -> None:
            if keyword == "Content-Length" and self.command == "GET":
                sent[0] += int(value)
            super().send_header(keyword, value)

    class Browser(browser):
        fetched: ClassVar[list[int]] = []

        def visit(self, *arguments: Any, **options: Any) -> Any:
            before = sent[0]
            try:
                return super().visit(*arguments, **options)
            finally:
                self.fetched.append(sent[0] - before)

    return Handler, Browser
