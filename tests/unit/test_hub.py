"""The hub under CPython against a deliberately bad server."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inpage.env import env
from inpage.errors import (
    AccessDeniedError,
    CorruptFileError,
    FileNotFoundInRepositoryError,
    InputError,
    NetworkError,
)
from inpage.hub import (
    Progress,
    Repository,
    StoreWarning,
    delete_cached,
    find_outdated,
    list_cached,
    transport,
)
from inpage.hub import sources as sources_module
from inpage.hub import store as store_module
from inpage.runtime import finish
from tests.faults import FaultyServer, faulty_server

NAME = "org/tiny"
SEGMENT = 1 << 16
WEIGHTS = bytes(hashlib.shake_256(b"weights").digest(5 * SEGMENT + 1234))
CONFIG = {"model_type": "bert", "text": "ä" * 3000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "sub").mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "sub" / "config.json").write_text('{"sub": true}')
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "broken.json").write_text('{"a": ')
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "empty.bin").write_bytes(b"")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[FaultyServer]:
    with faulty_server({NAME: str(folder)}) as server:
        yield server


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    env.reset()
    env.cache_dir = str(tmp_path / "cache")
    monkeypatch.setattr(store_module, "SEGMENT", SEGMENT)
    monkeypatch.setattr(store_module, "_warned", False)
    monkeypatch.setattr(store_module, "_stores", {})
    monkeypatch.setattr(store_module, "_memory", store_module.MemoryBackend(1 << 30))
    monkeypatch.setattr(transport, "OPEN_DELAYS", (0, 0))
    monkeypatch.setattr(transport, "RESUME_DELAYS", (0, 0, 0, 0))
    yield
    env.reset()


@pytest.fixture
def repository(server: FaultyServer) -> Any:
    def make(fault: str = "ok", **options: Any) -> Repository:
        env.remote_host = f"{server.url}{fault}/"
        return Repository(NAME, **options)

    return make


def load(repository: Repository, file: str = "model.safetensors", start: int = 0, stop: int | None = None) -> bytes:
    async def read() -> bytes:
        async with repository.stream(file, start, stop) as chunks:
            return b"".join([chunk.to_bytes() async for chunk in chunks])

    return finish(read())


def kept() -> list[str]:
    """Files in the cache folder."""
    folder = Path(env.cache_dir or "") / env.cache_name
    return sorted(os.listdir(folder)) if folder.exists() else []


# --- a healthy server -------------------------------------------------------------------------------------------------


def test_download_then_from_the_store(server: FaultyServer, repository: Any) -> None:
    assert load(repository()) == WEIGHTS
    assert load(repository()) == WEIGHTS
    assert len(server.downloads("model.safetensors")) == 1
    (entry,) = list_cached()
    assert entry["complete"] and entry["size"] == len(WEIGHTS) == entry["stored"]
    assert (entry["name"], entry["revision"], entry["file"]) == (NAME, "main", "model.safetensors")
    assert entry["sha256"] == hashlib.sha256(WEIGHTS).hexdigest()
    assert len(kept()) == 6 + 1  # segments and manifest; no lock, no temporary file


def test_json_text_read(repository: Any) -> None:
    made = repository()
    assert finish(made.json("config.json")) == CONFIG
    assert finish(made.text("config.json")) == json.dumps(CONFIG)
    assert finish(made.read("empty.bin")) == b""
    assert finish(repository(subfolder="sub").json("config.json")) == {"sub": True}
    assert [entry["file"] for entry in list_cached()] == ["config.json", "empty.bin", "sub/config.json"]


def test_exists_and_size(server: FaultyServer, repository: Any) -> None:
    made = repository()
    assert finish(made.exists("config.json")) and not finish(made.exists("absent.json"))
    assert finish(made.size("model.safetensors")) == len(WEIGHTS)
    assert finish(made.size("empty.bin")) == 0
    assert not server.downloads("model.safetensors")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 8), (8, 100), (SEGMENT - 5, SEGMENT + 5), (3 * SEGMENT, None), (7, None), (10, 10)]
)
def test_ranges(repository: Any, start: int, stop: int | None, stored: bool) -> None:
    if stored:
        load(repository())
    assert load(repository(), start=start, stop=stop) == WEIGHTS[start:stop]
    assert bool(list_cached()) == (stored or stop is None)


def test_a_range_is_not_stored_unless_it_is_the_whole(server: FaultyServer, repository: Any) -> None:
    assert load(repository(), stop=1000) == WEIGHTS[:1000]
    assert server.downloads("model.safetensors")[0].headers["range"] == "bytes=0-999"
    assert not kept()
    made = repository()
    assert load(made, stop=finish(made.size("model.safetensors"))) == WEIGHTS
    assert list_cached()[0]["complete"]


def test_an_invalid_file_name_raises(repository: Any) -> None:
    for name in ("../config.json", "/etc/passwd", "https://example.org/x"):
        with pytest.raises(InputError):
            finish(repository().read(name))


def test_broken_json_is_not_kept(repository: Any) -> None:
    for name in ("broken.json", "deep.json"):
        with pytest.raises(CorruptFileError):
            finish(repository().json(name))
    assert not kept()


def test_no_store(server: FaultyServer, repository: Any) -> None:
    env.use_fs_cache = False
    assert load(repository()) == load(repository()) == WEIGHTS
    assert len(server.downloads("model.safetensors")) == 2
    assert not kept()


def test_offline_after_the_first_load(server: FaultyServer, repository: Any) -> None:
    made = repository()
    assert finish(made.json("absent.json", required=False)) is None
    assert not finish(made.exists("also_absent.json"))
    finish(made.json("config.json"))
    load(made)
    server.is_down = True
    asked = len(server.requests)
    made = Repository(NAME)
    assert finish(made.json("config.json")) == CONFIG
    assert finish(made.json("absent.json", required=False)) is None
    assert not finish(made.exists("also_absent.json"))
    assert finish(made.exists("model.safetensors")) and finish(made.size("model.safetensors")) == len(WEIGHTS)
    assert load(made) == WEIGHTS
    assert len(server.requests) == asked
    with pytest.raises(FileNotFoundInRepositoryError):  # once known to be missing: not a network error
        finish(made.json("absent.json"))
    with pytest.raises(NetworkError):
        finish(made.json("never_asked_for.json"))


def test_local_files_only(server: FaultyServer, repository: Any) -> None:
    finish(repository().json("config.json"))
    asked = len(server.requests)
    made = repository(local_files_only=True)
    assert finish(made.json("config.json")) == CONFIG
    with pytest.raises(FileNotFoundInRepositoryError, match="local_files_only"):
        load(made)
    env.allow_remote_models = False
    made = repository()
    assert finish(made.json("other.json", required=False)) is None and not finish(made.exists("other.json"))
    with pytest.raises(FileNotFoundInRepositoryError, match="allow_remote_models"):
        finish(made.read("other.json"))
    assert len(server.requests) == asked


def test_an_absent_file_is_asked_for_again_when_it_is_required(folder: Path, repository: Any) -> None:
    assert finish(repository().json("late.json", required=False)) is None
    (folder / "late.json").write_text("[1]")
    try:
        assert finish(repository().json("late.json", required=False)) is None
        assert finish(repository().json("late.json")) == [1]
        assert finish(repository().json("late.json", required=False)) == [1]
    finally:
        (folder / "late.json").unlink()


def test_local_folder(folder: Path) -> None:
    events: list[dict[str, Any]] = []
    made = Repository(str(folder), progress_callback=events.append)
    assert finish(made.json("config.json")) == CONFIG
    assert finish(made.size("model.safetensors")) == len(WEIGHTS)
    assert load(made, start=10, stop=20) == WEIGHTS[10:20]
    assert load(made) == WEIGHTS
    assert finish(made.json("none.json", required=False)) is None
    with pytest.raises(FileNotFoundInRepositoryError):
        finish(made.read("none.json"))
    assert not kept()
    assert [event["file"] for event in events if event["status"] == "done"] == ["config.json", "model.safetensors"]


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "cut-then-whole"])
def test_a_cut_download_is_continued(server: FaultyServer, repository: Any, fault: str) -> None:
    assert load(repository(fault)) == WEIGHTS
    first, second = server.downloads("model.safetensors")
    assert first.headers["range"] == "bytes=0-"
    assert int(second.headers["range"][6:-1]) > len(WEIGHTS) // 2
    assert list_cached()[0]["complete"]


def test_a_cut_text_is_continued(repository: Any) -> None:
    assert finish(repository("cut").json("config.json")) == CONFIG


def test_a_download_that_never_ends_well(repository: Any, server: FaultyServer) -> None:
    with pytest.raises(NetworkError, match="broke off"):
        load(repository("cut-always"))
    assert len(server.downloads("model.safetensors")) == 1 + 1 + len(transport.RESUME_DELAYS)
    (entry,) = list_cached()
    assert not entry["complete"] and entry["stored"] == 3 * SEGMENT


def test_a_later_session_continues(server: FaultyServer, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(repository(), after=3.5)
    assert [(entry["complete"], entry["stored"]) for entry in list_cached()] == [(False, 3 * SEGMENT)]
    assert not any(name.endswith((".lock", ".new")) for name in kept())
    assert load(repository()) == WEIGHTS
    assert server.downloads("model.safetensors")[-1].headers["range"] == f"bytes={3 * SEGMENT}-"
    assert list_cached()[0]["complete"]


def test_a_later_session_starts_anew_if_the_file_changed(
    server: FaultyServer, repository: Any, folder: Path, tmp_path: Path
) -> None:
    interrupt(repository(), after=3.5)
    other = WEIGHTS[::-1][: 4 * SEGMENT]
    (tmp_path / "model.safetensors").write_bytes(other)
    server.site.models[NAME] = str(tmp_path)
    assert load(repository()) == other
    assert len(kept()) == 4 + 1


def test_a_later_session_starts_anew_without_a_validator(server: FaultyServer, repository: Any) -> None:
    interrupt(repository("no-validator"), after=3.5)
    assert load(repository("no-validator")) == WEIGHTS
    assert server.downloads("model.safetensors")[-1].headers["range"] == "bytes=0-"


def test_a_file_that_changes_while_it_is_downloaded(repository: Any) -> None:
    with pytest.raises(CorruptFileError, match="changed"):
        load(repository("cut-and-changed"))
    assert not kept()


@pytest.mark.parametrize("fault", ["wrong-length", "short", "wrong-hash", "html", "html-unlabelled"])
def test_what_is_not_the_file_is_never_stored(repository: Any, fault: str) -> None:
    with pytest.raises(CorruptFileError):
        load(repository(fault))
    assert not kept()


def test_the_last_chunk_waits_for_the_check_of_the_hash(repository: Any) -> None:
    received = 0

    async def read() -> None:
        nonlocal received
        async for chunk in repository("wrong-hash").stream("model.safetensors"):
            received += chunk.nbytes

    with pytest.raises(CorruptFileError, match="sha256"):
        finish(read())
    assert received < len(WEIGHTS)


def test_a_start_page_in_place_of_an_optional_file(repository: Any) -> None:
    made = repository("html")
    assert finish(made.json("config.json", required=False)) is None
    assert not finish(made.exists("config.json"))
    with pytest.raises(CorruptFileError, match="HTML"):
        finish(made.json("config.json"))


@pytest.mark.parametrize(
    ("fault", "error"),
    [("missing", FileNotFoundInRepositoryError), ("denied", AccessDeniedError), ("forbidden", AccessDeniedError)],
)
def test_refusals(repository: Any, fault: str, error: type[Exception]) -> None:
    file = "absent.safetensors" if fault == "missing" else "model.safetensors"
    for ask in (load, lambda made, file: finish(made.size(file))):
        with pytest.raises(error) as caught:
            ask(repository(fault), file)
        assert caught.value.details["url"].endswith(file)  # pyright: ignore[reportAttributeAccessIssue]
    assert list_cached() == []


def test_an_overloaded_server_is_asked_again(repository: Any) -> None:
    assert load(repository("busy")) == WEIGHTS


def test_no_ranges(repository: Any) -> None:
    assert load(repository("no-range")) == WEIGHTS
    delete_cached()
    assert load(repository("no-range"), start=100, stop=200) == WEIGHTS[100:200]


def test_no_head_requests(repository: Any) -> None:
    assert finish(repository("no-head").size("model.safetensors")) == len(WEIGHTS)
    assert not finish(repository("no-head").exists("absent.json"))


def test_compressed_without_a_length(repository: Any) -> None:
    events: list[dict[str, Any]] = []
    made = repository("gzip", progress_callback=events.append)
    assert load(made) == WEIGHTS
    assert finish(made.json("config.json")) == CONFIG
    check_progress(events, {"model.safetensors": len(WEIGHTS), "config.json": len(json.dumps(CONFIG))})
    assert finish(repository("gzip").size("model.safetensors")) == len(WEIGHTS)


def test_unreachable(repository: Any) -> None:
    env.remote_host = "http://127.0.0.1:9/"
    with pytest.raises(NetworkError, match="could not be reached"):
        load(Repository(NAME))
    assert not kept()


def test_answers_that_break_the_protocol(repository: Any) -> None:
    with pytest.raises(NetworkError, match="leads to no address"):
        load(repository("redirect-nowhere"))
    assert load(repository("odd-length")) == WEIGHTS


def test_a_local_file_that_is_cut_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "_DISK_CHUNK", 1000)
    path = tmp_path / "model.safetensors"
    path.write_bytes(WEIGHTS)

    async def cut_on_the_way() -> None:
        async for _ in Repository(str(tmp_path)).stream(path.name):
            os.truncate(path, 1500)

    with pytest.raises(CorruptFileError, match=r"cut to 1500 of"):
        finish(cut_on_the_way())


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_the_token_stays_with_the_hub(server: FaultyServer, repository: Any, file: str) -> None:
    assert load(repository("redirect", token="secret"), file)
    finish(repository("redirect", token="secret").size(file))
    sent = [(request.fault, request.headers.get("authorization")) for request in server.requests]
    assert ("redirect", "Bearer secret") in sent
    assert {authorization for fault, authorization in sent if fault == "ok"} == {None}
    if file == "model.safetensors":  # the hash comes from the hub, not from the host it led to
        assert list_cached()[0]["sha256"] == hashlib.sha256(WEIGHTS).hexdigest()


def test_the_token_does_not_go_to_other_folders(server: FaultyServer) -> None:
    env.remote_host = "https://example.org/"
    assert load(Repository(f"{server.url}ok/{NAME}/resolve/main", token="secret")) == WEIGHTS
    assert all("authorization" not in request.headers for request in server.requests)


@pytest.mark.parametrize("token", ["a\nb", "ä", 5])
def test_wrong_tokens(token: Any) -> None:
    with pytest.raises(InputError):
        Repository(NAME, token=token)


# --- the store --------------------------------------------------------------------------------------------------------


def test_parallel_loaders_share_one_download(server: FaultyServer, repository: Any) -> None:
    repository("slow")
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(load(Repository(NAME)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [WEIGHTS] * 4
    assert len(server.downloads("model.safetensors")) == 1
    assert not any(name.endswith(".lock") for name in kept())


def test_a_full_disk(server: FaultyServer, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`free` says so before a byte is downloaded."""

    async def free(self: Any) -> int:
        return 1000

    monkeypatch.setattr(store_module.FileBackend, "free", free)
    with pytest.warns(StoreWarning) as warned:
        assert load(repository()) == WEIGHTS
        assert load(repository()) == WEIGHTS
        assert load(repository(), "broken.json")
    assert len(warned) == 1
    assert len(server.downloads("model.safetensors")) == 1  # the second came from memory
    assert len(kept()) == 2  # the small file fits


