"""Model configurations: `config.json` with the defaults of its model type."""

from typing import TYPE_CHECKING, Any, ClassVar, Self

from ..errors import ConfigError, RemoteCodeError, UnsupportedError
from ..runtime import Awaitable

if TYPE_CHECKING:
    from ..hub import Repository

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
# Keys that say what a repository holds, and that are read before any class of configuration checks the others.
_KINDS: dict[str, tuple[type, str]] = {
    "model_type": (str, "a name"),
    "architectures": (list, "a list of class names"),
    "auto_map": (dict, "an object"),
    "text_config": (dict, "an object"),
    "id2label": (dict, "a mapping from numbers to labels"),
    "quantization_config": (dict, "an object"),
}
# By their common names: no model does without them, so that null is no value. Nor is it for any "..._eps".
_NEEDED = (
    "hidden_size",
    "inner_group_num",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_groups",
    "num_hidden_layers",
    "vocab_size",
)
# How often a module is repeated: beyond any model, so that a broken file does not fill the memory with skeletons.
_MOST_REPEATED = 10_000
_REPEATS = ("inner_group_num", "num_hidden_groups", "num_hidden_layers")
# Where they have a value, it is a number, whatever the default.
_COUNTS = ("head_dim", "num_key_value_heads", "sliding_window")
_LABEL_KEYS = ("num_labels", "id2label", "label2id")
# Say what a checkpoint is; giving them to from_pretrained would change nothing.
_FIXED_KEYS = ("architectures", "auto_map", "model_type", "torch_dtype", "transformers_version")


