"""Golden data: checkpoints with the inputs and outputs of transformers' own run."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inpage.models.auto import CONFIGS
from inpage.models.modeling import PreTrainedModel

HERE = Path(__file__).parent
TOLERANCE = 1e-4
EXECUTORS = ("reference", "wasm")

Array = npt.NDArray[Any]


class Golden:
    """The cases of one checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.description = json.loads((folder / "golden.json").read_text())
        self.cases: dict[str, dict[str, Any]] = self.description["cases"]
        with np.load(folder / "golden.npz") as arrays:
            self._arrays: dict[str, Array] = dict(arrays)
        for name, stored in self.description.get("alias", {}).items():
            self._arrays[name] = self._arrays[stored]

    def inputs(self, case: str) -> dict[str, Any]:
        return self._named(f"{case}/in.")

    def outputs(self, case: str) -> dict[str, Array]:
        """Expected outputs; the elements of tuples are named `name.index`."""
        return self._named(f"{case}/out.")

    def load(self, case: str, **options: Any) -> PreTrainedModel:
        spec = self.cases[case]
        return model_class(spec["cls"]).from_pretrained(str(self.folder), **spec.get("load", {}), **options)

    def _named(self, prefix: str) -> dict[str, Array]:
        return {name.removeprefix(prefix): array for name, array in self._arrays.items() if name.startswith(prefix)}


def model_class(name: str) -> type[PreTrainedModel]:
    """A model class by its name, whatever its module."""
    modules = (import_module(f"inpage.models.{model_type}") for model_type in CONFIGS)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def folders(group: str) -> Iterator[Path]:
    yield from sorted(path.parent for path in (HERE / group).glob("*/golden.json"))


def flatten(output: dict[str, Any]) -> dict[str, Array]:
    """Outputs of a model under the names of the golden data."""
    flat: dict[str, Array] = {}
    for name, value in output.items():
        if isinstance(value, tuple):
            flat |= {f"{name}.{i}": np.asarray(element) for i, element in enumerate(value)}
        else:
            flat[name] = np.asarray(value)
    return flat


def assert_equal(found: dict[str, Any], expected: dict[str, Array], tolerance: float = TOLERANCE) -> None:
    """All outputs, no fewer and no more, agree in shape and to `tolerance` in every element."""
    arrays = flatten(found)
    assert expected, "nothing to compare"
    assert arrays.keys() == expected.keys()
    for name, wanted in expected.items():
        assert arrays[name].shape == wanted.shape, name
        assert np.isfinite(arrays[name]).all(), name
        error = float(np.abs(arrays[name] - wanted).max(initial=0.0))
        assert error <= tolerance, f"{name}: {error}"
