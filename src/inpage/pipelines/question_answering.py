"""question-answering: the part of a context that answers a question."""

from dataclasses import dataclass
from heapq import nlargest
from math import exp
from typing import Any

from ..checks import check_count
from ..errors import InputError
from ..processing.tokenizer import with_overflow
from ..tensor import Tensor
from .base import BatchPipeline, Options, Row

_MAX_SEQ_LEN = 384
_DOC_STRIDE = 128


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringOptions(Options):
    """
    top_k: how many answers, best first; fewer come back if there are not so many.
    max_answer_len: most tokens of an answer.
    max_seq_len: tokens of question and part of the context together, by default 384 or what the model takes.
    doc_stride: tokens that neighbouring parts of a long context have in common, by default 128 or half of max_seq_len.
    max_question_len: cut the question to so many tokens.
    handle_impossible_answer: let the empty answer compete, with the score that the model gives to no answer.
    align_to_words: extend answers to whole words.
    """

    top_k: int = 1
    max_answer_len: int = 15
    max_seq_len: int | None = None
    doc_stride: int | None = None
    max_question_len: int | None = None
    handle_impossible_answer: bool = False
    align_to_words: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("top_k", self.top_k)
        check_count("max_answer_len", self.max_answer_len)
        for name in ("max_seq_len", "doc_stride", "max_question_len"):
            check_count(name, getattr(self, name), optional=True)


