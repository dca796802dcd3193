"""Executors by device name, one of each shared by all its users."""

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from ..runtime import import_numpy

if TYPE_CHECKING:
    from .base import Executor

_CLASSES = {"wasm": ("wasm", "WasmExecutor"), "reference": ("reference", "ReferenceExecutor")}
_open: dict[str, "Executor"] = {}


def acquire(device: str) -> "Executor":
    """The shared executor of `device`, made on first use. Pair every call with one of `release`.

    Raises UnsupportedError for an unknown device, and for the reference without NumPy.
    """
    if not isinstance(device, str) or device not in _CLASSES:
        raise UnsupportedError(f"Unknown device {device!r}.", hint=f"Devices are: {', '.join(_CLASSES)}.")
    if device == "reference":
        import_numpy('device="reference"')
    executor = _open.get(device)
    if executor is None:
        module, name = _CLASSES[device]
        executor = _open[device] = getattr(import_module(f".{module}", __name__), name)()
    executor.users += 1
    return executor


def release(executor: "Executor") -> None:
    """End one use; the last one closes the executor and gives its memory back."""
    executor.users -= 1
    if executor.users == 0 and not executor.closed:
        executor.closed = True
        if _open.get(executor.name) is executor:
            del _open[executor.name]
        executor.close()
