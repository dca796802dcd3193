"""Pyodide's memory with inpage imported, from which a worker starts in a fraction of the time.

`build_wheels.py` makes the snapshot in Node.js, where `prepare` runs; `resume` runs in the worker that wakes up in it.
Modules of WebAssembly cannot be in it: of the packages that inpage needs, the snapshot has the compiled Python only.
"""

import gc
import importlib
import os
import pkgutil
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from random import Random
from types import CodeType
from typing import Any

NOT_FOR_PAGES = ("inpage.serve",)
PRECOMPILED = ("tokenizers",)

wheels = ""
"""The sha256 of the wheels that the snapshot was made of; empty where Python started the plain way."""

_compiled: dict[str, CodeType] = {}
_generators: list[Random] = []  # of random numbers, all that there are


class _Loader(SourceFileLoader):
    """Loads modules whose code is in the snapshot."""

    def get_code(self, fullname: str) -> CodeType | None:
        return _compiled.get(fullname) or super().get_code(fullname)


class _Finder:
    """Finds them."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        code = _compiled.get(name)
        return code and spec_from_file_location(name, code.co_filename, loader=_Loader(name, code.co_filename))


def prepare(sha256: str) -> None:
    """Import and compile what can be of the wheels with these hashes, to be ready for the snapshot."""
    global wheels
    import inpage

    from .executors import wasm

    for module in pkgutil.walk_packages(inpage.__path__, "inpage."):
        if module.name not in NOT_FOR_PAGES:
            with suppress(ModuleNotFoundError):  # those for CPython need packages that are not here
                importlib.import_module(module.name)
    # Some modules of the standard library come in with the first use of others.
    wasm.kernels(next(iter(wasm.VARIANTS)))
    b"{}".decode("utf-8-sig")
    folder = Path(inpage.__path__[0]).parent
    for file in (file for package in PRECOMPILED for file in (folder / package).rglob("*.py")):
        name = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        _compiled[name] = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    sys.meta_path.insert(0, _Finder)
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
