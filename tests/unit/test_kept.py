"""What a load quantised is kept in the store: the next load reads it alone, and never when it may be wrong."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inpage import AutoModel, AutoModelForMaskedLM, env, pipeline
from inpage.__main__ import main
from inpage.checkpoint import image as image_module
from inpage.checkpoint.safetensors import encode_header
from inpage.errors import OutOfMemoryError, UnsupportedError
from inpage.executors.wasm import VARIANTS, WasmExecutor
from inpage.hub import StoreWarning, delete_cached, find_outdated, list_cached
from inpage.hub import store as store_module
from inpage.hub.backends import FileBackend
from inpage.models.bert import BertConfig, BertForMaskedLM
from tests.checkpoints import decode, encode
from tests.faults import FaultyServer, faulty_server

ENCODERS = Path(__file__).parent.parent / "golden" / "encoders"
NAME = "org/tiny"
CONFIG = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 64, "hidden_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 512, "max_position_embeddings": 16,
    "type_vocab_size": 2,
}  # fmt: skip
SINGLE = "model.safetensors"


def checkpoint(seed: int, **config: Any) -> bytes:
    rng = np.random.default_rng(seed)
    parameters = BertForMaskedLM(BertConfig.from_dict(CONFIG | config)).named_parameters()
    values = {name: rng.normal(size=p.shape).astype(np.float32) for name, p in parameters}
    for tied in ("weight", "bias"):
        values.pop(f"cls.predictions.decoder.{tied}")
    return encode(values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / SINGLE).write_bytes(checkpoint(1))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    env.reset()
    env.cache_dir = str(tmp_path / "cache")
    monkeypatch.setattr(store_module, "SEGMENT", 1 << 14)
    monkeypatch.setattr(store_module, "_warned", False)
    monkeypatch.setattr(store_module, "_stores", {})
    monkeypatch.setattr(store_module, "_memory", store_module.MemoryBackend(1 << 30))
    with faulty_server({NAME: str(folder)}) as server:
        env.remote_host = f"{server.url}ok/"
        yield server
    env.reset()


def load(dtype: Any = "q4", model_class: Any = AutoModelForMaskedLM, **options: Any) -> dict[str, Any]:
    with model_class.from_pretrained(NAME, dtype=dtype, **options) as model:
        return {name: (p.layout, np.array(p).tobytes()) for name, p in model.named_parameters()}


def stored() -> dict[str, int]:
    """Sizes of complete safetensors files in the store."""
    return {e["file"]: e["size"] for e in list_cached(NAME) if e["complete"] and e["file"].endswith(".safetensors")}


def downloads(server: FaultyServer) -> int:
    return len([r for r in server.downloads(SINGLE) if r.headers.get("range", "bytes=0-").endswith("-")])


@pytest.mark.parametrize("dtype", ["q8", "q8g", "q4", "q4z", "fp16", {"*.query.*": "fp32", "*": "q4"}])
def test_the_second_load_reads_only_what_was_kept(server: FaultyServer, folder: Path, dtype: Any) -> None:
    first = load(dtype)
    (name,) = files = stored()
    assert name.startswith("model.q" if isinstance(dtype, str) and dtype[0] == "q" else "model.")
    assert files[name] < (folder / SINGLE).stat().st_size * (0.56 if dtype == "fp16" else 0.4)
    count = downloads(server)
    assert load(dtype) == first
    assert downloads(server) == count
    assert load(dtype, local_files_only=True) == first
    assert stored() == files


def test_the_host_is_asked_once_whether_the_source_is_the_same(server: FaultyServer) -> None:
    load()
    for options in ({}, {"progress_callback": lambda event: None}):
        server.requests.clear()
        load(**options)
        assert [(r.method, r.file) for r in server.requests] == [("HEAD", SINGLE)]


def test_progress_counts_what_is_read(server: FaultyServer) -> None:
    load()
    events: list[dict[str, Any]] = []
    load(progress_callback=events.append)
    (last,) = [event for event in events if event["status"] == "progress_total"][-1:]
    assert last["progress"] == 100
    assert {file: entry["total"] for file, entry in last["files"].items() if file != "config.json"} == stored()
    assert last["cached"]


def test_it_is_deleted_with_the_repository(server: FaultyServer) -> None:
    load()
    assert any(entry["file"].startswith("model.q4") for entry in delete_cached(NAME))
    assert not list_cached(NAME)
    count = downloads(server)
    load()
    assert downloads(server) > count


def test_it_is_not_served_once_the_source_changed(server: FaultyServer, folder: Path) -> None:
    first = load()
    assert not [e for e in find_outdated(NAME) if "safetensors" in e["file"]]
    (folder / SINGLE).write_bytes(checkpoint(2))
    assert [e["file"] for e in find_outdated(NAME) if "safetensors" in e["file"]] == list(stored())
    second = load()
    assert second != first
    assert load() == second
    assert len(stored()) == 1


@pytest.mark.parametrize("way", ["model", "pipeline"])
def test_nothing_of_an_older_version_goes_with_a_new_one(server: FaultyServer, folder: Path, way: str) -> None:
    """The weights are asked for, the files beside them are not, unless the weights are new."""

    def vocabulary() -> int:
        if way == "pipeline":
            with pipeline("fill-mask", NAME, dtype="q4") as fill:
                return fill.model.config.vocab_size
        with AutoModelForMaskedLM.from_pretrained(NAME, dtype="q4") as model:
            return model.config.vocab_size

    tokenizer = ENCODERS / "bert-mlm" / "tokenizer.json"
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    assert vocabulary() == CONFIG["vocab_size"]
    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 72}))
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes() + b"\n")
    (folder / SINGLE).write_bytes(checkpoint(2, vocab_size=72))
    assert vocabulary() == 72
    assert not find_outdated(NAME)
    assert vocabulary() == 72
    assert len(stored()) == 1


def test_a_host_that_is_down(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from inpage.hub import transport

    monkeypatch.setattr(transport, "OPEN_DELAYS", ())
    first = load()
    server.is_down = True
    assert load() == first


def test_what_the_user_had_stays(server: FaultyServer) -> None:
    exact = load("fp32")
    load("q4")
    assert len(stored()) == 2
    server.is_down = True
    assert load("fp32") == exact


def test_models_that_take_other_tensors(server: FaultyServer) -> None:
    load("q4", AutoModel)
    whole = load("q4", AutoModelForMaskedLM)
    assert len(stored()) == 2
    assert load("q4", AutoModelForMaskedLM) == whole


def test_it_can_be_turned_off(server: FaultyServer) -> None:
    env.keep_quantized = False
    load()
    assert list(stored()) == [SINGLE]


def test_the_report_is_the_same(server: FaultyServer) -> None:
    infos = []
    for _ in range(2):
        model, info = AutoModel.from_pretrained(NAME, dtype="q8", output_loading_info=True)
        model.dispose()
        infos.append(info)
    assert infos[0] == infos[1]
    assert "cls.predictions.bias" in infos[0]["unexpected_keys"]


def test_memory_alone_keeps_nothing(server: FaultyServer) -> None:
    env.cache_dir = None
    with pytest.warns(StoreWarning):
        load()
    assert list(stored()) == [SINGLE]


@pytest.mark.parametrize("damage", ["cut", "gone", "header"])
def test_a_damaged_file_is_made_again(server: FaultyServer, tmp_path: Path, damage: str) -> None:
    first = load()
    (entry,) = [e for e in list_cached(NAME) if e["file"].startswith("model.q4")]
    segments = FileBackend(str(tmp_path / "cache" / env.cache_name))
    path = Path(segments._path(entry["url"], "0" if damage == "header" else "2"))
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert load() == first
    assert len([name for name in stored() if name.startswith("model.q4")]) == 1


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("inpage.memory", lambda text: "0, panels of 16"),
        ("inpage.layouts", lambda text: text.replace("q4", "q8")),
        ("inpage.layouts", lambda text: text.replace('"q4"', "[]")),
        ("inpage.layouts", lambda text: "[1]"),
        ("inpage.tied", lambda text: "{}"),
        ("inpage.tied", lambda text: text.replace("word_embeddings", "position_embeddings")),
    ],
)
def test_a_file_of_other_layouts_is_made_again(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, key: str, change: Callable[[str], str]
) -> None:
    def encoded(tensors: Any, metadata: dict[str, str]) -> Any:
        changed = {**metadata, key: change(metadata[key])}
        assert changed != metadata
        return encode_header(tensors, changed)

    with monkeypatch.context() as patch:
        patch.setattr(image_module, "encode_header", encoded)
        first = load()
    count = downloads(server)
    assert load() == first
    assert downloads(server) == count + 1
    assert load() == first
    assert downloads(server) == count + 1
    assert len(stored()) == 1


def memory(**options: Any) -> dict[str, tuple[str, bytes]]:
    """Layouts of the weights, and their bytes in kernel memory."""
    with AutoModelForMaskedLM.from_pretrained(NAME, **options) as model:
        return {name: (p.layout, model.executor.read(p.address, p.nbytes)) for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", ["q8", "q4", {"*.query.*": "fp32", "*.key.*": "fp16", "*": "q8g"}])
def test_all_executors_read_what_one_kept(server: FaultyServer, dtype: Any) -> None:
    env.wasm.num_threads = 2
    first = memory(dtype=dtype)
    count = downloads(server)
    for variant in VARIANTS:
        env.wasm.variant = variant
        assert memory(dtype=dtype) == first
    assert memory(dtype=dtype, device="reference") == first
    assert downloads(server) == count


def test_what_was_kept_is_copied_as_it_is(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = memory(dtype="q8")
    calls: list[str] = []
    for name in ("write", "execute"):
        method = getattr(WasmExecutor, name)
        counted = lambda *arguments, name=name, method=method: calls.append(name) or method(*arguments)  # noqa: E731
        monkeypatch.setattr(WasmExecutor, name, counted)
    assert memory(dtype="q8") == first
    (size,) = stored().values()
    assert calls.count("execute") == 0
    assert calls.count("write") == -(-size // store_module.SEGMENT)


def test_weights_that_are_not_tied_stay_so(server: FaultyServer, folder: Path) -> None:
    values = decode(checkpoint(1))
    values["cls.predictions.decoder.weight"] = values["bert.embeddings.word_embeddings.weight"] + 1
    (folder / SINGLE).write_bytes(encode(values))
    for _ in range(2):
        with pytest.warns(UserWarning, match="different values"):
            loaded = load("q8")
        modules = ("cls.predictions.decoder", "bert.embeddings.word_embeddings")
        decoder, table = (np.frombuffer(loaded[f"{name}.weight"][1], np.float32) for name in modules)
        np.testing.assert_allclose(decoder - table, 1, atol=0.05)
    assert downloads(server) == 1


def test_the_source_of_a_quick_download_is_not_stored(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    put, parts = FileBackend.put, []

    async def noted(self: FileBackend, url: str, part: str, chunks: Any) -> None:
        parts.append(url)
        await put(self, url, part, chunks)

    monkeypatch.setattr(FileBackend, "put", noted)
    monkeypatch.setattr(store_module, "QUICK", 1e9)
    load()
    assert not [url for url in parts if url.endswith(SINGLE)]


def test_a_slow_download_that_broke_off_goes_on(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "QUICK", 0)
    with monkeypatch.context() as patch:
        patch.setattr(WasmExecutor, "execute", stop)
        with pytest.raises(KeyboardInterrupt):
            load("q8")
    (entry,) = [e for e in list_cached(NAME) if e["file"] == SINGLE]
    assert not entry["complete"] and entry["stored"] > 0
    first = load("q8")
    assert server.downloads(SINGLE)[-1].headers["range"] == f"bytes={entry['stored']}-"
    assert [e["file"][:8] for e in list_cached(NAME) if "safetensors" in e["file"]] == ["model.q8"]
    delete_cached(NAME)
    assert load("q8") == first


@pytest.mark.parametrize("after", [0, 2])
def test_an_unfinished_file_is_never_served(server: FaultyServer, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    put, count = FileBackend.put, [0]

    async def dies(self: FileBackend, url: str, part: str, chunks: Any) -> None:
        if "inpage-kept" in url:
            if count[0] == after:
                raise KeyboardInterrupt
            count[0] += 1
        await put(self, url, part, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(FileBackend, "put", dies)
        with pytest.raises(KeyboardInterrupt):
            load()
    assert not stored()
    first = load()
    assert load() == first


def test_no_room_is_no_failure(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(self: FileBackend) -> int:
        return 90_000

    monkeypatch.setattr(FileBackend, "free", none)
    with pytest.warns(StoreWarning):
        load()
    assert not [name for name in stored() if name.startswith("model.q4")]


def test_what_does_not_fit_is_not_fetched(server: FaultyServer) -> None:
    config = {**CONFIG, "vocab_size": 1 << 20}
    Path(server.site.models[NAME], "config.json").write_text(json.dumps(config))
    env.wasm.max_memory = 16 << 20
    with pytest.raises(OutOfMemoryError, match="do not fit") as caught:
        AutoModel.from_pretrained(NAME, dtype="q4", ignore_mismatched_sizes=True)
    assert caught.value.details["needed"] > (1 << 20) * 128 * 0.56
    assert caught.value.details["available"] <= 16 << 20
    assert not [r for r in server.downloads(SINGLE) if r.headers["range"].endswith("-")]


# --- inpage quantize --------------------------------------------------------------------------------------------------


def test_quantize(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out" / "tiny-q4"
    assert main(["quantize", str(folder), str(target), "--dtype", "q4", "--exclude", "*.query.*"]) == 0
    output = capsys.readouterr()
    assert output.out.strip() == str(target / "model.q4.safetensors")
    assert "100 %" in output.err and "bits a weight" in output.err
    assert sorted(p.name for p in target.iterdir()) == ["config.json", "model.q4.safetensors", "tokenizer.json"]
    assert list(target.parent.iterdir()) == [target]
    with AutoModelForMaskedLM.from_pretrained(str(target), dtype="q4") as model:
        layouts = {name: parameter.layout for name, parameter in model.named_parameters()}
    assert layouts["bert.encoder.layer.0.attention.self.query.weight"] == "panels"
    assert layouts["bert.encoder.layer.0.attention.self.key.weight"] == "q4"
    with pytest.raises(UnsupportedError, match="cannot give dtype 'q8'"):
        AutoModel.from_pretrained(str(target), dtype="q8")


def test_quantize_takes_models_alone_for_architectures(folder: Path, tmp_path: Path) -> None:
    """Other names of the architecture's module mean nothing, whatever they are."""
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    config = json.loads((changed / "config.json").read_text()) | {"architectures": ["nn", "BertConfig"]}
    (changed / "config.json").write_text(json.dumps(config))
    assert main(["quantize", str(changed), str(tmp_path / "out"), "--dtype", "q4"]) == 0


def test_quantize_refuses_to_overwrite(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "own.txt").write_text("mine")
    command = ["quantize", str(folder), str(target), "--dtype", "q8"]
    assert main(command) == 1
    assert "exists" in capsys.readouterr().err
    assert [p.name for p in target.iterdir()] == ["own.txt"]
    assert main([*command, "--overwrite"]) == 0
    assert (target / "own.txt").read_text() == "mine"
    assert (target / "model.q8.safetensors").exists()


def test_quantize_leaves_nothing_behind_when_it_fails(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "x"
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / SINGLE).write_bytes(b"no safetensors")
    assert main(["quantize", str(broken), str(target), "--dtype", "q8"]) == 1
    assert not list(target.parent.iterdir())


def test_hosted_copies_load_from_the_web(server: FaultyServer, folder: Path, tmp_path: Path) -> None:
    expected = load("q4")
    target = tmp_path / "hosted"
    assert main(["quantize", str(folder), str(target), "--dtype", "q4"]) == 0
    server.site.models[NAME] = str(target)
    delete_cached(NAME)
    assert load("q4") == expected
    assert list(stored()) == ["model.q4.safetensors"]
