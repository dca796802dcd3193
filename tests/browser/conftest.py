"""One browser for all browser tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests import environment


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, in which each test opens a context of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=environment.chromium(), args=environment.CHROMIUM_ARGUMENTS
        )
        yield browser
        browser.close()
