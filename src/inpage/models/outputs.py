"""What models return."""

from collections.abc import Iterable
from typing import Any

from ..tensor import Tensor


class ModelOutput(dict[str, Any]):
    """A dict whose values are also reached as attributes and by position. Fields that are None are left out."""

    def __init__(self, pairs: Iterable[tuple[str, Any]] = (), /, **fields: Any) -> None:
        super().__init__((name, value) for name, value in dict(pairs, **fields).items() if value is not None)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the output has no {name!r}; it has {', '.join(self)}") from None

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """The values in order."""
        return tuple(self.values())


def with_head(outputs: ModelOutput, loss: Tensor | None, **results: Tensor) -> ModelOutput:
    """The head's results, with the hidden states and attention maps of the base model."""
    return ModelOutput(
        loss=loss, **results, hidden_states=outputs.get("hidden_states"), attentions=outputs.get("attentions")
    )
