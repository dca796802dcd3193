"""Folders of the machine's own disk as Python sees them under node: mounted into Pyodide's file system on demand."""

from __future__ import annotations

import os
from typing import Any

_mounted: dict[str, str] = {}


def host_folder(path: str, *, create: bool = False) -> str | None:
    """Under node: path in Pyodide's file system of the host's folder `path`, or None if there is none.

    A folder of that name in Pyodide's own file system (mounted by the user) is taken first.
    """
    if os.path.isdir(path):
        return path
    import js  # pyright: ignore[reportMissingImports]
    import pyodide_js  # pyright: ignore[reportMissingImports]
    from pyodide.ffi import to_js  # pyright: ignore[reportMissingImports]

    full = node_module("path").resolve(path)
    if full not in _mounted:
        fs = node_module("fs")
        if create:
            fs.mkdirSync(full, to_js({"recursive": True}, dict_converter=js.Object.fromEntries))
        if not fs.existsSync(full) or not fs.statSync(full).isDirectory():
            return None
        place = f"/mnt/inpage/{len(_mounted)}"
        pyodide_js.mountNodeFS(place, full)
        _mounted[full] = place
    return _mounted[full]


def node_module(module: str) -> Any:
    """A module that comes with node."""
    import js  # pyright: ignore[reportMissingImports]

    return js.process.getBuiltinModule(f"node:{module}")
