"""Official SDKs' types as strict judges of our requests: unknown keys are refused and lazy iterables looked through."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import SchemaValidator


@functools.cache
def strict(params: Any) -> SchemaValidator:
    """A validator of a request's TypedDict in which nothing passes unseen."""
    return SchemaValidator(_strict(TypeAdapter(params).core_schema))


def _strict(schema: Any) -> Any:
    if isinstance(schema, dict):
        made = {key: _strict(value) for key, value in schema.items()}
        if made.get("type") == "typed-dict":
            made["extra_behavior"] = "forbid"
            made.pop("config", None)
        elif made.get("type") == "generator":  # validated when it is read, that is never
            made = (
                {"type": "list", "items_schema": made["items_schema"]} if "items_schema" in made else {"type": "list"}
            )
        return made
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    return tuple(_strict(item) for item in schema) if isinstance(schema, tuple) else schema
