"""Pyodide's memory with inpage imported, from which a worker starts in a fraction of the time.

`build_wheels.py` makes the snapshot in Node.js, where `prepare` runs; `resume` runs in the worker that wakes up in it.
"""

import gc
import importlib
import os
import pkgutil
import sys
from contextlib import suppress
from random import Random

NOT_FOR_PAGES = ("inpage.serve",)

wheels = ""
"""The sha256 of the wheels that the snapshot was made of; empty where Python started the plain way."""

_generators: list[Random] = []  # of random numbers, all that there are


def prepare(sha256: str) -> None:
    """Import what can be of the wheels with these hashes, to be ready for the snapshot."""
    global wheels
    # Otherwise they are loaded with the first tokenizer, and the first that has a chat template.
    import jinja2.sandbox  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import tokenizers  # noqa: F401

    import inpage

    from .executors import wasm

    for module in pkgutil.walk_packages(inpage.__path__, "inpage."):
        if module.name not in NOT_FOR_PAGES:
            with suppress(ModuleNotFoundError):  # those for CPython need packages that are not here
                importlib.import_module(module.name)
    # Some modules of the standard library come in with the first use of others.
    wasm.kernels(next(iter(wasm.VARIANTS)))
    b"{}".decode("utf-8-sig")
    wheels = sha256
    os.environ.pop("PYTHONHASHSEED", None)
    sys.path[:] = filter(None, sys.path)  # Pyodide adds the working directory at every start
    gc.collect()
    _generators[:] = [each for each in gc.get_objects() if isinstance(each, Random)]


def resume(sha256: str) -> bool:
    """Whether the snapshot is of the wheels with these hashes. Random numbers begin anew."""
    importlib.invalidate_caches()  # files came back after the folders were last looked at
    for generator in _generators:
        generator.seed()
    return wheels == sha256
