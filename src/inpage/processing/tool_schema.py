"""Describes Python functions to a model by their type hints and docstrings in Google's style.

The same as `get_json_schema` of transformers makes of them, as models were trained to see it.
"""

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from ..errors import InputError

_TYPES: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    list: "array",
    tuple: "array",
    dict: "object",
}
_SECTION = re.compile(
    r"^(Returns|Raises|(?:Args|Arguments|Yields|Examples?|Notes?)(?=:\s*$)):[ \t]*", re.MULTILINE
)  # the first two may go on in the same line
_ARGUMENT = re.compile(r"(\w+)(?:\s*\(.*?\))?:\s*(.*)")
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE | re.DOTALL)


def describe(function: Callable[..., Any]) -> dict[str, Any]:
    """{"type": "function", "function": {"name", "description", "parameters", "return"}} of a function.

    Each argument needs a type hint and a description in the docstring, which may end with (choices: ["a", "b"]).
    Raises InputError for what is missing and for types that JSON does not have.
    """
    name = getattr(function, "__name__", repr(function))
    docstring = inspect.getdoc(function) if callable(function) and not inspect.isclass(function) else None
    if not docstring:
        raise _unfit(name, "it has no docstring")
    description, arguments, returned = _parse(docstring)
    if not description:
        raise _unfit(name, "its docstring does not say what it does")
    hints = _hints(function, name)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.name not in hints:
            raise _unfit(name, f"its argument {parameter.name!r} has no type hint")
        if parameter.name not in arguments:
            raise _unfit(name, f"its docstring does not describe the argument {parameter.name!r}")
        schema = _schema(hints[parameter.name], f"{name}({parameter.name})")
        properties[parameter.name] = schema | _described(arguments[parameter.name], name)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, **({"required": required} if required else {})}
    described: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    with suppress(InputError, KeyError):  # a result that is not annotated, or in a way that JSON does not have
        described["return"] = _schema(hints["return"], name) | ({"description": returned} if returned else {})
    return {"type": "function", "function": described}


def _hints(function: Callable[..., Any], name: str) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError) as error:  # a text that names nothing, or what has no hints
        raise _unfit(name, f"its type hints cannot be read: {error}") from error


def _parse(docstring: str) -> tuple[str, dict[str, str], str]:
    """What the function does, its arguments, and what it returns."""
    description, *parts = _SECTION.split(docstring)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    arguments: dict[str, str] = {}
    lines = inspect.cleandoc(sections.get("Args") or sections.get("Arguments") or "").split("\n")
    found = None
    for line in lines:
        found_here = None if line.startswith(" ") else _ARGUMENT.match(line)
        if found_here:
            found, text = found_here.groups()
            arguments[found] = text.strip()
        elif found and line.strip():
            arguments[found] = f"{arguments[found]} {line.strip()}".strip()
    return description.strip(), arguments, sections.get("Returns", "").strip()


def _described(text: str, name: str) -> dict[str, Any]:
    """Description of an argument, and the choices that it lists."""
    listed = _CHOICES.search(text)
    if not listed:
        return {"description": text}
    try:
        choices = json.loads(listed[1])
    except ValueError:
        choices = None
    if not isinstance(choices, list):
        raise _unfit(name, f"its choices {listed[1]!r} are not a list in JSON")
    return {"enum": choices, "description": text[: listed.start()].strip()}


def _schema(hint: Any, where: str) -> dict[str, Any]:
    """JSON schema of a type hint."""
    if hint is Any:
        return {}
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return _enumeration([each.value for each in hint], where)
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return _enumeration(list(members), where)
    if origin in (typing.Union, types.UnionType):
        return _union(members, where)
    if origin in _TYPES and Ellipsis not in members:
        return _container(origin, [_schema(member, where) for member in members], where)
    raise _unfit(where, f"the type {hint!r} has no like in JSON")


def _container(kind: Any, inner: list[dict[str, Any]], where: str) -> dict[str, Any]:
    described = {"type": _TYPES[kind]}
    if not inner:  # typing.List and the like
        return described
    if kind is list:
        return {**described, "items": inner[0]}
    if kind is dict:
        return {**described, "additionalProperties": inner[1]}
    if len(inner) == 1:
        raise _unfit(where, "a tuple of one is hardly meant; a list may be")
    return {**described, "prefixItems": inner}


def _enumeration(values: list[Any], where: str) -> dict[str, Any]:
    if not all(type(value) in _TYPES for value in values):
        raise _unfit(where, f"its values {values!r} are not all of JSON")
    kinds = list(dict.fromkeys(_TYPES[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}


def _union(members: tuple[Any, ...], where: str) -> dict[str, Any]:
    schemas = [_schema(member, where) for member in members if member is not type(None)]
    if len(schemas) == 1:
        schema = schemas[0]
    elif all(schema.keys() == {"type"} and isinstance(schema["type"], str) for schema in schemas):
        schema = {"type": sorted(schema["type"] for schema in schemas)}
    else:
        schema = {"anyOf": schemas}
    return schema | ({"nullable": True} if type(None) in members else {})


def _unfit(name: str, why: str) -> InputError:
    return InputError(
        f"The function {name} cannot be described to a model: {why}.",
        hint='Mend that, or give a schema: {"type": "function", "function": {"name": ..., "parameters": {...}}}.',
    )
