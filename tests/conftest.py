"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest

from inpage import executors


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: Playwright's event loop runs on until the session ends."""
    items.sort(key=lambda item: "tests/browser/" in item.nodeid)


@pytest.fixture(scope="module", autouse=True)
def kernel_memory() -> Iterator[None]:
    """Executors of its own for every test module, so that what others left in kernel memory does not count."""
    executors._open.clear()  # pyright: ignore[reportPrivateUsage]
    yield
