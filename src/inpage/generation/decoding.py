"""The loops of generation: one token after the other for every sequence, or for every beam."""

from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from ..tensor import Tensor
from .beam_search import BeamSearch
from .configuration import GenerationConfig
from .logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    LogitsWarper,
    are_sparse,
    bound,
    warp,
    warp_candidates,
)
from .scores import Candidates, Ids, Rows, candidates, check_best, log_softmax, sample
from .session import Drawn, Likeliest, Session, Wanted, repeated
from .stopping_criteria import StoppingCriteriaList
from .warpers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

Steps = Generator[tuple[int, int], None, None]


@dataclass
class Request:
    """What to generate, everything resolved."""

    session: Session
    prompts: Ids
    config: GenerationConfig
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList  # besides max_length and eos_token_id of the configuration
    random: Random
    streamer: Any = None


class _Base:
    """What both loops share: the request, and the scores and logits that are kept for the caller."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.config = request.config
        self.session = request.session
        self.dense, self.warpers = request.processors.parts()
        self.preparing: list[Any] = [each for each in self.dense if _prepares(each)]
        self.prompt_length = len(request.prompts[0])
        self.longest: int = self.config.max_length
        self.total = self.longest - self.prompt_length
        self.ends = frozenset(self.config.eos_tokens)
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []

    def extras(self) -> dict[str, Any]:
        """Further fields of the output."""
        return {
            "scores": tuple(self.scores) if self.config.output_scores else None,
            "logits": tuple(self.logits) if self.config.output_logits else None,
            **{name: tuple(found) for name, found in self.session.seen.items()},
        }

    def prepare(self, ids: Ids, made: int) -> Steps:
        """Let processors do what takes long before the scores that follow `ids`."""
        for processor in self.preparing:
            for _ in processor.prepare(ids, self.session.model.config.vocab_size):
                yield made, self.total

    def prefill(self, wanted: Wanted, times: int) -> Generator[tuple[int, int], None, list[Any]]:
        """What is wanted after the prompts, for each of `times` as many sequences."""
        yield from self.prepare(repeated(self.request.prompts, times), 0)
        chunks = self.session.prefill(self.request.prompts, wanted)
        while True:
            try:
                next(chunks)
            except StopIteration as stop:
                self.session.repeat(times)
                return repeated(stop.value, times)
            yield 0, self.total

    def ended(self, ids: Ids, scores: Rows | None) -> list[bool]:
        """Which sequences are done with their last token."""
        whole = len(ids[0]) >= self.longest
        found = [whole or row[-1] in self.ends for row in ids]
        if self.request.criteria:
            found = [a or b for a, b in zip(found, self.request.criteria(ids, scores), strict=True)]
        return found

    def finish_pad(self) -> int:
        """What stands behind the end of a sequence."""
        if self.config.pad_token_id is not None:
            return self.config.pad_token_id
        return self.config.eos_tokens[0] if self.config.eos_tokens else 0


class Decoding(_Base):
    """Greedy search and sampling."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        times = self.config.num_return_sequences
        self.ids = [list(row) for row in request.prompts for _ in range(times)]
        self.finished = [False] * len(self.ids)
        self.enough: Wanted = self._reduced() if self.config.do_sample else "argmax"
        in_kernels = not self.dense or (times == 1 and are_sparse(self.dense))
        rows = self.config.output_scores or self.config.output_logits or not in_kernels
        self.wanted: Wanted = "logits" if rows else self.enough
        if self.wanted != "logits":
            self.session.processors = self.dense  # pyright: ignore[reportAttributeAccessIssue]

    def run(self) -> Steps:
        """Generate; yields after every token of the batch."""
        streamer, pad = self.request.streamer, self.finish_pad()
        if streamer is not None:
            streamer.put(self.request.prompts)
        outputs = yield from self.prefill(self.wanted, self.config.num_return_sequences)
        made = 0
        while True:
            tokens, rows = self._choose(outputs)
            for i, token in enumerate(tokens):
                if self.finished[i]:
                    tokens[i] = token = pad
                self.ids[i].append(token)
            if streamer is not None:
                streamer.put(tokens)
            self.finished = [a or b for a, b in zip(self.finished, self.ended(self.ids, rows), strict=True)]
            made += 1
            yield made, self.total
            if all(self.finished):
                return
            if self.preparing:
                yield from self.prepare(self.ids, made)
            outputs = self.session.step(self.ids, self.wanted)

    def sequences(self) -> Ids:
        """The tokens, prompts included."""
        return self.ids

    def _reduced(self) -> Wanted:
        """How little of the logits sampling needs."""
        if self.config.num_return_sequences > 1:  # of one prompt, a token each
            return bound(self.warpers) or "logits"
        return drawn(self.warpers) or bound(self.warpers) or "logits"

    def _drawn(self, outputs: list[Any]) -> list[int]:
        """The tokens by the little of the scores that is enough."""
        if self.enough == "argmax" or isinstance(self.enough, Drawn):
            return outputs
        random = self.request.random
        return [sample(warp_candidates(choice, self.warpers), random) for choice in outputs]

    def _choose(self, outputs: list[Any]) -> tuple[list[int], Rows | None]:
        """The next token of every sequence, and the scores where they are known."""
        if self.wanted != "logits":
            return self._drawn(outputs), None
        if self.config.output_logits:
            self.logits.append(_stacked(outputs))
        rows = self.dense(self.ids, outputs)
        if not self.config.do_sample:
            if self.warpers:
                rows = [warp(row, self.warpers).row(len(row)) for row in rows]
            tokens = self.session.reduce(rows, "argmax")
        else:
            warped = self.config.output_scores or self.enough == "logits"
            choices = [warp(row, self.warpers) for row in rows] if warped else []
            if self.enough == "logits":
                tokens = [sample(choice, self.request.random) for choice in choices]
            else:  # also where scores are wanted, so that a seed gives the same tokens with and without them
                tokens = self._drawn(self.session.reduce(rows, self.enough))
            if self.config.output_scores:
                rows = [choice.row(len(row)) for choice, row in zip(choices, rows, strict=True)]
        if self.config.output_scores:
            self.scores.append(_stacked(rows))
        return tokens, rows


