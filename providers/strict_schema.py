"""Whether a JSON Schema can honour the promise `strict: true` of the OpenAI formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_ANNOTATIONS = frozenset({"title", "description", "$defs", "definitions"})
_KEYWORDS = _ANNOTATIONS | frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "pattern", "format"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"}
)
_DEEPEST = 10


def can_be_strict(schema: Mapping[str, Any]) -> bool:
    """True where the root is an object, each object closed with all properties required, and each keyword known.

    A free dictionary, an optional property, a boolean schema or a default makes it False: strict mode would change what
    such a schema means.
    """
    definitions = [item for field in ("$defs", "definitions") for item in (schema.get(field) or {}).values()]
    return (
        schema.get("type") == "object"
        and _fits(schema, _DEEPEST)
        and all(_fits(item, _DEEPEST) for item in definitions)
    )


def _fits(schema: Any, depth: int) -> bool:
    if not isinstance(schema, Mapping) or depth < 0:
        return False
    if "$ref" in schema:
        return schema.keys() == {"$ref"} and str(schema["$ref"]).startswith("#")
    if not schema.keys() <= _KEYWORDS or schema.get("format", "date") not in _FORMATS:
        return False
    if "anyOf" in schema:
        return schema.keys() <= _ANNOTATIONS | {"anyOf"} and all(_fits(item, depth - 1) for item in schema["anyOf"])
    named = schema.get("type")
    types = set(named) if isinstance(named, list) else {named}
    if not types <= _TYPES and not (named is None and ("enum" in schema or "const" in schema)):
        return False
    if "object" in types and not _closed(schema, depth):
        return False
    return "array" not in types or _fits(schema.get("items"), depth - 1)


def _closed(schema: Mapping[str, Any], depth: int) -> bool:
    properties = schema.get("properties") or {}
    return (
        schema.get("additionalProperties") is False
        and set(schema.get("required") or ()) == set(properties)
        and all(_fits(item, depth - 1) for item in properties.values())
    )
