"""Numbers between the bounds of a JSON schema, as regular expressions."""

from collections.abc import Mapping
from decimal import Decimal
from math import ceil, floor
from typing import Any, NamedTuple

from ..errors import InputError

_INTEGER = r"(?:0|-?[1-9][0-9]{0,14})"  # no -0, which JavaScript keeps apart from 0
NUMBER = r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?"
_MOST = 10**9  # numbers within bounds are smaller
_DIGITS = 6  # of their fractions that are free
_FREE = f"[0-9]{{0,{_DIGITS - 1}}}"


def integer_pattern(schema: Mapping[str, Any]) -> str:
    """Integers of up to 15 digits within the bounds of a schema. Raises InputError if there are none."""
    least = [ceil(schema["minimum"])] if "minimum" in schema else []
    least += [floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    most = [floor(schema["maximum"])] if "maximum" in schema else []
    most += [ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    if not least and not most:
        return _INTEGER
    low, high = max(least, default=-(10**15) + 1), min(most, default=10**15 - 1)
    if low > high:
        raise InputError(f"No integer of up to 15 digits is {low} at least and {high} at most.")
    parts: list[str] = []
    if low < 0:
        parts.append(f"-{group(_number_range(max(1, -high), -low))}")
    if high >= 0:
        parts += _number_range(max(low, 0), high)
    return group(parts)


def _number_range(low: int, high: int) -> list[str]:
    """Patterns of the decimal numbers from `low` to `high`, neither negative."""
    found: list[str] = []
    while low <= high:
        # The largest block of numbers from `low` on whose last digits are free.
        free = 0
        while low and low % 10 ** (free + 1) == 0 and low + 10 ** (free + 1) - 1 <= high:
            if len(str(low)) != len(str(low + 10 ** (free + 1) - 1)):
                break
            free += 1
        unit = 10**free
        digit = low // unit % 10
        last = min(9, digit + (high + 1 - low) // unit - 1)
        head = str(low // unit)[:-1]
        found.append(f"{head}[{digit}-{last}]" + (f"[0-9]{{{free}}}" if free else ""))
        low += (last - digit + 1) * unit
    return found


class _Bound(NamedTuple):
    """An end of a range of numbers, which may be in it."""

    value: Decimal
    included: bool

    @property
    def whole(self) -> int:
        return int(self.value)

    @property
    def digits(self) -> str:
        """Those of the fraction."""
        return format(self.value, "f").partition(".")[2].rstrip("0")


def number_pattern(schema: Mapping[str, Any]) -> str:
    """Numbers; within bounds without an exponent and with few digits, so that rounding keeps to the bounds.

    Raises InputError if there are none.
    """
    if set(schema) <= {"type"}:
        return NUMBER
    low, high = _Bound(Decimal(1 - _MOST), True), _Bound(Decimal(_MOST - 1), True)
    for name, included in (("minimum", True), ("exclusiveMinimum", False)):
        if name in schema:
            low = max(low, _Bound(Decimal(str(schema[name])), included), key=lambda end: (end.value, not end.included))
    for name, included in (("maximum", True), ("exclusiveMaximum", False)):
        if name in schema:
            high = min(high, _Bound(Decimal(str(schema[name])), included), key=lambda end: (end.value, end.included))
    zero = _Bound(Decimal(0), True)
    parts: list[str] = []
    if low.value < 0:
        ends = _Bound(-high.value, high.included) if high.value < 0 else zero._replace(included=False)
        parts += [f"-{part}" for part in _decimals(ends, _Bound(-low.value, low.included))]
    if high.value >= 0:
        parts += _decimals(low if low.value >= 0 else zero, high)
    if not parts:
        bounds = ", ".join(f"{name} {bound}" for name, bound in schema.items() if name != "type")
        raise InputError(f"No number below {_MOST:,} has {bounds}.")
    return group(parts)


def _decimals(low: _Bound, high: _Bound) -> list[str]:
    """Patterns of the decimal numbers between two that are not negative."""
    if low.value > high.value:
        return []
    if low.whole == high.whole:
        return _with_fraction(str(low.whole), *_fractions(low, high, low.digits, high.digits))
    between = [f"{part}(?:\\.{_FREE}[0-9])?" for part in _number_range(low.whole + 1, high.whole - 1)]
    return [
        *_with_fraction(str(low.whole), *_fractions(low, None, low.digits, "")),
        *between,
        *_with_fraction(str(high.whole), *_fractions(None, high, "", high.digits)),
    ]


def _with_fraction(whole: str, digits: list[str], nothing: bool) -> list[str]:
    return ([f"{whole}\\.{group(digits)}"] if digits else []) + ([whole] if nothing else [])


def _fractions(low: _Bound | None, high: _Bound | None, f: str, g: str) -> tuple[list[str], bool]:
    """Patterns of digits for fractions between 0.f and 0.g, and whether no digits do, too; None is no bound."""
    above_zero = low is None or (not f and low.included)
    nothing = above_zero and (high is None or bool(g) or high.included)
    if low is not None and above_zero:
        low = None
    if low is None and high is None:
        return [f"{_FREE}[0-9]"], nothing
    if not f and not g:
        if high is None:  # above nothing
            return [f"0{{0,{_DIGITS - 1}}}[1-9]{_FREE}"], nothing
        return ([f"0{{1,{_DIGITS}}}"] if low is None and high.included else []), nothing
    first, last = int(f[:1] or 0) if low else 0, int(g[:1] or 0) if high else 9
    found = [f"[{a}-{b}]{_FREE}" for a, b in [(first + bool(low), last - bool(high))] if a <= b]
    ends = [(first, low, high if first == last else None), (last, low if first == last else None, high)]
    for digit, under, over in dict.fromkeys(ends):
        if under is not None or over is not None:
            digits, ended = _fractions(under, over, f[1:], g[1:])
            found += [f"{digit}{group(digits)}"] if digits else []
            found += [str(digit)] if ended else []
    return found, nothing


def group(options: list[str]) -> str:
    """A pattern of what one of the options matches. Raises InputError if there are none."""
    if not options:
        raise InputError("A JSON schema allows no value: enum or anyOf is empty.")
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
