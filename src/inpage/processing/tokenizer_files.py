"""Reads the tokenizer files of a repository."""

from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ConfigError, FileNotFoundInRepositoryError, RemoteCodeError
from ..runtime import gather
from .tokenizer_classes import CLASS_DEFAULTS, MODEL_TYPE_CLASSES, Config


@dataclass(frozen=True)
class TokenizerFiles:
    """What a repository says about its tokenizer. Absent files are None, or empty where they are objects."""

    name: str
    config: Config
    tokenizer: bytes | None = None
    special_tokens_map: Config = field(default_factory=dict)
    model_config: Config = field(default_factory=dict)
    vocabulary: bytes | None = None
    merges: bytes | None = None
    chat_template: str | None = None

    @property
    def class_name(self) -> str:
        """Name of transformers' tokenizer class, without the suffix of the time when there were two of each."""
        name = (
            self.config.get("tokenizer_class")
            or self.model_config.get("tokenizer_class")
            or MODEL_TYPE_CLASSES.get(self.model_config.get("model_type", ""))
            or "TokenizersBackend"
        )
        return name.removesuffix("Fast")

    @property
    def class_defaults(self) -> Config:
        return CLASS_DEFAULTS.get(self.class_name, {})

    @property
    def merged(self) -> Config:
        """What class, tokenizer_config.json and special_tokens_map.json say, the later ones winning."""
        return {**self.class_defaults, **self.config, **self.special_tokens_map}


async def read_tokenizer_files(repository: Any) -> TokenizerFiles:
    """Read what there is, asking only for files that can still matter.

    Raises FileNotFoundInRepositoryError where no vocabulary is in a form that can be read, and RemoteCodeError where
    the tokenizer is a class of the repository's own.
    """
    config, tokenizer = await gather(
        _object(repository, "tokenizer_config.json"), repository.read("tokenizer.json", required=False)
    )
    special_tokens_map, model_config = await gather(
        # Newer files say everything in added_tokens_decoder.
        _nothing() if "added_tokens_decoder" in config else _object(repository, "special_tokens_map.json"),
        _nothing() if config.get("tokenizer_class") else _object(repository, "config.json"),
    )
    files = TokenizerFiles(repository.name, config, tokenizer, special_tokens_map, model_config)
    _refuse_remote_code(files)
    if tokenizer is None:
        files = replace(files, **await _read_vocabulary(repository, files))
    # The classes that take a classification token for granted are those of encoders, which do not chat.
    if not config.get("chat_template") and "cls_token" not in files.class_defaults:
        files = replace(files, chat_template=await repository.text("chat_template.jinja", required=False))
    return files


async def _nothing() -> Config:
    return {}


async def _object(repository: Any, file: str) -> Config:
    """The object that a file holds; an empty one if it is absent. Raises ConfigError."""
    values = await repository.json(file, required=False)
    if values is not None and not isinstance(values, dict):
        raise ConfigError(f"{file} of {repository.name} is not a JSON object.", hint="Check the repository.")
    for name in ("tokenizer_class", "model_type"):
        if values and not isinstance(values.get(name), str | None):
            raise ConfigError(f"{file} of {repository.name}: {name} is a name, not {values[name]!r:.80}.")
    return values or {}


def _refuse_remote_code(files: TokenizerFiles) -> None:
    own_class = files.config.get("auto_map")
    if isinstance(own_class, dict):
        own_class = own_class.get("AutoTokenizer")
    if own_class and files.class_name not in CLASS_DEFAULTS:
        raise RemoteCodeError(
            f"The tokenizer of {files.name} is {files.class_name}, a class that is code in the repository "
            f"({own_class}); code from repositories is never run.",
            hint="Use a repository whose tokenizer is one of transformers' own classes.",
        )


async def _read_vocabulary(repository: Any, files: TokenizerFiles) -> dict[str, Any]:
    """The older files that came before tokenizer.json, for the two families where they say all there is."""
    wordpiece, byte_level = "do_lower_case" in files.class_defaults, "add_prefix_space" in files.class_defaults
    found: dict[str, bytes | None] = {}
    if wordpiece:
        found["vocabulary"] = await repository.read("vocab.txt", required=False)
    elif byte_level:
        vocabulary, merges = await gather(
            repository.read("vocab.json", required=False), repository.read("merges.txt", required=False)
        )
        found = {"vocabulary": vocabulary, "merges": merges}
    if not found or None in found.values():
        tried = " and no vocab.txt" if wordpiece else " and no vocab.json with merges.txt" if byte_level else ""
        raise FileNotFoundInRepositoryError(
            f"{repository.name} has no tokenizer.json{tried}, so its tokenizer ({files.class_name}) cannot be made.",
            hint="Write one with transformers: AutoTokenizer.from_pretrained(name).save_pretrained(folder), and put "
            "tokenizer.json into the repository.",
        )
    return found
