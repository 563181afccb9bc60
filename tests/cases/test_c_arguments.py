"""Cases C: argument strings, scalars, unions, foreign schemas, surrogates; what needs no run."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.arguments import check_arguments, check_schema, near_names, normalise_schema, parse_arguments
from perdure.schema import describe


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def list_tasks() -> list[str]:
    """List."""
    return []


def write_file(path: str, content: str) -> str:
    """Write."""
    return path + content


def call(fn: Any, raw: Any) -> Any:
    """What a run does with a model's arguments: parse, check, bind; the error text where one step refuses."""
    parsed = parse_arguments(raw)
    if parsed.value is None:
        return parsed.error
    checked = check_arguments(describe(fn).parameters, parsed.value)
    return checked.error or fn(**describe(fn).bind(checked.value))


@pytest.mark.parametrize("raw", ["", " \n", "{}", "null", None, "[]", " [ ] ", "\u00a0", {}])
def test_no_arguments(raw: Any) -> None:
    """45: blank, null, absent and empty arguments run a tool that has no parameters."""
    assert call(list_tasks, raw) == []


@pytest.mark.parametrize("raw", ["null", "", None, "[]"])
def test_no_arguments_for_a_tool_that_wants_some(raw: Any) -> None:
    """45: the model is told what is missing."""
    assert call(add, raw) == "a: required, but missing\nb: required, but missing"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("[1,2]", "one JSON object, not array"),
        ("3", "one JSON object, not number"),
        ("true", "one JSON object, not boolean"),
        ('"x"', "one JSON object, not string"),
        ('"[1]"', "one JSON object, not string"),
        ('{"a":1,"b":2}{"a":1,"b":2}', "several JSON values"),
        ('{"a":1,"b":2}\n[3]', "several JSON values"),
        ('{"a":1,"b":2} trailing', "text after the end of the JSON: trailing"),
        ('{"a":1,"b":2}}', "text after the end"),
        ('Sure: {"a":1,"b":2}', "not valid JSON"),
        ('```json\n{"a":1,"b":2}\n``` and then', "not valid JSON"),
        ('```json\n{"a":1,"b":2}', "not valid JSON"),
        ('```json\n{"a":1}\n```\n```json\n{"a":2}\n```', "not valid JSON"),
        ('{"a":1,"a":9,"b":2}', 'the key "a" appears more than once'),
        ('{"a":1,"b":{"c":1,"c":1}}', 'the key "c" appears more than once'),
        ("{'a':1,'a':9}", 'the key "a" appears more than once'),
        ('"{\\"a\\":1,\\"a\\":2}"', 'the key "a" appears more than once'),
        ('{"a":NaN,"b":Infinity}', "NaN is not a JSON value"),
        ('{"a":1,"b":-Infinity}', "-Infinity is not a JSON value"),
        ('{"a":1e999,"b":2}', "the number 1e999 is too large"),
        ('{"a":' + "9" * 5000 + ',"b":2}', "more than 4000 digits"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested deeper than 100"),
        ("[" * 100_000, "nested deeper than 100"),
        ('{"a":' * 200_001, "more than the 1000000 allowed"),
        ("{'a':" * 5000 + "1" + "}" * 5000, "nested deeper than 100"),
        ({"a": float("nan"), "b": 1}, "not JSON"),
        ({"a": object()}, "not JSON"),
        ('{"a":1,"b":', "end before the JSON is complete"),
        ('{"a":1,"b":"tex', "end before the JSON is complete"),
        ("{", "end before the JSON is complete"),
    ],
)
def test_refused_arguments(raw: Any, expected: str) -> None:
    """45: what is no single object is never executed, and the model learns why."""
    error = call(add, raw)
    assert expected in error
    assert error.endswith("Send the call again with one complete JSON object as its arguments.")
    assert len(error) < 500


@pytest.mark.parametrize(
    ("raw", "repaired"),
    [
        ('{"a":1,"b":2}', False),
        (' \n{"a":1,"b":2}\t', False),
        ({"a": 1, "b": 2}, False),
        ('"{\\"a\\":1,\\"b\\":2}"', True),
        ('```json\n{"a":1,"b":2}\n```', True),
        ('```\n{"a":1,"b":2}```', True),
        ("```json\n{'a':1,'b':2}\n```", True),
    ],
)
def test_accepted_arguments(raw: Any, repaired: bool) -> None:
    """45: objects, objects encoded twice and a single fenced object run once."""
    assert call(add, raw) == 3
    assert parse_arguments(raw).repaired is repaired


def test_raw_control_characters() -> None:
    """45: a raw newline inside a string is kept."""
    assert call(write_file, '{"path":"x","content":"a\nb\x01"}') == "xa\nb\x01"


