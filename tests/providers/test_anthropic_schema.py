"""Schemas as the Anthropic API accepts them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import transform_schema
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from providers.anthropic.schema import answer_schema, input_schema
from tests.providers.anthropic_oracle import ADD, judge_input_schema

STRING, NULL = {"type": "string"}, {"type": "null"}


def closed(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    """A closed object that requires everything, or what is given."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def test_a_good_schema_goes_out_as_it_is() -> None:
    """Nothing is reduced that the API takes: numeric limits, patterns, unions inside, free dictionaries."""
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string", "pattern": "^\\w+$", "format": "uri", "default": "x", "examples": ["y"]},
            "default": {"type": ["integer", "null"], "minimum": 0},
            "either": {"anyOf": [STRING, NULL]},
            "free": {"type": "object", "additionalProperties": {"type": "string"}},
            "any": {},
            "value": True,
            "next": {"$ref": "#/$defs/n"},
        },
        "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}},
        "required": ["title"],
        "additionalProperties": False,
        "x-internal": 1,
    }
    assert input_schema(schema) == schema
    assert input_schema(ADD.parameters) == ADD.parameters


BAD: list[tuple[Any, list[str], str]] = [
    ({}, [], ""),
    ({"properties": {"x": STRING}}, ["x"], ""),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}, [], ""),
    ({"type": ["object", "null"], "properties": {"x": STRING}}, ["x"], ""),
    (
        {"type": "object", "properties": {"n": {"minimum": 0, "exclusiveMinimum": True}}},
        ["n"],
        "exclusiveMinimum: true",
    ),
    ({"type": "object", "properties": {"n": {"type": "any"}}}, ["n"], 'properties.n.type: "any"'),
    ({"type": "object", "properties": {"n": {"items": [STRING, NULL]}}}, ["n"], "properties.n.items"),
    ({"type": "object", "properties": {"n": {"required": True}}}, ["n"], "properties.n.required: true"),
    ({"type": "object", "properties": {"n": {"pattern": "("}}}, ["n"], 'properties.n.pattern: "("'),
    ({"type": "object", "properties": {"n": 5, "m": STRING}}, ["m"], "properties.n: 5"),
    ({"type": "object", "properties": {"n": {"anyOf": [5, STRING]}}}, ["n"], "properties.n.anyOf"),
    ({"type": "object", "properties": 5, "required": ["a", 5]}, [], "properties: 5, required"),
    (
        {"oneOf": [closed(a=STRING, b=STRING), closed(a=STRING, c=STRING)], "description": "D"},
        ["a", "b", "c"],
        "D\n\n{oneOf: [",
    ),
    (
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": STRING, "b": STRING}},
        ["a", "b"],
        "anyOf",
    ),
    (
        {"allOf": [{"$ref": "#/$defs/p"}, True], "$defs": {"p": closed(a=STRING)}, "properties": {"b": STRING}},
        ["a", "b"],
        "allOf",
    ),
    ({"$ref": "#/definitions/p", "definitions": {"p": closed(a=STRING)}}, ["a"], ""),
    ({"$ref": "#/$defs/none"}, [], ""),
    (closed(**{"filter[id]": STRING, "ok.1": STRING, "x" * 65: NULL, "ä": STRING}), ["ok.1"], "properties.filter[id]"),
]


@pytest.mark.parametrize(("schema", "properties", "told"), BAD)
def test_a_bad_schema_is_reduced(schema: Any, properties: list[str], told: str) -> None:
    """The rest of the tool stays usable, what is lost stands in the description, and the given schema is untouched."""
    before = json.dumps(schema)
    made = input_schema(schema)
    judge_input_schema(made)
    assert sorted(made["properties"]) == properties
    assert told in made.get("description", "")
    assert bool(told) == ("description" in made)
    assert json.dumps(schema) == before


def test_required_follows_what_is_reduced() -> None:
    """Only what every branch demands is demanded, and nothing that cannot be named."""
    branches = [closed(a=STRING, b=STRING), closed(a=STRING)]
    assert input_schema({"anyOf": branches})["required"] == ["a"]
    assert input_schema({"allOf": branches})["required"] == ["a", "b"]
    unnamed = input_schema(closed(**{"a": STRING, "b[]": STRING}))
    assert unnamed["required"] == ["a"]
    assert "additionalProperties" not in unnamed


KEYWORDS = [
    "type", "properties", "required", "items", "anyOf", "oneOf", "allOf", "enum", "const", "$ref", "$defs", "minItems",
    "additionalProperties", "minimum", "exclusiveMinimum", "pattern", "format", "description", "title", "default",
]  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from(["object", "array", "string", "#/$defs/a", "a", "["]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "a", "b c"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=5))
def test_no_schema_kills_a_request(schema: dict[str, Any]) -> None:
    """Whatever a tool's server sends becomes a schema that the API takes."""
    judge_input_schema(input_schema(schema))


