"""Tasks: a model with its tokenizer behind one call on texts."""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ..errors import InputError, UnsupportedError
from ..runtime import gather, resolve
from .base import Pipeline, make_options

__all__ = ["ALIASES", "TASKS", "Pipeline", "pipeline"]

TASKS = {
    "feature-extraction": "FeatureExtractionPipeline",
    "fill-mask": "FillMaskPipeline",
    "question-answering": "QuestionAnsweringPipeline",
    "text-classification": "TextClassificationPipeline",
    "text-generation": "TextGenerationPipeline",
    "token-classification": "TokenClassificationPipeline",
    "zero-shot-classification": "ZeroShotClassificationPipeline",
}
ALIASES = {
    "embeddings": "feature-extraction",
    "ner": "token-classification",
    "sentiment-analysis": "text-classification",
}
_TASK_OF_ARCHITECTURE = {
    "ForMaskedLM": "fill-mask",
    "ForQuestionAnswering": "question-answering",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "Model": "feature-extraction",
}
# What every load reads, so that the total is known from the first event on.
_MODEL_FILES = ("config.json", "model.safetensors")
_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")


def pipeline(
    task: str | None = None,
    model: Any = None,
    *,
    tokenizer: Any = None,
    dtype: str | dict[str, str] | None = None,
    device: str | None = None,
    revision: str = "main",
    subfolder: str = "",
    token: str | None = None,
    local_files_only: bool = False,
    progress_callback: Callable[[dict[str, Any]], Any] | None = None,
    model_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A `Pipeline` for a task. The result can be awaited, which Pyodide needs where it cannot block.

    task: a key of `TASKS` or `ALIASES`; without it, the task that the model was made for.
    model: hub id, folder or URL of a repository, or a loaded model, which stays the caller's to dispose of.
    tokenizer: a repository (its main revision) or a loaded tokenizer; by default that of the model's repository.
    dtype, device: how and where to compute, as in `AutoModel.from_pretrained`.
    revision, subfolder, token, local_files_only: of the model's repository.
    progress_callback: gets the loading events of all files, at last {"status": "ready", "task", "model"}.
    model_kwargs: further arguments of `AutoModel.from_pretrained`.
    options: options for calls that do not give them.

    Raises UnsupportedError for an unknown task, InputError for arguments that do not fit, and what loading raises.
    """
    if task is not None:
        task = _known_task(task)
        make_options(pipeline_class(task).options_class, options, task)  # before anything is downloaded
    if model is None:
        raise InputError(
            f"pipeline({task or ''!r}) needs a model: nothing is loaded that was not named.",
            hint='Name a repository, as in pipeline("feature-extraction", "sentence-transformers/all-MiniLM-L6-v2").',
        )
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if isinstance(tokenizer, os.PathLike):
        tokenizer = os.fspath(tokenizer)
    if not isinstance(model_kwargs, Mapping | None):
        raise InputError(f"model_kwargs is a mapping of arguments, not {model_kwargs!r:.60}.")
    place = {"revision": revision, "subfolder": subfolder, "token": token, "local_files_only": local_files_only}
    loading = {"dtype": dtype, "device": device}
    for name, value in (model_kwargs or {}).items():
        if name in (*place, *loading, "progress_callback", "output_loading_info"):
            raise InputError(
                f"model_kwargs cannot have {name!r}.", hint="pipeline() has its own argument for what it takes."
            )
        loading[name] = value
    if isinstance(model, str):
        from ..models.modeling import up_to_date

        return resolve(up_to_date(lambda: _load(task, model, tokenizer, place, loading, progress_callback, options)))
    given = [name for name, value in {**place, **loading}.items() if value not in (None, False, "", "main")]
    if given:
        raise InputError(f"The model is loaded already; {', '.join(given)} would not count.", hint="Leave that out.")
    if tokenizer is None or isinstance(tokenizer, str):
        raise InputError("A loaded model needs its tokenizer, loaded, too.", hint="Give tokenizer=...")
    return pipeline_class(task or _task_of([type(model).__name__]))(model, tokenizer, **options)


def pipeline_class(task: str) -> type[Pipeline]:
    """The class of a key of `TASKS`."""
    return getattr(import_module(f".{task.replace('-', '_')}", __name__), TASKS[task])


async def _load(
    task: str | None,
    name: str,
    tokenizer: Any,
    place: dict[str, Any],
    loading: dict[str, Any],
    progress_callback: Any,
    options: dict[str, Any],
) -> Pipeline:
    """The pipeline of a repository, model and tokenizer loaded at once, their progress counted together."""
    from ..hub import Progress, Repository
    from ..models import auto
    from ..models.configuration import read_config
    from ..models.modeling import load
    from ..processing.tokenizer import AutoTokenizer

    progress = Progress.of(progress_callback)
    repository = Repository(name, progress_callback=progress, **place)
    expected = _MODEL_FILES if tokenizer is not None else _MODEL_FILES + _TOKENIZER_FILES
    if task is None:
        await repository.expect(*expected)
        task = _task_of((await read_config(repository)).get("architectures") or [])
    chosen = pipeline_class(task)
    make_options(chosen.options_class, options, task)
    await repository.expect(*expected)
    models: list[Any] = []

    async def load_model() -> None:
        models.append(await load(getattr(auto, chosen.head).class_for, repository, **loading))

    async def load_tokenizer() -> Any:
        if tokenizer is not None and not isinstance(tokenizer, str):
            return tokenizer
        source = repository
        if tokenizer is not None:
            access = {name: place[name] for name in ("token", "local_files_only")}
            source = Repository(tokenizer, progress_callback=progress, **access)
        return await AutoTokenizer._from_pretrained(source)

    try:
        tokenizer, _ = await gather(load_tokenizer(), load_model())
        pipe = chosen(models[0], tokenizer, owns_model=True, **options)
        progress({"status": "ready", "task": task, "model": name})
    except BaseException:
        for model in models:
            model.dispose()
        raise
    return pipe


def _known_task(task: str) -> str:
    """The task's own name. Raises UnsupportedError."""
    name = ALIASES.get(task, task) if isinstance(task, str) else None
    if name not in TASKS:
        raise UnsupportedError(
            f"Unknown task {task!r}.", hint=f"The tasks are: {', '.join(sorted((*TASKS, *ALIASES)))}."
        )
    return name


def _task_of(architectures: list[str]) -> str:
    """The task that an architecture is for. Raises InputError."""
    for architecture in architectures:
        for suffix, task in _TASK_OF_ARCHITECTURE.items():
            if architecture.endswith(suffix):
                return task
    raise InputError(
        f"The model does not tell its task: its architectures are {', '.join(architectures) or 'not stated'}.",
        hint="Name the task: pipeline(task, model).",
    )
