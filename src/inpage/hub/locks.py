"""One loader of a file at a time: among tabs (Web Locks), among processes (a locked file), or among tasks.

Leaving a lock never suspends, so that an abandoned loader frees it as well.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from ..env import IN_BROWSER
from ..runtime import IN_PYODIDE

_local: dict[str, Any] = {}


@asynccontextmanager
async def file_lock(name: str, lock_path: str | None = None) -> AsyncGenerator[None, None]:
    """Hold the lock `name`. `lock_path` is a file that other CPython processes lock under the same name."""
    if IN_BROWSER and _web_locks() is not None:
        release = await _acquire_web_lock(name)
    elif IN_PYODIDE:
        release = await _acquire_task_lock(name)
    elif lock_path is not None and _can_lock_files(lock_path):
        release = _acquire_file_lock(lock_path)
    else:
        release = _acquire_thread_lock(name)
    try:
        yield
    finally:
        release()


def _web_locks() -> Any:
    import js  # pyright: ignore[reportMissingImports]

    return getattr(js.navigator, "locks", None)


async def _acquire_web_lock(name: str) -> Any:
    import asyncio

    import js  # pyright: ignore[reportMissingImports]
    from pyodide.ffi import create_once_callable, create_proxy, to_js  # pyright: ignore[reportMissingImports]

    resolvers: list[Any] = []
    held = js.Promise.new(create_once_callable(lambda resolve, reject: resolvers.append(resolve)))
    granted = asyncio.get_running_loop().create_future()
    abort = js.AbortController.new()

    def on_granted(lock: Any) -> Any:
        if not granted.done():
            granted.set_result(True)
        return held

    def on_rejected(reason: Any) -> None:
        if not granted.done():
            granted.set_result(False)

    callback = create_proxy(on_granted)
    options = to_js({"signal": abort.signal}, dict_converter=js.Object.fromEntries)
    request = _web_locks().request(name, options, callback)
    request.then(lambda _: None, on_rejected).finally_(callback.destroy)
    try:
        if not await granted:  # some pages may not use them
            return await _acquire_task_lock(name)
    except BaseException:  # cancelled while waiting, or just as the lock was granted
        abort.abort()
        resolvers[0](None)
        raise
    return lambda: resolvers[0](None)


async def _acquire_task_lock(name: str) -> Any:
    import asyncio

    lock = _local.setdefault(name, asyncio.Lock())
    await lock.acquire()
    return lock.release


def _acquire_thread_lock(name: str) -> Any:
    lock = _local.setdefault(name, threading.Lock())
    lock.acquire()
    return lock.release


def _can_lock_files(path: str) -> bool:
    return importlib.util.find_spec("fcntl") is not None and os.access(os.path.dirname(path), os.W_OK)


def _acquire_file_lock(path: str) -> Any:
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_same_file(path, descriptor):
            break
        os.close(descriptor)  # its holder removed it while we waited

    def release() -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)

    return release


def _is_same_file(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
