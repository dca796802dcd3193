from pathlib import Path

import pytest

from inpage.env import env
from inpage.errors import ConfigError, InputError
from inpage.hub.resolve import check_path, locate


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    env.reset()
    monkeypatch.chdir(tmp_path)
    yield
    env.reset()


def url(name: str, file: str = "config.json", revision: str = "main", subfolder: str = "") -> str:
    (location,) = locate(name, revision, subfolder)
    assert not location.on_disk
    return location.file(file)


def test_hub_ids() -> None:
    assert url("org/name") == "https://huggingface.co/org/name/resolve/main/config.json"
    assert url("gpt2", "a b#.json") == "https://huggingface.co/gpt2/resolve/main/a%20b%23.json"
    assert url("o/n", revision="refs/pr/1") == "https://huggingface.co/o/n/resolve/refs%2Fpr%2F1/config.json"
    assert url("o/n", subfolder="onnx/x") == "https://huggingface.co/o/n/resolve/main/onnx/x/config.json"


def test_settings_choose_the_hub() -> None:
    env.remote_host = "http://localhost:8000/hub"
    env.remote_path_template = "models/{model}/{revision}"
    assert url("org/name", revision="v1") == "http://localhost:8000/hub/models/org/name/v1/config.json"


@pytest.mark.parametrize("template", ["{model}/{file}/", "/{model}/"])
def test_wrong_templates_raise(template: str) -> None:
    env.remote_path_template = template
    with pytest.raises(ConfigError):
        locate("org/name", "main", "")


@pytest.mark.parametrize("host", ["file:///etc/", "http://[", "huggingface.co"])
def test_hub_must_be_http(host: str) -> None:
    env.remote_host = host
    with pytest.raises(ConfigError):
        locate("org/name", "main", "")


def test_folders_on_the_web() -> None:
    assert url("https://example.org/m") == "https://example.org/m/config.json"
    assert url("https://example.org/m/", subfolder="sub") == "https://example.org/m/sub/config.json"


def test_folders_on_disk(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "models/org/name/sub").mkdir(parents=True)
    for name in (str(tmp_path / "plain"), "./plain", "plain"):
        (location,) = locate(name, "main", "")
        assert location.on_disk and Path(location.file("a/b.json")).resolve() == tmp_path / "plain/a/b.json"
    (location,) = locate("org/name", "main", "sub")
    assert location.on_disk and Path(location.file("c")).resolve() == tmp_path / "models/org/name/sub/c"
    env.allow_local_models = False
    assert url("org/name").startswith("https://huggingface.co/org/name/")
    with pytest.raises(InputError, match="allow_local_models is False"):
        locate("./plain", "main", "")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../none",
        "org/..",
        "a/b/c",
        "org/na me",
        "org/name?x=1",
        "org//name",
        "-x/y",
        "org/name.git",
        "/not/there",
        "ftp://example.org/m",
        "file:///etc",
        "javascript:alert(1)",
        "https://user@example.org/m",
        "https://example.org/m?x=1",
        "https://example.org/a/../b",
        "https:///m",
        "https://[::1/m",
        "https://\u2100.org/m",
    ],
)
def test_other_names_raise(name: str, tmp_path: Path) -> None:
    (tmp_path / "models/org").mkdir(parents=True)
    with pytest.raises(InputError):
        locate(name, "main", "")


@pytest.mark.parametrize("revision", ["", "../main", "a b", "a/../b", "/x", "main?x", "a//b"])
def test_wrong_revisions_raise(revision: str) -> None:
    with pytest.raises(InputError):
        locate("org/name", revision, "")


def test_plain_folders_have_no_revision() -> None:
    with pytest.raises(InputError, match="no revision"):
        locate("https://example.org/m", "v1", "")


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a\\b", "C:x", "http://x/y", "a\n", "a\0", "a/", "a\ud800"],
)
def test_paths_that_lead_out_raise(path: str) -> None:
    with pytest.raises(InputError):
        check_path(path)


@pytest.mark.parametrize("path", ["config.json", "a/b-c/d_e.safetensors", "x..y", "%2e%2e/x"])
def test_other_paths_pass(path: str) -> None:
    assert check_path(path) == path
    assert ".." not in url("org/name", path).split("/")
