"""JSON Schemas as Gemini gets them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from perdure.model_call import ToolDefinition
from providers.gemini.schema import TooLarge, reduced
from tests.providers.gemini_oracle import body, judge_schema, request, user

NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "right"),
    [
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, NULL]}),
        ({"type": ["string"], "description": "D"}, {"type": "string", "description": "D"}),
        (
            {"anyOf": [{"type": "integer"}, NULL], "default": None, "title": "Lim"},
            {"anyOf": [{"type": "integer"}, NULL], "title": "Lim", "description": "(default: null)"},
        ),
        ({"oneOf": [{"type": "integer"}, False]}, {"type": "integer"}),
        ({"const": "fast"}, {"type": "string", "enum": ["fast"]}),
        ({"const": 3}, {"description": "(const: 3)"}),
        ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"enum": ["a", None]}, {"anyOf": [{"type": "string", "enum": ["a"]}, NULL]}),
        (
            {"type": ["string", "null"], "enum": ["a", None]},
            {"anyOf": [{"type": "string", "enum": ["a"]}, NULL]},
        ),
        (
            {"type": "integer", "exclusiveMinimum": 0, "enum": [1, 2]},
            {"type": "integer", "minimum": 1, "description": "(enum: [1, 2])"},
        ),
        (
            {"type": "number", "exclusiveMaximum": 1.5, "minimum": 0},
            {"type": "number", "minimum": 0, "description": "(exclusiveMaximum: 1.5)"},
        ),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        (
            {"type": "string", "format": "uri", "pattern": "^\\w+$", "description": "D"},
            {"type": "string", "description": 'D (format: "uri"; pattern: "^\\\\w+$")'},
        ),
        ({"type": "array", "items": True}, {"type": "array"}),
        ({"type": "array", "items": {}}, {"type": "array", "items": {}}),
        (
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": False, "maxItems": 2},
            {
                "type": "array",
                "items": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                "maxItems": 2,
                "description": '(prefixItems: [{"type": "string"}, {"type": "number"}])',
            },
        ),
        (
            {"properties": {"v": True, "never": False}, "required": ["v", "never", "gone"]},
            {"type": "object", "properties": {"v": {}}, "required": ["v"]},
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
        (
            {"allOf": [{"$ref": "#/$defs/A"}], "default": 1, "$defs": {"A": {"type": "integer", "minimum": 0}}},
            {"type": "integer", "minimum": 0, "description": "(default: 1)"},
        ),
        (
            {"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]},
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
        ),
        (
            {"allOf": [{"type": "string"}, {"type": "integer"}]},
            {"description": '(allOf: [{"type": "string"}, {"type": "integer"}])'},
        ),
        ({"$ref": "https://example.org/s.json"}, {"description": "(https://example.org/s.json)"}),
        ({"$ref": "#/nowhere"}, {}),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, NULL),
        ({"$ref": "#"}, {}),
        (
            {"type": "object", "properties": {"next": {"$ref": "#"}}},
            {
                "type": "object",
                "properties": {"next": {"type": "object", "properties": {"next": {"type": "object"}}}},
            },
        ),
        (
            {
                "type": "object",
                "properties": {"a": {}},
                "anyOf": [{"required": ["a"]}],
                "patternProperties": {"^x": {}},
                "x-internal": 1,
                "$schema": "s",
            },
            {
                "type": "object",
                "properties": {"a": {}},
                "description": '(patternProperties: {"^x": {}}; anyOf: [{"required": ["a"]}])',
            },
        ),
        ({"type": "strange"}, {}),
    ],
)
def test_reduced(schema: dict[str, Any], right: dict[str, Any]) -> None:
    """Each keyword is kept, said in another way, or told in the description."""
    assert reduced(schema) == right
    judge_schema(right)


def test_names_are_not_keywords() -> None:
    """Properties that are named like keywords survive."""
    names = ["title", "default", "type", "enum", "$ref", "anyOf", "required", "pattern"]
    schema = {"type": "object", "properties": {name: {"type": "string", "default": "d"} for name in names}}
    made = reduced({**schema, "required": names})
    assert list(made["properties"]) == made["required"] == names


class Node(BaseModel):
    """A model whose schema refers to itself."""

    name: str = Field(pattern="^a")
    children: list[Node] = []
    other: dict[str, Node] | None = None


def test_a_recursive_schema_ends() -> None:
    """References are inlined until they lead into themselves."""
    made = reduced(Node.model_json_schema())
    judge_schema(made)
    assert made["properties"]["children"]["items"] == {
        "type": "object",
        "description": "A model whose schema refers to itself.",
    }


def doubling() -> dict[str, Any]:
    """A schema of few references that means a million nodes."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for n in range(1, 21):
        reference = {"$ref": f"#/$defs/d{n - 1}"}
        definitions[f"d{n}"] = {"type": "object", "properties": {"a": reference, "b": reference}}
    return {**definitions["d20"], "$defs": definitions}


def nested(depth: int) -> dict[str, Any]:
    """Objects in objects."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


BAD = [
    doubling(),
    nested(60),
    nested(5000),
    {"type": "array", "description": "long " * 6_000},
    {"anyOf": [{"type": "object"}, {"type": "string"}]},
    [],
    True,
]


@pytest.mark.parametrize("schema", BAD)
def test_one_bad_schema_does_not_kill_the_request(schema: Any) -> None:
    """The tool is offered with its schema told in words, and the other tools as they are."""
    good = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = (ToolDefinition("bad", "B", schema), ToolDefinition("good", "G", good))
    first, second = body(request(user(), tools=tools))["tools"][0]["functionDeclarations"]
    assert first["name"] == "bad"
    assert first.get("parametersJsonSchema", {"type": "object"}) == {"type": "object"}
    assert not schema or "parametersJsonSchema" in first
    assert not schema or "The arguments satisfy this JSON Schema: " in first["description"]
    assert len(first["description"]) < 21_000
    assert second == {"name": "good", "description": "G", "parametersJsonSchema": good}


@pytest.mark.parametrize("schema", [doubling(), nested(60), nested(5000), [], None])
def test_what_cannot_be_reduced(schema: Any) -> None:
    """Too deep, too large or no schema is said as such, and quickly."""
    with pytest.raises(TooLarge):
        reduced(schema)


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({}, None),
        ({"type": "object"}, None),
        ({"type": "object", "properties": {}, "additionalProperties": False, "title": "T"}, None),
        ({"type": "object", "additionalProperties": True}, {"type": "object"}),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
    ],
)
def test_tools_without_parameters(schema: dict[str, Any], sent: Any) -> None:
    """A tool without parameters is declared without a schema, one that takes anything with an open one."""
    asked = request(user(), tools=(ToolDefinition("t", "", schema),))
    assert body(asked)["tools"][0]["functionDeclarations"][0].get("parametersJsonSchema") == sent


KEYWORDS = [
    *("type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "items", "prefixItems", "properties", "required"),
    *("additionalProperties", "$ref", "a", "default", "format", "minItems", "maximum", "exclusiveMinimum", "title"),
    *("description", "patternProperties"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["string", "object", "#", "#/a", "x\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYWORDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=400, deadline=None)
@given(VALUES)
def test_any_value_is_reduced_or_refused(value: Any) -> None:
    """Rubbish in place of a schema never gives a request that the API cannot read."""
    try:
        made = reduced(value)
    except TooLarge:
        return
    judge_schema(made)
