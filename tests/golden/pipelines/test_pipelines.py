"""Whole runs of pipelines, equal to those of transformers (5.24.0, and 4.57.6 for question-answering).

Labels, words, offsets, ids and texts are equal; scores and features differ by at most 1e-4.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inpage import pipeline
from inpage.models.auto import CONFIGS
from inpage.pipelines import ALIASES, TASKS
from inpage.tensor import Tensor
from tests import models

HERE = Path(__file__).parent
TOLERANCE = 1e-4
# Runs that wait for their architecture, by model type.
LEFT_OUT = {"encoders/deberta-v2-cls": "deberta-v2", "seq2seq/bart-cls": "bart"}


def _runs() -> Iterator[Any]:
    seen: set[str] = set()
    for version in ("v5", "v4"):
        results = json.loads((HERE / f"pipelines_{version}.json").read_text())["results"]
        for number, run in enumerate(results):
            if ALIASES.get(run["task"], run["task"]) not in TASKS or run["repo"] in LEFT_OUT or not _built_in(run):
                continue
            if run["call"].get("stop_sequence") and version == "v4":  # there it stops for some tokens only
                continue
            yield pytest.param("wasm", run, id=f"{version}-{number}-{run['repo'].split('/')[1]}-wasm")
            kind = f"{run['task']} {run['repo']}"
            if kind not in seen:  # one of each kind on the executor that specifies the ops
                seen.add(kind)
                yield pytest.param("reference", run, id=f"{version}-{number}-{run['repo'].split('/')[1]}-reference")


def _built_in(run: dict[str, Any]) -> bool:
    """Whether the architecture of a decoder is there."""
    config = HERE.parent / run["repo"] / "config.json"
    return run["task"] != "text-generation" or json.loads(config.read_text())["model_type"] in CONFIGS


@pytest.fixture(scope="module")
def load() -> Iterator[Any]:
    loaded: dict[Any, Any] = {}

    def load(task: str, repo: str, device: str) -> Any:
        key = task, repo, device
        if key not in loaded:
            loaded[key] = pipeline(task, str(HERE.parent / repo), device=device)
        return loaded[key]

    yield load
    for pipe in loaded.values():
        pipe.dispose()


@pytest.mark.filterwarnings("ignore:The target 'zzz'")
@pytest.mark.parametrize(("device", "run"), list(_runs()))
def test_run(load: Any, device: str, run: dict[str, Any]) -> None:
    pipe = load(run["task"], run["repo"], device)
    inputs = [] if run["args"] == [] else [run["args"]]
    assert_equal(pipe(*inputs, **run["call"]), run["output"])


def test_what_is_left_out_is_not_built_in() -> None:
    assert not CONFIGS.keys() & LEFT_OUT.values()


def assert_equal(found: Any, expected: Any, where: str = "result") -> None:
    """Equal in structure and values, floats within the tolerance."""
    if isinstance(found, Tensor):
        found = found.tolist()
    if isinstance(expected, float):
        assert isinstance(found, float), where
        assert found == pytest.approx(expected, abs=TOLERANCE), where
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            assert_equal(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, list):
        assert isinstance(found, list), where
        assert len(found) == len(expected), where
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_equal(one, other, f"{where}[{i}]")
    else:
        assert found == expected, where
        assert type(found) is type(expected), where


def test_sentence_embeddings_of_a_trained_model() -> None:
    reference = json.loads((HERE.parent / "models" / "all-MiniLM-L6-v2.json").read_text())
    rows = reference["rows"]
    folder = str(models.path("sentence-transformers/all-MiniLM-L6-v2"))
    with pipeline("feature-extraction", folder) as extract:
        texts = [row["text"] for row in rows]
        found = extract(texts, pooling="mean", normalize=True, max_length=reference["max_length"])
        assert found.shape == (len(rows), 384)
        for vector, row in zip(found.tolist(), rows, strict=True):
            assert vector == pytest.approx(row["embedding"], abs=TOLERANCE), row["text"]