class QuestionAnsweringPipeline(BatchPipeline):
    """Answers as {"score", "start", "end", "answer"}, start and end being offsets in the context.

    Takes question and context (positional or by name), texts or lists of equal length; a list of questions with one
    context; or dicts {"question", "context"}. One question gives a dict, or a list of dicts if several answers come
    back; several questions give a list of those. A long context is read in overlapping parts, and answers that parts
    have in common add up their scores.
    """

    task = "question-answering"
    head = "AutoModelForQuestionAnswering"
    options_class = QuestionAnsweringOptions
    arguments = ("question", "context")

    def items(self, arguments: dict[str, Any], options: Any) -> tuple[list[tuple[str, str]], bool]:
        question, context = arguments.get("question"), arguments.get("context")
        single = not isinstance(question, list | tuple)
        questions = [question] if single else list(question)
        pairs: list[tuple[Any, Any]]
        if context is None:
            pairs = [_from_dict(item) for item in questions]
        elif isinstance(context, list | tuple):
            if single or len(context) != len(questions):
                raise InputError(
                    f"{1 if single else len(questions)} questions do not pair with {len(context)} contexts.",
                    hint="Give lists of equal length, or one context for all questions.",
                )
            pairs = list(zip(questions, context, strict=True))
        else:
            pairs = [(q, context) for q in questions]
        for pair in pairs:
            for name, text in zip(self.arguments, pair, strict=True):
                if not isinstance(text, str) or not text:
                    raise InputError(f"{name} must be a text that is not empty, found {text!r:.60}.")
        return pairs, single

    def encode(self, items: list[tuple[str, str]], options: QuestionAnsweringOptions) -> list[Row]:
        rows: list[Row] = []
        for index, (question, context) in enumerate(items):
            length = min(options.max_seq_len or _MAX_SEQ_LEN, self.max_length)
            question, room = self._fit_question(question, length, options)
            stride = _stride(options.doc_stride, length, room)
            encodings = self.tokenizer.encodings(
                [question], [context], truncation="only_second", max_length=length, stride=stride
            )
            parts, _ = with_overflow(encodings)
            rows += self.rows(parts, [index] * len(parts))
        return rows

    def forward(self, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.forward(**inputs)
        return output.start_logits, output.end_logits

    def compute(self, rows: list[Row], options: Any) -> list[tuple[list[float], list[float]]]:
        start, end = self._run(**self.inputs(rows))
        return [
            (self.unpadded(start[i], row).tolist(), self.unpadded(end[i], row).tolist()) for i, row in enumerate(rows)
        ]

    def decode(
        self,
        item: tuple[str, str],
        rows: list[Row],
        outputs: list[tuple[list[float], list[float]]],
        options: QuestionAnsweringOptions,
    ) -> Any:
        context = item[1]
        # Extending spans to words makes some of them equal, so more are looked at than are asked for.
        count = options.top_k * 2 + 10 if options.align_to_words else options.top_k
        answers: dict[str, dict[str, Any]] = {}
        impossible = 1.0
        for row, (start_logits, end_logits) in zip(rows, outputs, strict=True):
            allowed = self._answerable(row)
            start, end = _masked_softmax(start_logits, allowed), _masked_softmax(end_logits, allowed)
            impossible = min(impossible, start[0] * end[0])
            for score, first, last in _best_spans(start, end, [i for i in allowed if i], options.max_answer_len, count):
                begin, stop = _characters(row.encoding, first, last, options.align_to_words)
                text = context[begin:stop]
                answer = answers.setdefault(text.lower(), {"score": 0.0, "start": begin, "end": stop, "answer": text})
                answer["score"] += score
        found = list(answers.values())
        if options.handle_impossible_answer:
            found.append({"score": impossible, "start": 0, "end": 0, "answer": ""})
        found = nlargest(options.top_k, found, key=lambda answer: answer["score"])
        return found[0] if len(found) == 1 else found

    def _fit_question(self, question: str, length: int, options: QuestionAnsweringOptions) -> tuple[str, int]:
        """The question, cut if asked for, and how many tokens are left for the context."""
        (encoding,) = self.tokenizer.encodings([question], add_special_tokens=False, verbose=False)
        tokens = len(encoding.ids)
        if options.max_question_len is not None and tokens > options.max_question_len:
            tokens = options.max_question_len
            question = question[: encoding.offsets[tokens - 1][1]]
        room = length - tokens - self.tokenizer.num_special_tokens_to_add(pair=True)
        if room < 1:
            raise InputError(
                f"The question has {tokens} tokens, which leaves no room for the context within {length}.",
                hint="Shorten it, or cut it with max_question_len.",
            )
        return question, room

    def _answerable(self, row: Row) -> list[int]:
        """Positions of the context, and 0 if [CLS] is there, which stands for no answer."""
        ids, sequences = row.encoding.ids, row.encoding.sequence_ids
        return [
            i for i, text in enumerate(sequences) if text == 1 or (i == 0 and ids[i] == self.tokenizer.cls_token_id)
        ]


def _from_dict(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, dict) or set(item) != {"question", "context"}:
        raise InputError(
            f"A question comes with a context, found {item!r:.60}.",
            hint='Call with (question, context), or with {"question": ..., "context": ...}.',
        )
    return item["question"], item["context"]


def _stride(wanted: int | None, length: int, room: int) -> int:
    """Tokens that parts have in common. Raises InputError if a part has no more than those."""
    if wanted is None:
        return min(length // 2, _DOC_STRIDE, room - 1)
    if wanted >= room:
        raise InputError(
            f"doc_stride must be less than the {room} tokens of context that a part has room for, not {wanted}.",
            hint="Lower doc_stride or raise max_seq_len.",
        )
    return wanted


def _masked_softmax(logits: list[float], positions: list[int]) -> list[float]:
    """Softmax over the positions, 0 elsewhere."""
    largest = max(logits[i] for i in positions)
    powers = [0.0] * len(logits)
    for i in positions:
        powers[i] = exp(logits[i] - largest)
    total = sum(powers)
    return [p / total for p in powers]


def _best_spans(
    start: list[float], end: list[float], positions: list[int], longest: int, count: int
) -> list[tuple[float, int, int]]:
    """(score, first, last) of the best spans of at most `longest` tokens."""
    allowed = set(positions)
    spans = (
        (start[first] * end[last], first, last)
        for first in positions
        for last in range(first, min(first + longest, len(end)))
        if last in allowed
    )
    return nlargest(count, spans, key=lambda span: span[0])


def _characters(encoding: Any, first: int, last: int, align_to_words: bool) -> tuple[int, int]:
    """Where tokens first..last are in the context."""
    if align_to_words:
        words = encoding.token_to_word(first), encoding.token_to_word(last)
        if None not in words:
            begin, stop = (encoding.word_to_chars(word, sequence_index=1) for word in words)
            if begin and stop:
                return begin[0], stop[1]
    return encoding.offsets[first][0], encoding.offsets[last][1]
