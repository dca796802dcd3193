#!/usr/bin/env python3
"""Builds everything that is not Python source. Each target builds what it needs first, and only what has changed.

    python build_wheels.py kernels      src/inpage/kernels/*.wasm, compiled by a pinned zig
    python build_wheels.py wheel        dist/inpage-*.whl, with the kernels inside
    python build_wheels.py tokenizers   dist/tokenizers-*.whl for Pyodide (minutes the first time; cached per machine)
    python build_wheels.py              dist/runtime/: Pyodide, the wheels and a lock file, to be served as it is

It is also the build backend of pyproject.toml, so `pip install .` compiles the kernels too.
"""

import argparse
import base64
import fcntl
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build"
DIST = ROOT / "dist"
KERNELS = ROOT / "src" / "inpage" / "kernels"
RUNTIME = ROOT / "src" / "runtime"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inpage"

ZIG = "0.17.1"
# fmt: off
KERNEL_FLAGS = [
    "-target", "wasm32-freestanding", "-std=gnu17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off",
    "-fno-builtin", "-nostdlib", "-s", "-Wall", "-Wextra", "-Werror", "-Ibuild", "-Isrc/kernels", "-msimd128",
    "-mbulk-memory", "-Wl,--no-entry", "-Wl,--import-memory", "-Wl,--export=__heap_base",
    "-Wl,--export=__stack_pointer", "-Wl,-z,stack-size=65536",
]
# fmt: on
RELAXED_FLAGS = ["-mrelaxed-simd"]
# One page short of 4 GiB: the largest maximum that zig's linker takes.
THREAD_FLAGS = ["-matomics", "-Wl,--shared-memory", "-Wl,--max-memory=4294901760"]
VARIANTS: dict[str, list[str]] = {
    "simd": [],
    "relaxed": RELAXED_FLAGS,
    "simd_threads": THREAD_FLAGS,
    "relaxed_threads": RELAXED_FLAGS + THREAD_FLAGS,
}


class Download(NamedTuple):
    """A file of a package registry, pinned by its hash."""

    name: str
    version: str
    file: str
    sha256: str

    def read(self, tools: Path | None = None) -> bytes:
        """The file's bytes, fetched once a machine by the registry's ordinary client.

        pip asks an sdist's own build backend for the metadata; `tools` is a folder where that finds what it needs.
        """
        env = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"} if tools else {}
        path = CACHE / "downloads" / self.file
        with locked(self.file, path.parent):
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                    run(*self._command(folder), env=env)
                    (fetched,) = Path(folder).iterdir()
                    self._check(fetched.read_bytes())
                    fetched.replace(path)
            return self._check(path.read_bytes())

    def _command(self, folder: str) -> list[str]:
        if self.file.endswith(".tgz"):
            return ["npm", "pack", "--silent", f"--pack-destination={folder}", f"{self.name}@{self.version}"]
        kind = "--only-binary" if self.file.endswith(".whl") else "--no-binary"
        options = ["--no-deps", "--python-version=3.14"] if kind == "--only-binary" else ["--no-deps"]
        pip = [sys.executable, "-m", "pip", "download", "-q"]
        return [*pip, *options, kind, self.name, "-d", folder, f"{self.name}=={self.version}"]

    def _check(self, data: bytes) -> bytes:
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise SystemExit(f"{self.file}: expected sha256 {self.sha256}, found {found}")
        return data


