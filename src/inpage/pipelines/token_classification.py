"""token-classification (ner): the label of each token, or the entities that tokens make up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..checks import check_choice, check_count, check_text, check_texts
from ..errors import InputError
from ..processing.tokenizer import with_overflow
from ..tensor import Tensor
from .base import BatchPipeline, Row, TextOptions

STRATEGIES = ("none", "simple", "first", "average", "max")
_BY_WORD = ("first", "average", "max")


@dataclass(frozen=True, kw_only=True)
class TokenClassificationOptions(TextOptions):
    """
    aggregation_strategy: "none" reports tokens; "simple" joins neighbours with one label; "first", "average" and "max"
        first settle on one label for each word, by its first token, its mean scores or its surest token.
    ignore_labels: labels that are not reported.
    stride: cut long texts into overlapping parts with so many tokens in common, instead of truncating them.
    is_split_into_words: items are lists of words; offsets then refer to the words joined by `delimiter`.
    """

    aggregation_strategy: str = "none"
    ignore_labels: Sequence[str] = ("O",)
    stride: int | None = None
    is_split_into_words: bool = False
    delimiter: str = " "

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("aggregation_strategy", self.aggregation_strategy, STRATEGIES)
        check_count("stride", self.stride, optional=True)
        check_texts("ignore_labels", self.ignore_labels)
        if not isinstance(self.delimiter, str):
            raise InputError(f"delimiter must be a text, not {self.delimiter!r:.60}.")
        if self.stride is not None and self.truncation is not True:
            raise InputError("stride reads whole texts in parts, which truncation does not go with.")
        if self.stride is not None and self.aggregation_strategy == "none":
            raise InputError(
                "stride needs an aggregation_strategy, as tokens of overlapping parts are reported once.",
                hint='Use aggregation_strategy="simple", "first", "average" or "max".',
            )


@dataclass(frozen=True, slots=True)
class _Token:
    """A token, or a word, with a score for each label."""

    word: str
    scores: list[float]
    start: int
    end: int
    index: int
    continues_word: bool

    @property
    def label(self) -> int:
        return max(range(len(self.scores)), key=self.scores.__getitem__)

    @property
    def score(self) -> float:
        return max(self.scores)


class TokenClassificationPipeline(BatchPipeline):
    """Tokens or entities of texts.

    For each text a list of {"entity", "score", "index", "word", "start", "end"} without aggregation, else of
    {"entity_group", "score", "word", "start", "end"}. Where the tokenizer does not mark continuations of words, a token
    begins a word if a space comes before it.
    """

    task = "token-classification"
    head = "AutoModelForTokenClassification"
    options_class = TokenClassificationOptions

    def items(self, arguments: dict[str, Any], options: TokenClassificationOptions) -> tuple[list[Any], bool]:
        words = arguments.get("inputs")
        if options.is_split_into_words and _is_words(words):
            return [words], False  # one list of words gives a list of one result, as in transformers
        return super().items(arguments, options)

    def check_item(self, item: Any, options: TokenClassificationOptions) -> None:
        if not options.is_split_into_words:
            check_text(item, self.task)
        elif not _is_words(item):
            raise InputError(f"With is_split_into_words, an item is a list of words, not {item!r:.60}.")

    def encode(self, items: list[Any], options: TokenClassificationOptions) -> list[Row]:
        more: dict[str, Any] = {"is_split_into_words": options.is_split_into_words}
        if options.stride is None:
            return self.rows(self.tokenize(items, options=options, **more))
        room = self.max_length if options.max_length is None else min(options.max_length, self.max_length)
        room -= self.tokenizer.num_special_tokens_to_add()
        if options.stride >= room:
            raise InputError(f"stride must be less than the {room} tokens of a part, not {options.stride}.")
        more |= {"truncation": True, "stride": options.stride}
        return self.rows(*with_overflow(self.tokenize(items, options=options, **more)))

    def forward(self, **inputs: Tensor) -> Tensor:
        return ops.softmax(self.model.forward(**inputs).logits)

    def compute(self, rows: list[Row], options: Any) -> list[list[list[float]]]:
        scores = self._run(**self.inputs(rows))
        return [self.unpadded(scores[i], row).tolist() for i, row in enumerate(rows)]

    def decode(
        self, item: Any, rows: list[Row], outputs: list[list[list[float]]], options: TokenClassificationOptions
    ) -> list[dict[str, Any]]:
        text, starts = (item, None) if isinstance(item, str) else _joined(item, options.delimiter)
        label = "entity" if options.aggregation_strategy == "none" else "entity_group"
        entities: list[dict[str, Any]] = []
        for row, scores in zip(rows, outputs, strict=True):
            found = self._entities(self._tokens(row, scores, text, starts), options.aggregation_strategy)
            entities += [entity for entity in found if entity[label] not in options.ignore_labels]
        return _longest_of_overlapping(entities) if len(rows) > 1 else entities

    def _tokens(self, row: Row, scores: list[list[float]], text: str, word_starts: list[int] | None) -> list[_Token]:
        """The row's tokens but special ones."""
        marks_words = bool(getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None))
        encoding = row.encoding
        ids, offsets, words = encoding.ids, encoding.offsets, encoding.word_ids
        special = encoding.special_tokens_mask
        tokens: list[_Token] = []
        for i, token_scores in enumerate(scores):
            if special[i]:
                continue
            start, end = offsets[i]
            if word_starts is not None and words[i] is not None:
                start, end = start + word_starts[words[i]], end + word_starts[words[i]]
            word = encoding.tokens[i]
            if ids[i] == self.tokenizer.unk_token_id:
                word, continues = text[start:end], False
            elif marks_words:
                continues = len(word) != end - start
            else:
                continues = start > 0 and " " not in text[start - 1 : start + 1]
            tokens.append(_Token(word, token_scores, start, end, i, continues))
        return tokens

    def _entities(self, tokens: list[_Token], strategy: str) -> list[dict[str, Any]]:
        if strategy in _BY_WORD:
            tokens = [self._word(group, strategy) for group in _words(tokens)]
        if strategy == "none":
            return [
                {
                    "entity": self.labels[token.label],
                    "score": token.score,
                    "index": token.index,
                    "word": token.word,
                    "start": token.start,
                    "end": token.end,
                }
                for token in tokens
            ]
        return [self._group(group) for group in self._neighbours(tokens)]

    def _word(self, tokens: list[_Token], strategy: str) -> _Token:
        """The tokens of a word as one."""
        if strategy == "first":
            scores = tokens[0].scores
        elif strategy == "max":
            scores = max(tokens, key=lambda token: token.score).scores
        else:
            scores = [sum(column) / len(tokens) for column in zip(*(token.scores for token in tokens), strict=True)]
        word = self.tokenizer.convert_tokens_to_string([token.word for token in tokens])
        return _Token(word, scores, tokens[0].start, tokens[-1].end, tokens[0].index, False)

    def _neighbours(self, tokens: list[_Token]) -> list[list[_Token]]:
        """Runs of tokens with one tag; a B- label begins a new run."""
        groups: list[list[_Token]] = []
        last = None
        for token in tokens:
            begins, tag = _split_label(self.labels[token.label])
            if tag == last and not begins:
                groups[-1].append(token)
            else:
                groups.append([token])
            last = tag
        return groups

    def _group(self, tokens: list[_Token]) -> dict[str, Any]:
        return {
            "entity_group": self.labels[tokens[0].label].split("-")[-1],
            "score": sum(token.score for token in tokens) / len(tokens),
            "word": self.tokenizer.convert_tokens_to_string([token.word for token in tokens]),
            "start": tokens[0].start,
            "end": tokens[-1].end,
        }


def _words(tokens: list[_Token]) -> list[list[_Token]]:
    groups: list[list[_Token]] = []
    for token in tokens:
        if groups and token.continues_word:
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _split_label(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and its tag; labels without B- or I- continue one."""
    prefix, tag = label[:2], label[2:]
    return (prefix == "B-", tag) if prefix in ("B-", "I-") else (False, label)


def _longest_of_overlapping(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of entities of neighbouring parts that overlap, the longest, then the surest."""
    kept: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda e: e["start"]):
        if kept and kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            kept[-1] = max(kept[-1], entity, key=lambda e: (e["end"] - e["start"], e["score"]))
        else:
            kept.append(entity)
    return kept


def _is_words(item: Any) -> bool:
    return isinstance(item, list | tuple) and bool(item) and all(isinstance(word, str) for word in item)


def _joined(words: list[str], delimiter: str) -> tuple[str, list[int]]:
    """The words as a text, and where each begins in it."""
    starts, position = [], 0
    for word in words:
        starts.append(position)
        position += len(word) + len(delimiter)
    return delimiter.join(words), starts
