"""What differs between Pyodide and CPython about waiting.

Everything that may touch the network or a store is written once, as coroutines. Under CPython their leaves block, so
a coroutine runs to its end in one step; under Pyodide they suspend.
"""

import sys
from collections.abc import Coroutine, Generator
from functools import cache
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, TypeVar

from .errors import UnsupportedError

T = TypeVar("T")

IN_PYODIDE = sys.platform == "emscripten"

SLICE = 0.02  # seconds

# Set by the worker: it wants coroutines even where blocking is possible, as a blocked stack cannot be cancelled.
prefer_coroutines = False


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose leaves block (CPython) to its end.

    Where an event loop runs, as in Jupyter, asynchronous generators that are dropped would wait for the loop to close
    them, with the locks and files that they hold; without its hooks they close at once.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        sys.set_asyncgen_hooks(*hooks)
    coroutine.close()
    raise RuntimeError("a coroutine suspended where nothing can resume it")


def result_of(steps: Generator[Any, Any, T]) -> T:
    """What a generator returns, without pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


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
    return _awaitable(run_sync(coroutine))


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


def import_numpy(purpose: str) -> Any:
    """The module NumPy. Raises UnsupportedError, naming the purpose, where there is none."""
    try:
        return import_module("numpy")
    except ImportError as error:
        hint = 'In Pyodide: await pyodide.loadPackage("numpy").' if IN_PYODIDE else "Install it: pip install numpy"
        raise UnsupportedError(f"{purpose} needs NumPy, which cannot be imported here.", hint=hint) from error


async def pause() -> None:
    """Let the worker take messages of the page, under Pyodide.

    A timer does: Chromium would let them wait for more than a second while there is data of the network to read.
    """
    if IN_PYODIDE:
        import asyncio

        await asyncio.sleep(0.003)  # what is less is no timer to Pyodide


class Slices:
    """A clock for long work that is done in slices of some seconds, so that others have their turn between two."""

    def __init__(self, seconds: float = SLICE) -> None:
        self._seconds = seconds
        self._end = perf_counter() + seconds

    def over(self) -> bool:
        """Whether the slice has taken its time; then the next one begins."""
        now = perf_counter()
        if now < self._end:
            return False
        self._end = now + self._seconds
        return True


class Awaitable:
    """Mixin for loaded objects: awaiting what `resolve` gives is allowed everywhere, and gives the object itself.

    Under Pyodide once only, because JavaScript goes on awaiting what a promise gives while that can be awaited: an
    object that stays awaitable would hang the page as the last value of `pyodide.runPythonAsync`.
    """

    if TYPE_CHECKING or not IN_PYODIDE:

        def __await__(self) -> Generator[None, None, Self]:
            return self
            yield


def _awaitable(value: T) -> T:
    """The value; an `Awaitable` can be awaited from here on."""
    if isinstance(value, Awaitable) and not hasattr(value, "__await__"):
        object.__setattr__(value, "__class__", _awaitable_class(type(value)))
    return value


@cache
def _awaitable_class(cls: type) -> type:
    """`cls` with `await`, which turns an object back into one of `cls`."""

    def __await__(self: Any) -> Generator[None, None, Any]:
        object.__setattr__(self, "__class__", cls)
        return self
        yield

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (cls,), {**names, "__await__": __await__})
