"""Waiting in CPython: loaders' results can be used at once, and awaited as Pyodide's must be."""

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