class PreTrainedConfig(Awaitable):
    """Settings of a model as attributes.

    `defaults` are the values of keys that `config.json` leaves out, those of transformers; `attribute_map` gives common
    names to keys that a model type calls otherwise. Raises ConfigError for values that cannot be.
    """

    model_type: ClassVar[str] = ""
    attribute_map: ClassVar[dict[str, str]] = {}
    defaults: ClassVar[dict[str, Any]] = {}
    common_defaults: ClassVar[dict[str, Any]] = {
        "architectures": None,
        "dtype": None,
        "problem_type": None,
        "output_hidden_states": False,
        "output_attentions": False,
        "return_dict": True,
        "tie_word_embeddings": True,
        "is_decoder": False,
        "add_cross_attention": False,
        "attn_implementation": "sdpa",
        "name_or_path": "",
    }

    architectures: list[str] | None
    problem_type: str | None
    attn_implementation: str
    name_or_path: str
    tie_word_embeddings: bool

    def __init__(self, **values: Any) -> None:
        values = {self.attribute_map.get(name, name): value for name, value in values.items()}
        values.pop("model_type", None)
        if (torch_dtype := values.pop("torch_dtype", None)) is not None:  # the key in files of transformers 4
            values.setdefault("dtype", torch_dtype)
        labels = {name: values.pop(name) for name in _LABEL_KEYS if name in values}
        defaults = self.common_defaults | self.defaults
        for name, value in values.items():
            self._check_type(name, value, defaults.get(name))
        vars(self).update(defaults | values)
        self.id2label = self._labels(**labels)
        self.label2id = labels.get("label2id") or {label: i for i, label in self.id2label.items()}
        self._check_values()

    @classmethod
    def from_dict(cls, values: dict[str, Any], **overrides: Any) -> Self:
        """Configuration of the contents of a `config.json`, `overrides` taking precedence.

        Raises ConfigError for an override that is no key of the file or of this class.
        """
        known = {*cls.common_defaults, *cls.defaults, *cls.attribute_map, *_LABEL_KEYS, *values}.difference(_FIXED_KEYS)
        if unknown := sorted(overrides.keys() - known):
            raise ConfigError(
                f"{', '.join(map(repr, unknown))}: neither an option of loading nor a key of {cls.__name__}.",
                hint="It is called dtype here." if "torch_dtype" in unknown else "Check the spelling.",
            )
        values = {cls.attribute_map.get(name, name): value for name, value in values.items()}
        overrides = {cls.attribute_map.get(name, name): value for name, value in overrides.items()}
        if overrides.get("num_labels", len(values.get("id2label") or ())) != len(values.get("id2label") or ()):
            values = {name: value for name, value in values.items() if name not in _LABEL_KEYS}
        if "id2label" in overrides:
            values.pop("label2id", None)
        return cls(**(values | overrides))

    @property
    def num_labels(self) -> int:
        """Size of a classification head."""
        return len(self.id2label)

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, defaults included."""
        return {"model_type": self.model_type, **vars(self)}

    def require(self, **wanted: Any) -> None:
        """Raise UnsupportedError for a key that has another value than the one implemented."""
        for name, value in wanted.items():
            found = getattr(self, name, value)
            if found != value:
                raise UnsupportedError(
                    f"{type(self).__name__}: {name}={found!r} is not supported, only {value!r}.", key=name
                )

    def __getattr__(self, name: str) -> Any:
        key = type(self).attribute_map.get(name)
        if key is None or key not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no key {name!r}")
        return vars(self)[key]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def _check_type(self, name: str, value: Any, default: Any) -> None:
        if name.endswith("_token_id") and value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(type(index) is int for index in ids):
                raise self._error(name, "a token id, or a list of them", value)
            return
        if name in self._keys(_COUNTS) and value is not None and (type(value) is not int or value < 0):
            raise self._error(name, "a whole number, or null", value)
        kind = {bool: bool, int: int, float: float | int, str: str}.get(type(default))
        if kind is None or (value is None and not self._is_needed(name)):
            return
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if fits and isinstance(value, int) and name in self._keys(_REPEATS) and not 1 <= value <= _MOST_REPEATED:
            raise self._error(name, f"1 to {_MOST_REPEATED:,}", value)
        if not fits:
            raise self._error(name, f"a value like {default!r}", value)

    def _is_needed(self, name: str) -> bool:
        return name.endswith("_eps") or name in self._keys(_NEEDED)

    def _keys(self, names: tuple[str, ...]) -> list[str]:
        """What this model type calls these keys."""
        return [self.attribute_map.get(name, name) for name in names]

    def _labels(self, num_labels: int | None = None, id2label: Any = None, label2id: Any = None) -> dict[int, str]:
        if num_labels is not None and (not isinstance(num_labels, int) or num_labels < 1):
            raise self._error("num_labels", "a whole number of at least 1", num_labels)
        if id2label is None:
            return {i: f"LABEL_{i}" for i in range(2 if num_labels is None else num_labels)}
        try:
            labels = {int(i): label for i, label in id2label.items()}
        except (AttributeError, ValueError):
            raise self._error("id2label", "a mapping from numbers to labels", id2label) from None
        if num_labels not in (None, len(labels)):
            raise self._error("num_labels", f"{len(labels)}, the size of id2label", num_labels)
        return labels

    def _check_values(self) -> None:
        if self.problem_type not in (None, *PROBLEM_TYPES):
            raise self._error("problem_type", f"one of {', '.join(PROBLEM_TYPES)}", self.problem_type)
        if self.problem_type == "single_label_classification" and self.num_labels == 1:
            raise self._error("num_labels", "2 or more for single_label_classification", 1)
        heads, width = getattr(self, "num_attention_heads", None), getattr(self, "hidden_size", None)
        if getattr(self, "head_dim", None) is not None:
            return
        if heads is not None and width is not None and (heads < 1 or width % heads):
            raise self._error("hidden_size", f"a multiple of the {heads} attention heads", width)

    def _error(self, name: str, expected: str, found: Any) -> ConfigError:
        return ConfigError(
            f"{type(self).__name__}: {name} must be {expected}, found {str(found)[:100]!r}.",
            hint="Check config.json and the overrides given to from_pretrained.",
            key=name,
        )


async def read_config(repository: "Repository") -> dict[str, Any]:
    """Contents of `config.json`. Raises ConfigError if it is no JSON object, or does not say what it is about."""
    values = await repository.json("config.json")
    if not isinstance(values, dict):
        raise ConfigError(f"config.json of {repository.name} is not a JSON object.", hint="Check the repository.")
    _check_kinds(values, repository.name)
    _check_kinds(values.get("text_config") or {}, repository.name, "text_config.")
    return values


def _check_kinds(values: dict[str, Any], name: str, prefix: str = "") -> None:
    for key, (kind, expected) in _KINDS.items():
        value = values.get(key)
        names = value if isinstance(value, list) else []
        if value is not None and not (isinstance(value, kind) and all(isinstance(name, str) for name in names)):
            raise ConfigError(
                f"config.json of {name}: {prefix}{key} must be {expected}, found {str(value)[:100]!r}.",
                hint="Check the repository.",
                key=key,
            )


def remote_code_error(reason: str) -> RemoteCodeError:
    """The error for whatever would run code of a repository."""
    return RemoteCodeError(
        f"Code of a repository is never run: {reason}.", hint="Use a model whose architecture is built in."
    )
