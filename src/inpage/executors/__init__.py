"""Executors by device name and settings, one of each shared by all its users."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..env import env
from ..errors import UnsupportedError
from ..runtime import import_numpy

if TYPE_CHECKING:
    from .base import Executor

_CLASSES = {"wasm": ("wasm", "WasmExecutor"), "reference": ("reference", "ReferenceExecutor")}
_open: dict[tuple[Any, ...], "Executor"] = {}


def acquire(device: str) -> "Executor":
    """The executor of `device` with the present settings `env.<device>`, made on first use and shared.

    Pair every call with one of `release`. Users that came before a setting was changed keep the executor they have.
    Raises UnsupportedError for an unknown device, and for the reference without NumPy.
    """
    if not isinstance(device, str) or device not in _CLASSES:
        raise UnsupportedError(f"Unknown device {device!r}.", hint=f"Devices are: {', '.join(_CLASSES)}.")
    if device == "reference":
        import_numpy('device="reference"')
    settings = env.wasm.as_dict().values() if device == "wasm" else ()
    executor = _open.get(key := (device, *settings))
    if executor is None:
        module, name = _CLASSES[device]
        executor = _open[key] = getattr(import_module(f".{module}", __name__), name)()
    executor.users += 1
    return executor


def release(executor: "Executor") -> None:
    """End one use; the last one closes the executor and gives its memory back."""
    executor.users -= 1
    if executor.users == 0 and not executor.closed:
        executor.closed = True
        for key in [key for key, opened in _open.items() if opened is executor]:
            del _open[key]
        executor.close()