def test_a_disk_that_fills_up(server: FaultyServer, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = store_module.FileBackend.put

    async def put(self: Any, url: str, part: str, chunks: Any) -> None:
        if part == "3":
            raise store_module.StoreError("no space left")
        await original(self, url, part, chunks)

    monkeypatch.setattr(store_module.FileBackend, "put", put)
    with pytest.warns(StoreWarning) as warned:
        assert load(repository()) == WEIGHTS
        assert load(repository()) == WEIGHTS
    assert len(warned) == 1
    assert len(server.downloads("model.safetensors")) == 1
    assert not kept()
    assert [entry["complete"] for entry in list_cached()] == [True]


def test_what_fits_nowhere_passes_through(
    server: FaultyServer, repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_memory", store_module.MemoryBackend(2 * SEGMENT))
    env.cache_dir = "/proc/none"
    with pytest.warns(StoreWarning) as warned:
        assert load(repository()) == WEIGHTS
        assert load(repository()) == WEIGHTS
    assert len(warned) == 1
    assert len(server.downloads("model.safetensors")) == 2
    assert list_cached() == []


def test_a_cache_folder_that_cannot_be_made(repository: Any) -> None:
    env.cache_dir = "/proc/none"
    with pytest.warns(StoreWarning, match="cannot be made"):
        assert load(repository()) == WEIGHTS


def test_a_lost_segment_is_made_good(server: FaultyServer, repository: Any) -> None:
    load(repository())
    folder = Path(env.cache_dir or "") / env.cache_name
    (segment,) = folder.glob("*.2")
    segment.write_bytes(segment.read_bytes()[:-1])
    events: list[dict[str, Any]] = []
    assert load(repository(progress_callback=events.append)) == WEIGHTS
    assert [event["status"] for event in events].count("download") == 1
    assert (events[-1]["status"], events[-1]["cached"]) == ("done", False)
    progress = [event["progress"] for event in events if event["status"] == "progress"]
    assert progress == sorted(progress) and progress[-1] == 100
    assert load(repository()) == WEIGHTS
    assert len(server.downloads("model.safetensors")) == 2


@pytest.mark.parametrize("number", [0, 1])
def test_a_lost_segment_of_an_interrupted_download_is_made_good(
    server: FaultyServer, repository: Any, number: int
) -> None:
    interrupt(repository(), after=2.5)
    (segment,) = (Path(env.cache_dir or "") / env.cache_name).glob(f"*.{number}")
    segment.write_bytes(segment.read_bytes()[:-1])
    events: list[dict[str, Any]] = []
    assert load(repository(progress_callback=events.append)) == WEIGHTS
    assert events[-1]["status"] == "done"
    assert load(repository()) == WEIGHTS
    assert len(server.downloads("model.safetensors")) == 3


def test_a_broken_manifest_is_no_manifest(server: FaultyServer, repository: Any) -> None:
    load(repository())
    folder = Path(env.cache_dir or "") / env.cache_name
    (manifest,) = folder.glob("*.manifest")
    manifest.write_text(manifest.read_text()[:-20])
    assert list_cached() == []
    assert load(repository()) == WEIGHTS
    assert list_cached()[0]["complete"]


@pytest.mark.parametrize(
    "nonsense",
    [
        3,
        [],
        {"segment": 0},
        {"segment": "1"},
        {"segments": 10**12},
        {"segments": -1},
        {"size": None},
        {"size": -1},
        {"size": len(WEIGHTS) + SEGMENT},
        {"complete": "yes"},
        {"url": "http://127.0.0.1/other"},
        {"url": 3},
        {"name": None},
        {"time": "now"},
        {"sha256": 3},
        {"sources": []},
        {"sources": {"http://127.0.0.1/other": 3}},
    ],
    ids=str,
)
def test_a_manifest_of_nonsense_is_no_manifest(server: FaultyServer, repository: Any, nonsense: Any) -> None:
    load(repository())
    (manifest,) = (Path(env.cache_dir or "") / env.cache_name).glob("*.manifest")
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(values | nonsense if isinstance(nonsense, dict) else nonsense))
    assert all(isinstance(entry["url"], str) for entry in list_cached())
    assert load(repository()) == WEIGHTS
    assert len(server.downloads("model.safetensors")) == 2
    assert find_outdated() == []
    assert [entry["size"] for entry in delete_cached()] == [len(WEIGHTS)]


def test_a_manifest_that_goes_while_it_is_listed(repository: Any) -> None:
    load(repository())
    (Path(env.cache_dir or "") / env.cache_name / "gone.manifest").symlink_to("nowhere")
    assert [entry["file"] for entry in list_cached()] == ["model.safetensors"]


def test_list_and_delete(repository: Any) -> None:
    finish(repository().json("config.json"))
    finish(repository(revision="v2").json("config.json"))
    interrupt(repository(), after=2.5)
    finish(repository().json("absent.json", required=False))
    assert [(entry["revision"], entry["file"], entry["complete"]) for entry in list_cached()] == [
        ("main", "config.json", True),
        ("main", "model.safetensors", False),
        ("v2", "config.json", True),
    ]
    assert len(list_cached(NAME, "v2")) == 1 and list_cached("other") == []
    assert len(delete_cached(NAME, "main")) == 2
    assert [entry["revision"] for entry in list_cached()] == ["v2"]
    delete_cached()
    assert not kept()


def test_find_outdated(folder: Path, repository: Any) -> None:
    (folder / "changing.json").write_text("[1]")
    try:
        for file in ("changing.json", "config.json", "model.safetensors"):
            load(repository(), file)
        assert find_outdated() == []
        (folder / "changing.json").write_text("[2]")
        assert [entry["file"] for entry in find_outdated(NAME)] == ["changing.json"]
    finally:
        (folder / "changing.json").unlink()
    assert [entry["file"] for entry in find_outdated(NAME)] == ["changing.json"]


# --- progress ---------------------------------------------------------------------------------------------------------


def check_progress(events: list[dict[str, Any]], sizes: dict[str, int]) -> None:
    """What holds for the events of any load."""
    for file, size in sizes.items():
        mine = [event for event in events if event.get("file") == file]
        assert [event["status"] for event in mine if event["status"] != "progress"] == ["initiate", "download", "done"]
        steps = [event for event in mine if event["status"] == "progress"]
        assert (steps[-1]["loaded"], steps[-1]["total"], steps[-1]["progress"]) == (size, size, 100)
        assert mine[-2] is steps[-1]
    for steps in [
        *([event for event in events if event.get("file") == file and "progress" in event] for file in sizes),
        [event for event in events if event["status"] == "progress_total"],
    ]:
        for before, after in pairwise(steps):
            assert before["progress"] <= after["progress"] and before["loaded"] <= after["loaded"]
        assert all(0 <= step["progress"] <= 100 and step["loaded"] >= 0 for step in steps)


@pytest.mark.parametrize("fault", ["ok", "cut", "no-range", "redirect"])
def test_progress(repository: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr("inpage.hub.progress._INTERVAL", 0)
    sizes = {"config.json": len(json.dumps(CONFIG)), "model.safetensors": len(WEIGHTS)}
    for cached in (False, True):
        events: list[dict[str, Any]] = []
        made = repository(fault, progress_callback=events.append)
        finish(made.expect(*sizes, "absent.json"))
        finish(made.json("config.json"))
        load(made)
        check_progress(events, sizes)
        assert {event["cached"] for event in events} == {cached}
        totals = [event for event in events if event["status"] == "progress_total"]
        assert {event["total"] for event in totals} == {sum(sizes.values())}  # known from the first event
        assert totals[-1]["progress"] == 100
        assert totals[-1]["files"] == {file: {"loaded": size, "total": size} for file, size in sizes.items()}
        assert all(event["total"] == sizes[event["file"]] for event in events if event["status"] == "progress")


def test_a_file_is_announced_once(repository: Any) -> None:
    events: list[dict[str, Any]] = []
    progress = Progress(events.append)
    for _ in range(2):
        finish(repository(progress_callback=progress).json("config.json"))
    check_progress(events, {"config.json": len(json.dumps(CONFIG))})


def test_the_shards_of_an_index_are_expected(folder: Path, repository: Any) -> None:
    (folder / "s").mkdir()
    shards = {"a": "x-1.safetensors", "b": "x-2.safetensors", "c": "x-1.safetensors", "d": "../outside"}
    (folder / "s" / "x.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    for name, size in (("x-1.safetensors", 100), ("x-2.safetensors", 200)):
        (folder / "s" / name).write_bytes(bytes(size))
    events: list[dict[str, Any]] = []
    made = repository(subfolder="s", progress_callback=events.append)
    for _ in range(2):
        finish(made.expect("x.safetensors", "absent.safetensors"))
    assert events == []
    load(made, "x-1.safetensors")
    index = (folder / "s" / "x.safetensors.index.json").stat().st_size
    assert {event["total"] for event in events if event["status"] == "progress_total"} == {300 + index}


def test_a_file_of_the_second_place_is_reported() -> None:
    """The first place announces the file and does not have it."""
    events: list[dict[str, Any]] = []
    progress = Progress(events.append)
    progress.file("org/tiny", "x", cached=False)
    second = progress.file("org/tiny", "x", cached=False)
    second.start(3)
    second.advance(3)
    second.done()
    check_progress(events, {"x": 3})


def interrupt(repository: Repository, after: float) -> None:
    """Stop a download after some segments, as a consumer does that is cancelled."""

    async def read() -> None:
        received = 0
        async with repository.stream("model.safetensors") as chunks:
            async for chunk in chunks:
                received += chunk.nbytes
                if received >= after * SEGMENT:
                    return

    original = transport.Body._rest

    async def in_small_chunks(self: Any):
        async for chunk in original(self):
            for start in range(0, chunk.nbytes, SEGMENT // 4):
                yield chunk.slice(start, min(chunk.nbytes, start + SEGMENT // 4))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport.Body, "_rest", in_small_chunks)
        finish(read())
