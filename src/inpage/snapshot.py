"""Pyodide's memory with inpage imported, from which a worker starts in a fraction of the time.

`build_wheels.py` makes the snapshot in Node.js, where `prepare` runs; `resume` runs in the worker that wakes up in it.
The snapshot is memory only: files, such as the kernels, come from the wheel as always.
"""

import gc
import os
import pkgutil
import sys
from contextlib import suppress
from importlib import import_module

NOT_FOR_PAGES = ("inpage.serve",)

wheel = ""
"""The sha256 of the wheel whose modules the snapshot holds; empty where Python started the plain way."""


def prepare(sha256: str) -> None:
    """Import what can be imported here of the wheel with this hash, to be ready for the snapshot."""
    global wheel
    import inpage

    from .executors import wasm

    for module in pkgutil.walk_packages(inpage.__path__, "inpage."):
        if module.name not in NOT_FOR_PAGES:
            with suppress(ModuleNotFoundError):  # those for CPython need packages that are not here
                import_module(module.name)
    # Some modules of the standard library come in with the first use of others.
    wasm.kernels(next(iter(wasm.VARIANTS)))
    b"".decode("utf-8-sig")
    wheel = sha256
    os.environ.pop("PYTHONHASHSEED", None)
    sys.path[:] = filter(None, sys.path)  # Pyodide adds the working directory at every start
    gc.collect()


def resume(sha256: str) -> bool:
    """Whether the snapshot has the modules of the wheel with this hash. Random numbers begin anew."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    return wheel == sha256
