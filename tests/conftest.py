"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest

from inpage import executors


@pytest.fixture(scope="module", autouse=True)
def kernel_memory() -> Iterator[None]:
    """Executors of its own for every test module, so that what others left in kernel memory does not count."""
    executors._open.clear()  # pyright: ignore[reportPrivateUsage]
    yield
