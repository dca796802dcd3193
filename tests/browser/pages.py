"""The site that browser tests open: page, client, worker and runtime in a folder, models in a hub's layout."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inpage.serve import Handler, Server, Site
from tests import environment, models
from tests.browser.conftest import RUNTIME
from web.demo import build_site

BLANK = "blank.html"


@contextmanager
def serve_site(
    folder: Path,
    hub: Mapping[str, Path],
    *,
    files: bool = True,
    isolation: bool = True,
    handler: type[Handler] = Handler,
) -> Iterator[str]:
    """URL of a server of `folder`, into which the site's files are laid, and of the models of a hub by name."""
    if files:
        build_site(folder, RUNTIME, {})
    (folder / BLANK).write_text("<!doctype html><title>Blank</title>")
    site = Site(str(folder), {name: str(path) for name, path in hub.items()}, isolation)
    with Server(site, quiet=True, handler=handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


@contextmanager
def open_browser(*names: str) -> Iterator[tuple[Any, str]]:
    """Chromium, and the URL of a site of its own with real models: for benchmarks."""
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory() as folder,
        serve_site(Path(folder), {name: models.path(name) for name in names}) as url,
        sync_playwright() as playwright,
    ):
        path = environment.chromium()
        browser = playwright.chromium.launch(executable_path=path, args=environment.CHROMIUM_ARGUMENTS)
        yield browser, url
        browser.close()


@dataclass
class Opened:
    """A page in which `inpage` is the client's module."""

    page: Any

    def run(self, script: str, **values: Any) -> Any:
        """What the body of an async function returns; `values` are variables in it."""
        names = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
        return self.page.evaluate(f"async () => {{ const inpage = window.inpage;\n{names}{script}\n}}")

    def python(self, code: str) -> Any:
        """Value of Python code in the worker."""
        worker = next(worker for worker in self.page.workers if "inpage-worker" in worker.url)  # others are helpers
        return worker.evaluate(f"pyodide.runPython({json.dumps(code)})")


@contextmanager
def open_page(browser: Any, url: str, *, client: str = "./inpage.js", remote_host: bool = True) -> Iterator[Opened]:
    """A page of a new visitor, with the client imported. The site is the hub that models come from."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(url + BLANK)
    page.evaluate("async (client) => { window.inpage = await import(client); }", client)
    if remote_host:
        page.evaluate("() => { inpage.env.remoteHost = './'; }")
    try:
        yield Opened(page)
    finally:
        context.close()
