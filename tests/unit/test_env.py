import pytest

from inpage.env import Environment
from inpage.errors import ConfigError


@pytest.fixture
def env() -> Environment:
    return Environment()


def test_defaults_are_the_hub_and_both_caches(env: Environment) -> None:
    assert env.remote_host == "https://huggingface.co/"
    assert env.remote_path_template == "{model}/resolve/{revision}/"
    assert env.use_browser_cache and env.use_fs_cache and env.allow_remote_models
    assert env.cache_dir is not None and env.cache_dir.endswith("inpage")


def test_set_and_reset(env: Environment) -> None:
    env.remote_host = "https://example.org/"
    env.wasm.num_threads = 3
    assert env.as_dict()["remote_host"] == "https://example.org/"
    assert env.as_dict()["wasm"]["num_threads"] == 3
    env.reset()
    assert env.remote_host == "https://huggingface.co/"
    assert env.wasm.num_threads is None


def test_update_reaches_nested_settings(env: Environment) -> None:
    wasm = env.wasm
    env.update({"allow_remote_models": False, "wasm": {"variant": "simd"}})
    assert env.allow_remote_models is False
    assert env.wasm is wasm and wasm.variant == "simd"


def test_a_wrong_update_changes_nothing(env: Environment) -> None:
    with pytest.raises(ConfigError):
        env.update({"cache_name": "other", "wasm": {"variant": "simd", "speed": 2}})
    assert env.cache_name == "inpage" and env.wasm.variant is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("remoteHost", "'remote_host'"),
        ("useFSCache", "'use_fs_cache'"),
        ("cacheKey", "'cache_name'"),
        ("cache_key", "'cache_name'"),
        ("remote_hots", "remote_host"),
        ("use_custom_cache", "Settings are"),
    ],
)
def test_unknown_names_raise_with_a_hint(env: Environment, name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        setattr(env, name, "x")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote_host", None),
        ("use_fs_cache", 1),
        ("cache_dir", 3),
        ("wasm", 4),
        ("wasm", {"num_threads": True}),
        ("wasm", {"num_threads": 10**6}),
        *(("wasm", {name: value}) for name in ("num_threads", "max_memory") for value in (0, -1)),
    ],
)
def test_values_of_the_wrong_type_raise(env: Environment, name: str, value: object) -> None:
    with pytest.raises(ConfigError):
        setattr(env, name, value)


def test_the_package_exports_the_object() -> None:
    import inpage
    import inpage.env

    assert isinstance(inpage.env, Environment)
