"""Repairs, limits, coercion and validation of a model's arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.arguments import check_arguments, check_schema, parse_arguments
from perdure.canonical import clean

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=5)
# Letters that make damage likely to look like something else.
TRICKY = st.text(st.sampled_from("{}[]:,\"'\\ntu0ab1 -.e`"), max_size=12)
TRICKY_OBJECTS = st.dictionaries(TRICKY, TRICKY | st.lists(TRICKY | st.integers(), max_size=3), min_size=1, max_size=3)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
SCHEMAS = st.recursive(
    st.booleans()
    | st.fixed_dictionaries({"type": TYPES})
    | st.fixed_dictionaries({"type": st.lists(TYPES, min_size=1, max_size=2, unique=True)})
    | st.fixed_dictionaries(
        {"$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/type", "http://x/y", "#b"])}
    )
    | st.fixed_dictionaries({"enum": st.lists(JSON, max_size=3)})
    | st.fixed_dictionaries({"pattern": st.sampled_from(["^a", "[", "\\p{L}"])}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "$defs": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "("]), inner, max_size=1),
            "additionalProperties": inner,
            "items": inner | st.lists(inner, max_size=2),
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "required": st.lists(st.sampled_from("abc"), unique=True),
            "$schema": st.sampled_from(["http://json-schema.org/draft-07/schema#", "x", 5]),
            "$id": st.sampled_from(["http://x/y", "#", "z"]),
        },
    ),
    max_leaves=8,
)
VALUES = st.dictionaries(
    st.sampled_from("abcd"), JSON | st.sampled_from(["5", "1.5", "true", 5.0, {"a": "5"}, [["5"]]]), max_size=4
)


@given(OBJECTS, st.sampled_from([None, 1]), st.booleans())
def test_objects_come_back(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    """Every JSON object, in each spelling of `json.dumps`, is read as what it is."""
    parsed = parse_arguments(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    assert (parsed.value, parsed.error, parsed.repaired) == (clean(value), None, False)
    assert parse_arguments(value).value == clean(value)


@given(OBJECTS | TRICKY_OBJECTS, st.data())
def test_cut_objects_are_never_accepted(value: dict[str, Any], data: st.DataObject) -> None:
    """No beginning of an object's text is taken for a call, whatever is inside its strings."""
    text = json.dumps(value, ensure_ascii=False)
    cut = data.draw(st.integers(1, len(text) - 1))
    assert parse_arguments(text[:cut]).value is None
    assert parse_arguments("```json\n" + text[:cut] + "\n```").value is None
    assert parse_arguments(repr(value)[: data.draw(st.integers(1, len(repr(value)) - 1))]).value is None


@given(st.text() | TRICKY)
def test_no_text_crashes(text: str) -> None:
    """Whatever the text, there is an object or an error, never both."""
    for raw in (text, "{" + text + "}", f'{{"a":"{text}"}}'):
        parsed = parse_arguments(raw)
        assert (parsed.value is None) == (parsed.error is not None)


@given(SCHEMAS, VALUES)
def test_no_schema_crashes(schema: Any, value: dict[str, Any]) -> None:
    """Whatever the schema and the value, the check answers, and an accepted value stays accepted."""
    checked = check_arguments(schema, value)
    if checked.error is None:
        assert check_schema(schema) is None
        assert check_arguments(schema, checked.value) == checked
    else:
        assert checked.value == value


