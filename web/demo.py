#!/usr/bin/env python3
"""The demo in one command: set up, build, fetch the model, lay out the site, and use it in headless Chromium.

    python3 web/demo.py           prints what the page found, how fast, and which hosts it asked; leaves screenshots
    python3 web/demo.py --open    serves the search page and chat.html until Ctrl+C, to be used by hand

The site is dist/site: plain files, to be put on any static host.
"""

import argparse
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests import environment  # noqa: E402

DIST = ROOT / "dist"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
CHAT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
QUERY = "how do I fix a puncture?"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def build_site(folder: Path, runtime: Path, models: Mapping[str, Path]) -> Path:
    """Lay out the demo: page and client, worker, Python runtime, and models by name, all of them plain files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for pattern in ("web/*.html", "web/*.css", "web/*.js", "web/*.d.ts", "worker/*.js"):
        for file in ROOT.glob(pattern):
            shutil.copy2(file, folder)
    shutil.copytree(runtime, folder / "runtime", copy_function=link)
    for name, source in models.items():
        shutil.copytree(source, folder / "models" / name, copy_function=link)
    return folder


def link(source: str, destination: str) -> None:
    """A second name for a large file, or a copy where the file system has none."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)


@contextmanager
def serve(folder: Path, port: int = 0) -> Iterator[str]:
    """URL of a server of the folder."""
    from inpage.serve import Server, Site

    with Server(Site(str(folder)), port, quiet=True) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


def use(url: str, pictures: Path) -> dict[str, Any]:
    """Visit the page twice, index its text, ask, and take pictures. Gives what the page shows."""
    from playwright.sync_api import sync_playwright

    requested: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=environment.chromium(), args=environment.CHROMIUM_ARGUMENTS
        )
        context = browser.new_context(viewport=DESKTOP, color_scheme="light")  # pyright: ignore[reportArgumentType]
        context.on("request", lambda request: requested.append(request.url))
        page = context.new_page()
        first = visit(page, url)
        page.screenshot(path=pictures / "demo.png", full_page=True)
        second = visit(page, url)
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=pictures / "demo-dark.png", full_page=True)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)  # pyright: ignore[reportArgumentType]
        page.screenshot(path=pictures / "demo-phone.png", full_page=True)
        version = browser.version
        browser.close()
    foreign = [address for address in requested if address.startswith("http") and not address.startswith(url)]
    return {"first": first, "second": second, "foreign": foreign, "requests": len(requested), "version": version}


def visit(page: Any, url: str) -> dict[str, Any]:
    """Open the page, index the sample text and ask one question."""
    start = time.monotonic()
    page.goto(url)
    if page.locator("#index").is_visible():
        page.click("#index")
    page.wait_for_selector("#map:not([hidden]), .work.failed", timeout=180_000)
    if page.locator(".work.failed").count():
        raise SystemExit(f"The page says: {page.inner_text('#progress-label')}")
    indexed = time.monotonic() - start
    shown = {"indexed": indexed, "count": page.inner_text("#count"), "text_speed": page.inner_text("#speed")}
    page.fill("#query", QUERY)
    page.wait_for_selector("#results li")
    results = [item.split("\n")[:2] for item in page.locator("#results li").all_inner_texts()]
    page.wait_for_function("document.querySelector('#speed-note').textContent.includes('query')")
    return {
        **shown,
        "model": page.inner_text("#model-note"),
        "query_speed": page.inner_text("#speed"),
        "foreign": page.inner_text("#foreign"),
        "results": results,
    }


def report(shown: dict[str, Any], pictures: Path) -> str:
    """What the visits showed, for people."""
    first, second = shown["first"], shown["second"]
    lines = [
        f"{MODEL} in headless Chromium {shown['version']}",
        f"  first visit    {first['indexed']:5.1f} s from opening to {first['count']} indexed (model {first['model']})",
        f"  second visit   {second['indexed']:5.1f} s (model {second['model']})",
        f"  speed          {first['text_speed']} a sentence, {second['query_speed']} for a query",
        f'  "{QUERY}" finds',
        *(f"    {score}  {passage}" for score, passage in first["results"][:5]),
        f"  requests to other hosts: {len(shown['foreign'])} of {shown['requests']} that the browser made;"
        f" the page itself counts {second['foreign']}",
        f"  pictures       {', '.join(str(p.relative_to(ROOT)) for p in sorted(pictures.glob('demo*.png')))}",
        "Keep the page open with: python3 web/demo.py --open",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", action="store_true", help="serve the page until Ctrl+C")
    parser.add_argument("--port", type=int, default=8000, help="with --open (default: 8000)")
    options = parser.parse_args()
    environment.ensure()
    import build_wheels
    from tests import models

    build_wheels.build("runtime")
    # The headless visit is about the search page; the chat's model is fetched for people only.
    names = [MODEL, CHAT_MODEL] if options.open or (models.root() / CHAT_MODEL).exists() else [MODEL]
    site = build_site(DIST / "site", DIST / "runtime", {name: models.path(name) for name in names})
    with serve(site, options.port if options.open else 0) as url:
        if options.open:
            print(f"The demo is at {url} (Ctrl+C ends it).", flush=True)
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                return
        print(report(use(url, DIST), DIST))


if __name__ == "__main__":
    main()
