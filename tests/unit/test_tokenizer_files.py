"""What tokenizers take from the files of a repository, what they ask for, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest

from inpage import AutoTokenizer
from inpage.errors import (
    ConfigError,
    FileNotFoundInRepositoryError,
    InputError,
    RemoteCodeError,
    UnsupportedError,
)
from inpage.processing import backend
from inpage.processing.tokenizer import PreTrainedTokenizer
from inpage.processing.tokenizer_files import read_tokenizer_files
from inpage.runtime import finish
from tests.golden.tokenizers.cases import ENCODERS, VARIANTS

BERT = ENCODERS / "bert-base"
TOKENIZER = (BERT / "tokenizer.json").read_text()


class Files:
    """A repository in memory that notes what is asked for."""

    name = "org/model"

    def __init__(self, **files: Any) -> None:
        self.files = {name.replace("__", "."): value for name, value in files.items()}
        self.asked: list[str] = []

    async def text(self, filename: str, required: bool = True) -> str | None:
        self.asked.append(filename)
        value = self.files.get(filename)
        assert value is not None or not required
        return value if value is None or isinstance(value, str) else json.dumps(value)

    async def read(self, filename: str, required: bool = True) -> bytes | None:
        text = await self.text(filename, required)
        return None if text is None else text.encode()

    async def json(self, filename: str, required: bool = True) -> Any:
        text = await self.text(filename, required)
        return None if text is None else json.loads(text)


def load(options: dict[str, Any] | None = None, **files: Any) -> PreTrainedTokenizer:
    return finish(
        PreTrainedTokenizer._from_pretrained(Files(**{"tokenizer__json": TOKENIZER, **files}), **options or {})
    )


def legacy(name: str, folder: Path) -> dict[str, Any]:
    VARIANTS[name].build(folder)
    return {path.name.replace(".", "__"): path.read_text() for path in folder.iterdir()} | {"tokenizer__json": None}


def test_only_files_that_matter_are_asked_for() -> None:
    def asked(**files: Any) -> list[str]:
        repository = Files(tokenizer__json=TOKENIZER, **files)
        finish(read_tokenizer_files(repository))
        return repository.asked[2:]

    named = {"tokenizer_class": "BertTokenizer"}
    assert asked() == ["special_tokens_map.json", "config.json", "chat_template.jinja"]
    assert asked(config__json={"model_type": "bert"}) == ["special_tokens_map.json", "config.json"]
    assert asked(tokenizer_config__json=named) == ["special_tokens_map.json"]
    assert asked(tokenizer_config__json={**named, "added_tokens_decoder": {}}) == []
    chatting = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {}}
    assert asked(tokenizer_config__json=chatting) == ["chat_template.jinja"]
    assert asked(tokenizer_config__json={**chatting, "chat_template": "x"}) == []


def test_the_class_comes_from_the_configurations() -> None:
    def inputs(**files: Any) -> list[str]:
        return list(load(**files)("a"))

    segments = ["input_ids", "token_type_ids", "attention_mask"]
    assert inputs() == ["input_ids", "attention_mask"]
    assert inputs(config__json={"model_type": "bert"}) == segments
    assert inputs(config__json={"model_type": "distilbert"}) == ["input_ids", "attention_mask"]
    assert inputs(config__json={"model_type": "gpt2", "tokenizer_class": "BertTokenizer"}) == segments
    config = {"tokenizer_class": "ElectraTokenizerFast"}
    assert inputs(tokenizer_config__json=config, config__json={"model_type": "distilbert"}) == segments
    assert inputs(tokenizer_config__json={**config, "model_input_names": ["input_ids"]}) == ["input_ids"]


def test_later_sources_win() -> None:
    config = {"tokenizer_class": "BertTokenizer", "pad_token": "[UNK]", "cls_token": "[MASK]", "model_max_length": 9}
    tokens = {"pad_token": {"content": "[SEP]", "lstrip": False}}
    tokenizer = load(tokenizer_config__json=config, special_tokens_map__json=tokens)
    assert (tokenizer.mask_token, tokenizer.cls_token, tokenizer.pad_token) == ("[MASK]", "[MASK]", "[SEP]")
    tokenizer = load({"pad_token": "[PAD]", "model_max_length": 7}, tokenizer_config__json=config)
    assert (tokenizer.pad_token, tokenizer.model_max_length) == ("[PAD]", 7)
    assert load(tokenizer_config__json={"max_len": 11}).model_max_length == 11
    assert load(tokenizer_config__json={"model_max_length": 1e30}).model_max_length > 10**29


def test_special_tokens_that_a_class_takes_for_granted_are_not_added() -> None:
    tokenizer = load(tokenizer_config__json={"tokenizer_class": "RobertaTokenizer"})
    assert tokenizer.special_tokens_map == {}
    assert len(tokenizer) == tokenizer.vocab_size


@pytest.mark.parametrize("options", [True, False], ids=["option", "file"])
@pytest.mark.parametrize(
    ("name", "value", "text", "expected"),
    [
        ("do_lower_case", False, "A", ["[UNK]"]),
        ("strip_accents", False, "é", ["[UNK]"]),
        ("tokenize_chinese_chars", False, "a京a", ["[UNK]"]),
    ],
)
def test_wordpiece_options(options: bool, name: str, value: Any, text: str, expected: list[str]) -> None:
    config = {"tokenizer_class": "BertTokenizer"}
    assert load(tokenizer_config__json=config).tokenize(text) != expected
    given = {name: value}
    tokenizer = load(given if options else {}, tokenizer_config__json=config if options else config | given)
    assert tokenizer.tokenize(text) == expected


def test_options_that_the_backend_has_no_part_for() -> None:
    for option in ("add_prefix_space", "trim_offsets"):
        with pytest.raises(UnsupportedError, match=option):
            load({option: True})
    with pytest.raises(UnsupportedError, match="do_lower_case"):
        AutoTokenizer.from_pretrained(str(ENCODERS / "roberta-base"), do_lower_case=True)


def test_begin_and_end_tokens() -> None:
    tokenizer = load({"add_bos_token": True, "bos_token": "[CLS]"})
    assert tokenizer("a", "b").tokens() == ["[CLS]", "a", "[CLS]", "b"]
    assert tokenizer("a", "b", return_token_type_ids=True)["token_type_ids"] == [0, 0, 1, 1]
    tokenizer = load({"add_eos_token": True, "eos_token": "[SEP]"})
    assert tokenizer("a", "b").tokens() == ["a", "[SEP]", "b", "[SEP]"]
    with pytest.raises(InputError, match="no bos_token"):
        load({"add_bos_token": True})


def test_settings(tmp_path: Path) -> None:
    config = {
        "truncation_side": "left", "padding_side": "left", "split_special_tokens": True, "pad_token": "[PAD]",
        "clean_up_tokenization_spaces": True, "chat_template": [{"name": "default", "template": "x"}],
    }  # fmt: skip
    tokenizer = load(tokenizer_config__json=config)
    assert (tokenizer.truncation_side, tokenizer.padding_side) == ("left", "left")
    assert tokenizer.split_special_tokens
    assert tokenizer.clean_up_tokenization_spaces
    assert tokenizer.chat_template == {"default": "x"}
    assert load(chat_template__jinja="{{ x }}").chat_template == "{{ x }}"
    with pytest.raises(InputError, match="padding_side"):
        load({"padding_side": "middle"})


def test_padding_and_side_in_tokenizer_json() -> None:
    inner = json.loads(TOKENIZER)
    inner["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None,
        "pad_id": 1, "pad_type_id": 0, "pad_token": "[UNK]",
    }  # fmt: skip
    inner["truncation"] = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Left"}
    tokenizer = load(tokenizer__json=inner)
    assert (tokenizer.pad_token, tokenizer.padding_side, tokenizer.truncation_side) == ("[UNK]", "left", "left")
    assert len(tokenizer("a b c d e f g h i")["input_ids"]) == 11


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("bert from vocab.txt", ["vocab__txt"]),
        ("roberta from vocab.json and merges.txt", ["vocab__json"]),
        ("roberta from vocab.json and merges.txt", ["merges__txt"]),
    ],
)
def test_missing_vocabulary(name: str, missing: list[str], tmp_path: Path) -> None:
    files = legacy(name, tmp_path)
    load({}, **files)
    with pytest.raises(FileNotFoundInRepositoryError, match=r"no tokenizer\.json and no vocab\.") as caught:
        load({}, **(files | dict.fromkeys(missing)))
    assert "save_pretrained" in caught.value.hint


def test_vocabulary_with_line_ends_of_windows(tmp_path: Path) -> None:
    files = legacy("bert from vocab.txt", tmp_path)
    expected = load({}, **files).get_vocab()
    assert load({}, **(files | {"vocab__txt": files["vocab__txt"].replace("\n", "\r\n")})).get_vocab() == expected


def test_vocabulary_in_a_form_that_is_not_read() -> None:
    with pytest.raises(FileNotFoundInRepositoryError, match="T5Tokenizer"):
        load(tokenizer__json=None, tokenizer_config__json={"tokenizer_class": "T5Tokenizer"})
    with pytest.raises(FileNotFoundInRepositoryError, match="TokenizersBackend"):
        AutoTokenizer.from_pretrained(str(ENCODERS))


def test_damaged_files(tmp_path: Path) -> None:
    for text in ("{}", "not JSON", TOKENIZER[:-500]):
        with pytest.raises(ConfigError, match="org/model"):
            load(tokenizer__json=text)
    files = legacy("bert from vocab.txt", tmp_path) | {"vocab__txt": "a\nb\n[UNK]\n"}
    with pytest.raises(ConfigError, match="CLS"):
        load({}, **files)
    with pytest.raises(ConfigError, match="special token"):
        load(tokenizer_config__json={"cls_token": 3})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("model_max_length", value) for value in ("x", [1], float("nan"), -1)),
        *(("model_input_names", value) for value in (3, "input_ids", [3])),
        *(("added_tokens_decoder", value) for value in (3, {"a": {"content": "b"}}, {"1": 3}, [])),
        *(("extra_special_tokens", value) for value in (3, "abc", [3], {"a": 3})),
        *(("additional_special_tokens", value) for value in (3, "abc", [None])),
        *(("chat_template", value) for value in (3, [3], [{"name": "x"}], [{"name": 3, "template": "a"}], {"a": 3})),
        *((name, 3) for name in ("tokenizer_class", "pad_token", "padding_side", "truncation_side")),
        *((name, "no") for name in ("clean_up_tokenization_spaces", "split_special_tokens", "do_lower_case")),
        ("strip_accents", 3),
    ],
)
def test_settings_of_another_form(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        load(tokenizer_config__json={"tokenizer_class": "BertTokenizer", name: value})
    if name != "tokenizer_class":
        with pytest.raises((ConfigError, InputError), match=name):
            load({name: value})


@pytest.mark.parametrize("file", ["tokenizer_config__json", "special_tokens_map__json", "config__json"])
def test_files_that_are_no_objects(file: str) -> None:
    for value in (3, '"x"', ["x"], True):
        with pytest.raises(ConfigError, match=file.replace("__", ".")):
            load(**{"config__json": {"model_type": "bert"}, file: value})
    for value in ([], {}, 3):
        with pytest.raises(ConfigError, match="model_type"):
            load(config__json={"model_type": value})
    with pytest.raises(ConfigError, match="additional_special_tokens"):
        load(special_tokens_map__json={"additional_special_tokens": 3})


def test_unlimited_lengths() -> None:
    for value in (None, 10**30, 1e30, float("inf")):
        assert load(tokenizer_config__json={"model_max_length": value}).model_max_length >= 10**20


def test_remote_code_is_refused() -> None:
    config = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    with pytest.raises(RemoteCodeError, match="OwnTokenizer"):
        load(tokenizer_config__json=config)
    load(tokenizer_config__json=config | {"tokenizer_class": "BertTokenizer"})
    load(tokenizer_config__json={"tokenizer_class": "UnknownTokenizer"})
    with pytest.raises(RemoteCodeError, match="trust_remote_code"):
        load({"trust_remote_code": True})


def test_unknown_options_of_loading() -> None:
    with pytest.raises(InputError, match="max_size"):
        load({"max_size": 3})
    with pytest.raises(InputError, match="revision"):
        load({"revision": "main"})  # of a repository that is open already
    with pytest.raises(UnsupportedError, match="use_fast"):
        load({"use_fast": False})
    load({"use_fast": True, "trust_remote_code": False})


def test_loading_can_be_awaited() -> None:
    import asyncio

    async def loaded() -> PreTrainedTokenizer:
        return await AutoTokenizer.from_pretrained(str(BERT))

    assert asyncio.run(loaded()).cls_token_id == 2
    assert PreTrainedTokenizer.from_pretrained(BERT).name_or_path == str(BERT)


@pytest.mark.parametrize(
    ("abi", "tag"), [("2026_0", "pyemscripten_2026_0"), ("2025_0", "pyemscripten_2025_0"), ("2024_0", "pyodide_2024_0")]
)
def test_name_of_the_wheel(abi: str, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.sysconfig, "get_config_var", {"PYODIDE_ABI_VERSION": abi}.get)
    assert backend.wheel_name() == f"tokenizers-{backend.VERSION}-cp310-abi3-{tag}_wasm32.whl"


@pytest.mark.parametrize(
    ("notes", "folder"),
    [
        ({"PYODIDE_URL": "https://x.org/a/inpage-0.1.0-py3-none-any.whl?v=1\n"}, "https://x.org/a/"),
        ({"PYODIDE_SOURCE": "https://x.org/inpage-0.1.0-py3-none-any.whl"}, "https://x.org/"),
        ({"PYODIDE_SOURCE": "pyodide"}, None),
        ({}, None),
    ],
)
def test_address_of_the_wheel(notes: dict[str, str], folder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        def read_text(self, name: str) -> str | None:
            return notes.get(name)

    monkeypatch.setattr(backend.importlib.metadata, "distribution", lambda name: Distribution())
    assert backend._url_beside_inpage() == (folder and folder + backend.wheel_name())


def test_missing_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(backend.importlib, "import_module", absent)
    with pytest.raises(UnsupportedError, match="pip install tokenizers"):
        finish(backend.load_backend())
