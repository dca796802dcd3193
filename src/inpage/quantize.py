"""Quantised copies of repositories, for hosting: `inpage quantize SRC DST --dtype q4`.

The copy is a folder with the configuration, the tokenizer and `model.<dtype>.safetensors` (its format is described in
`inpage.checkpoint.quantized`). Put on any file host, it loads with the same dtype, and needs no other weights.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .errors import ConfigError, InpageError
from .runtime import resolve

DTYPES = ("fp16", "q8", "q8g", "q4", "q4z")
COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja",
    "generation_config.json", "preprocessor_config.json", "processor_config.json", "modules.json",
    "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json", "README.md", "LICENSE",
)  # fmt: skip
"""Files that a copy gets beside config.json and the weights, if the repository has them."""

Report = Callable[[str], None]


def quantize(
    source: str,
    target: str,
    dtype: str,
    *,
    exclude: tuple[str, ...] = (),
    overwrite: bool = False,
    revision: str = "main",
    token: str | None = None,
    report: Report = lambda line: None,
) -> str:
    """Write the copy of the repository `source` into the folder `target`; returns the path of the weights.

    Parameters whose names fit a pattern of `exclude` stay in float32. The folder appears when it is complete. Raises
    ConfigError if it is there already (unless `overwrite`), UnsupportedError, and what loading the repository raises.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} cannot be written.", hint=f"Use one of {', '.join(DTYPES)}.")
    if os.path.exists(target) and not overwrite:
        raise ConfigError(f"{target} exists.", hint="Choose another folder, or say --overwrite.")
    return resolve(_quantize(source, os.path.abspath(target), dtype, exclude, revision, token, report))


async def _quantize(
    source: str, target: str, dtype: str, exclude: tuple[str, ...], revision: str, token: str | None, report: Report
) -> str:
    from .checkpoint import CheckpointWriter
    from .checkpoint.quantized import file_name
    from .env import env
    from .hub import Repository

    repository = Repository(source, revision=revision, token=token, progress_callback=_Progress(report))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    keeps, env.keep_quantized = env.keep_quantized, False
    unfinished = tempfile.mkdtemp(prefix=".inpage-", dir=os.path.dirname(target))
    try:
        model, info = await _load(repository, {**dict.fromkeys(exclude, "fp32"), "*": dtype})
        with model:
            for name in info["unexpected_keys"]:
                report(f"left out, as {type(model).__name__} has no such parameter: {name}")
            path = os.path.join(unfinished, file_name(dtype))
            writer = CheckpointWriter(model)
            with open(path, "wb") as file:
                for piece in writer.pieces():
                    file.write(piece)
            report(f"{file_name(dtype)}: {writer.nbytes:,} bytes, {8 * writer.nbytes / model.num_parameters():.2f} "
                   "bits a weight")  # fmt: skip
        await _copy_files(repository, unfinished)
        _move(unfinished, target)
    finally:
        env.keep_quantized = keeps
        shutil.rmtree(unfinished, ignore_errors=True)
    return os.path.join(target, file_name(dtype))


async def _load(repository: Any, dtype: dict[str, str]) -> tuple[Any, dict[str, Any]]:
    """The model of the class that config.json names, or else the one without a head."""
    from .models.auto import AutoModel, model_type_of
    from .models.modeling import PreTrainedModel, load

    def choose(values: dict[str, Any], name: str) -> Any:
        model_type = model_type_of(values, name)
        module = import_module(f".models.{model_type.replace('-', '_')}", __package__)
        named = [getattr(module, each, None) for each in values.get("architectures") or ()]
        known = [each for each in named if isinstance(each, type) and issubclass(each, PreTrainedModel)]
        return known[0] if known else AutoModel.class_for(values, name)

    return await load(choose, repository, dtype=dtype, output_loading_info=True)


async def _copy_files(repository: Any, folder: str) -> None:
    for name in ("config.json", *COPIED):
        data = await repository.read(name, required=name == "config.json")
        if data is not None:
            path = os.path.join(folder, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)


def _move(unfinished: str, target: str) -> None:
    """Put the finished folder in its place; of an older one, files of the same names are replaced."""
    if not os.path.exists(target):
        os.rename(unfinished, target)
        os.chmod(target, 0o755)
        return
    for folder, _, names in os.walk(unfinished):
        place = os.path.join(target, os.path.relpath(folder, unfinished))
        os.makedirs(place, exist_ok=True)
        for name in names:
            os.replace(os.path.join(folder, name), os.path.join(place, name))


class _Progress:
    """Reports a file's progress in steps of ten percent."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last: dict[str, int] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        if event["status"] != "progress" or not event["file"].endswith(".safetensors"):
            return
        tenth = int(event["progress"] // 10)
        if tenth > self._last.get(event["file"], -1):
            self._last[event["file"]] = tenth
            self._report(f"{event['file']}: {event['progress']:.0f} % of {event['total']:,} bytes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `inpage quantize`."""
    parser.add_argument("source", metavar="SRC", help="hub id, path or URL of the repository")
    parser.add_argument("target", metavar="DST", help="folder to write")
    parser.add_argument("--dtype", required=True, choices=DTYPES, help="layout of the weights")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN",
                        help="keep parameters of fitting names in float32 (may be given several times)")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace files of an existing folder")
    parser.add_argument("--revision", default="main", help="branch, tag or commit of a hub id")
    parser.add_argument("--token", help="access token of the hub")


def run(options: argparse.Namespace) -> int:
    """Do what the parsed arguments say; returns the exit status."""

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        print(quantize(options.source, options.target, options.dtype, exclude=tuple(options.exclude),
                       overwrite=options.overwrite, revision=options.revision, token=options.token,
                       report=report))  # fmt: skip
    except InpageError as error:
        report(f"error: {error}")
        return 1
    return 0
