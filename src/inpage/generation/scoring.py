"""How likely a model finds given texts."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import exp
from typing import Any

from .. import ops
from ..errors import InputError
from ..tensor import Tensor, from_bytes
from .cache import DynamicCache
from .scores import log_sum_exp

_CHUNK = 64  # tokens at a time: bounds the logits in memory


def token_log_probabilities(model: Any, input_ids: Any) -> list[float]:
    """Natural logarithm of the probability of each token after the first, given those before it.

    input_ids: [L] or [1, L], at least two, all of the vocabulary, or what a tokenizer returns. Raises InputError for
    others.
    """
    if not hasattr(model, "generate"):
        raise InputError(f"{type(model).__name__} does not predict tokens.", hint="Use AutoModelForCausalLM.")
    ids = Tensor.from_values(input_ids["input_ids"] if isinstance(input_ids, Mapping) else input_ids, "int32").tolist()
    if ids and isinstance(ids[0], list):
        if len(ids) != 1:
            raise InputError("Log-probabilities are those of one text.", hint="Score the texts one after the other.")
        ids = ids[0]
    if len(ids) < 2:
        raise InputError("A text needs two tokens at least to be scored.", hint="Put the model's bos_token_id first.")
    vocabulary = model.config.vocab_size
    if unknown := [token for token in ids if not 0 <= token < vocabulary]:
        raise InputError(f"The model has {vocabulary} tokens, and none is {unknown[0]}.")
    count = len(ids) - 1
    run = model.function("token_log_probabilities", partial(_log_probabilities, model.forward))
    found: list[float] = []
    with DynamicCache() as cache, cache.expecting(len(ids)):
        for start in range(0, count, _CHUNK):
            part = ids[start : min(start + _CHUNK, count)]
            following = ids[start + 1 : start + 1 + len(part)]
            places = [i * vocabulary + token for i, token in enumerate(following)]
            scores = run(input_ids=_tensor([part]), places=_tensor([places]), past_key_values=cache)
            found += scores.data.tolist()
    return found


def perplexity(model: Any, tokenizer: Any, text: str) -> float:
    """exp of the mean of -log p over the tokens of a text, as the tokenizer encodes it."""
    scores = token_log_probabilities(model, tokenizer(text)["input_ids"])
    return exp(-sum(scores) / len(scores))


def transition_scores(sequences: Any, scores: Sequence[Tensor], beam_indices: Any, normalize: bool) -> Tensor:
    """As `GenerationMixin.compute_transition_scores`."""
    ids = Tensor.from_values(sequences, "int32").tolist()
    if not scores:
        raise InputError("There are no scores.", hint="Generate with output_scores=True.")
    if beam_indices is None:
        rows = [[row] * len(scores) for row in range(len(ids))]
    else:
        rows = Tensor.from_values(beam_indices, "int32").tolist()
    longest, vocabulary = max(sum(row >= 0 for row in each) for each in rows), scores[0].shape[1]

    def score(step: int, row: int, token: int) -> float:
        values = scores[step].data[row * vocabulary : (row + 1) * vocabulary]
        return values[token] - (log_sum_exp(values) if normalize else 0)

    return Tensor.from_values(
        [
            [
                0.0 if row < 0 else score(step, row, token)
                for step, (row, token) in enumerate(zip(each, text, strict=True))
            ]
            for each, text in zip((each[:longest] for each in rows), (text[-longest:] for text in ids), strict=True)
        ],
        "float32",
    )


def _log_probabilities(forward: Callable[..., Any], *, places: Tensor, **inputs: Any) -> Tensor:
    """Recorded: log-probabilities at flat `places` int32 [1, L] of [L, V] -> [1, L, 1]."""
    scores = ops.log_softmax(forward(**inputs).logits)
    return ops.embedding(places, scores.reshape(scores.size, 1))


def _tensor(rows: list[list[int]]) -> Tensor:
    return from_bytes((len(rows), len(rows[0])), "int32", memoryview(array("i", rows[0])))
