"""When strict mode may be claimed."""

from __future__ import annotations

from typing import Any

import pytest

from providers.strict_schema import can_be_strict


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """A closed object that requires everything, or what is given."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


STRING = {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        closed(),
        closed(a=STRING, b={"type": ["integer", "null"]}),
        closed(a={"type": "array", "items": closed(b={"anyOf": [STRING, {"type": "null"}]})}),
        closed(a={"enum": ["x", "y"]}, b={"type": "string", "format": "date"}),
        {**closed(next={"$ref": "#/$defs/n"}), "$defs": {"n": closed(next={"$ref": "#/$defs/n"})}, "title": "T"},
        closed(title=STRING, default={"type": "integer", "minimum": 0}),
    ],
)
def test_can(schema: dict[str, Any]) -> None:
    """Closed objects with all properties required, at every depth."""
    assert can_be_strict(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {}},
        {"type": "array", "items": STRING},
        {"anyOf": [closed(), closed(a=STRING)]},
        closed([], note=STRING),
        closed(fields={"type": "object", "additionalProperties": STRING}),
        closed(a={"type": "array"}),
        closed(a=True),
        closed(a={}),
        closed(a={"type": "string", "default": "x"}),
        closed(a={"type": "string", "format": "uri"}),
        closed(a={"allOf": [STRING]}),
        closed(a={"$ref": "#/$defs/x", "description": "sibling"}),
        closed(a={"$ref": "other.json"}),
        {**closed(), "$defs": {"n": {"type": "object"}}},
    ],
)
def test_cannot(schema: dict[str, Any]) -> None:
    """A free dictionary, an optional property, an unknown keyword or an open definition."""
    assert not can_be_strict(schema)
