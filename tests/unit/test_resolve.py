"""Waiting in CPython: loaders' results can be used at once, and awaited as Pyodide's must be."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inpage.runtime import Awaitable, finish, resolve


class Loaded(Awaitable):
    """A loaded object."""


async def load(thing: Any) -> Any:
    return thing


async def await_(thing: Any) -> Any:
    return await thing


def test_results_can_be_used_at_once_and_awaited() -> None:
    made = Loaded()
    result = resolve(load(made))
    assert result is made
    assert type(result) is Loaded
    assert finish(await_(result)) is made


def test_a_coroutine_that_suspends_is_a_bug_in_cpython() -> None:
    class Pause:
        def __await__(self) -> Any:
            yield

    with pytest.raises(RuntimeError, match="suspended"):
        resolve(await_(Pause()))


def test_dropped_generators_close_at_once_where_a_loop_runs() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closed.append(True)

    async def first() -> int:
        return await anext(numbers())

    async def cell() -> list[bool]:
        assert finish(first()) == 1
        return list(closed)

    assert asyncio.run(cell()) == [True]
