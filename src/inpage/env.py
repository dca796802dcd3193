"""Settings of the library, with the names of transformers.js's `env` in Python's spelling.

    from inpage import env
    env.remote_host = "https://models.example.org/"
    env.wasm.num_threads = 4
    env.update({"allow_remote_models": False, "wasm": {"variant": "simd"}})

An unknown name or a value of the wrong type raises `ConfigError`; a setting is never ignored.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError
from .runtime import IN_PYODIDE

_MOST = {"num_threads": 64, "max_memory": 2**53}  # of settings of the WebAssembly executor
_RENAMED = {
    "cache_key": "cache_name",
    "use_f_s_cache": "use_fs_cache",
    "use_fscache": "use_fs_cache",
    "backends": "wasm",
}


def _in_node() -> bool:
    if not IN_PYODIDE:
        return False
    import js  # pyright: ignore[reportMissingImports]

    process = getattr(js, "process", None)
    return getattr(getattr(process, "release", None), "name", None) == "node"


IN_NODE = _in_node()
IN_BROWSER = IN_PYODIDE and not IN_NODE


def _default_cache_dir() -> str | None:
    """The user's cache folder on the machine's own disk; a browser has none."""
    if IN_BROWSER:
        return None
    if IN_NODE:
        import js  # pyright: ignore[reportMissingImports]

        environment, home = js.process.env, js.process.getBuiltinModule("node:os").homedir()
        root = getattr(environment, "XDG_CACHE_HOME", None) or getattr(environment, "LOCALAPPDATA", None)
    else:
        home = os.path.expanduser("~")
        root = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return f"{root or home + '/.cache'}/inpage"


class Settings:
    """Named settings with a default and a type each. Attribute access reads and writes them."""

    _title = "env"
    _defaults: dict[str, Any]

    def __init__(self, **defaults: Any) -> None:
        object.__setattr__(self, "_defaults", defaults)
        self.reset()

    def reset(self) -> None:
        """Put every setting back to its default."""
        for name, value in self._defaults.items():
            if isinstance(value, Settings):
                value.reset()
            self.__dict__[name] = value

    def update(self, settings: Mapping[str, Any]) -> None:
        """Set several settings at once, nested groups as nested mappings. Nothing is set if one of them is wrong."""
        for name, value in settings.items():
            self._check(name, value)
        for name, value in settings.items():
            setattr(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """The present settings as plain values."""
        values = {name: getattr(self, name) for name in self._defaults}
        return {name: value.as_dict() if isinstance(value, Settings) else value for name, value in values.items()}

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(name, value)
        current = self.__dict__[name]
        if isinstance(current, Settings):
            current.update(value)
        else:
            self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"{self._title}({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"

    def _check(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise ConfigError(f"{self._title} has no setting {name!r}.", hint=self._hint(name), setting=name)
        default = self._defaults[name]
        if isinstance(default, Settings):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{self._title}.{name} takes a mapping of settings, not {value!r}.", setting=name)
            for inner, inner_value in value.items():
                default._check(inner, inner_value)
            return
        accepted = self._accepted(name, default)
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in accepted)
            raise ConfigError(f"{self._title}.{name} takes {expected}, not {value!r}.", setting=name)

    def _accepted(self, name: str, default: Any) -> tuple[type, ...]:
        return (type(default),)

    def _hint(self, name: str) -> str:
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        snake = _RENAMED.get(snake, snake)
        if snake in self._defaults:
            return f"Use {snake!r}."
        return f"Settings are: {', '.join(self._defaults)}."


class WasmSettings(Settings):
    """Settings of the WebAssembly executor, for models that are loaded from then on; None lets it choose."""

    num_threads: int | None
    variant: str | None
    max_memory: int | None

    _title = "env.wasm"

    def __init__(self) -> None:
        super().__init__(num_threads=None, variant=None, max_memory=None)

    def _accepted(self, name: str, default: Any) -> tuple[type, ...]:
        return (str if name == "variant" else int, type(None))

    def _check(self, name: str, value: Any) -> None:
        super()._check(name, value)
        if isinstance(value, int) and not 1 <= value <= _MOST[name]:
            raise ConfigError(
                f"{self._title}.{name} takes None or a number from 1 to {_MOST[name]:,}, not {value!r}.", setting=name
            )


class Environment(Settings):
    """The settings object. Create none: use `inpage.env`."""

    allow_local_models: bool
    allow_remote_models: bool
    local_model_path: str
    remote_host: str
    remote_path_template: str
    use_browser_cache: bool
    use_fs_cache: bool
    cache_dir: str | None
    cache_name: str
    keep_quantized: bool
    wasm: WasmSettings

    def __init__(self) -> None:
        super().__init__(
            # Where models come from.
            allow_local_models=not IN_BROWSER,
            allow_remote_models=True,
            local_model_path="/models/" if IN_BROWSER else "./models/",
            remote_host="https://huggingface.co/",
            remote_path_template="{model}/resolve/{revision}/",
            # Where they are kept: Cache Storage `cache_name` in a browser, else folder `cache_dir`/`cache_name`.
            use_browser_cache=True,
            use_fs_cache=True,
            cache_dir=_default_cache_dir(),
            cache_name="inpage",
            # Keep weights there that were quantised while they were loaded, in place of the files they came from.
            keep_quantized=True,
            wasm=WasmSettings(),
        )

    def _accepted(self, name: str, default: Any) -> tuple[type, ...]:
        return (str, type(None)) if name == "cache_dir" else (type(default),)


env = Environment()