PYODIDE_CORE = Download(
    "pyodide", "314.0.7", "pyodide-314.0.7.tgz", "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
)
SNAPSHOT = "inpage-snapshot.bin.gz"
SNAPSHOT_BLOCK = 1 << 16
CORE_FILES = ("pyodide.mjs", "pyodide.js", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
WHEEL_TAG = "pyemscripten_2026_0_wasm32"
TOKENIZERS = Download(
    "tokenizers",
    "0.23.3",
    "tokenizers-0.23.3.tar.gz",
    "cded33237c77caeef62944d32aa9a7ef42bdce2b3497e18d137e072a8c4be438",
)
MARKUPSAFE = Download(
    "markupsafe", "3.0.3", "markupsafe-3.0.3.tar.gz", "722695808f4b6457b320fdc131280796bdceb04ab50fe1795cd540799ebe1698"
)
JINJA2 = Download(
    "jinja2",
    "3.1.6",
    "jinja2-3.1.6-py3-none-any.whl",
    "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67",
)
MICROPIP = Download(
    "micropip",
    "0.11.1",
    "micropip-0.11.1-py3-none-any.whl",
    "768de165adb8e66906039d8fec4127a57f522dfdf8e6fbff877a4616941ecfd3",
)


# --- common steps ------------------------------------------------------------------------------------------------


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command and return what it printed; when it fails, show that and stop."""
    result = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{result.stdout}{result.stderr}\nfailed: {shlex.join(map(str, command))}")
    return result.stdout


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
    """One build of a thing at a time, also across processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(path: Path, data: bytes) -> Path:
    """Write a file at once, and only when it changes (servers and caches look at its time)."""
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_bytes(data)
        unfinished.replace(path)
    return path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive, with the checks of its members that this Python has: Debian 12's has none."""
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Say what is being built and how long it took."""
    start = time.monotonic()
    print(f"building {what} ...", file=sys.stderr, flush=True)
    yield
    print(f"built {what} in {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


def zig() -> list[str]:
    """Command of the pinned zig: this interpreter's, or one installed into the cache."""
    try:
        if importlib.metadata.version("ziglang") == ZIG:
            return [sys.executable, "-m", "ziglang"]
    except importlib.metadata.PackageNotFoundError:
        pass
    folder = CACHE / "tools" / f"ziglang-{ZIG}"
    with locked(folder.name, folder.parent):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target")
                run(*pip, f"{unfinished}/ziglang", f"ziglang=={ZIG}")
                Path(unfinished, "ziglang").rename(folder)
    return [str(folder / "ziglang" / "zig")]


def pack_wheel(name: str, version: str, tag: str, files: Mapping[str, bytes], metadata: str) -> tuple[str, bytes]:
    """File name and bytes of a wheel. The same files give the same bytes: sorted entries, one timestamp."""
    info = f"{name}-{version}.dist-info"
    pure = "true" if tag.endswith("-none-any") else "false"
    wheel = f"Wheel-Version: 1.0\nGenerator: build_wheels.py\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    members = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    record = ""
    for path, data in sorted(members.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    # A zip file has no time before 1980.
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800))[:6]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in sorted(members.items()):
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return f"{name}-{version}-{tag}.whl", buffer.getvalue()


# --- kernels -----------------------------------------------------------------------------------------------------


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
        write(BUILD / "optable.h", header.encode())
        compiler = [*zig(), "cc", *KERNEL_FLAGS]
        names = [str(path.relative_to(ROOT)) for path in sources]

        def compile_variant(variant: str) -> None:
            output = BUILD / f"{variant}.wasm"
            run(*compiler, *VARIANTS[variant], *names, "-o", output)
            write(KERNELS / output.name, output.read_bytes())

        with reported("kernels"), ThreadPoolExecutor(2) as pool:
            list(pool.map(compile_variant, VARIANTS))
        stamp.write_text(key)


# --- the wheel ---------------------------------------------------------------------------------------------------


def project() -> dict[str, Any]:
    """The [project] table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def core_metadata() -> str:
    """METADATA of the inpage wheel."""
    table = project()
    lines = ["Metadata-Version: 2.4", f"Name: {table['name']}", f"Version: {table['version']}"]
    lines += [f"Summary: {table['description']}", f"License-Expression: {table['license']}"]
    lines += [f"License-File: {name}" for name in table["license-files"]]
    lines += [f"Requires-Python: {table['requires-python']}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in table["dependencies"]]
    for extra, requirements in table.get("optional-dependencies", {}).items():
        lines += [f"Provides-Extra: {extra}"]
        lines += [f"Requires-Dist: {requirement}; extra == '{extra}'" for requirement in requirements]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / table["readme"]).read_text()]
    return "\n".join(lines)


def info_files() -> dict[str, bytes]:
    """Licences and entry points of the inpage wheel."""
    table = project()
    folder = f"{table['name']}-{table['version']}.dist-info"
    scripts = "".join(f"{name} = {target}\n" for name, target in table["scripts"].items())
    files = {f"{folder}/licenses/{name}": (ROOT / name).read_bytes() for name in table["license-files"]}
    return {**files, f"{folder}/entry_points.txt": f"[console_scripts]\n{scripts}".encode()}


def inpage_wheel() -> tuple[str, bytes]:
    """File name and bytes of the py3-none-any wheel."""
    build_kernels()
    files = info_files()
    for path in (ROOT / "src" / "inpage").rglob("*"):
        stale = path.suffix == ".pyc" or (path.suffix == ".wasm" and path.stem not in VARIANTS)
        if path.is_file() and not path.name.startswith(".") and not stale:
            files[path.relative_to(ROOT / "src").as_posix()] = path.read_bytes()
    return pack_wheel("inpage", project()["version"], "py3-none-any", files, core_metadata())


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """PEP 517 hook."""
    name, data = inpage_wheel()
    write(Path(wheel_directory) / name, data)
    return name


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """PEP 660 hook: the kernels are built in place, and the wheel only points here."""
    build_kernels()
    files = {**info_files(), "__editable__.inpage.pth": f"{ROOT / 'src'}\n".encode()}
    name, data = pack_wheel("inpage", project()["version"], "py3-none-any", files, core_metadata())
    write(Path(wheel_directory) / name, data)
    return name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """PEP 517 hook: the files that the wheel is built from."""
    table = project()
    stem = f"{table['name']}-{table['version']}"
    names = ["build_wheels.py", "pyproject.toml", table["readme"], *table["license-files"]]
    paths = [ROOT / name for name in names] + [
        p for p in (ROOT / "src").rglob("*") if p.suffix not in (".pyc", ".wasm")
    ]
    with tarfile.open(Path(sdist_directory) / f"{stem}.tar.gz", "w:gz") as archive:
        for path in sorted(path for path in paths if path.is_file()):
            archive.add(path, f"{stem}/{path.relative_to(ROOT)}")
        info = tarfile.TarInfo(f"{stem}/PKG-INFO")
        info.size = len(core_metadata().encode())
        archive.addfile(info, io.BytesIO(core_metadata().encode()))
    return f"{stem}.tar.gz"


# --- tokenizers for Pyodide --------------------------------------------------------------------------------------

RUST_TARGET = "wasm32-unknown-emscripten"
# The first release whose panics unwind by WebAssembly exceptions, as Pyodide's do.
RUST_MINIMUM = (1, 93)
MODULE = "tokenizers/tokenizers.abi3.so"
"""The extension module in the wheel of tokenizers."""

PYO3_CONFIG = """implementation=CPython
version=3.10
shared=true
target_abi=CPython-abi3-3.10
pointer_width=32
suppress_build_script_link_lines=true
"""


class Rust(NamedTuple):
    """A toolchain that can build its own standard library."""

    cargo: Path
    rustc: Path
    library: Path


def find_rust() -> Rust | None:
    """Debian's packages, or the rustup toolchain on PATH; None where neither is new enough and has the sources."""
    for folder in dict.fromkeys(["/usr/bin", *os.environ["PATH"].split(os.pathsep)]):
        cargo, rustc = Path(folder, "cargo"), Path(folder, "rustc")
        if not (cargo.exists() and rustc.exists()):
            continue
        try:
            version = run(rustc, "--version").split()[1]
        except SystemExit:  # rustup's stand-ins exist without a toolchain too
            continue
        library = Path(run(rustc, "--print", "sysroot").strip()) / "lib" / "rustlib" / "src" / "rust" / "library"
        if tuple(map(int, version.split(".")[:2])) >= RUST_MINIMUM and (library / "std").exists():
            return Rust(cargo, rustc, library)
    return None


def rust() -> Rust:
    """The toolchain to use."""
    found = find_rust()
    if found is None:
        raise SystemExit(
            f"tokenizers for Pyodide needs Rust {RUST_MINIMUM[0]}.{RUST_MINIMUM[1]} or newer with its library's "
            "sources. Install Debian's rustc-web, cargo-web and rust-web-src, or: rustup component add rust-src"
        )
    return found


def locked_crates(lock: Path) -> set[tuple[str, str, str]]:
    """Name, version and checksum of every crate of a Cargo.lock that comes from a registry."""
    packages = tomllib.loads(lock.read_text())["package"]
    return {(p["name"], p["version"], p["checksum"]) for p in packages if "checksum" in p}


def tokenizers_sdist() -> tarfile.TarFile:
    """The package's sources, whose build backend looks for a cargo that works."""
    return tarfile.open(fileobj=io.BytesIO(TOKENIZERS.read(rust().cargo.parent)))


def compile_tokenizers(folder: Path) -> bytes:
    """The extension module, linked as an Emscripten side module. `folder` is scratch space (about 1 GB)."""
    cargo, rustc, library = rust()
    with tokenizers_sdist() as archive:
        unpack(archive, folder)
    source = folder / f"tokenizers-{TOKENIZERS.version}"
    # A repository around the cache would make git skip every file.
    run("git", "apply", RUNTIME / "tokenizers.patch", cwd=source, env={"GIT_CEILING_DIRECTORIES": str(folder)})
    original = source / "bindings" / "python" / "Cargo.lock"
    shutil.copy(original, source / "Cargo.lock")
    tools = {name: folder / name for name in ("cc", "ar", "ld")}
    for name, path in tools.items():
        path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(RUNTIME / "toolchain.py"), name])} "$@"\n')
        path.chmod(0o755)
    (folder / "pyo3.txt").write_text(PYO3_CONFIG)
    cargo_home = os.environ.get("CARGO_HOME") or Path.home() / ".cargo"
    remapped = {
        str(source): "/tokenizers",
        str(cargo_home): "/cargo",
        str(library.resolve()): "/rust",
        str(library): "/rust",
    }
    flags = ["-Crelocation-model=pic", "-Clink-self-contained=no"]
    flags += [f"--remap-path-prefix={path}={name}" for path, name in remapped.items()]
    target = RUST_TARGET.replace("-", "_")
    env = {
        "RUSTC": str(rustc),
        "RUSTC_BOOTSTRAP": "1",
        "INPAGE_ZIG": shlex.join(zig()),
        f"CC_{target}": str(tools["cc"]),
        f"AR_{target}": str(tools["ar"]),
        f"CARGO_TARGET_{target.upper()}_LINKER": str(tools["ld"]),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
        "CARGO_TARGET_DIR": str(folder / "target"),
        "PYO3_CONFIG_FILE": str(folder / "pyo3.txt"),
        "RUSTONIG_STATIC_LIBONIG": "1",
    }
    run(cargo, "fetch", "--target", RUST_TARGET, cwd=source, env=env)
    added = locked_crates(source / "Cargo.lock") - locked_crates(original)
    if added:
        raise SystemExit(f"crates that the package's own Cargo.lock does not have: {sorted(added)}")
    build = ("build", "--release", "--locked", "--target", RUST_TARGET, "-Zbuild-std=std,panic_unwind")
    run(cargo, *build, cwd=source, env=env)
    return (folder / "target" / RUST_TARGET / "release" / "tokenizers.wasm").read_bytes()


def tokenizers_module() -> bytes:
    """The extension module, built once a machine for each set of inputs."""
    rustc = rust().rustc
    recipe = [RUNTIME / "tokenizers.patch", RUNTIME / "toolchain.py"]
    key = content_key(TOKENIZERS.sha256, recipe, ZIG, PYO3_CONFIG, run(rustc, "-vV"))
    path = CACHE / "tokenizers" / f"{key}.so"
    with locked("build", path.parent):
        if not path.exists():
            with reported("tokenizers for Pyodide (minutes)"), tempfile.TemporaryDirectory(dir=path.parent) as folder:
                write(path, compile_tokenizers(Path(folder)))
    return path.read_bytes()


def tokenizers_wheel() -> tuple[str, bytes]:
    """File name and bytes of the Pyodide wheel: the package's Python files around the module."""
    prefix = f"tokenizers-{TOKENIZERS.version}/"
    files = {MODULE: tokenizers_module()}
    metadata = ""
    with tokenizers_sdist() as archive:
        for member in archive:
            name = member.name.removeprefix(prefix)
            if not (member.isfile() and (name == "PKG-INFO" or name.startswith("py_src/"))):
                continue
            data = archive.extractfile(member).read()  # pyright: ignore[reportOptionalMemberAccess]
            if name == "PKG-INFO":
                metadata = data.decode()
            else:
                files[name.removeprefix("py_src/")] = data
    # huggingface_hub serves `Tokenizer.from_pretrained` alone, which needs sockets.
    dropped = ("Requires-Dist:", "Provides-Extra:")
    head, _, body = metadata.partition("\n\n")
    head = "\n".join(line for line in head.splitlines() if not line.startswith(dropped))
    return pack_wheel("tokenizers", TOKENIZERS.version, f"cp310-abi3-{WHEEL_TAG}", files, f"{head}\n\n{body}")


# --- the runtime folder ------------------------------------------------------------------------------------------


def markupsafe_wheel() -> tuple[str, bytes]:
    """MarkupSafe without its optional C module."""
    prefix = f"markupsafe-{MARKUPSAFE.version}/"
    with tarfile.open(fileobj=io.BytesIO(MARKUPSAFE.read())) as archive:

        def read(name: str) -> bytes:
            return archive.extractfile(prefix + name).read()  # pyright: ignore[reportOptionalMemberAccess]

        files = {
            f"markupsafe/{name}": read(f"src/markupsafe/{name}") for name in ("__init__.py", "_native.py", "py.typed")
        }
        files[f"markupsafe-{MARKUPSAFE.version}.dist-info/licenses/LICENSE.txt"] = read("LICENSE.txt")
        metadata = read("PKG-INFO").decode()
    return pack_wheel("markupsafe", MARKUPSAFE.version, "py3-none-any", files, metadata)


def runtime_files(inpage: tuple[str, bytes], tokenizers: tuple[str, bytes]) -> dict[str, bytes]:
    """Name -> bytes of the folder that `loadPyodide({indexURL})` needs and that asks no other host for anything."""
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(PYODIDE_CORE.read())) as archive:
        for name in (*CORE_FILES, "pyodide-lock.json"):
            files[name] = archive.extractfile(f"package/{name}").read()  # pyright: ignore[reportOptionalMemberAccess]
    wheels = {
        "inpage": (inpage, ["tokenizers", "jinja2", "markupsafe"]),
        "tokenizers": (tokenizers, []),
        "jinja2": ((JINJA2.file, JINJA2.read()), ["markupsafe"]),
        "markupsafe": (markupsafe_wheel(), []),
        "micropip": ((MICROPIP.file, MICROPIP.read()), []),
    }
    packages = {}
    for name, ((file, data), depends) in wheels.items():
        files[file] = data
        packages[name] = {
            "name": name,
            "version": file.split("-")[1],
            "file_name": file,
            "sha256": hashlib.sha256(data).hexdigest(),
            "package_type": "package",
            "install_dir": "site",
            "imports": [name],
            "depends": depends,
            "unvendored_tests": False,
        }
    # The same bytes as in the wheels, where the browser can compile them while they arrive.
    files |= {f"inpage-{variant}.wasm": (KERNELS / f"{variant}.wasm").read_bytes() for variant in VARIANTS}
    with zipfile.ZipFile(io.BytesIO(tokenizers[1])) as wheel:
        files["tokenizers.wasm"] = wheel.read(MODULE)
    # The packages that Pyodide's own lock file lists are not in the folder.
    lock = {**json.loads(files["pyodide-lock.json"]), "packages": packages}
    files["pyodide-lock.json"] = json.dumps(lock, indent=1, sort_keys=True).encode()
    return files


def snapshot(files: Mapping[str, bytes]) -> bytes:
    """Memory of Pyodide with inpage imported, and inpage's files, made by Node.js from those of the runtime folder."""
    recipe = [RUNTIME / "snapshot.mjs", Path(__file__)]
    key = content_key(*(hashlib.sha256(files[name]).hexdigest() for name in sorted(files)), recipe)
    path, stamp = BUILD / SNAPSHOT, BUILD / "snapshot.key"
    with locked("snapshot"):
        if not (path.exists() and stamp.exists() and stamp.read_text() == key):
            with reported("snapshot"), tempfile.TemporaryDirectory(dir=BUILD) as folder:
                for name, data in files.items():
                    Path(folder, name).write_bytes(data)
                links = json.loads(run("node", RUNTIME / "snapshot.mjs", folder, f"{folder}/snapshot"))
                made = Snapshot(Path(folder, "snapshot").read_bytes(), links, installed_files(files))
                write(path, gzip.compress(pack_snapshot(made), 9, mtime=0))
            stamp.write_text(key)
    return path.read_bytes()


def installed_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of Python, of inpage and of what it needs, where Pyodide installs them, but for the module, which lies
    beside them.
    """
    lock = json.loads(files["pyodide-lock.json"])
    python, _, _ = lock["info"]["python"].rpartition(".")
    folder = f"/lib/python{python}/site-packages"
    packages = lock["packages"]
    installed = {f"/lib/python{python.replace('.', '')}.zip": files["python_stdlib.zip"]}
    for name in ("inpage", *packages["inpage"]["depends"]):
        with zipfile.ZipFile(io.BytesIO(files[packages[name]["file_name"]])) as wheel:
            members = sorted(member for member in wheel.namelist() if member != MODULE)
            installed |= {f"{folder}/{member}": wheel.read(member) for member in members}
    return installed


class Snapshot(NamedTuple):
    """Pyodide's memory, behind a head that states its own length; what it refers to, as `snapshot.mjs` tells; files."""

    data: bytes
    links: Mapping[str, Any]
    files: Mapping[str, bytes]

    @property
    def head(self) -> int:
        """Bytes of the head."""
        return int.from_bytes(self.data[4:8], "little")


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """Length of a JSON header, the header, and the bytes it lists: the head, runs of memory between zeros, files."""
    head, files = snapshot.head, snapshot.files
    memory = memoryview(snapshot.data)[head:]
    runs: list[list[int]] = []  # offset, length
    for start in range(0, len(memory), SNAPSHOT_BLOCK):
        block = memory[start : start + SNAPSHOT_BLOCK]
        if not any(block):
            continue
        if runs and sum(runs[-1]) == start:
            runs[-1][1] += len(block)
        else:
            runs.append([start, len(block)])
    contents = {"head": head, "memory": len(memory), "runs": runs, "links": snapshot.links}
    header = json.dumps({**contents, "files": [[path, len(data)] for path, data in files.items()]}).encode()
    parts = [snapshot.data[:head], *(memory[start : start + length] for start, length in runs), *files.values()]
    return len(header).to_bytes(4, "little") + header + b"".join(parts)


def unpack_snapshot(packed: bytes) -> Snapshot:
    """What `pack_snapshot` was given."""
    start = 4 + int.from_bytes(packed[:4], "little")
    contents, body = json.loads(packed[4:start]), io.BytesIO(packed[start:])
    head, memory = body.read(contents["head"]), bytearray(contents["memory"])
    for offset, length in contents["runs"]:
        memory[offset : offset + length] = body.read(length)
    files = {path: body.read(length) for path, length in contents["files"]}
    return Snapshot(bytes(head + memory), contents["links"], files)


def list_snapshot(lock: bytes, snapshot: bytes) -> bytes:
    """The lock file with an entry for the snapshot: its name, the sha256 of the unpacked bytes, and what is needed
    before it is there: the size of its head, and what it refers to.
    """
    packed = gzip.decompress(snapshot)
    made, digest = unpack_snapshot(packed), hashlib.sha256(packed).hexdigest()
    entry = {"file_name": SNAPSHOT, "sha256": digest, "head": made.head, "links": made.links}
    return json.dumps({**json.loads(lock), "snapshot": entry}, sort_keys=True).encode()


def build(target: str, dist: Path = DIST) -> None:
    """Bring one target up to date."""
    if target == "kernels":
        return build_kernels()
    with locked("dist"):
        wheels = {}
        if target in ("wheel", "runtime"):
            wheels["inpage"] = inpage_wheel()
        if target in ("tokenizers", "runtime"):
            wheels["tokenizers"] = tokenizers_wheel()
        for package, (name, data) in wheels.items():
            replace_files(dist, f"{package}-*.whl", {name: data})
        if target == "runtime":
            files = runtime_files(**wheels)
            files[SNAPSHOT] = snapshot(files)
            files["pyodide-lock.json"] = list_snapshot(files["pyodide-lock.json"], files[SNAPSHOT])
            replace_files(dist / "runtime", "*", files)
    return None


def replace_files(folder: Path, pattern: str, files: Mapping[str, bytes]) -> None:
    """Write the files, and remove others that match the pattern: what earlier versions left."""
    for name, data in files.items():
        write(folder / name, data)
    for path in folder.glob(pattern):
        if path.name not in files:
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="runtime", choices=["kernels", "wheel", "tokenizers", "runtime"])
    parser.add_argument("--dist", type=Path, default=DIST, help="where the wheels and runtime/ go (default: dist)")
    arguments = parser.parse_args()
    build(arguments.target, arguments.dist.resolve())


if __name__ == "__main__":
    main()
