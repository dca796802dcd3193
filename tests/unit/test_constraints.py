"""Constrained output: automata, JSON schemas, masks, and samples that keep to them."""

import json
import re
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from inpage.errors import InputError, UnsupportedError
from inpage.generation.automaton import DEAD, Automaton
from inpage.generation.constraints import ConstrainedLogitsProcessor, make_constraint
from inpage.generation.json_schema import json_schema_pattern
from inpage.models.auto import AutoModelForCausalLM
from inpage.processing.tokenizer import AutoTokenizer, PreTrainedTokenizer
from inpage.runtime import Slices, result_of

LLAMA = str(Path(__file__).parent.parent / "golden" / "decoders" / "llama")
PROMPT = [[1, 341, 299, 321, 381, 341, 328, 323]]


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with AutoModelForCausalLM.from_pretrained(LLAMA) as model:
        yield model


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(LLAMA)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
}


@pytest.mark.parametrize("seed", range(67))
def test_constrained_samples_are_valid(model: Any, tokenizer: Any, seed: int) -> None:
    def sample(**options: Any) -> str:
        found = model.generate(PROMPT, do_sample=True, top_k=0, seed=seed, tokenizer=tokenizer, **options).tolist()[0]
        return tokenizer.decode([*PROMPT[0][:1], *found[len(PROMPT[0]) :]], skip_special_tokens=True)

    value = json.loads(sample(json_schema=SCHEMA, max_new_tokens=60))
    assert {"name", "age"} <= set(value) <= {"name", "age", "tags"}
    assert len(value["name"]) <= 12 and 0 <= value["age"] <= 120 and set(value.get("tags", [])) <= {"a", "b"}
    assert re.fullmatch(r"\d{3}-[a-c]+é*", sample(regex=r"\d{3}-[a-c]+é*", max_new_tokens=12))
    assert sample(choices=["yes", "no", "not sure"], max_new_tokens=12) in ("yes", "no", "not sure")