@given(JSON, VALUES)
def test_no_json_crashes_as_a_schema(schema: Any, value: dict[str, Any]) -> None:
    """What is no schema at all is an error text."""
    for unusable in (schema, {"properties": schema}, {"properties": {"a": schema}}, {"$ref": schema}):
        assert isinstance(check_arguments(unusable, value).value, dict)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 'x'}", {"a": "x"}),
        ("{'a': \"it's\"}", {"a": "it's"}),
        ("{'a': 'it\\'s \"so\"'}", {"a": 'it\'s "so"'}),
        ("{'a': 'x\\ny\\u00e9'}", {"a": "x\nyé"}),
        ("{'a': True, 'b': False, 'c': None}", {"a": True, "b": False, "c": None}),
        ('{"a": True}', {"a": True}),
        ('{"a": [1, 2,], }', {"a": [1, 2]}),
        ("{a: 1, b-c: {$d: null}}", {"a": 1, "b-c": {"$d": None}}),
        (r'{"a": "foo\_bar"}', {"a": r"foo\_bar"}),
        (r'{"a": "C:\dir\sub"}', {"a": r"C:\dir\sub"}),
        (r'{"a": "\d+\.\w", "b": "\users"}', {"a": r"\d+\.\w", "b": r"\users"}),
        (r'{"a": "\x"}', {"a": r"\x"}),
        ('{"a": "raw\nline", }', {"a": "raw\nline"}),
        ("{'n': -1.5e3, 'big': 123456789012345678901234567890}", {"n": -1500.0, "big": 123456789012345678901234567890}),
    ],
)
def test_safe_repairs(text: str, value: dict[str, Any]) -> None:
    """Another spelling with one reading is repaired and marked."""
    parsed = parse_arguments(text)
    assert (parsed.value, parsed.error, parsed.repaired) == (value, None, True)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1',
        '{"a": [1, 2}',
        '{"a": {"b": 1}',
        '{"a": "x}',
        "{'a': 'x}",
        '{"a": }',
        '{"a": ,}',
        "{,}",
        '{"a": [1,,2]}',
        '{"a": 1 "b": 2}',
        '{"a": 1 2}',
        '{"a" 1}',
        '{"a": x}',
        '{"a": x y}',
        '{"a": undefined}',
        "{True: 1}",
        "{1: 2}",
        "[a: 1]",
        '{"a": 01}',
        '{"a": +1}',
        '{"a": .5}',
        '{"a": 1.}',
        '{"a": 0x10}',
        '{"a": 1_000}',
        '{"a": 1 /* one */}',
        '{"a": 1} // end',
        '{"a": ...}',
        '{"a": ("x",)}',
        "{'a': 'it's'}",
        "{'a': 'x' 'y'}",
        '{"a": "x" + "y"}',
        '{"a": "say "hi""}',
        r'{"a": "C:\dir\new"}',
        r'{"a": "C:\dir", "b": "C:\new"}',
        r'{"a": "\\server\dir"}',
        r'{"a": "C:\dir\"}',
        r'{"a":"x\y\","b":"z"}',
        r'{"a": "\x1b[0m"}',
        r'{"a": "echo \'x\'"}',
        r"{'a': '\x41'}",
        "{\u201ca\u201d: 1}",
        "a: 1",
        "<a>1</a>",
    ],
)
def test_unsafe_damage_is_refused(text: str) -> None:
    """Where something would be invented, dropped or guessed, the model is asked to send it again."""
    parsed = parse_arguments(text)
    assert parsed.value is None
    assert parsed.error is not None
    assert parsed.error.endswith("Send the call again with one complete JSON object as its arguments.")


def test_depth_limit_counts_brackets_outside_strings() -> None:
    """A hundred levels are read, brackets in strings do not count."""
    deep = '{"a":' * 100 + "1" + "}" * 100
    assert parse_arguments(deep).error is None
    assert parse_arguments('{"a":' * 101 + "1" + "}" * 101).value is None
    assert parse_arguments(json.dumps({"a": '["\\' + "[{" * 500})).error is None


def test_size_limit() -> None:
    """The limit is in characters, and its error says both numbers."""
    assert parse_arguments('{"a":"bb"}', max_chars=10).value == {"a": "bb"}
    assert "11 characters, more than the 10 allowed" in (parse_arguments('{"a":"bbb"}', max_chars=10).error or "")


NESTED = {
    "type": "object",
    "$defs": {
        "item": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/item"}},
            "required": ["n"],
            "additionalProperties": False,
        }
    },
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "flag": {"type": "boolean"},
        "ratio": {"type": "number"},
        "either": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/item"}]},
        "text_or_int": {"type": ["integer", "string"]},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False},
        "both": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
        "kind": {"enum": ["a", "b"]},
    },
}


@pytest.mark.parametrize(
    ("value", "coerced"),
    [
        ({"items": [{"n": "1", "next": {"n": 2.0}}]}, {"items": [{"n": 1, "next": {"n": 2}}]}),
        ({"flag": "true"}, {"flag": True}),
        ({"flag": "false"}, {"flag": False}),
        ({"ratio": "0.5"}, {"ratio": 0.5}),
        ({"ratio": "5"}, {"ratio": 5}),
        ({"ratio": 5.0}, {"ratio": 5.0}),
        ({"either": {"n": "7"}}, {"either": {"n": 7}}),
        ({"either": "true"}, {"either": True}),
        ({"text_or_int": "5"}, {"text_or_int": "5"}),
        ({"text_or_int": 5.0}, {"text_or_int": 5}),
        ({"map": {"x": "-3"}}, {"map": {"x": -3}}),
        ({"pair": ["1", "true"]}, {"pair": [1, True]}),
        ({"both": "4"}, {"both": 4}),
        ({"both": "12345678901234567890"}, {"both": 12345678901234567890}),
    ],
)
def test_coercion(value: dict[str, Any], coerced: dict[str, Any]) -> None:
    """Coercion follows references, unions, arrays and objects, with exact types."""
    checked = check_arguments(NESTED, value)
    assert checked.error is None
    assert repr(checked.value) == repr(coerced)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"items": [{"n": 1}, {"n": "x"}]}, 'items[1].n: must be integer, not string "x"'),
        ({"items": [{"n": 1, "N": 2}]}, "items[0].N: unknown; did you mean n? allowed: n, next"),
        ({"items": [{}]}, "items[0].n: required, but missing"),
        ({"items": "1,2"}, 'items: must be array, not string "1,2"'),
        ({"flag": "True"}, 'flag: must be boolean, not string "True"'),
        ({"flag": 1}, "flag: must be boolean, not number 1"),
        ({"ratio": True}, "ratio: must be number, not boolean true"),
        ({"ratio": "1e999"}, 'ratio: must be number, not string "1e999"'),
        ({"ratio": "NaN"}, 'ratio: must be number, not string "NaN"'),
        ({"both": "007"}, 'both: must be integer, not string "007"'),
        ({"both": "5.0"}, 'both: must be integer, not string "5.0"'),
        ({"both": "1_0"}, 'both: must be integer, not string "1_0"'),
        ({"both": "٣"}, 'both: must be integer, not string "٣"'),
        ({"both": 2}, "both: 2 is less than the minimum of 3"),
        ({"kind": "c"}, 'kind: must be one of ["a", "b"], not "c"'),
        ({"either": 3}, "either: fits none of the alternatives (either: must be boolean, not number 3; "),
        ({"text_or_int": None}, "text_or_int: must be integer or string, not null"),
        ({"rato": 1}, "rato: unknown; did you mean ratio? allowed: items, flag, "),
    ],
)
def test_problems(value: dict[str, Any], problem: str) -> None:
    """Each problem has its path; the value comes back as it was."""
    checked = check_arguments(NESTED, value)
    assert (checked.error or "").startswith(problem)
    assert checked.value == value


