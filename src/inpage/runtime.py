"""What differs between Pyodide and CPython about waiting.

Everything that may touch the network or a store is written once, as coroutines. Under CPython their leaves block, so
a coroutine runs to its end in one step; under Pyodide they suspend.
"""

import sys
from collections.abc import Coroutine, Generator
from typing import Any, Self, TypeVar

T = TypeVar("T")

IN_PYODIDE = sys.platform == "emscripten"

# Set by the worker: it wants coroutines even where blocking is possible, as a blocked stack cannot be cancelled.
prefer_coroutines = False


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose leaves block (CPython) to its end."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError("a coroutine suspended where nothing can resume it")


def resolve(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result where the platform can block, else the coroutine, to be awaited.

    CPython always blocks; Pyodide blocks where JSPI lets it suspend the calling stack. Results of the public loaders
    mix in `Awaitable`, so `await` is right everywhere and only needed where blocking is impossible.
    """
    if not IN_PYODIDE:
        return finish(coroutine)
    from pyodide.ffi import can_run_sync, run_sync  # pyright: ignore[reportMissingImports]

    if prefer_coroutines or not can_run_sync():
        return coroutine  # pyright: ignore[reportReturnType]
    results: list[T] = []

    async def keep() -> None:
        # The result must not pass through a JS promise: that would await it, an `Awaitable`, again and without end.
        results.append(await coroutine)

    run_sync(keep())
    return results[0]


async def gather(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Results of all coroutines: concurrently under Pyodide, one after the other under CPython.

    When one fails or the caller is cancelled, the others have ended, too, before the error is raised.
    """
    if not IN_PYODIDE:
        try:
            return [finish(coroutine) for coroutine in coroutines]
        finally:
            for coroutine in coroutines:
                coroutine.close()
    import asyncio

    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Awaitable:
    """Mixin for loaded objects: awaiting one gives the object itself."""

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield
