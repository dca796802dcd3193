"""The build: same inputs, same bytes; small; nothing that leads to another host."""

import gzip
import hashlib
import io
import json
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

import build_wheels
from inpage.processing import backend


@pytest.fixture(scope="module")
def wheel() -> tuple[str, bytes]:
    return build_wheels.inpage_wheel()


@pytest.fixture(scope="module")
def runtime() -> dict[str, bytes]:
    return build_wheels.runtime_files(build_wheels.inpage_wheel(), build_wheels.tokenizers_wheel())


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_building_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    built = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        build_wheels.build("runtime", folder)
        built.append({p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
    assert len(built[0]) > 8
    assert built[0] == built[1]


def test_building_again_touches_nothing_and_clears_what_is_stale(tmp_path: Path) -> None:
    build_wheels.build("runtime", tmp_path)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    (tmp_path / "inpage-0.0.9-py3-none-any.whl").touch()
    (tmp_path / "runtime" / "inpage-0.0.9-py3-none-any.whl").touch()
    build_wheels.build("runtime", tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == times


def test_compiling_the_kernels_again_gives_the_same_bytes() -> None:
    outputs = [build_wheels.KERNELS / f"{variant}.wasm" for variant in build_wheels.VARIANTS]
    build_wheels.build_kernels()
    first = [path.read_bytes() for path in outputs]
    (build_wheels.BUILD / "kernels.key").unlink()
    build_wheels.build_kernels()
    assert [path.read_bytes() for path in outputs] == first


def test_wheel_is_small_and_complete(wheel: tuple[str, bytes]) -> None:
    name, data = wheel
    assert name == "inpage-0.1.0-py3-none-any.whl"
    assert len(data) < 1_000_000
    files = members(data)
    assert {f"inpage/kernels/{variant}.wasm" for variant in build_wheels.VARIANTS} <= set(files)
    assert {"inpage/__init__.py", "inpage/py.typed", "inpage-0.1.0.dist-info/licenses/LICENSE"} <= set(files)
    assert b"inpage = inpage.__main__:main" in files["inpage-0.1.0.dist-info/entry_points.txt"]
    assert not [name for name in files if name.endswith(".pyc") or "/." in name]


def test_wheel_record_states_every_file(wheel: tuple[str, bytes]) -> None:
    files = members(wheel[1])
    rows = [line.split(",") for line in files["inpage-0.1.0.dist-info/RECORD"].decode().splitlines()]
    assert sorted(row[0] for row in rows) == sorted(files)
    assert all(int(size) == len(files[name]) for name, _, size in rows if size)


def test_wheel_time_follows_source_date_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    _, data = build_wheels.pack_wheel("a", "1", "py3-none-any", {"a.py": b""}, "Name: a\n")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(2026, 1, 1, 0, 0, 0)}


def test_requirements_hold_for_cpython_alone(wheel: tuple[str, bytes]) -> None:
    """On any Pyodide page, micropip must find nothing to look for in a package index."""
    metadata = members(wheel[1])["inpage-0.1.0.dist-info/METADATA"].decode()
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    assert len(required) >= 3
    assert all("sys_platform != 'emscripten'" in line or "extra ==" in line for line in required)


def test_lock_file_knows_only_what_lies_beside_it(runtime: dict[str, bytes]) -> None:
    lock = json.loads(runtime["pyodide-lock.json"])
    assert lock["info"]["abi_version"] == "2026_0"
    assert set(lock["packages"]) == {"inpage", "tokenizers", "jinja2", "markupsafe", "micropip"}
    for package in lock["packages"].values():
        assert hashlib.sha256(runtime[package["file_name"]]).hexdigest() == package["sha256"]
        assert set(package["depends"]) <= set(lock["packages"])
    assert b"://" not in runtime["pyodide-lock.json"]


def test_kernels_beside_the_wheel_are_those_inside(runtime: dict[str, bytes]) -> None:
    files = members(runtime["inpage-0.1.0-py3-none-any.whl"])
    for variant in build_wheels.VARIANTS:
        assert runtime[f"inpage-{variant}.wasm"] == files[f"inpage/kernels/{variant}.wasm"]


def test_tokenizers_beside_the_wheel_are_those_inside(runtime: dict[str, bytes]) -> None:
    name = json.loads(runtime["pyodide-lock.json"])["packages"]["tokenizers"]["file_name"]
    assert runtime["tokenizers.wasm"] == members(runtime[name])[build_wheels.MODULE]


def test_making_the_snapshot_elsewhere_gives_the_same_bytes(runtime: dict[str, bytes], tmp_path: Path) -> None:
    made = build_wheels.unpack_snapshot(gzip.decompress(build_wheels.snapshot(runtime)))
    folder = tmp_path / "a folder of another name"
    folder.mkdir()
    for name, data in runtime.items():
        (folder / name).write_bytes(data)
    links = build_wheels.run("node", build_wheels.RUNTIME / "snapshot.mjs", folder, tmp_path / "snapshot")
    assert (tmp_path / "snapshot").read_bytes() == made.data
    assert json.loads(links) == made.links


def test_unpacking_with_a_python_that_knows_no_filters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Debian 12's 3.11.2."""
    extract = tarfile.TarFile.extractall
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda archive, path: extract(archive, path))
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    (tmp_path / "file").write_text("text")
    with tarfile.open(tmp_path / "archive.tar", "w") as archive:
        archive.add(tmp_path / "file", "package/file")
    with tarfile.open(tmp_path / "archive.tar") as archive:
        build_wheels.unpack(archive, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "package" / "file").read_text() == "text"


def test_packing_a_snapshot_loses_nothing() -> None:
    block = build_wheels.SNAPSHOT_BLOCK
    head = b"\0snp" + (16).to_bytes(4, "little") + bytes(8)
    memory = head + b"a" * 100 + bytes(3 * block) + b"b" * (2 * block) + bytes(block + 8)
    snapshot = build_wheels.Snapshot(memory, {"addresses": {"malloc": 2}}, {"/a": b"1", "/b/c": b"", "/b/d": b"23"})
    packed = build_wheels.pack_snapshot(snapshot)
    assert build_wheels.unpack_snapshot(packed) == snapshot
    assert len(packed) < 5 * block


def test_lock_file_lists_the_snapshot(runtime: dict[str, bytes]) -> None:
    data = b"\0snp" + (12).to_bytes(4, "little") + b"headmemory"
    packed = build_wheels.pack_snapshot(build_wheels.Snapshot(data, {"addresses": {"malloc": 2}}, {}))
    lock = json.loads(build_wheels.list_snapshot(runtime["pyodide-lock.json"], gzip.compress(packed)))
    assert lock.pop("snapshot") == {
        "file_name": build_wheels.SNAPSHOT,
        "sha256": hashlib.sha256(packed).hexdigest(),
        "head": 12,
        "links": {"addresses": {"malloc": 2}},
    }
    assert lock == json.loads(runtime["pyodide-lock.json"])


def test_inpage_brings_what_it_needs(runtime: dict[str, bytes]) -> None:
    depends = json.loads(runtime["pyodide-lock.json"])["packages"]["inpage"]["depends"]
    assert depends == ["tokenizers", "jinja2", "markupsafe"]


def test_tokenizers_wheel_has_the_name_that_inpage_looks_for(runtime: dict[str, bytes]) -> None:
    name = backend.WHEEL.format(version=backend.VERSION, platform=build_wheels.WHEEL_TAG)
    files = members(runtime[name])
    assert files[build_wheels.MODULE].startswith(b"\0asm")
    assert "tokenizers/__init__.py" in files
    assert b"Requires-Dist" not in files["tokenizers-0.23.3.dist-info/METADATA"]


def test_download_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_wheels, "CACHE", tmp_path)
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "a.whl").write_bytes(b"something else")
    download = build_wheels.Download("a", "1", "a.whl", hashlib.sha256(b"a").hexdigest())
    with pytest.raises(SystemExit, match=r"a\.whl: expected sha256 ca978112"):
        download.read()
