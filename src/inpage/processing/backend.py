"""Brings in the `tokenizers` package, the backend of every tokenizer here.

CPython has it from its own package index. Under Pyodide it is a wheel beside inpage's own: either the runtime's lock
file knows it, or it lies in the folder that inpage was installed from.
"""

import importlib
import importlib.metadata
import os
import sysconfig
from typing import Any

from ..errors import UnsupportedError
from ..runtime import IN_PYODIDE

VERSION = "0.23.3"
WHEEL = "tokenizers-{version}-cp310-abi3-{platform}.whl"


async def load_backend() -> Any:
    """The module `tokenizers`, installed first where that is possible. Raises UnsupportedError where it is not."""
    if IN_PYODIDE:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are no threads for it
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        if not IN_PYODIDE:
            raise UnsupportedError(
                "Tokenizers need the package `tokenizers`, which cannot be imported here.",
                hint="Install it: pip install tokenizers",
            ) from error
    return await _install()


async def _install() -> Any:
    """Load the wheel into Pyodide and import it."""
    import pyodide_js  # pyright: ignore[reportMissingImports]

    source = "tokenizers" if hasattr(pyodide_js.lockfile.packages, "tokenizers") else _url_beside_inpage()
    failures: list[str] = []
    if source:
        try:
            await pyodide_js.loadPackage(source, messageCallback=_ignore, errorCallback=failures.append)
            importlib.invalidate_caches()
            return importlib.import_module("tokenizers")
        except Exception as error:  # a JsException or an ImportError; either way it is reported below
            failures.append(str(error))
    raise UnsupportedError(
        f"Tokenizers need the package `tokenizers`, which is not in this Pyodide and could not be loaded from "
        f"{source or 'the folder of the inpage wheel, whose address is unknown'}. {' '.join(failures)}".rstrip(),
        hint=f"Put {wheel_name()} beside the inpage wheel, or load it first: "
        f'await pyodide.loadPackage("<address>/{wheel_name()}").',
    )


def wheel_name() -> str:
    """File name of the `tokenizers` wheel that fits the running Pyodide."""
    abi = sysconfig.get_config_var("PYEMSCRIPTEN_PLATFORM_VERSION") or sysconfig.get_config_var("PYODIDE_ABI_VERSION")
    # The tag's name changed with the ABI of 2025.
    family = "pyodide" if str(abi) < "2025" else "pyemscripten"
    return WHEEL.format(version=VERSION, platform=f"{family}_{abi}_wasm32")


def _url_beside_inpage() -> str | None:
    """Address of the `tokenizers` wheel in the folder that the inpage wheel came from, if its installer noted that."""
    try:
        distribution = importlib.metadata.distribution("inpage")
    except importlib.metadata.PackageNotFoundError:
        return None
    # micropip writes PYODIDE_URL; pyodide.loadPackage writes the address as PYODIDE_SOURCE.
    for file in ("PYODIDE_URL", "PYODIDE_SOURCE"):
        address = (distribution.read_text(file) or "").strip()
        if address.split("?")[0].endswith(".whl"):
            return f"{address.split('?')[0].rpartition('/')[0]}/{wheel_name()}"
    return None


def _ignore(_: str) -> None:
    """Pyodide's progress lines are not for the user's console."""
