"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest

from inpage import executors
from inpage.executors.base import Executor
from inpage.program import run_once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: Playwright's event loop runs on until the session ends."""
    items.sort(key=lambda item: "tests/browser/" in item.nodeid)


@pytest.fixture(scope="module", autouse=True)
def kernel_memory() -> Iterator[None]:
    """Executors of its own for every test module, so that what others left in kernel memory does not count."""
    executors._open.clear()  # pyright: ignore[reportPrivateUsage]
    yield


@pytest.fixture(params=["reference", "wasm"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An executor that must have as much memory in use after the test as before."""
    executor = executors.acquire(request.param)
    run_once(lambda: None, executor)  # makes the register file and the arena, which stay
    used = executor.used_bytes
    yield executor
    leftover = executor.used_bytes - used
    executors.release(executor)
    assert leftover == 0
