"""Functions described for chat templates, against what transformers 5.24 makes of the very same ones."""

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Dict, Literal, Union  # noqa: UP035 as users write them

import pytest

from inpage.errors import InputError
from inpage.processing.tool_schema import describe

EXPECTED = json.loads((Path(__file__).parents[1] / "golden" / "tool_schemas.json").read_text())


class Size(Enum):
    SMALL = 1
    LARGE = "large"


def weather(location: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> float:
    """
    Get the current temperature at a location.

    It is measured
    in the shade.

    Args:
        location: The location to get the temperature for, in the format "City, Country"
        unit: The unit to return the temperature in.
    Returns:
        The temperature, as a float.
    """
    raise NotImplementedError


def options(w: int | None, x: int | None = 3, y: Union[int, str, None] = None, z: Union[int, float] = 1):  # noqa: UP007
    """Take what may be missing.

    Args:
        w: The w
        x: The x
            over two lines
        y: The y: with (a colon)
        z (optional): The z
    """


def containers(
    a: list[int],
    b: list[str],
    c: dict,
    d: dict[str, int],
    e: tuple[int, str],
    f: Any,
    g: list,
    h: Dict,  # noqa: UP006
    i: list[dict[str, list[int | None]]],
    j: list[int] | str,
    k: list[str] | None,
) -> list[str]:
    """Take containers.

    Args:
        a: a a
        b: b b
        c: c c
        d: d d
        e: e e
        f: f f
        g: g g
        h: h h
        i: i i
        j: j j
        k: k k

    Raises:
        ValueError: never
    """  # fmt: skip
    raise NotImplementedError


def values(
    a: Literal[1, 2],
    b: Literal["x", 1],
    c: Literal["x"] | None,
    d: Literal[True, None],
    e: Size,
    f: str,
    g: int,
):
    """Take some of a few.

    Args:
        a: a
        b: b
        c: c
        d: d
        e: e
        f: The f. (choices: ["tea", "coffee"])
        g: The g (choices: [1, 2])
    """  # fmt: skip


def nothing() -> None:
    """Do nothing."""


def power(x: float, n: int = 2) -> set[float]:
    """Raise to a power.

    Args:
        x: The base
        n: The exponent

    Returns: the power
    """
    raise NotImplementedError


class Shop:
    def buy(self, name: str, *, count: int = 1) -> "bool | None":
        """Buy something.

        Args:
            name (`str`): Of the thing.
            count (`int`, *optional*): How many.

        Returns:
            bool: Whether
            it was there.
        """
        raise NotImplementedError


FUNCTIONS: list[Callable[..., Any]] = [weather, options, containers, values, nothing, power, Shop.buy, Shop().buy]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_functions_as_transformers_describes_them(function: Callable[..., Any]) -> None:
    # As text: templates write keys in their order.
    assert json.dumps(describe(function)) == json.dumps(EXPECTED[function.__name__])


def no_docstring(a: int): ...


def undescribed(a: int):
    """Do it."""


def no_hint(a):  # pyright: ignore
    """Do it.

    Args:
        a: a
    """


def set_type(a: set[int]):
    """Do it.

    Args:
        a: a
    """


def single(a: tuple[int]):
    """Do it.

    Args:
        a: a
    """


def unknown_name(a: "Missing"):  # pyright: ignore  # noqa: F821
    """Do it.

    Args:
        a: a
    """


def broken_choices(a: str):
    """Do it.

    Args:
        a: a (choices: [x])
    """


def no_purpose(a: str):
    """
    Args:
        a: a
    """


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_docstring, "no docstring"),
        (Size, "no docstring"),
        (undescribed, "does not describe the argument 'a'"),
        (no_hint, "'a' has no type hint"),
        (set_type, "set"),
        (single, "tuple"),
        (unknown_name, "Missing"),
        (broken_choices, "not a list in JSON"),
        (no_purpose, "what it does"),
        (print, "type hint|describe"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_functions_that_cannot_be_described(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        describe(function)
