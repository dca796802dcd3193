"""JSON schemas as regular expressions, for what a model is to write.

A pattern matches texts that a schema accepts, not all of them: properties come in the schema's order, none that it does
not name, and white space is at most one space after a comma or colon.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from math import isfinite
from typing import Any
from urllib.parse import unquote

from ..errors import InputError, UnsupportedError
from .json_numbers import NUMBER, group, integer_pattern, number_pattern

_SPACE = "[ ]?"
_CHARACTER = r'(?:[^"\\\x00-\x1f\x7f]|\\["\\/bfnrt]|\\u[0-9a-cA-C][0-9a-fA-F]{3})'
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
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
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
        if schema is False:
            raise _Nothing("The JSON schema allows no value where it is false.")
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
        if (values := _values(schema)) is not None:
            _allow(schema, {"const", "enum", "type"}, "an enum or const")
            return group([_literal(value) for value in values])
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema:
                return self._combined(name, schema, seen)
        kinds = schema["type"] if "type" in schema else _kind(schema)
        if isinstance(kinds, list):
            return group([self._typed(kind, _part(schema, kind), seen) for kind in kinds])
        return self._typed(kinds, schema, seen)

    def _reference(self, schema: Mapping[str, Any], seen: dict[str, int]) -> str:
        reference = schema["$ref"]
        _allow(schema, {"$ref"}, "a reference")
        found = self._at(reference)
        depth = seen.get(reference, 0)
        if depth >= _NESTING:
            raise _Nothing("The JSON schema contains itself, and nothing ends that.")
        return self.pattern(found, {**seen, reference: depth + 1})

    def _at(self, reference: Any) -> Any:
        """What a reference means."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UnsupportedError(f"The reference {reference!r:.80} leads out of the schema.")
        if reference[1:] and not reference.startswith("#/"):
            raise UnsupportedError(
                f"The reference {reference!r:.80} is to an anchor.", hint="Write its path: #/$defs/..."
            )
        found = self.root
        for part in unquote(reference).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, Mapping) and part in found:
                found = found[part]
            else:
                raise InputError(f"The schema has nothing at {reference!r:.80}.")
        return found

    def _combined(self, name: str, schema: Mapping[str, Any], seen: dict[str, int]) -> str:
        options = list(_options(name, schema[name]))
        beside = {key: value for key, value in schema.items() if key != name}
        if name == "allOf":
            merged = dict(beside)
            for option in options:
                for key, value in option.items():
                    if key not in _SAID and merged.setdefault(key, value) != value:
                        raise UnsupportedError(f"allOf with different {key!r} is not supported.")
            return self.pattern(merged, seen)
        if set(beside) - {"type"}:
            raise UnsupportedError(f"{name} beside {', '.join(sorted(beside))} is not supported.")
        if name == "oneOf" and not all(self._disjoint(a, b) for a, b in combinations(options, 2)):
            raise UnsupportedError("A value might fit several options of oneOf.", hint="Write anyOf.")
        if "type" in beside:
            options = [_narrowed(option, _kinds(beside["type"])) for option in options]
        return group(self._possible(options, seen))

    def _disjoint(self, a: Any, b: Any, depth: int = 8) -> bool:
        """Whether it is plain that no value fits both schemas."""
        a, b = self._resolved(a), self._resolved(b)
        if not depth or not isinstance(a, Mapping) or not isinstance(b, Mapping):
            return a is False or b is False
        for one, other in ((a, b), (b, a)):
            for name in ("anyOf", "oneOf"):
                if name in one:
                    return all(self._disjoint(option, other, depth - 1) for option in one[name])
            if (values := _values(one)) is not None:
                others = _values(other)
                if others is None:
                    return not any(_is_of(value, _types(other)) for value in values)
                return not {*map(_literal, values)} & {*map(_literal, others)}
        kinds = _types(a) & _types(b)
        if kinds == {"object"}:
            return self._excludes(a, b, depth) or self._excludes(b, a, depth)
        return not kinds

    def _excludes(self, a: Mapping[str, Any], b: Mapping[str, Any], depth: int) -> bool:
        """Whether objects of `a` need a property that those of `b` cannot have, or not with such a value."""
        mine, known = a.get("properties", {}), b.get("properties", {})
        closed = b.get("additionalProperties") is False
        return any(
            self._disjoint(mine.get(name, True), known[name], depth - 1) if name in known else closed
            for name in a.get("required", ())
        )

    def _resolved(self, schema: Any) -> Any:
        for _ in range(_NESTING):
            if isinstance(schema, Mapping) and "$ref" in schema:
                schema = self._at(schema["$ref"])
        return schema

    def _possible(self, schemas: list[Any], seen: dict[str, int]) -> list[str]:
        """Patterns of those that do not contain themselves too deeply."""
        found: list[str] = []
        reason: Exception | None = None
        for schema in schemas:
            try:
                found.append(self.pattern(schema, seen))
            except _Nothing as error:
                reason = error
        if not found:
            raise reason or InputError("A JSON schema allows no value: enum or anyOf is empty.")
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
            return integer_pattern(schema)
        if kind == "number":
            return number_pattern(schema)
        return {"boolean": "(?:true|false)", "null": "null"}[kind]

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
            except _Nothing:
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
        if most == 0 and not least:
            return r"\[\]"
        try:
            return _repeated(r"\[", self.pattern(items, seen), r"\]", least, most)
        except _Nothing:
            if least:
                raise
            return r"\[\]"


