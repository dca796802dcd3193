"""A model at work on a batch: tokens in, scores of the next ones out, with or without a cache between."""

import sys
from array import array
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

from .. import ops
from ..errors import InputError, UnsupportedError
from ..tensor import Tensor, from_bytes
from .scores import Candidates, Ids, Row, Rows

CHUNK = 64  # tokens of a prompt at a time: an abort waits no longer than these take


class Drawn(NamedTuple):
    """A token drawn in the kernels: of the `top_k` best (0: all), by `top_p` and `min_p`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


Wanted = Literal["logits", "argmax"] | int | Drawn
"""What is wanted of the next token: all logits, the best one, so many of the best with their logits, or one drawn."""


class Session:
    """`model` with `cache`, which may hold tokens already; without one everything is computed again each time.

    `padding` is how many tokens at the left of each sequence are none.
    """

    def __init__(
        self, model: Any, cache: Any, padding: Sequence[int], chunk: int | None = None, random: Random | None = None
    ) -> None:
        """`chunk` is how many tokens of a prompt are computed at a time; `random` decides what is drawn."""
        self.model = model
        self.random = random
        self.cache = cache
        self.padding = list(padding)
        # Frequencies of dynamic RoPE follow the length of what is computed at once.
        whole = getattr(model.base_model, "dynamic_rope", None) is not None
        self.chunk = chunk or (sys.maxsize if whole else max(1, CHUNK // len(padding)))

    def prefill(self, ids: Ids, wanted: Wanted) -> Generator[None, None, Any]:
        """What is wanted after prompts of one length; yields between two chunks of them."""
        seen = self._seen()
        length = len(ids[0])
        if seen >= length:
            raise InputError(
                f"The cache has {seen} tokens, and the input {length}.",
                hint="input_ids must be all tokens, those in the cache included, and new ones; crop() the cache.",
            )
        if self.cache is not None:
            for size in pieces(length - seen, self.chunk)[:-1]:
                self._run([row[seen : seen + size] for row in ids], seen, "argmax")
                seen += size
                yield
        return self._run([row[seen:] for row in ids], seen, wanted)

    def step(self, ids: Ids, wanted: Wanted) -> Any:
        """What is wanted after one more token of each sequence, the last of `ids`."""
        if self.cache is None:
            return self._run(ids, 0, wanted)
        return self._run([row[-1:] for row in ids], self._seen(), wanted)

    def repeat(self, times: int) -> None:
        """Every sequence so many times."""
        if times > 1:
            self.padding = [count for count in self.padding for _ in range(times)]
            if self.cache is not None:
                self.cache.batch_repeat_interleave(times)

    def reorder(self, rows: Sequence[int]) -> None:
        """Let sequence i go on from what sequence rows[i] was."""
        if self.cache is not None:
            self.cache.reorder_cache(rows)

    def _seen(self) -> int:
        return self.cache.get_seq_length() if self.cache is not None else 0

    def _run(self, ids: Ids, seen: int, wanted: Wanted) -> Any:
        inputs: dict[str, Any] = {"input_ids": _tensor(ids)}
        if isinstance(wanted, Drawn):
            assert self.random is not None
            inputs["uniform"] = Tensor.from_values([self.random.random() for _ in ids], "float32")
        if any(self.padding):
            total = seen + len(ids[0])
            inputs["attention_mask"] = _tensor([[int(i >= pad) for i in range(total)] for pad in self.padding])
            inputs["position_ids"] = _tensor([[max(i - pad, 0) for i in range(seen, total)] for pad in self.padding])
        if self.cache is not None:
            inputs["past_key_values"] = self.cache
        outputs = self.model.next_token(**inputs, wanted=wanted)
        if wanted == "logits":
            return [_row(row.data) for row in outputs]
        if wanted == "argmax" or isinstance(wanted, Drawn):
            return outputs.tolist()
        values, tokens = outputs
        return [Candidates(*row) for row in zip(tokens.tolist(), values.tolist(), strict=True)]


def pieces(count: int, chunk: int) -> list[int]:
    """`count` tokens of a prompt in chunks: whole ones, then powers of two, so that any length takes few programs."""
    if chunk == sys.maxsize:
        return [count]
    whole, rest = divmod(count, chunk)
    return [chunk] * whole + [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]


def next_token(forward: Callable[..., Any], wanted: Wanted, uniform: Tensor | None = None, **inputs: Any) -> Any:
    """Recorded: what is wanted of the token after the last, by a causal model's `forward`.

    Logits [B, V], a token int32 [B], or the best k of them, float32 and int32 [B, k]. `uniform` float32 [B] are numbers
    in [0, 1) that decide what is drawn.
    """
    logits = forward(logits_to_keep=1, **inputs).logits
    logits = logits.reshape(logits.shape[0], logits.shape[-1])
    if wanted == "logits":
        return logits
    if isinstance(wanted, Drawn):
        assert uniform is not None
        return ops.sample(logits, uniform, **wanted._asdict())
    return ops.argmax(logits) if wanted == "argmax" else ops.topk(logits, min(wanted, logits.shape[-1]))


def repeated(outputs: list[Any], times: int) -> list[Any]:
    """Outputs of a batch whose sequences are repeated."""
    return [row[:] if isinstance(row, array) else row for row in outputs for _ in range(times)]


def unconditional(session: Session, prompts: Ids) -> Callable[[Ids], Rows]:
    """Logits after other prompts and the tokens that were generated since, for guidance."""
    texts = [list(prompt) for prompt in prompts]
    first = True

    def logits(input_ids: Ids) -> Rows:
        nonlocal first
        if first:
            first = False
            return _finish(session.prefill(texts, "logits"))
        for text, ids in zip(texts, input_ids, strict=True):
            text.append(ids[-1])
        return session.step(texts, "logits")

    return logits


def make_cache(implementation: str | None, dtype: str | None, max_length: int) -> Any:
    """A new cache as the options `cache_implementation` and `kv_cache_dtype` say."""
    from .cache import DynamicCache, StaticCache

    if implementation == "quantized":
        implementation, dtype = "dynamic", dtype or "q8"
    if implementation in (None, "dynamic"):
        return DynamicCache(kv_cache_dtype=dtype or "f32")
    if implementation == "static":
        return StaticCache(max_length, kv_cache_dtype=dtype or "f32")
    raise UnsupportedError(
        f"There is no cache_implementation {implementation!r}.", hint="Use dynamic, static or quantized."
    )


def _finish(steps: Generator[Any, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def _row(data: memoryview) -> Row:
    row = array("f")
    row.frombytes(data.cast("B"))
    return row


def _tensor(rows: Ids) -> Tensor:
    flat = array("i")
    for row in rows:
        flat.extend(row)
    return from_bytes((len(rows), len(rows[0])), "int32", memoryview(flat))
