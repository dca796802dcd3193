"""WebAssembly under Pyodide: the JavaScript engine's own, beside the module that Python itself is."""

from functools import cache
from importlib.resources import files
from typing import Any

import js  # pyright: ignore[reportMissingImports]
from pyodide.ffi import JsException, to_js  # pyright: ignore[reportMissingImports]

from ..errors import KernelError
from .pages import PAGE, out_of_memory

NAME = "javascript"
MAX_WINDOWS = 16  # making a view costs ten times what a small copy through it does, so some are kept


@cache
def _compiled(module: bytes) -> Any:
    return js.WebAssembly.Module.new(to_js(module))


def valid(module: bytes) -> bool:
    """Whether the engine accepts the module."""
    return js.WebAssembly.validate(to_js(module))


def can_share() -> bool:
    """Whether memory can be shared with threads: in a page, only if it is cross-origin isolated."""
    return hasattr(js, "SharedArrayBuffer") and getattr(js, "crossOriginIsolated", True)


def instantiate(module: bytes, shared: bool, pages: int, maximum: int) -> "Instance":
    """An instance of the module with a memory of its own, of `pages` that can grow to `maximum`."""
    return Instance(_compiled(module), shared, pages, maximum)


def _object(values: dict[str, Any]) -> Any:
    return to_js(values, dict_converter=js.Object.fromEntries)


class Instance:
    """Kernels with their memory. Proxies are made once and kept, those of views until the memory grows."""

    _memory: Any
    _exports: Any
    _bytes: Any

    def __init__(self, module: Any, shared: bool, pages: int, maximum: int) -> None:
        limits = _object({"initial": pages, "maximum": maximum, "shared": shared})
        try:
            self._memory = js.WebAssembly.Memory.new(limits)
        except JsException as error:
            raise out_of_memory(pages * PAGE, 0) from error
        imports = _object({"env": {"memory": self._memory}})
        self._exports = js.WebAssembly.Instance.new(module, imports).exports
        self._module = module
        self._functions: dict[str, Any] = {}
        self.heap_base = int(self._global("__heap_base").value) & 0xFFFFFFFF
        self._stack = self._global("__stack_pointer").value
        self._windows: dict[tuple[int, int], Any] = {}
        self._map()

    def _global(self, name: str) -> Any:
        return getattr(self._exports, name)

    def _map(self) -> None:
        """See the memory as bytes; again after each growth, which detaches the views there are."""
        self._windows.clear()
        self._bytes = js.Uint8Array.new(self._memory.buffer)
        self.size = int(self._bytes.byteLength)

    def _window(self, address: int, nbytes: int) -> Any:
        """View of a part of memory."""
        place = (address, nbytes)
        view = self._windows.get(place)
        if view is None:
            if len(self._windows) >= MAX_WINDOWS:
                self._windows.clear()
            view = self._windows[place] = self._bytes.subarray(address, address + nbytes)
        return view

    def grow(self, pages: int) -> bool:
        """Add pages; False if the engine refuses."""
        try:
            self._memory.grow(pages)
        except JsException:
            return False
        self._map()
        return True

    def write(self, address: int, data: Any) -> None:
        """Copy a C-contiguous bytes-like object or a JavaScript typed array into memory."""
        try:
            source = memoryview(data)
        except TypeError:  # a typed array; to ask for its type would cost more than the copy
            if data.BYTES_PER_ELEMENT != 1:
                data = js.Uint8Array.new(data.buffer, data.byteOffset, data.byteLength)
            self._bytes.set(data, address)
            return
        if source.nbytes:
            self._window(address, source.nbytes).assign(source.cast("B"))

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy of a part of memory."""
        return self._window(address, nbytes).to_bytes()

    def call(self, name: str, *arguments: int) -> int:
        """Call an exported function of unsigned 32-bit integers, which returns one. Raises KernelError on a trap."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = getattr(self._exports, name)
        try:
            return int(function(*arguments)) & 0xFFFFFFFF
        except JsException as error:
            self._global("__stack_pointer").value = self._stack
            raise KernelError(f"The kernel function {name!r} trapped: {error}") from error

    def start_helper(self, control: int, stack: int) -> "Helper":
        """A worker that helps with programs."""
        return Helper(_object({"module": self._module, "memory": self._memory, "control": control, "stack": stack}))

    def close(self) -> None:
        """Let go of the memory."""
        self._windows.clear()
        self._functions.clear()
        self._bytes = self._exports = self._memory = self._module = None
        self.size = 0


class Helper:
    """A worker with an instance of the kernels over shared memory."""

    def __init__(self, start: Any) -> None:
        source = to_js([(files("inpage") / "executors" / "helper.js").read_text()])
        url = js.URL.createObjectURL(js.Blob.new(source, _object({"type": "text/javascript"})))
        self._worker = js.Worker.new(url)
        js.URL.revokeObjectURL(url)
        self._worker.postMessage(start)

    def close(self) -> None:
        """End the worker, whatever it does."""
        self._worker.terminate()