class BeamDecoding(_Base):
    """Beam search, of the best or of sampled continuations."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.width = self.config.num_beams
        self.searches = [
            BeamSearch(
                prompt=list(prompt),
                width=self.width,
                first_row=i * self.width,
                eos_count=len(self.config.eos_tokens),
                length_penalty=self.config.length_penalty,
                early_stopping=self.config.early_stopping,
                max_length=self.config.max_length,
                random=request.random if self.config.do_sample else None,
            )
            for i, prompt in enumerate(request.prompts)
        ]
        enough = bound(self.warpers) if self.config.do_sample or self.warpers else self.searches[0].reach
        rows = self.dense or self.config.output_scores or self.config.output_logits
        self.wanted: Wanted = Likeliest(enough) if enough and not rows else "logits"

    def run(self) -> Steps:
        """Generate; yields after every step of all beams."""
        outputs = yield from self.prefill(self.wanted, self.width)
        going, pad = [True] * len(self.searches), self.finish_pad()
        ids = repeated(self.request.prompts, self.width)
        made = 0
        while True:
            choices, rows = self._candidates(ids, outputs)
            for i, search in enumerate(self.searches):
                if going[i]:
                    mine = choices[i * self.width : (i + 1) * self.width]
                    going[i] = search.advance(mine, partial(self.ended, scores=rows))
            made += 1
            yield made, self.total
            if not any(going):
                return
            length = self.prompt_length + made
            running = [beam for search in self.searches for beam in search.running]
            self.session.reorder(
                [beam.rows[-1] if len(beam.ids) == length else row for row, beam in enumerate(running)]
            )
            # Rows of a search that is over go along without being looked at, padded, as all are of one length.
            ids = [beam.ids + [pad] * (length - len(beam.ids)) for beam in running]
            yield from self.prepare(ids, made)
            outputs = self.session.step(ids, self.wanted)

    def sequences(self) -> Ids:
        """The best beams of every prompt, padded at the right."""
        found = [beam.ids for beam in self._results()]
        longest, pad = max(map(len, found)), self.finish_pad()
        return [ids + [pad] * (longest - len(ids)) for ids in found]

    def extras(self) -> dict[str, Any]:
        results = self._results()
        longest = max(len(beam.rows) for beam in results)
        indices = [beam.rows + [-1] * (longest - len(beam.rows)) for beam in results]
        scores = [beam.score for beam in results]
        return {
            **super().extras(),
            "sequences_scores": Tensor.from_values(scores, "float32") if self.config.output_scores else None,
            "beam_indices": Tensor.from_values(indices, "int32"),
        }

    def _results(self) -> list[Any]:
        return [beam for search in self.searches for beam in search.results(self.config.num_return_sequences)]

    def _candidates(self, ids: Ids, outputs: list[Any]) -> tuple[list[Candidates], Rows | None]:
        """Continuations worth a look of every beam, with log-probabilities, and the scores where they are known."""
        if self.wanted != "logits":
            for choice in outputs:
                check_best(choice.values[0])
            return [warp_candidates(choice, self.warpers) for choice in outputs], None
        if self.config.output_logits:
            self.logits.append(_stacked(outputs))
        rows = self.dense(ids, [log_softmax(row) for row in outputs])
        if self.warpers:
            choices = [warp(row, self.warpers) for row in rows]
        else:
            limit = None if self.config.do_sample else self.searches[0].reach
            choices = [candidates(row, limit) for row in rows]
        if self.config.output_scores:
            warped = self.warpers
            kept = [c.row(len(r)) for c, r in zip(choices, rows, strict=True)] if warped else rows
            self.scores.append(_stacked(kept))
        return choices, rows


def _prepares(processor: Any) -> bool:
    return isinstance(processor, LogitsProcessor) and type(processor).prepare is not LogitsProcessor.prepare


def drawn(warpers: Sequence[LogitsWarper]) -> Drawn | None:
    """The warpers as what the kernels can draw by; None if they are others."""
    kinds = [type(warper) for warper in warpers]
    if kinds != [kind for kind in _DRAWABLE if kind in kinds]:
        return None
    options: dict[str, Any] = {}
    for warper in warpers:
        name = _DRAWABLE[type(warper)]
        options[name] = getattr(warper, name)
    return Drawn(**options)


_DRAWABLE: dict[type[LogitsWarper], str] = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
    MinPLogitsWarper: "min_p",
}


def _stacked(rows: Rows) -> Tensor:
    flat = array("f")
    for row in rows:
        flat.extend(row)
    return Tensor((len(rows), len(rows[0])), "float32", memoryview(flat))
