"""Progress events, with transformers.js's names and fields, plus `cached`.

    {"status": "initiate", "name", "file", "cached"}
    {"status": "download", "name", "file", "cached"}
    {"status": "progress", "name", "file", "progress", "loaded", "total", "cached"}
    {"status": "progress_total", "name", "progress", "loaded", "total", "files": {file: {"loaded", "total"}}, "cached"}
    {"status": "done", "name", "file", "cached"}
    {"status": "ready", "task", "model"}                                          (sent by `pipeline`)

`progress` is 0 to 100 and never falls. `total` is 0 while a server does not state the length. `cached` tells that the
bytes come from the store; in `progress_total`, that all files so far do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import InputError

ProgressCallback = Callable[[dict[str, Any]], Any]

_INTERVAL = 0.05  # seconds between two progress events of a file: a page cannot show more, and each crosses threads


class Progress:
    """Sends the events of all files of one load to a callback, each file's once.

    Loaders that share one `Progress` (pass it on as `progress_callback`) are counted together in `progress_total`.
    """

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback
        self._files: dict[str, dict[str, int]] = {}
        self._announced: set[str] = set()
        self._started: set[str] = set()
        self._all_cached = True
        self._highest = 0.0

    @classmethod
    def of(cls, callback: ProgressCallback | Progress | None) -> Progress:
        if isinstance(callback, Progress):
            return callback
        if callback is not None and not callable(callback):
            raise InputError(f"progress_callback is a function of an event, not {callback!r:.60}.")
        return cls(callback)

    @property
    def wanted(self) -> bool:
        return self._callback is not None

    def __call__(self, event: dict[str, Any]) -> None:
        """Send an event of the caller's own, such as `ready`."""
        if self._callback is not None:
            self._callback(event)

    def expect(self, sizes: Mapping[str, int]) -> None:
        """Count files that are going to be loaded into the total from the first event on."""
        for file, size in sizes.items():
            self._files.setdefault(file, {"loaded": 0, "total": size})

    def replace(self, files: Iterable[str], size_of: Mapping[str, int]) -> None:
        """Count other files in the place of some that were expected and are not going to be loaded."""
        for file in files:
            self._files.pop(file, None)
        if self.wanted:
            self.expect(size_of)

    def file(self, name: str, file: str, *, cached: bool) -> FileProgress:
        """Announce a file (`initiate`), if that has not been done."""
        reporter = FileProgress(self, name, file, cached=cached)
        if file not in self._announced:
            self._announced.add(file)
            reporter.send("initiate")
        return reporter

    def start(self, file: str) -> bool:
        """Whether the caller is the one to report the file's progress: the first whose bytes flow."""
        is_first = self.wanted and file not in self._started
        self._started.add(file)
        return is_first

    def count(self, name: str, file: str, loaded: int, total: int, cached: bool) -> None:
        self._files[file] = {"loaded": loaded, "total": total}
        self._all_cached &= cached
        loaded = sum(entry["loaded"] for entry in self._files.values())
        total = sum(entry["total"] for entry in self._files.values())
        self._highest = max(self._highest, _percent(loaded, total))
        files = {file: dict(entry) for file, entry in self._files.items()}
        self(
            {
                "status": "progress_total",
                "name": name,
                "progress": self._highest,
                "loaded": loaded,
                "total": total,
                "files": files,
                "cached": self._all_cached,
            }
        )


class FileProgress:
    """Sends the events of one file."""

    def __init__(self, progress: Progress, name: str, file: str, *, cached: bool) -> None:
        self.cached = cached
        self._progress, self._name, self._file = progress, name, file
        self._speaks = False
        self._loaded = self._total = 0
        self._highest = 0.0
        self._last_time = 0.0

    def send(self, status: str, **fields: Any) -> None:
        self._progress({"status": status, "name": self._name, "file": self._file, **fields, "cached": self.cached})

    @property
    def wanted(self) -> bool:
        return self._progress.wanted

    def start(self, total: int | None, loaded: int = 0) -> None:
        """Bytes begin to flow (`download`): `total` of them, if that is known, of which `loaded` need not."""
        self._total, self._loaded = total or 0, loaded
        if not self._speaks:  # else it begins once more, from another place
            self._speaks = self._progress.start(self._file)
            if self._speaks:
                self.send("download")

    def advance(self, nbytes: int) -> None:
        self._loaded += nbytes
        if not self._speaks:
            return
        now = time.monotonic()
        if now - self._last_time >= _INTERVAL:
            self._last_time = now
            self._report()

    def done(self) -> None:
        """All bytes are here, and the file is published."""
        self._total = self._loaded
        if self._speaks:
            self._report()
            self.send("done")

    def _report(self) -> None:
        loaded = min(self._loaded, self._total) if self._total else self._loaded
        self._highest = max(self._highest, _percent(loaded, self._total))
        if self._loaded == self._total:
            self._highest = 100.0
        self.send("progress", progress=self._highest, loaded=loaded, total=self._total)
        self._progress.count(self._name, self._file, loaded, self._total, self.cached)


def _percent(loaded: int, total: int) -> float:
    return 100.0 * min(loaded, total) / total if total else 0.0