@pytest.mark.parametrize(
    ("raw", "result"),
    [
        ('{"a":"5","b":2}', 7),
        ('{"a":5.0,"b":2}', 7),
        ('{"a":9223372036854775808,"b":1}', 9223372036854775809),
        ('{"a":5.5,"b":2}', "a: must be integer, not number 5.5"),
        ('{"a":true,"b":2}', "a: must be integer, not boolean true"),
        ('{"a":null,"b":2}', "a: must be integer, not null"),
        ('{"a":"","b":2}', 'a: must be integer, not string ""'),
        ('{"a":1,"b":2,"confirm":true}', "confirm: unknown; allowed: a, b"),
        ('{"A":1,"b":2}', "a: required, but missing\nA: unknown; did you mean a? allowed: a, b"),
    ],
)
def test_scalars_extras_missing(raw: str, result: Any) -> None:
    """47: integers in other spellings run, everything else is refused with the path and the problem."""
    assert call(add, raw) == result


def test_empty_content() -> None:
    """47: an empty string is a value."""
    assert call(write_file, '{"path":"e.txt","content":""}') == "e.txt"


def test_coercion_once() -> None:
    """47: what was coerced passes unchanged, so a replay gives the same."""
    schema = describe(add).parameters
    once = check_arguments(schema, {"a": "5", "b": 2.0}).value
    assert once == {"a": 5, "b": 2}
    assert check_arguments(schema, once).value == once
    assert all(type(value) is int for value in once.values())


def test_near_names() -> None:
    """48: an unknown tool's name finds its neighbours."""
    assert near_names("get_wether", ["add", "get_weather", "get_weather_alerts"])[0] == "get_weather"
    assert near_names("ADD", ["add", "pay"]) == ["add"]
    assert near_names("zzz", ["add", "pay"]) == []


QUERY = {
    "type": "object",
    "properties": {
        "q": {"type": ["string", "null"]},
        "rows": {"type": ["array", "null"], "items": {"type": ["object", "null"], "properties": {"value": True}}},
        "lim": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "mode": {"const": "fast"},
        "n": {"type": "integer", "exclusiveMinimum": 0, "enum": [1, 2]},
        "any": {},
    },
}


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ({"q": None, "rows": None, "lim": None}, {"q": None, "rows": None, "lim": None}),
        ({"q": "5", "lim": "5", "n": "2"}, {"q": "5", "lim": 5, "n": 2}),
        ({"rows": [None, {"value": [1]}], "any": {"x": 1.0}}, {"rows": [None, {"value": [1]}], "any": {"x": 1.0}}),
        ({}, {}),
    ],
)
def test_unions_and_nullables(value: Any, result: Any) -> None:
    """40: null passes where it may, unions are coerced only where nothing fits, no default is filled in."""
    checked = check_arguments(QUERY, value)
    assert checked.error is None
    assert checked.value == result
    assert check_schema(QUERY) is None


def test_properties_named_like_keywords() -> None:
    """43: properties called `title` and `default` are names and survive; keywords of pydantic do not stay."""

    def save(title: str, default: int = 1) -> None:
        """Save."""

    schema = describe(save).parameters
    assert schema["properties"] == {"title": {"type": "string"}, "default": {"type": "integer", "default": 1}}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (r'{"path":"ok \ud83d end","content":""}', "ok \ufffd end"),
        (r'{"path":"a\u0000b","content":""}', "a\ufffdb"),
        (r'{"path":"\ud83d\ude00","content":""}', "😀"),
        ('{"path":"\ud83d\ude00\udcff","content":""}', "😀\ufffd"),
        ({"path": "\udcff", "content": ""}, "\ufffd"),
    ],
)
def test_lone_surrogates_and_nul(raw: Any, text: str) -> None:
    """52: they appear as U+FFFD, and pairs stay characters."""
    assert call(write_file, raw) == text


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array", "items": {"type": "string"}}, "array"),
        (True, "must be a JSON object"),
        (False, "must be a JSON object"),
        ({"type": "string"}, "string"),
        ({"type": ["array", "null"]}, "array"),
        ([], "must be a JSON object"),
        ("object", "must be a JSON object"),
    ],
)
def test_root_that_is_not_an_object(schema: Any, problem: str) -> None:
    """53: such a tool is refused with a message."""
    assert problem in (check_schema(schema) or "")
    assert problem in (check_arguments(schema, {}).error or "")


@pytest.mark.parametrize(
    ("schema", "normal"),
    [
        ({}, {"type": "object", "properties": {}}),
        (None, {"type": "object", "properties": {}}),
        ({"properties": {"x": {"type": "string"}}}, {"type": "object", "properties": {"x": {"type": "string"}}}),
        ({"type": ["object", "null"]}, {"type": "object"}),
        ({"type": "object"}, {"type": "object"}),
    ],
)
def test_root_that_counts_as_object(schema: Any, normal: dict[str, Any]) -> None:
    """53: no schema and an empty one take no parameters, a missing type is an object."""
    assert check_schema(schema) is None
    assert normalise_schema(schema) == normal
    assert check_arguments(schema, {}).error is None
