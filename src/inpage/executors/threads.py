"""How many threads run a program, and the helpers that are all of them but one."""

import os
import warnings
from functools import cache
from typing import Protocol

from ..env import IN_NODE, env
from ..runtime import IN_PYODIDE

STACK_BYTES = 1 << 16
CONTROL_BYTES = 256
MOST_BY_DEFAULT = 4


class Helper(Protocol):
    """A thread with an instance of the kernels, as a host starts it."""

    def close(self) -> None: ...


def can_block() -> bool:
    """Whether this thread may wait for others: a page's main thread may not, and node has no plain workers."""
    if not IN_PYODIDE:
        return True
    import js  # pyright: ignore[reportMissingImports]

    return not IN_NODE and not hasattr(js, "window")


def cores() -> int:
    """Logical cores of the machine."""
    if not IN_PYODIDE:
        return os.cpu_count() or 1
    import js  # pyright: ignore[reportMissingImports]

    return int(getattr(getattr(js, "navigator", None), "hardwareConcurrency", 1))


def wanted() -> int:
    """Threads to run on: `env.wasm.num_threads`, else half the logical cores, at most 4; as many as can be had.

    Under CPython the default is one thread.
    """
    asked = env.wasm.num_threads
    return asked or (max(1, min(MOST_BY_DEFAULT, cores() // 2)) if IN_PYODIDE else 1)


@cache
def say_once(what: str) -> None:
    """Warn of what runs otherwise than asked, once."""
    warnings.warn(what, stacklevel=2)
