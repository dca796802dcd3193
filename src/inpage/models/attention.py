"""The attention registry: implementations by name.

A function takes `q, k, v, mask, bias` and the keywords of `ops.attention`, and returns the context and the attention
probabilities, or None in their place where it never has them in memory. Adding one to `ATTENTION_FUNCTIONS` makes its
name a value of `attn_implementation`.
"""

from collections.abc import Callable
from typing import Any

from .. import ops
from ..errors import UnsupportedError
from ..tensor import Tensor

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]
Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


def sdpa_attention(*operands: Any, **keywords: Any) -> tuple[Tensor, None]:
    """The fused kernel."""
    return ops.attention(*operands, **keywords), None


ATTENTION_FUNCTIONS: dict[str, AttentionFunction] = {"sdpa": sdpa_attention, "eager": ops.attention_eager}
BUILT_IN = frozenset(ATTENTION_FUNCTIONS)  # those that the kernel over a cache stands for, as it is equal to them


def attention_function(name: str) -> AttentionFunction:
    """The implementation `name`. Raises UnsupportedError."""
    if not isinstance(name, str) or name not in ATTENTION_FUNCTIONS:
        raise UnsupportedError(
            f"Unknown attn_implementation {name!r}.", hint=f"There are: {', '.join(ATTENTION_FUNCTIONS)}."
        )
    return ATTENTION_FUNCTIONS[name]


def attention_with_maps(name: str) -> AttentionFunction:
    """The implementation `name`, with attention maps; "eager", which has them, takes the fused one's place."""
    function = attention_function("eager" if name == "sdpa" else name)

    def attend(*operands: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
        context, probabilities = function(*operands, **keywords)
        if probabilities is None:
            raise UnsupportedError(
                f"attn_implementation {name!r} gives no attention maps.", hint="Load the model with 'eager'."
            )
        return context, probabilities

    return attend


def attend_with(
    name: str, mask: Tensor | None, bias: Tensor | None = None, *, output_attentions: bool, **keywords: Any
) -> Attend:
    """The attention of one forward pass, as a function of q, k and v alone."""
    function = attention_with_maps(name) if output_attentions else attention_function(name)
    return lambda q, k, v: function(q, k, v, mask, bias, **keywords)