def test_constraints_with_beams_and_their_limits(model: Any, tokenizer: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.generate(PROMPT, num_beams=3, tokenizer=tokenizer, choices=["yes", "no"], max_new_tokens=8)
    assert tokenizer.decode(found[0], skip_special_tokens=True).endswith(("yes", "no"))
    with pytest.raises(InputError, match="greater max_new_tokens"):
        model.generate(PROMPT, tokenizer=tokenizer, regex="a{9}", max_new_tokens=8)
    with pytest.raises(InputError, match="regex must be a text"):
        model.generate(PROMPT, tokenizer=tokenizer, regex=5)
    with pytest.raises(InputError, match="one of"):
        model.generate(PROMPT, tokenizer=tokenizer, regex="a", choices=["b"])


def test_masks_are_those_of_every_token_alone(tokenizer: Any) -> None:
    constraint = make_constraint(tokenizer, regex=r'[^"x]*"(?:en|the|ü)+ [0-9]{2}')
    assert constraint is not None
    result_of(constraint.prepare())
    automaton, tokens = constraint.automaton, constraint.vocabulary.tokens
    for text in ("", 'A "', 'a"the', 'a"en\xfc 4', 'a"e'):
        state = automaton.walk(0, text.encode())
        expected = {i: s for i, b in enumerate(tokens) if b and (s := automaton.walk(state, b)) != DEAD}
        mask = constraint.mask(state)
        assert dict(zip(mask.tokens, mask.states, strict=True)) == expected
        if mask.blocked is not None:
            assert set(mask.blocked) == set(range(len(tokens))) - set(expected)


def large_tokenizer(size: int) -> Any:
    """A tokenizer of bytes with so many tokens, most of them words of a small alphabet."""
    random = Random(1)
    words = {chr(code): None for code in range(0x21, 0x7F)}
    while len(words) < size:
        words["".join(random.choices("Ġabcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9)))] = None
    backend = Tokenizer(BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.decoder = ByteLevel()
    return PreTrainedTokenizer(backend)


@pytest.mark.parametrize(
    "options",
    [{"regex": r"[^#]*"}, {"json_schema": {}}, {"json_schema": {"type": "string", "maxLength": 4000}}],
    ids=["text", "any JSON", "long string"],
)
def test_a_large_vocabulary_is_walked_in_slices(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long they take is for tests/bench/constrained.py to tell; here each ends at the first chance."""
    constraint = make_constraint(large_tokenizer(150_000), **options)
    assert constraint is not None
    processor = ConstrainedLogitsProcessor(constraint, 1, [0], max_length=10_000)
    monkeypatch.setattr(Slices, "over", lambda self: True)
    assert sum(1 for _ in processor.prepare([[0]], 150_016)) > 50
    assert not [*processor.prepare([[0]], 150_016)], "what is known takes no time"
    assert any(processor.masks([[0]], 150_016)[0] or b"")


@pytest.mark.parametrize(
    "pattern", ["a|b", "[^x]*é{2,3}", r"\d{3}-\w+", ".*", r"[\W]", r"[^\s]+", "", "(?:ab)*c?", "ß[中-語]?"]
)
def test_automata_match_as_re_does(pattern: str) -> None:
    automaton, random = Automaton(pattern), Random(1)
    for _ in range(1500):
        text = "".join(random.choice("abxé 1-_ß中😀\n03c") for _ in range(random.randint(0, 6)))
        expected = re.fullmatch(pattern, text) is not None
        assert automaton.matches(text) == expected or (expected and not text.isascii()), text


@pytest.mark.parametrize("pattern", ["^a$", "(?:^a|b)c$", "^(?:a|b$)", r"a|\Z", "(?:^a)?b"])
def test_anchors_at_both_ends_say_nothing_new(pattern: str) -> None:
    automaton = Automaton(pattern)
    for text in ("", "a", "b", "c", "ac", "bc", "ab", "aa", "abc", "ba"):
        assert automaton.matches(text) == (re.fullmatch(pattern, text) is not None), text


@pytest.mark.parametrize("pattern", ["a$b", "a^b", "(?:^a)*", "(a$|b)c", "(?:$)a", "x*^y", r"\bfoo"])
def test_anchors_within_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match=r"Anchors|borders"):
        Automaton(pattern)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "integer", "minimum": -12, "exclusiveMaximum": 105}, [-12, -1, 0, 7, 99, 104], [-13, 105, "1", 1.5]),
        (
            {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
            [[True], [False, True]],
            [[], [1]],
        ),
        ({"anyOf": [{"type": "null"}, {"const": {"a": [1]}}]}, [None, {"a": [1]}], [{}, {"a": [2]}]),
        ({"type": ["string", "integer"], "maxLength": 2, "minimum": 5}, ["ab", 5], ["abc", 4, None]),
        ({"type": "string", "format": "date"}, ["2024-02-28"], ["2024-13-01", "x"]),
        ({"type": "string", "pattern": "^a+$"}, ["aa"], ["ab", ""]),
        ({"type": "object", "additionalProperties": {"type": "null"}}, [{}, {"x": None}], [{"x": 1}, []]),
        ({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}}, [{}, {"a": None}, {"b": None}], [{"c": 1}]),
        ({}, [1, "x", [{"a": None}]], []),
        ({"type": "string", "enum": ["a", 1, None]}, ["a"], [1, None]),
        ({"type": ["number", "null"], "enum": ["a", 1, None], "const": 1}, [1], ["a", None]),
        ({"type": "integer", "enum": [1, 2.5, True, 3.0]}, [1, 3.0], [2.5, True]),
        ({"type": "number", "anyOf": [{"type": "integer", "minimum": 3}, {"type": "string"}]}, [3], [2, "a"]),
        ({"anyOf": [False, {"type": "null"}]}, [None], [1]),
        ({"properties": {"a": False, "b": {"type": "null"}}}, [{"b": None}], [{"a": 1}]),
        ({"allOf": [True, {"description": "x", "minimum": 1}, {"description": "y", "maximum": 2}]}, [1, 2], [0, 3]),
        ({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 3.5}, [1, 2, 3], [0, 4]),
        ({"type": "integer", "exclusiveMinimum": -2.5, "exclusiveMaximum": -0.5}, [-1, -2], [0, -3]),
        ({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "null"}}, [[None]], [[], [None] * 3]),
        ({"type": "string", "pattern": "^a|b$|^c+$|[|$](?:x|y)"}, ["ax", "xb", "cc", "-|x-"], ["xa", "bx", "xc", "x|"]),
        ({"prefixItems": [{"type": "null"}, {"$ref": "#/prefixItems/0"}], "items": False}, [[None, None]], [[None, 1]]),
        ({"$ref": "#/$defs/a%20b~1", "$defs": {"a b/": {"type": "null"}}}, [None], [1]),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}, {"const": None}]}, [1, "a", None], [1.5, True]),
        (
            {
                "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
                "$defs": {
                    "a": {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]},
                    "b": {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]},
                },
            },
            [{"kind": "a"}, {"kind": "c"}],
            [{"kind": "d"}, {}],
        ),
        (
            {
                "oneOf": [
                    {"type": "object", "properties": {"a": {}}, "required": ["a"]},
                    {"type": "object", "properties": {"b": {"type": "null"}}, "additionalProperties": False},
                ]
            },
            [{"a": 1}, {"b": None}],
            [{"a": 1, "b": None}],
        ),
        (
            {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}},
            [[], [[]]],
            [1, [1]],
        ),
    ],
    ids=str,
)
def test_json_schemas(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    automaton = Automaton(json_schema_pattern(schema))
    assert [value for value in valid if not automaton.matches(json.dumps(value))] == []
    assert [value for value in invalid if automaton.matches(json.dumps(value))] == []


def test_numbers_within_bounds() -> None:
    random = Random(1)

    def bound() -> float:
        return random.choice([0, 1, -1, 0.5, -0.25, random.randint(-30, 30), round(random.uniform(-3, 3), 2), 1e-7])

    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    for _ in range(300):
        schema = {name: bound() for name in names if random.random() < 0.4}

        def fits(value: float, schema: dict[str, float] = schema) -> bool:
            return (
                schema.get("minimum", value) <= value <= schema.get("maximum", value)
                and value > schema.get("exclusiveMinimum", value - 1)
                and value < schema.get("exclusiveMaximum", value + 1)
            )

        values = [*schema.values(), *(round(random.uniform(-4, 4), random.randint(0, 5)) for _ in range(40)), 25, -25]
        try:
            automaton = Automaton(json_schema_pattern({"type": "number", **schema}))
        except InputError:
            assert not any(map(fits, values)), schema
            continue
        for value in values:
            text = format(Decimal(str(value or 0)), "f")
            assert automaton.matches(text) == fits(value), (schema, text)


@pytest.mark.parametrize("bounds", [{}, {"minimum": -12}, {"maximum": 7}, {"minimum": -12, "maximum": 7}], ids=str)
def test_integers_have_one_zero(bounds: dict[str, int]) -> None:
    automaton = Automaton(json_schema_pattern({"type": "integer", **bounds}))
    assert automaton.matches("0") and automaton.matches("-3")
    assert not automaton.matches("-0")


@pytest.mark.parametrize(
    ("schema", "error", "words"),
    [
        ("{", InputError, "no JSON"),
        ({"type": "text"}, InputError, "no type"),
        ({"enum": []}, InputError, "no value"),
        ({"type": "array", "uniqueItems": True}, UnsupportedError, "uniqueItems"),
        ({"type": "number", "multipleOf": 0.5}, UnsupportedError, "multipleOf"),
        ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, InputError, "No number"),
        ({"type": "number", "minimum": 2e9}, InputError, "No number below"),
        ({"type": "string", "pattern": "."}, UnsupportedError, "escapes"),
        ({"$ref": "#/x"}, InputError, "nothing at"),
        ({"$ref": "other.json"}, UnsupportedError, "out of"),
        ({"$ref": "#"}, UnsupportedError, "contains itself"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, InputError, "No integer"),
        ({"type": "integer", "exclusiveMinimum": True}, InputError, "exclusiveMinimum must be a number"),
        ({"enum": [1, 2], "minimum": 2}, UnsupportedError, "minimum"),
        ({"type": "string", "const": 1}, InputError, "no value"),
        ({"const": float("nan")}, InputError, "no JSON"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, UnsupportedError, "several options"),
        ({"oneOf": [{"type": "string"}, {"const": "a"}]}, UnsupportedError, "several options"),
        ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, UnsupportedError, "several options"),
        ({"anyOf": {}}, InputError, "list of schemas"),
        ({"anyOf": [1]}, InputError, "list of schemas"),
        ({"anyOf": []}, InputError, "no value"),
        ({"allOf": [False]}, UnsupportedError, "false"),
        (False, UnsupportedError, "false"),
        ({"properties": {"a": False}, "required": ["a"]}, UnsupportedError, "false"),
        ({"properties": {"a": {}}, "required": "a"}, InputError, "a list"),
        ({"type": "array", "items": False, "minItems": 1}, UnsupportedError, "false"),
        ({"type": "array", "maxItems": 0, "minItems": 1}, InputError, "No array"),
        ({"type": "string", "pattern": "a(b$)c"}, UnsupportedError, "Anchors"),
        ({"$ref": "#x", "$defs": {"x": {"$anchor": "x", "type": "null"}}}, UnsupportedError, "anchor"),
        ({"type": "integer", "minimum": "3"}, InputError, "minimum must be"),
        ({"type": "integer", "maximum": float("inf")}, InputError, "maximum must be"),
        ({"type": "string", "minLength": -1}, InputError, "minLength must be"),
        ({"type": "string", "maxLength": "2"}, InputError, "maxLength must be"),
        ({"type": "array", "minItems": 1.5}, InputError, "minItems must be"),
        ({"type": "object", "minProperties": "a"}, InputError, "minProperties must be"),
        ({"type": "object", "required": 5}, InputError, "required must be"),
        ({"type": "object", "properties": []}, InputError, "properties must be"),
        ({"type": "array", "prefixItems": 5}, InputError, "prefixItems must be"),
        ({"type": [[1]]}, InputError, "type must be"),
        ({"type": "string", "format": []}, InputError, "format must be"),
        ({"type": "string", "pattern": 5}, InputError, "pattern must be"),
        ({"enum": 5}, InputError, "enum must be"),
        ({"const": {1, 2}}, InputError, "JSON"),
        ("[" * 100_000, InputError, "no JSON"),
    ],
    ids=str,
)
def test_refused_json_schemas(schema: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        json_schema_pattern(schema)
