"""Starting from a memory snapshot, and without one that fits."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_wheels import SNAPSHOT
from tests.browser.pages import open_page, serve_site

MODEL = {"golden/bert-base": Path(__file__).parent.parent / "golden" / "encoders" / "bert-base"}
RUN = """
    const extract = await inpage.pipeline("feature-extraction", "golden/bert-base");
    return (await extract("a b c")).dims;
"""


def start(browser: Any, url: str) -> tuple[str, float, list[str]]:
    """Of a page whose model works: the wheel that its snapshot is of, a random number, and what the console says."""
    with open_page(browser, url) as page:
        said: list[str] = []
        page.page.on("console", lambda message: said.append(message.text))
        assert page.run(RUN) == [1, 5, 32]
        values = page.python("import random, inpage.snapshot; f'{random.random()} {inpage.snapshot.wheel}'").split(" ")
        return values[1], float(values[0]), said


def test_starts_from_the_snapshot_and_with_other_random_numbers(browser: Any, tmp_path: Path) -> None:
    with serve_site(tmp_path / "site", MODEL) as url:
        wheel, number, said = start(browser, url)
        lock = json.loads((tmp_path / "site" / "runtime" / "pyodide-lock.json").read_text())
        assert wheel == lock["packages"]["inpage"]["sha256"]
        assert not [text for text in said if "snapshot" in text]
        assert start(browser, url)[1] != number


def other_wheel(snapshot: bytes) -> bytes:
    """A snapshot of another inpage."""
    memory = gzip.decompress(snapshot)
    lock = json.loads((Path(__file__).parent.parent.parent / "dist" / "runtime" / "pyodide-lock.json").read_text())
    wheel = lock["packages"]["inpage"]["sha256"].encode()
    assert wheel in memory
    return gzip.compress(memory.replace(wheel, b"0" * 64), 1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (other_wheel, "another inpage wheel"),
        (lambda snapshot: snapshot[: len(snapshot) // 2], "without its snapshot"),
        # Another build of Pyodide: its hash is in bytes 16 to 48.
        (lambda snapshot: gzip.compress(gzip.decompress(snapshot)[:16] + bytes(1 << 16), 1), "build id mismatch"),
        (None, ""),
    ],
    ids=["of another wheel", "cut off", "of another Pyodide", "missing"],
)
def test_starts_the_plain_way_without_a_snapshot_that_fits(
    browser: Any, tmp_path: Path, change: Callable[[bytes], bytes] | None, complaint: str
) -> None:
    with serve_site(tmp_path / "site", MODEL) as url:
        path = tmp_path / "site" / "runtime" / SNAPSHOT
        snapshot = path.read_bytes()
        path.unlink()  # the file is a second name of the built one
        if change:
            path.write_bytes(change(snapshot))
        wheel, _, said = start(browser, url)
        assert wheel == ""
        assert any(complaint in text for text in said) if complaint else True


def test_an_unpacked_snapshot_will_do(browser: Any, tmp_path: Path) -> None:
    """Some servers send .gz files as compressed content, which the browser unpacks."""
    with serve_site(tmp_path / "site", MODEL) as url:
        path = tmp_path / "site" / "runtime" / SNAPSHOT
        memory = gzip.decompress(path.read_bytes())
        path.unlink()
        path.write_bytes(memory)
        assert start(browser, url)[0]
