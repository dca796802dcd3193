"""A model at work on a batch: tokens in, scores of the next ones out, with or without a cache between."""

import sys
from array import array
from collections.abc import Callable, Generator, Sequence
from functools import partial
from math import inf
from operator import and_
from random import Random
from typing import Any, Literal, NamedTuple

from .. import ops
from ..errors import InputError, UnsupportedError
from ..program import Program
from ..runtime import result_of
from ..tensor import Tensor, from_bytes
from .logits_process import EditProcessor, SparseProcessor, mask_nbytes
from .scores import Candidates, Ids, Row, Rows, check_best

CHUNK = 128  # tokens of a prompt at a time: fewer would take longer each, more would take more memory
EVEN = 16  # fewer than a chunk are a multiple of these and the rest, so that any length takes few programs


class Drawn(NamedTuple):
    """A token drawn in the kernels: of the `top_k` best (0: all), by `top_p` and `min_p`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


class Likeliest(NamedTuple):
    """So many of the best tokens with the logarithms of their probabilities."""

    best: int


Wanted = Literal["logits", "argmax"] | int | Drawn | Likeliest
"""What is wanted of the next token: all logits, the best one, so many of the best with their logits, or one drawn."""

EDITS = 2048  # a program is recorded for so many, and for four times as many where these are too few


class _Last(NamedTuple):
    """The last run: what decides about its program, and that."""

    asked: Any
    key: Any  # of the cache
    program: Program


class Session:
    """`model` with `cache`, which may hold tokens already; without one everything is computed again each time.

    `padding` is how many tokens at the left of each sequence are none.
    """

    def __init__(
        self,
        model: Any,
        cache: Any,
        padding: Sequence[int],
        chunk: int | None = None,
        random: Random | None = None,
        details: Sequence[str] = (),
    ) -> None:
        """`chunk` is how many tokens of a prompt are computed at a time at most.

        `random` decides what is drawn.

        `details` are names of further outputs of the model, which `seen` has by name, an item for each run.
        """
        self.model = model
        self.random = random
        self.processors: Sequence[SparseProcessor] = ()  # change the logits before what is wanted is taken from them
        self.seen: dict[str, list[Any]] = {name: [] for name in details}
        self._numbers: list[float] = []  # random ones that are next, before fresh ones
        self._used: list[float] = []  # by the last run
        self.cache = cache
        self.padding = list(padding)
        self._function = model.function("next_token", partial(next_token, model.forward))
        self._executor = model.executor
        self._last: _Last | None = None
        self._repeats = cache is not None and not details and not any(padding) and model.repeats
        self._rope = getattr(model.base_model, "dynamic_rope", None)
        if details:
            chunk = sys.maxsize
        self._chunk = chunk or max(1, CHUNK // len(padding))

    def prefill(self, ids: Ids, wanted: Wanted) -> Generator[None, None, Any]:
        """What is wanted after prompts of one length; yields between two pieces of work, which abort may follow."""
        length = len(ids[0])
        if self._seen() >= length:
            raise InputError(
                f"The cache has {self._seen()} tokens, and the input {length}.",
                hint="input_ids must be all tokens, those in the cache included, and new ones; crop() the cache.",
            )
        self._forget_outgrown(length)
        seen = self._seen()
        if self.cache is None:
            return (yield from self._run(ids, wanted, ids))
        with self.cache.expecting(length):
            while (size := self._piece(length - seen)) < length - seen:
                yield from self._run([row[seen : seen + size] for row in ids], None)
                seen += size
                yield
            return (yield from self._run([row[seen:] for row in ids], wanted, ids))

    def step(self, ids: Ids, wanted: Wanted) -> Any:
        """What is wanted after one more token of each sequence, the last of `ids`."""
        self._forget_outgrown(len(ids[0]))
        if self.cache is not None and not self._seen():
            return result_of(self.prefill(ids, wanted))
        return self._run_at_once(ids if self.cache is None else [row[-1:] for row in ids], wanted, ids)

    def verify(self, ids: list[int], guesses: list[int], wanted: Wanted) -> list[Any]:
        """What is wanted after the only sequence, and after each of the tokens that are guessed to follow it."""
        texts = [[*ids, *guesses[:count]] for count in range(len(guesses) + 1)]
        return self._run_at_once([texts[-1][self._seen() :]], wanted, texts)

    def keep(self, length: int) -> None:
        """Forget the tokens behind the first `length`, and draw again by the random numbers that chose after them."""
        unused = self._seen() - length
        self.crop(length)
        if unused > 0:
            self._numbers = self._used[-unused:] + self._numbers

    def crop(self, length: int) -> None:
        """Forget the tokens behind the first `length`."""
        if self._seen() > length:
            self.cache.crop(length)

    def repeat(self, times: int) -> None:
        """Every sequence so many times."""
        if times > 1:
            self.padding = [count for count in self.padding for _ in range(times)]
            for found in self.seen.values():
                found[:] = [tuple(_repeat_rows(tensor, times) for tensor in layers) for layers in found]
            if self.cache is not None:
                self.cache.batch_repeat_interleave(times)

    def reorder(self, rows: Sequence[int]) -> None:
        """Let sequence i go on from what sequence rows[i] was."""
        if self.cache is not None:
            self.cache.reorder_cache(rows)

    def _piece(self, count: int) -> int:
        """How many of `count` tokens come next."""
        if count >= self._chunk or self._chunk == sys.maxsize:
            return min(count, self._chunk)
        return count // EVEN * EVEN or count

    def _draw(self, count: int) -> list[float]:
        assert self.random is not None
        fresh = [self.random.random() for _ in range(count - len(self._numbers))]
        self._used, self._numbers = self._numbers[:count] + fresh, self._numbers[count:]
        return self._used

    def _forget_outgrown(self, length: int) -> None:
        """Empty a cache whose keys have frequencies that texts of `length` tokens do not have."""
        if self._rope is not None and self.cache is not None:
            padding = min(self.padding)
            if self._rope.changes(self._seen() - padding, length - padding):
                self.cache.reset()

    def _seen(self) -> int:
        return self.cache.get_seq_length() if self.cache is not None else 0

    def _run(self, ids: Ids, wanted: Wanted | None, texts: Ids | None = None) -> Generator[None, None, Any]:
        """What is wanted after `ids`, in steps; where that is None, they only go into the cache.

        `texts`, the whole sequences, are what the processors look at.
        """
        more = {} if texts is None else self._more(texts, wanted)
        results = yield from self._compute(_asked(wanted, ids, texts or ids, more), ids, more)
        return None if wanted is None else self._found(results, wanted, texts or ids)

    def _run_at_once(self, ids: Ids, wanted: Wanted, texts: Ids) -> Any:
        """`_run` without pauses.

        This runs for every token, after kernels that left nothing of Python in the processor's caches: what it does not
        touch counts.
        """
        more = self._more(texts, wanted)
        asked = _asked(wanted, ids, texts, more)
        results = self._repeat(asked, ids, more)
        if results is None:
            results = result_of(self._compute(asked, ids, more))
        return self._found(results, wanted, texts)

    def _found(self, results: list[bytes], wanted: Wanted, texts: Ids) -> Any:
        """What is wanted, from the results of a run."""
        if self.processors:
            for score in _floats(results.pop()):
                check_best(score)
        if wanted == "logits":
            return _split(_floats(results[0]), self.model.config.vocab_size)
        return _values(wanted, results, len(texts))

    def reduce(self, rows: Rows, wanted: Wanted) -> Any:
        """What is wanted of the scores `rows`, which the kernels look at in Python's place."""
        scores = from_bytes((len(rows), len(rows[0])), "float32", b"".join(rows))
        inputs = {"scores": scores}
        if isinstance(wanted, Drawn):
            assert self.random is not None
            inputs["uniform"] = Tensor.from_values([self.random.random() for _ in rows], "float32")
        *results, best = self.model.function("reduced", reduced)(**inputs, wanted=wanted)
        for score in best.data:
            if score != inf:
                check_best(score)
        return _values(wanted, [tensor.data.tobytes() for tensor in results], len(rows))

    def _more(self, texts: Ids, wanted: Wanted | None) -> dict[str, Tensor]:
        """Inputs of `next_token` besides tokens, which depend on what is wanted after `texts`."""
        more = changes(self.processors, texts, self.model.config.vocab_size) if self.processors else {}
        if isinstance(wanted, Drawn):
            more["uniform"] = from_bytes((len(texts),), "float32", memoryview(array("f", self._draw(len(texts)))))
        return more

    def _repeat(self, asked: Any, ids: Ids, more: dict[str, Tensor]) -> list[bytes] | None:
        """`_compute` by the program of the run before; None unless only values differ and the cache stays in place."""
        last, cache = self._last, self.cache
        if last is None or last.asked != asked or last.key is not cache.program_key or last.program.disposed:
            return None
        program, length = last.program, len(ids[0])
        values = program.ints
        if not cache.set_registers(values, length):
            return None
        place = program.places[0][0] >> 2
        for row in ids:
            for token in row:
                values[place] = token
                place += 1
        if more:
            for (start, stop), tensor in zip(program.places[1:], more.values(), strict=True):
                program.staged[start:stop] = tensor.data
        program.blocks = cache.program_blocks
        results = self._executor.run_staged(program)
        cache.add(length)
        return results

    def _compute(self, asked: Any, ids: Ids, more: dict[str, Tensor]) -> Generator[None, None, list[bytes]]:
        """The bytes of what is wanted, and after them of the best of the changed logits, if any were changed."""
        seen = self._seen()
        inputs: dict[str, Any] = {"input_ids": _tensor(ids), **more}
        if any(self.padding):
            total = seen + len(ids[0])
            inputs["attention_mask"] = _tensor([[0] * min(pad, total) + [1] * (total - pad) for pad in self.padding])
            inputs["position_ids"] = _tensor([[max(i - pad, 0) for i in range(seen, total)] for pad in self.padding])
        if self.cache is not None:
            inputs["past_key_values"] = self.cache
        flags = {f"output_{name}": True for name in self.seen}
        wanted, keep, *_ = asked
        results, details = yield from self._function.steps(**inputs, wanted=wanted, keep=keep, **flags)
        for name, found in self.seen.items():
            found.append(details[name])
        if self._repeats and self.cache is not None:
            self._last = _Last(asked, self.cache.program_key, self._function.last)
        return [tensor.data.tobytes() for tensor in results]


