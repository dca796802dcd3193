"""What arguments must be; each function raises InputError that names the argument and what it found."""

from collections.abc import Iterable
from math import isfinite
from typing import Any

from .errors import InputError


def check_text(value: Any, task: str) -> None:
    """Raise InputError unless `value` is a text."""
    if not isinstance(value, str):
        raise InputError(f"{task} takes a text (str) or a list of texts, not {_describe(value)}.")


def check_count(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise InputError unless `value` is a whole number of at least 1 (or None, where that is a choice)."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        allowed = " or None" if optional else ""
        raise InputError(f"{name} must be a whole number of at least 1{allowed}, not {value!r}.")


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    hint: str = "",
) -> float:
    """`value` as a float. Raises InputError unless it is a finite number within the bounds."""
    fits = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and isfinite(value)
        and (above is None or value > above)
        and (least is None or value >= least)
        and (below is None or value < below)
        and (most is None or value <= most)
    )
    if fits:
        return float(value)
    bounds = {"above": above, "at least": least, "below": below, "at most": most}
    wanted = " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)
    raise InputError(f"{name} must be a number {wanted}, not {value!r}.".replace("  ", " "), hint=hint)


def check_flags(*, optional: bool = False, **flags: Any) -> None:
    """Raise InputError unless each is True or False (or None, where that is a choice)."""
    for name, value in flags.items():
        if not (isinstance(value, bool) or (optional and value is None)):
            allowed = ", or None" if optional else ""
            raise InputError(f"{name} must be True or False{allowed}, not {value!r:.60}.")


def check_texts(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a list (tuple, set) of texts."""
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(text, str) for text in value):
        raise InputError(f"{name} must be a list of texts, not {value!r:.60}.")


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise InputError unless `value` is one of `choices`."""
    listed = list(choices)
    if value not in listed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, listed))}, not {value!r}.")


def _describe(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"
