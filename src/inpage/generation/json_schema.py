"""JSON schemas as regular expressions, for what a model is to write.

A pattern matches texts that a schema accepts, not all of them: properties come in the schema's order, none that it does
not name, and white space is at most one space after a comma or colon.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from ..errors import InputError, UnsupportedError

_SPACE = "[ ]?"
_CHARACTER = r'(?:[^"\\\x00-\x1f\x7f]|\\["\\/bfnrt]|\\u[0-9a-cA-C][0-9a-fA-F]{3})'
_INTEGER = r"(?:0|-?[1-9][0-9]{0,14})"  # no -0, which JavaScript keeps apart from 0
_NUMBER = r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?"
_DATE = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PLAIN = r'[^"\\\x00-\x1f\x7f]'
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": r"[a-zA-Z0-9_+-]{1,32}(?:\.[a-zA-Z0-9_+-]{1,32}){0,3}@[a-z0-9]{1,32}(?:\.[a-z]{2,12}){1,3}",
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
}
_NESTING = 3  # of values that a schema says nothing about, and of schemas that contain themselves
_SAID = {  # keywords without a say in what is valid
    "title", "description", "default", "examples", "$schema", "$id", "$defs", "definitions", "$comment", "deprecated",
    "readOnly", "writeOnly", "contentMediaType", "discriminator",
}  # fmt: skip
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set[str](),
    "boolean": set[str](),
    "null": set[str](),
}


def json_schema_pattern(schema: Any) -> str:
    """Pattern of a schema: a dict, its JSON text, or a class with `model_json_schema()` (pydantic's).

    Raises InputError for what is no schema, UnsupportedError for keywords that patterns cannot keep.
    """
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InputError(f"The JSON schema is no JSON: {error}.") from None
    return _Schemas(schema).pattern(schema, {})


class _Schemas:
    """A schema with the definitions in it."""

    def __init__(self, root: Any) -> None:
        self.root = root

    def pattern(self, schema: Any, seen: dict[str, int]) -> str:
        """`seen` counts the references on the way to this schema."""
        if schema is True or schema == {}:
            return _any_value(_NESTING)
        if not isinstance(schema, Mapping):
            raise InputError(f"A JSON schema is an object, not {schema!r:.60}.")
        schema = {name: value for name, value in schema.items() if name not in _SAID}
        if not schema:
            return _any_value(_NESTING)
        for name, value in schema.items():
            if name in _VALUES and not _VALUES[name][1](value):
                raise InputError(f"{name} must be {_VALUES[name][0]}, not {value!r:.60}.")
        if "$ref" in schema:
            return self._reference(schema, seen)
        if "const" in schema:
            return _literal(schema["const"])
        if "enum" in schema:
            return _group([_literal(value) for value in schema["enum"]])
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema:
                return self._combined(name, schema, seen)
        kinds = schema["type"] if "type" in schema else _kind(schema)
        if isinstance(kinds, list):
            return _group([self._typed(kind, _part(schema, kind), seen) for kind in kinds])
        return self._typed(kinds, schema, seen)

    def _reference(self, schema: Mapping[str, Any], seen: dict[str, int]) -> str:
        reference = schema["$ref"]
        _allow(schema, {"$ref"}, "a reference")
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UnsupportedError(f"The reference {reference!r:.80} leads out of the schema.")
        depth = seen.get(reference, 0)
        if depth >= _NESTING:
            raise _TooDeep
        found = self.root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or part not in found:
                raise InputError(f"The schema has nothing at {reference!r:.80}.")
            found = found[part]
        return self.pattern(found, {**seen, reference: depth + 1})

    def _combined(self, name: str, schema: Mapping[str, Any], seen: dict[str, int]) -> str:
        options = schema[name]
        beside = {key: value for key, value in schema.items() if key != name}
        if name == "allOf":
            merged = dict(beside)
            for option in options:
                for key, value in option.items():
                    if merged.setdefault(key, value) != value:
                        raise UnsupportedError(f"allOf with different {key!r} is not supported.")
            return self.pattern(merged, seen)
        if set(beside) - {"type"}:
            raise UnsupportedError(f"{name} beside {', '.join(sorted(beside))} is not supported.")
        return _group(self._possible([{**beside, **option} for option in options], seen))

    def _possible(self, schemas: list[Any], seen: dict[str, int]) -> list[str]:
        """Patterns of those that do not contain themselves too deeply."""
        found: list[str] = []
        for schema in schemas:
            try:
                found.append(self.pattern(schema, seen))
            except _TooDeep:
                continue
        if not found:
            raise _TooDeep
        return found

    def _typed(self, kind: Any, schema: Mapping[str, Any], seen: dict[str, int]) -> str:
        if kind not in _KEYWORDS:
            raise InputError(f"JSON has no type {kind!r:.60}.", hint=f"It has {', '.join(_KEYWORDS)}.")
        _allow(schema, _KEYWORDS[kind] | {"type"}, f"a schema of type {kind}")
        if kind == "object":
            return self._object(schema, seen)
        if kind == "array":
            return self._array(schema, seen)
        if kind == "string":
            return _string(schema)
        if kind == "integer":
            return _integer(schema)
        return {"number": _NUMBER, "boolean": "(?:true|false)", "null": "null"}[kind]

    def _object(self, schema: Mapping[str, Any], seen: dict[str, int]) -> str:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        if schema.get("minProperties", 0) > len(required) or schema.get("maxProperties", 1e9) < len(properties):
            raise UnsupportedError("minProperties and maxProperties are not supported.", hint="Use required.")
        if required - set(properties):
            raise UnsupportedError(f"Required properties without a schema: {', '.join(required - set(properties))}.")
        if not properties:
            values = schema.get("additionalProperties", True)
            if values is False:
                return r"\{\}"
            value = _any_value(_NESTING - 1) if values is True else self.pattern(values, seen)
            return _repeated(r"\{", f'"{_CHARACTER}{{1,32}}":{_SPACE}{value}', r"\}", 0, None)
        members: list[tuple[str, bool]] = []
        for name, value in properties.items():
            try:
                members.append((f"{_literal(name)}:{_SPACE}{self.pattern(value, seen)}", name in required))
            except _TooDeep:
                if name in required:
                    raise
        return r"\{" + _members(members) + r"\}"

    def _array(self, schema: Mapping[str, Any], seen: dict[str, int]) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        fixed = [self.pattern(item, seen) for item in schema.get("prefixItems", ())]
        items = schema.get("items", not fixed)
        if fixed:
            if items is not False or least not in (0, len(fixed)) or most not in (None, len(fixed)):
                raise UnsupportedError("prefixItems with further items are not supported.", hint="Set items to false.")
            return r"\[" + f",{_SPACE}".join(fixed) + r"\]"
        if most == 0 or items is False:
            return r"\[\]"
        try:
            return _repeated(r"\[", self.pattern(items, seen), r"\]", least, most)
        except _TooDeep:
            if least:
                raise
            return r"\[\]"


class _TooDeep(UnsupportedError):
    """A schema contains itself without an end."""

    def __init__(self) -> None:
        super().__init__("The JSON schema contains itself, and nothing ends that.", hint="Make the inner one optional.")


def _members(members: list[tuple[str, bool]]) -> str:
    """Patterns of an object's members, in order, commas between them; optional ones may be missing."""
    # From the back: what may follow where some member has been written, and where none has.
    after, first = "", ""
    for text, required in reversed(members):
        written = f",{_SPACE}{text}{after}"
        begun = f"{text}{after}"
        after, first = (written, begun) if required else (f"(?:,{_SPACE}{text})?{after}", _group([begun, first]))
    return first


def _repeated(opening: str, item: str, closing: str, least: int, most: int | None) -> str:
    if most is not None and most < least:
        raise InputError(f"No array has {least} items at least and {most} at most.")
    more = f"(?:,{_SPACE}{item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    body = f"{item}{more}"
    return f"{opening}{body}{closing}" if least else f"{opening}(?:{body})?{closing}"


def _string(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema or "format" in schema:
        _allow(schema, {"type", "pattern", "format"}, "a string with a pattern or format")
        if "pattern" in schema and "format" in schema:
            raise UnsupportedError("A string with both pattern and format is not supported.")
        if "pattern" in schema:
            return f'"{_in_string(schema["pattern"])}"'
        if schema["format"] not in _FORMATS:
            raise UnsupportedError(
                f"Strings of format {schema['format']!r} are not supported.", hint=f"There are: {', '.join(_FORMATS)}."
            )
        return f'"{_FORMATS[schema["format"]]}"'
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is not None and most < least:
        raise InputError(f"No string has {least} characters at least and {most} at most.")
    return f'"{_CHARACTER}{{{least},{"" if most is None else most}}}"'


def _in_string(pattern: str) -> str:
    """A pattern for the inside of a JSON string. It must match no character that JSON escapes."""
    from .automaton import DEAD, Automaton

    anchored = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[anchored[0] : len(pattern) - anchored[1]]
    free = f"{_PLAIN}*"
    whole = f"(?:{'' if anchored[0] else free}(?:{body}){'' if anchored[1] else free})"
    automaton = Automaton(whole)
    forbidden = [ord('"'), ord("\\"), *range(0x20)]
    seen, stack = {0}, [0]
    while stack:
        row = automaton.row(stack.pop())
        if any(row[byte] != DEAD for byte in forbidden):
            raise UnsupportedError(
                f"The pattern {pattern!r:.60} matches characters that JSON escapes.",
                hint="Rule out quotes, backslashes and control characters, where a dot stands, too.",
            )
        for state in set(row) - seen - {DEAD}:
            seen.add(state)
            stack.append(state)
    return whole


def _integer(schema: Mapping[str, Any]) -> str:
    least = schema.get("minimum")
    most = schema.get("maximum")
    if "exclusiveMinimum" in schema:
        least = max(schema["exclusiveMinimum"] + 1, least if least is not None else schema["exclusiveMinimum"] + 1)
    if "exclusiveMaximum" in schema:
        most = min(schema["exclusiveMaximum"] - 1, most if most is not None else schema["exclusiveMaximum"] - 1)
    if least is None and most is None:
        return _INTEGER
    low = -(10**15) + 1 if least is None else -int(-least // 1)
    high = 10**15 - 1 if most is None else int(most // 1)
    if low > high:
        raise InputError(f"No integer is {least} at least and {most} at most.")
    parts: list[str] = []
    if low < 0:
        parts.append(f"-{_group(_number_range(max(1, -high), -low))}")
    if high >= 0:
        parts += _number_range(max(low, 0), high)
    return _group(parts)


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


def _any_value(depth: int) -> str:
    """Any JSON value, nested so deep."""
    simple = [f'"{_CHARACTER}*"', _NUMBER, "true", "false", "null"]
    if not depth:
        return _group(simple)
    inner = _any_value(depth - 1)
    return _group(
        [
            *simple,
            _repeated(r"\[", inner, r"\]", 0, None),
            _repeated(r"\{", f'"{_CHARACTER}{{1,32}}":{_SPACE}{inner}', r"\}", 0, None),
        ]
    )


def _kind(schema: Mapping[str, Any]) -> str:
    """The type that a schema's keywords are about, where it does not name one."""
    kinds = [kind for kind, words in _KEYWORDS.items() if words & set(schema)]
    if len(kinds) != 1:
        raise UnsupportedError(f"A schema without a type, with {', '.join(schema)}, is not supported.")
    return kinds[0]


def _part(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """What of a schema for several types is about one of them."""
    others = set[str]().union(*(words for name, words in _KEYWORDS.items() if name != kind))
    return {name: value for name, value in schema.items() if name not in others - _KEYWORDS.get(kind, set())}


def _allow(schema: Mapping[str, Any], known: set[str], what: str) -> None:
    if unknown := sorted(set(schema) - known):
        raise UnsupportedError(f"{what.capitalize()} with {', '.join(unknown)} is not supported.", hint="Leave it out.")


def _literal(value: Any) -> str:
    try:
        return re.escape(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"The JSON schema has the value {value!r:.60}, which is no JSON: {error}.") from None


def _group(options: list[str]) -> str:
    if not options:
        raise InputError("A JSON schema allows no value: enum or anyOf is empty.")
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list(value: Any, of: Callable[[Any], bool] = lambda element: True) -> bool:
    return isinstance(value, list | tuple) and all(map(of, value))


# What the value of a keyword is, in words, and whether one is that.
_VALUES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), ("a list of objects", lambda value: _is_list(value, _is_object))),
    **dict.fromkeys(("enum", "prefixItems"), ("a list", _is_list)),
    **dict.fromkeys(("format", "pattern"), ("a text", _is_text)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ("a number", _is_number)),
    **dict.fromkeys(
        ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
        ("a whole number of at least 0", _is_count),
    ),
    "properties": ("an object", _is_object),
    "required": ("a list of names", lambda value: _is_list(value, _is_text)),
    "type": ("a name or a list of names", lambda value: _is_text(value) or _is_list(value, _is_text)),
}
