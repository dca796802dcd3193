#!/usr/bin/env python3
"""Builds everything that is not Python source. Each target builds what it needs first, and only what has changed.

    python build_wheels.py kernels      src/inpage/kernels/*.wasm, compiled by a pinned zig
"""

import argparse
import fcntl
import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build"
KERNELS = ROOT / "src" / "inpage" / "kernels"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inpage"

ZIG = "0.17.1"
KERNEL_FLAGS = (
    "-target wasm32-freestanding -std=gnu17 -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off -fno-builtin "
    "-nostdlib -s -Wall -Wextra -Werror -Ibuild -Isrc/kernels -msimd128 -mbulk-memory "
    "-Wl,--no-entry -Wl,--import-memory -Wl,--export=__heap_base -Wl,--export=__stack_pointer -Wl,-z,stack-size=65536"
).split()
RELAXED_FLAGS = ["-mrelaxed-simd"]
# One page short of 4 GiB: the largest maximum that zig's linker takes.
THREAD_FLAGS = ["-matomics", "-Wl,--shared-memory", "-Wl,--max-memory=4294901760"]
VARIANTS = {
    "simd": [],
    "relaxed": RELAXED_FLAGS,
    "simd_threads": THREAD_FLAGS,
    "relaxed_threads": RELAXED_FLAGS + THREAD_FLAGS,
}


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Run a command; its output is shown only when it fails."""
    result = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{result.stdout}{result.stderr}\nfailed: {' '.join(map(str, command))}")


def content_key(*parts: Iterable[Path] | str) -> str:
    """Digest of texts and of files (name and bytes): the identity of what is built from them."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(f"{len(part)}:{part}".encode())
            continue
        for path in sorted(part):
            data = path.read_bytes()
            digest.update(f"{path.name}:{len(data)}:".encode() + data)
    return digest.hexdigest()


@contextmanager
def locked(name: str, folder: Path = BUILD) -> Iterator[None]:
    """One build of a target at a time, also across processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def zig() -> list[str]:
    """Command of the pinned zig: this interpreter's, or one installed into the cache."""
    try:
        if importlib.metadata.version("ziglang") == ZIG:
            return [sys.executable, "-m", "ziglang"]
    except importlib.metadata.PackageNotFoundError:
        pass
    folder = CACHE / "tools" / f"ziglang-{ZIG}"
    with locked("ziglang", CACHE / "tools"):
        if not folder.exists():
            unfinished = folder.with_suffix(".tmp")
            run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", unfinished, f"ziglang=={ZIG}")
            unfinished.rename(folder)
    return [str(folder / "ziglang" / "zig")]


def build_kernels() -> None:
    """All C files in one compilation for each variant; instant when nothing changed."""
    sys.path.insert(0, str(ROOT / "src"))
    from inpage.optable import c_header

    sources = sorted((ROOT / "src" / "kernels").glob("*.c"))
    headers = (ROOT / "src" / "kernels").glob("*.h")
    header = c_header()
    key = content_key(header, sources, headers, ZIG, repr((KERNEL_FLAGS, VARIANTS)))
    with locked("kernels"):
        stamp = BUILD / "kernels.key"
        outputs = [KERNELS / f"{variant}.wasm" for variant in VARIANTS]
        if stamp.exists() and stamp.read_text() == key and all(path.exists() for path in outputs):
            return
        if not sources:
            raise SystemExit("no C files in src/kernels")
        (BUILD / "optable.h").write_text(header)
        KERNELS.mkdir(exist_ok=True)
        compiler = zig()

        def compile_variant(variant: str) -> None:
            unfinished = BUILD / f"{variant}.wasm"
            names = [str(path.relative_to(ROOT)) for path in sources]
            run(*compiler, "cc", *KERNEL_FLAGS, *VARIANTS[variant], *names, "-o", unfinished)
            unfinished.replace(KERNELS / f"{variant}.wasm")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(compile_variant, VARIANTS))
        stamp.write_text(key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=["kernels"])
    parser.parse_args()
    build_kernels()


if __name__ == "__main__":
    main()