def test_many_keys_stay_fast() -> None:
    """Sixty thousand keys, unknown or with one twice, are refused like few."""
    members = ",".join(f'"k{i}":{i}' for i in range(60_000))
    assert "more than once" in (parse_arguments("{" + members + ',"k59999":1}').error or "")
    value = parse_arguments("{" + members + "}").value or {}
    assert len(value) == 60_000
    assert (check_arguments(NESTED, value).error or "").endswith("and further problems")


def test_at_most_five_problems_and_short_values() -> None:
    """The error stays readable whatever the value."""
    error = check_arguments(NESTED, {"items": [{"n": "x" * 10_000} for _ in range(50)]}).error or ""
    assert error.count("\n") == 5
    assert error.endswith("and further problems")
    assert len(error) < 2000


def test_names_beyond_the_listed_ones() -> None:
    """They are refused where a schema lists its names and says nothing else, and pass where it says they may."""
    listed = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert "b: unknown" in (check_arguments(listed, {"b": 1}).error or "")
    assert "no parameters are allowed here" in (check_arguments({}, {"b": 1}).error or "")
    for schema in ({"type": "object"}, {**listed, "additionalProperties": True}, {**listed, "anyOf": [True]}):
        assert check_arguments(schema, {"b": 1}).error is None


def test_defaults_are_not_filled_in() -> None:
    """A default belongs to the tool."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "default": 3}}}
    assert check_arguments(schema, {}).value == {}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"$ref": "#"}, "without end"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "without end"),
        ({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {"type": "null"}]}}}, "without end"),
        ({"properties": {"a": {"$ref": "#/$defs/missing"}}}, "'/$defs/missing'"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:1/x.json"}}}, "references are not fetched"),
        ({"properties": {"a": {"$ref": "#/properties/a/type"}}}, "not in it"),
        ({"properties": {"a": {"type": "text"}}}, "invalid at $.properties.a.type"),
        ({"properties": {"a": 5}}, "invalid"),
        ({"properties": {"a": {"$ref": 5}}}, "invalid"),
        ({"patternProperties": {"(": {}}}, "property pattern"),
        ({"properties": {"a": {"enum": {1, 2}}}}, "not JSON"),
        (
            {
                "$ref": "#/$defs/d0",
                "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)} | {"d30": {}},
            },
            "multiply beyond use",
        ),
    ],
)
def test_schemas_that_cannot_be_used(schema: Any, problem: str) -> None:
    """Circles, references that lead nowhere or outside, and invalid schemas are error texts for both checks."""
    assert problem in (check_schema(schema) or "")
    assert problem in (check_arguments(schema, {"a": 1}).error or "")


def test_recursive_schema_is_fine() -> None:
    """A schema that refers to itself through its members ends with the value."""
    tree = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
    }
    value: dict[str, Any] = {"n": "0"}
    for _ in range(30):
        value = {"n": "1", "kids": [value]}
    checked = check_arguments(tree, value)
    assert checked.error is None
    assert checked.value["kids"][0]["n"] == 1


def test_older_drafts_and_foreign_patterns() -> None:
    """`$schema` decides about the draft; a pattern that Python cannot read is left to the tool's server."""
    draft7 = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": {"type": "integer"}},
        "properties": {
            "pair": {"type": "array", "items": [{"$ref": "#/definitions/n"}, {"type": "boolean"}]},
            "word": {"type": "string", "pattern": "^\\p{L}+$"},
        },
    }
    assert check_schema(draft7) is None
    assert check_arguments(draft7, {"pair": ["1", "true"], "word": "é"}).value == {"pair": [1, True], "word": "é"}
    draft4 = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {"n": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}},
    }
    assert check_arguments(draft4, {"n": "0"}).error == "n: 0 is less than or equal to the minimum of 0"
