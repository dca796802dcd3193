"""WebAssembly under CPython, by wasmtime. A call costs some 0.2 ms, so callers make one for a whole program."""

import ctypes
import threading
from functools import cache
from typing import Any

import wasmtime
from wasmtime import _ffi as ffi

from ..errors import KernelError
from .pages import PAGE, out_of_memory

NAME = "wasmtime"


@cache
def _engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    config.wasm_relaxed_simd = True
    config.wasm_threads = True
    config.shared_memory = True
    return wasmtime.Engine(config)


@cache
def _compiled(module: bytes) -> wasmtime.Module:
    return wasmtime.Module(_engine(), module)


def valid(module: bytes) -> bool:
    """Whether the engine accepts the module."""
    try:
        wasmtime.Module.validate(_engine(), module)
    except wasmtime.WasmtimeError:
        return False
    return True


def can_share() -> bool:
    """Whether memory can be shared with threads."""
    return True


def instantiate(module: bytes, shared: bool, pages: int, maximum: int) -> "Instance":
    """An instance of the module with a memory of its own, of `pages` that can grow to `maximum`."""
    return Instance(_compiled(module), shared, pages, maximum)


class SharedMemory(wasmtime.SharedMemory):
    """A shared memory that can be imported: wasmtime 50 passes a pointer to the pointer and fails."""

    def _as_extern(self) -> ffi.wasmtime_extern_t:
        union = ffi.wasmtime_extern_union(sharedmemory=self.ptr())
        return ffi.wasmtime_extern_t(ffi.WASMTIME_EXTERN_SHAREDMEMORY, union)


class Instance:
    """Kernels with their memory."""

    def __init__(self, module: wasmtime.Module, shared: bool, pages: int, maximum: int) -> None:
        self._module = module
        self._store = wasmtime.Store(_engine())
        kind = wasmtime.MemoryType(wasmtime.Limits(pages, maximum), shared=shared)
        try:
            self._memory = SharedMemory(_engine(), kind) if shared else wasmtime.Memory(self._store, kind)
        except wasmtime.WasmtimeError as error:
            raise out_of_memory(pages * PAGE, 0) from error
        self._exports = wasmtime.Instance(self._store, module, [self._memory]).exports(self._store)
        self.heap_base = self._global("__heap_base").value(self._store) & 0xFFFFFFFF
        self._stack = self._global("__stack_pointer").value(self._store)
        self._map()

    def _global(self, name: str) -> wasmtime.Global:
        found = self._exports[name]
        assert isinstance(found, wasmtime.Global)
        return found

    def _map(self) -> None:
        """See the memory as bytes; again after each growth, which may move it."""
        memory = self._memory
        if isinstance(memory, SharedMemory):
            pointer, self.size = memory.data_ptr(), memory.data_len()
        else:
            pointer, self.size = memory.data_ptr(self._store), memory.data_len(self._store)
        address = ctypes.addressof(pointer.contents)
        self._bytes = memoryview((ctypes.c_ubyte * self.size).from_address(address)).cast("B")

    def grow(self, pages: int) -> bool:
        """Add pages; False if the engine refuses."""
        try:
            if isinstance(self._memory, SharedMemory):
                self._memory.grow(pages)
            else:
                self._memory.grow(self._store, pages)
        except wasmtime.WasmtimeError:
            return False
        self._map()
        return True

    def write(self, address: int, data: Any) -> None:
        """Copy a C-contiguous bytes-like object into memory."""
        source = memoryview(data)
        self._bytes[address : address + source.nbytes] = source.cast("B") if source.nbytes else b""

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy of a part of memory."""
        return self._bytes[address : address + nbytes].tobytes()

    def call(self, name: str, *arguments: int) -> int:
        """Call an exported function of unsigned 32-bit integers, which returns one. Raises KernelError on a trap."""
        function = self._exports[name]
        assert isinstance(function, wasmtime.Func)
        try:
            return function(self._store, *arguments) & 0xFFFFFFFF
        except wasmtime.Trap as trap:
            self._global("__stack_pointer").set_value(self._store, self._stack)
            code = trap.trap_code
            raise KernelError(f"The kernel function {name!r} trapped: {code.name if code else trap.message}.") from trap

    def start_helper(self, control: int, stack: int) -> "Helper":
        """A thread that helps with programs."""
        return Helper(self._module, self._memory, control, stack)

    def close(self) -> None:
        """Give the memory back."""
        self._bytes = memoryview(b"")
        self.size = 0
        del self._exports, self._memory
        self._store.close()


class Helper:
    """A thread with an instance of the kernels over shared memory."""

    def __init__(self, module: wasmtime.Module, memory: Any, control: int, stack: int) -> None:
        self._thread = threading.Thread(target=_help, args=(module, memory, control, stack), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the thread, which ends by itself once helpers are told to stop."""
        self._thread.join(timeout=10)


def _help(module: wasmtime.Module, memory: Any, control: int, stack: int) -> None:
    store = wasmtime.Store(_engine())
    exports = wasmtime.Instance(store, module, [memory]).exports(store)
    pointer, help_with = exports["__stack_pointer"], exports["help"]
    assert isinstance(pointer, wasmtime.Global) and isinstance(help_with, wasmtime.Func)
    pointer.set_value(store, stack - (1 << 32) if stack >= 1 << 31 else stack)
    help_with(store, control - (1 << 32) if control >= 1 << 31 else control)
