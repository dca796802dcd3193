"""The texts of a call in the form that the backend takes."""

from typing import Any, NamedTuple

from ..errors import InputError


class TextBatch(NamedTuple):
    """Inputs of a call in the backend's form: texts, or pairs of them."""

    items: list[Any]
    pairs: bool


def is_batched(text: Any, words: bool) -> bool:
    """Whether an input of a call is several texts, lists of words or pairs, and not one."""
    return isinstance(text, list | tuple) and (not words or (bool(text) and isinstance(text[0], list | tuple)))


def as_text_batch(text: Any, text_pair: Any, words: bool) -> TextBatch:
    """Sort out the inputs of a call. InputError for other forms than strings (lists of words), pairs and lists."""
    batched = is_batched(text, words)
    if batched and text_pair is not None:
        if not isinstance(text_pair, list | tuple) or len(text_pair) != len(text):
            raise InputError(
                "A batch of texts needs a text_pair for each: a list of the same length.",
                hint=f"There are {len(text)} texts.",
            )
        items = list(zip(text, text_pair, strict=True))
    elif batched:
        items = list(text)
    else:
        items = [(text, text_pair)] if text_pair else [text]
    if not items:
        raise InputError("The batch of texts is empty.")
    valid = _is_words if words else _is_text
    pairs = [isinstance(item, list | tuple) and len(item) == 2 and all(map(valid, item)) for item in items]
    for i, item in enumerate(items):
        if not (pairs[i] or valid(item)):
            raise InputError(
                f"A text is {'a list of words' if words else 'a string'}, or a pair of such; text {i} is "
                f"{type(item).__name__}: {item!r:.80}.",
                hint="" if words else "Lists of words need is_split_into_words=True.",
            )
    return TextBatch(items, any(pairs))


def _is_text(item: Any) -> bool:
    return isinstance(item, str)


def _is_words(item: Any) -> bool:
    return isinstance(item, list | tuple) and all(isinstance(word, str) for word in item)