def _asked(wanted: Wanted | None, ids: Ids, texts: Ids, more: dict[str, Tensor]) -> Any:
    """What of a run, besides the cache, decides about its program."""
    return (wanted, len(texts) // len(ids), len(ids), len(ids[0]), *[tensor.shape for tensor in more.values()])


def next_token(
    forward: Callable[..., Any],
    wanted: Wanted | None,
    keep: int = 1,
    uniform: Tensor | None = None,
    edited: Tensor | None = None,
    factors: Tensor | None = None,
    kept: Tensor | None = None,
    **inputs: Any,
) -> tuple[list[Tensor], dict[str, Any]]:
    """Recorded: what is wanted of the token after the last, by a causal model's `forward`.

    Logits [B, V], a token int32 [B], or the scores of the best k and these, float32 and int32 [B, k]. B is the batch
    or, where it is wanted after each of the last `keep` tokens, batch * keep. `uniform` float32 [B] are numbers in
    [0, 1) that decide what is drawn. `edited` and `factors` are the edits of `changes`, `kept` its mask; where there
    are any, the best of the changed logits [B, 1] comes last. Second come hidden states and attention maps, if
    `inputs` ask for them.
    """
    outputs = forward(logits_to_keep=keep, **inputs)
    details = {name: outputs[name] for name in ("hidden_states", "attentions") if name in outputs}
    logits = outputs.logits.reshape(-1, outputs.logits.shape[2])
    if edited is not None and factors is not None:
        ops.edit_scores(logits, edited, factors)
    if kept is not None:
        ops.mask_scores(logits, kept)
    best = [] if edited is None and kept is None else [ops.topk(logits, 1)[0]]
    # Where nothing is wanted, nothing is computed that only logits need.
    found = [] if wanted is None else _wanted_of(logits, wanted, uniform)
    return found + best, details


def reduced(wanted: Wanted, scores: Tensor, uniform: Tensor | None = None) -> list[Tensor]:
    """Recorded: what is wanted of scores [B, V], as in `next_token`, and the best of them [B, 1]."""
    return [*_wanted_of(scores, wanted, uniform), ops.topk(scores, 1)[0]]


def _wanted_of(logits: Tensor, wanted: Wanted, uniform: Tensor | None) -> list[Tensor]:
    if wanted == "logits":
        return [logits]
    if wanted == "argmax":
        return [ops.argmax(logits)]
    if isinstance(wanted, Drawn):
        assert uniform is not None
        return [ops.sample(logits, uniform, **wanted._asdict())]
    if isinstance(wanted, Likeliest):
        return [*ops.topk(ops.log_softmax(logits), min(wanted.best, logits.shape[-1]))]
    return [*ops.topk(logits, min(wanted, logits.shape[-1]))]


def _values(wanted: Wanted, results: list[bytes], count: int) -> Any:
    """What was wanted of `count` rows as Python has it."""
    if wanted == "argmax" or isinstance(wanted, Drawn):
        return memoryview(results[0]).cast("i").tolist()
    values, tokens = _floats(results[0]).tolist(), _ints(results[1]).tolist()
    best = len(values) // count
    return [Candidates(tokens[i : i + best], values[i : i + best]) for i in range(0, len(values), best)]


def changes(processors: Sequence[SparseProcessor], texts: Ids, size: int) -> dict[str, Tensor]:
    """What processors change in the logits [B, size] after `texts`, as inputs of `next_token`.

    Their number does not depend on the texts, so that one program does for all steps.
    """
    index, factors = array("i"), array("f")
    masks: list[bytes | bytearray | None] = [None] * len(texts)
    for processor in processors:
        for row, edits in enumerate(processor.edits(texts, size)):
            for tokens, below, above, bias in edits:
                places = [row * size + token for token in tokens if token < size]
                index.fromlist(places)
                factors.extend(array("f", (below, above, bias)) * len(places))
        for row, mask in enumerate(processor.masks(texts, size)):
            if mask is not None:
                before = masks[row]
                masks[row] = mask if before is None else bytes(map(and_, before, mask))
    inputs: dict[str, Tensor] = {}
    if any(isinstance(processor, EditProcessor) for processor in processors):
        count = EDITS
        while count < len(index):
            count *= 4
        rest = count - len(index)
        index.extend(array("i", [-1]) * rest)
        factors.frombytes(bytes(12 * rest))
        inputs["edited"] = from_bytes((count,), "int32", memoryview(index))
        inputs["factors"] = from_bytes((count, 3), "float32", memoryview(factors))
    if not all(isinstance(processor, EditProcessor) for processor in processors):
        nbytes = mask_nbytes(size)
        bits = b"".join(mask or b"\xff" * nbytes for mask in masks)
        inputs["kept"] = from_bytes((len(texts), nbytes // 4), "int32", bits)
    return inputs


def repeated(outputs: list[Any], times: int) -> list[Any]:
    """Outputs of a batch whose sequences are repeated."""
    return [row[:] if isinstance(row, array) else row for row in outputs for _ in range(times)]


def _repeat_rows(tensor: Tensor, times: int) -> Tensor:
    size = tensor.nbytes // tensor.shape[0]
    data = bytes(tensor.data.cast("B"))
    rows = [data[start : start + size] * times for start in range(0, len(data), size)]
    return from_bytes((tensor.shape[0] * times, *tensor.shape[1:]), tensor.dtype, b"".join(rows))


def unconditional(session: Session, prompts: Ids) -> Callable[[Ids], Rows]:
    """Logits after other prompts and the tokens that were generated since, for guidance."""
    texts = [list(prompt) for prompt in prompts]
    first = True

    def logits(input_ids: Ids) -> Rows:
        nonlocal first
        if first:
            first = False
            return result_of(session.prefill(texts, "logits"))
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


def _ints(data: bytes) -> "array[int]":
    values = array("i")
    values.frombytes(data)
    return values


def _floats(data: bytes) -> Row:
    values = array("f")
    values.frombytes(data)
    return values


def _split(values: Row, size: int) -> Rows:
    """Rows of so many values."""
    if len(values) == size:
        return [values]
    return [values[start : start + size] for start in range(0, len(values), size)]


def _tensor(rows: Ids) -> Tensor:
    flat = array("i")
    for row in rows:
        flat.extend(row)
    return from_bytes((len(rows), len(rows[0])), "int32", memoryview(flat))