class _Nothing(UnsupportedError):
    """No value fits a schema: it is false, or contains itself without an end."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="Make what is around it optional.")


def _options(name: str, options: Any) -> Iterator[Any]:
    """Schemas of anyOf, oneOf or allOf, as objects where that is the same."""
    for option in options:
        if option is False and name == "allOf":
            raise _Nothing("The JSON schema allows no value where it is false.")
        yield {} if option is True else option


def _kinds(kinds: Any) -> set[str]:
    """Names of types, integers among the numbers."""
    found = set(kinds) if isinstance(kinds, list | tuple) else {kinds}
    return found | {"integer"} if "number" in found else found


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that values of a schema may have."""
    return _kinds(schema["type"] if "type" in schema else list(_KEYWORDS))


def _narrowed(schema: Any, kinds: set[str]) -> Any:
    """A schema for values of some types alone."""
    if schema is False:
        return schema
    common = kinds & _types(schema)
    common -= {"integer"} if "number" in common else set()
    return {**schema, "type": sorted(common)} if common else False


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that const and enum leave of a type; None without them."""
    if "const" not in schema and "enum" not in schema:
        return None
    values = schema.get("enum", [schema.get("const")])
    if "const" in schema:
        values = [value for value in values if _literal(value) == _literal(schema["const"])]
    return [value for value in values if _is_of(value, _types(schema))]


def _is_of(value: Any, kinds: set[str]) -> bool:
    if value is None or isinstance(value, bool | str):
        return ("null" if value is None else "boolean" if isinstance(value, bool) else "string") in kinds
    if isinstance(value, int | float):
        return "number" in kinds or ("integer" in kinds and value == value // 1)
    return ("object" if isinstance(value, Mapping) else "array") in kinds


def _members(members: list[tuple[str, bool]]) -> str:
    """Patterns of an object's members, in order, commas between them; optional ones may be missing."""
    # From the back: what may follow where some member has been written, and where none has.
    after, first = "", ""
    for text, required in reversed(members):
        written = f",{_SPACE}{text}{after}"
        begun = f"{text}{after}"
        after, first = (written, begun) if required else (f"(?:,{_SPACE}{text})?{after}", group([begun, first]))
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

    whole = group([_found_within(part) for part in _alternatives(pattern)])
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


def _found_within(pattern: str) -> str:
    """A pattern of the texts in which one is found."""
    anchored = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[anchored[0] : len(pattern) - anchored[1]]
    free = f"{_PLAIN}*"
    return f"(?:{'' if anchored[0] else free}(?:{body}){'' if anchored[1] else free})"


def _alternatives(pattern: str) -> list[str]:
    """The parts of a pattern between the bars that stand in no group."""
    parts, depth = [""], 0
    for token in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _any_value(depth: int) -> str:
    """Any JSON value, nested so deep."""
    simple = [f'"{_CHARACTER}*"', NUMBER, "true", "false", "null"]
    if not depth:
        return group(simple)
    inner = _any_value(depth - 1)
    return group(
        [
            *simple,
            _repeated(r"\[", inner, r"\]", 0, None),
            _repeated(r"\{", f'"{_CHARACTER}{{1,32}}":{_SPACE}{inner}', r"\}", 0, None),
        ]
    )


def _kind(schema: Mapping[str, Any]) -> str:
    """The type that a schema's keywords are about, where it does not name one."""
    kinds = [kind for kind, words in _KEYWORDS.items() if words & set(schema) and kind != "integer"]
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
        return re.escape(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"The JSON schema has the value {value!r:.60}, which is no JSON: {error}.") from None


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_list(value: Any, of: Callable[[Any], bool] = lambda element: True) -> bool:
    return isinstance(value, list | tuple) and all(map(of, value))


# What the value of a keyword is, in words, and whether one is that.
_VALUES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), ("a list of schemas", lambda value: _is_list(value, _is_schema))),
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