CLOSABLE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (closed(a=STRING), closed(a=STRING)),
    ({"type": "object", "properties": {"a": STRING}}, closed([], a=STRING)),
    (closed(), closed()),
    (
        closed(a={"type": "integer", "minimum": 1, "description": "A"}),
        closed(a={"type": "integer", "description": "A\n\n{minimum: 1}"}),
    ),
    (
        closed(a={"type": "string", "format": "uri", "maxLength": 3, "x-y": 1, "$comment": "c"}),
        closed(a={"type": "string", "format": "uri", "description": "{maxLength: 3}"}),
    ),
    (
        closed(a={"type": "string", "format": "regex", "default": "x"}),
        closed(a={"type": "string", "description": '{default: "x", format: "regex"}'}),
    ),
    (
        closed(a={"type": ["array", "null"], "items": STRING, "minItems": 1, "maxItems": 2}),
        closed(a={"anyOf": [{"type": "array", "items": STRING, "minItems": 1}, NULL], "description": "{maxItems: 2}"}),
    ),
    (
        closed(a={"type": "array", "items": STRING, "minItems": 2}),
        closed(a={"type": "array", "items": STRING, "description": "{minItems: 2}"}),
    ),
    (closed(a={"oneOf": [STRING, NULL]}), closed(a={"anyOf": [STRING, NULL]})),
    (
        closed(a={"type": "object", "anyOf": [closed(b=STRING), {"properties": {"c": STRING}}]}),
        closed(a={"anyOf": [closed(b=STRING), closed([], c=STRING)]}),
    ),
    (closed(a={"allOf": [STRING], "title": "A"}), closed(a={**STRING, "title": "A"})),
    (closed(a={"enum": ["x", None], "type": ["string", "null"]}), closed(a={"enum": ["x", None]})),
    (closed(a={"const": 1}), closed(a={"const": 1})),
    (
        {
            **closed(a={"$ref": "#/definitions/d"}),
            "definitions": {"d": {"type": "object", "properties": {"b": STRING}}},
        },
        {**closed(a={"$ref": "#/$defs/d"}), "$defs": {"d": closed([], b=STRING)}},
    ),
    ({"$ref": "#/$defs/d", "$defs": {"d": closed(b=STRING)}}, {**closed(b=STRING), "$defs": {"d": closed(b=STRING)}}),
    (closed(title=STRING, default=STRING), closed(title=STRING, default=STRING)),
]


@pytest.mark.parametrize(("schema", "right"), CLOSABLE)
def test_what_can_be_decoded_under_constraint(schema: dict[str, Any], right: dict[str, Any]) -> None:
    """Objects are closed, optional properties stay optional, and other constraints move into the description."""
    before = json.dumps(schema)
    made = answer_schema(schema)
    assert made == right
    assert json.dumps(schema) == before
    Draft202012Validator.check_schema(made)
    assert transform_schema(made) == made


RECURSIVE = {**closed(a={"$ref": "#/$defs/n"}), "$defs": {"n": closed([], next={"$ref": "#/$defs/n"})}}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "array", "items": STRING},
        {"anyOf": [closed(), closed(a=STRING)]},
        closed(a={"type": "object", "additionalProperties": STRING}),
        {"type": "object", "properties": {"a": STRING}, "additionalProperties": True},
        closed(a={}),
        closed(a=True),
        closed(a={"type": "array"}),
        closed(a={"type": "array", "prefixItems": [STRING]}),
        closed(a={"type": "odd"}),
        closed(a={"type": []}),
        closed(a={"enum": [{}]}),
        closed(a={"allOf": [closed(b=STRING), closed(c=STRING)]}),
        closed(a={"anyOf": [{"required": ["b"]}], "properties": {"b": STRING}}),
        closed(a={"$ref": "#/properties/b"}, b=STRING),
        closed(a={"$ref": "#/$defs/none"}),
        closed(["a", "b"], a=STRING),
        RECURSIVE,
        closed([], **{f"p{n}": STRING for n in range(25)}),
        closed(**{f"p{n}": {"type": ["string", "null"]} for n in range(17)}),
    ],
)
def test_what_cannot(schema: dict[str, Any]) -> None:
    """Constraint would change what it means, or the API would refuse it."""
    assert answer_schema(schema) is None


def _wrapped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(["a", "b", "type"]), inner, max_size=3)
    objects = st.builds(
        lambda props, needed, more: {"type": "object", "properties": props, "required": sorted(props)[:needed], **more},
        properties,
        st.integers(0, 3),
        st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": True}, {"minProperties": 1}]),
    )
    lists = st.builds(lambda items: {"type": ["array", "null"], "items": items, "maxItems": 9}, inner)
    unions = st.builds(
        lambda keyword, items: {keyword: items},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, min_size=1, max_size=3),
    )
    return objects | lists | unions


LEAVES = st.sampled_from(
    [
        STRING,
        {"type": ["integer", "null"], "minimum": 0},
        {"enum": ["x", 1, None]},
        {"const": 1},
        {},
        True,
        {"$ref": "#/$defs/a"},
        {"type": "string", "format": "uri", "pattern": "^x"},
        {"type": "string", "format": "odd"},
    ]
)
SCHEMAS = _wrapped(st.recursive(LEAVES, _wrapped, max_leaves=8))


@given(SCHEMAS, st.dictionaries(st.just("a"), SCHEMAS))
def test_an_answer_that_is_decoded_has_a_schema_as_the_sdk_makes_it(schema: Any, definitions: dict[str, Any]) -> None:
    """Whatever schema an agent has is closed to one that the SDK would leave as it is, or it is told."""
    made = answer_schema({**schema, "$defs": definitions})
    if made is not None:
        Draft202012Validator.check_schema(made)
        assert made["type"] == "object"
        assert transform_schema(made) == made
