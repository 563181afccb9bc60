"""A JSON Schema reduced to what Gemini takes; what is lost of it is said in the description instead.

Taken are type, format, title, description, enum of strings, items, minItems, maxItems, minimum, maximum, properties,
required, additionalProperties and anyOf without neighbours. References are inlined, lists of types become anyOf, and a
recursive reference ends in its bare type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from providers.text import clean_json

Schema = Mapping[str, Any]
Reduced = dict[str, Any]

# Tuples, for what is looked up need not be hashable.
_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_FORMATS = ("date-time", "date", "time")
_LIMITS = ("minItems", "maxItems", "minimum", "maximum")
_NEXT = {"exclusiveMinimum": ("minimum", 1), "exclusiveMaximum": ("maximum", -1)}
_TOLD = (
    *("default", "const", "enum", "format", "pattern", "minLength", "maxLength", "exclusiveMinimum"),
    *("exclusiveMaximum", "multipleOf", "uniqueItems", "contains", "prefixItems", "minProperties", "maxProperties"),
    *("patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "allOf", "anyOf", "oneOf"),
    *("not", "if", "then", "else", "examples"),
)
"""Keywords whose meaning a model can still be told in words."""
_DEEPEST, _MOST = 40, 5_000
_LONGEST_TOLD = 200


class TooLarge(ValueError):
    """A schema that is too deep, too large once its references are inlined, or no schema at all."""


def reduced(schema: Schema) -> Reduced:
    """The schema in Gemini's subset; raises TooLarge."""
    if not isinstance(schema, Mapping):
        raise TooLarge("no object")
    try:
        root = clean_json(schema)
        return _Reducer(root).reduce(root, (), 0)
    except RecursionError as error:
        raise TooLarge("too deep") from error


class _Reducer:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _MOST

    def reduce(self, schema: Any, path: tuple[str, ...], depth: int) -> Reduced:
        """One node; `path` are the references that led to it."""
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            raise TooLarge("too deep or too large")
        if not isinstance(schema, Mapping):
            return {}  # true: anything
        node, path, cut = self._resolved(dict(schema), path)
        if cut:
            return node
        node, path = self._joined(node, path, depth)
        branches = _branches(node)
        made = self._typed(node, path, depth) if branches is None else self._any_of(branches, path, depth)
        if isinstance(node.get("title"), str):
            made["title"] = node["title"]
        lost = {name: node[name] for name in _TOLD if name in node and not _is_kept(name, node, made)}
        if words := _described(node.get("description"), lost):
            made["description"] = words
        return made

    def _resolved(self, node: dict[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...], bool]:
        """The node with its reference replaced by what it means; True where it leads into itself."""
        while "$ref" in node:
            reference = str(node.pop("$ref"))
            target = self._find(reference)
            if reference in path:
                kind = target.get("type")
                words = _described(node.get("description", target.get("description")), {})
                return (
                    {
                        **({"type": kind} if isinstance(kind, str) and kind in _TYPES else {}),
                        **({"description": words} if words else {}),
                    },
                    path,
                    True,
                )
            path = (*path, reference)
            node = {**target, **node}
            self._left -= 1
        return node, path, False

    def _find(self, reference: str) -> Reduced:
        found: Any = self._root
        if reference != "#" and not reference.startswith("#/"):
            return {"description": f"({reference})"}
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        return dict(found) if isinstance(found, Mapping) else {}

    def _joined(
        self, node: dict[str, Any], path: tuple[str, ...], depth: int
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The node with the objects of its allOf merged into it, or as it is where one contradicts another."""
        parts = node.get("allOf")
        if not isinstance(parts, list) or depth > _DEEPEST:
            return node, path
        made = {name: value for name, value in node.items() if name != "allOf"}
        inner = path
        for part in parts:
            if not isinstance(part, Mapping):
                return node, path
            more, inner, cut = self._resolved(dict(part), inner)
            if cut:
                return node, path
            more, inner = self._joined(more, inner, depth + 1)
            for name, value in more.items():
                if name == "properties" and isinstance(value, Mapping):
                    made[name] = {**value, **_mapping(made.get(name))}
                elif name == "required" and isinstance(value, list):
                    made[name] = [*_listed(made.get(name)), *value]
                elif made.setdefault(name, value) != value and name not in ("title", "description"):
                    return node, path
        return made, inner

    def _any_of(self, branches: list[Any], path: tuple[str, ...], depth: int) -> Reduced:
        made = [self.reduce(branch, path, depth + 1) for branch in branches if branch is not False]
        return {"anyOf": made} if len(made) > 1 else next(iter(made), {})

    def _typed(self, node: Schema, path: tuple[str, ...], depth: int) -> Reduced:
        made: Reduced = {}
        kind = _type_of(node)
        if kind:
            made["type"] = kind
        if kind == "string":
            if values := _values(node):
                made["enum"] = values
            if node.get("format") in _FORMATS:
                made["format"] = node["format"]
        for name in _LIMITS:
            fits = kind == "array" if name.endswith("Items") else kind in ("number", "integer")
            if fits and type(node.get(name)) in (int, float):
                made[name] = node[name]
        for name, (limit, step) in _NEXT.items():
            if kind == "integer" and type(node.get(name)) is int and limit not in made:
                made[limit] = node[name] + step
        if kind == "array":
            self._array(node, made, path, depth)
        if kind == "object":
            self._object(node, made, path, depth)
        return made

    def _array(self, node: Schema, made: Reduced, path: tuple[str, ...], depth: int) -> None:
        first = [item for item in _listed(node.get("prefixItems")) if item is not False]
        if first:
            made["items"] = self._any_of(first, path, depth)
        elif isinstance(node.get("items"), Mapping):
            made["items"] = self.reduce(node["items"], path, depth + 1)

    def _object(self, node: Schema, made: Reduced, path: tuple[str, ...], depth: int) -> None:
        properties = {
            name: self.reduce(value, path, depth + 1)
            for name, value in _mapping(node.get("properties")).items()
            if value is not False
        }
        if properties:
            made["properties"] = properties
            needed = [name for name in _listed(node.get("required")) if isinstance(name, str) and name in properties]
            if needed:
                made["required"] = list(dict.fromkeys(needed))
        further = node.get("additionalProperties")
        if further is False:
            made["additionalProperties"] = False
        elif isinstance(further, Mapping) and further:
            made["additionalProperties"] = self.reduce(further, path, depth + 1)


def _branches(node: Schema) -> list[Any] | None:
    """The alternatives of a node that says nothing else, and those that a list of types or a null in an enum means."""
    named = node.get("type")
    for name in ("anyOf", "oneOf"):
        found = node.get(name)
        if isinstance(found, list) and found and named is None and "properties" not in node and "enum" not in node:
            return found
    types = [kind for kind in named if kind in _TYPES] if isinstance(named, list) else []
    inner = {name: value for name, value in node.items() if name not in ("title", "description", "default", "type")}
    values = node.get("enum")
    if isinstance(values, list) and None in values and len(values) > 1 and (named is None or "null" in types):
        inner["enum"] = [value for value in values if value is not None]
        rest = [kind for kind in types if kind != "null"]
        return [{**inner, **({"type": rest[0] if len(rest) == 1 else rest} if rest else {})}, {"type": "null"}]
    if not types:
        return None
    return [{"type": "null"} if kind == "null" else {**inner, "type": kind} for kind in dict.fromkeys(types)]


def _type_of(node: Schema) -> str | None:
    named = node.get("type")
    if isinstance(named, str):
        return named if named in _TYPES else None
    if "properties" in node:
        return "object"
    if "items" in node or "prefixItems" in node:
        return "array"
    return "string" if _values(node) else None


def _values(node: Schema) -> list[str]:
    """The strings that a node allows; none where it allows others too."""
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return list(dict.fromkeys(values))
    return []


def _is_kept(name: str, node: Schema, made: Schema) -> bool:
    """Whether a keyword of the node is said by what was made of it."""
    if name in ("anyOf", "oneOf"):
        return _branches(node) is node[name]
    if _branches(node) is not None:
        return name not in ("default", "examples") and not any(key in node for key in ("anyOf", "oneOf"))
    if name in ("const", "enum"):
        return "enum" in made
    if name in _NEXT:
        limit, step = _NEXT[name]
        return type(node[name]) is int and made.get(limit) == node[name] + step
    return name == "format" and "format" in made


def _described(description: object, lost: Schema) -> str:
    words = [description] if isinstance(description, str) and description else []
    if lost:
        told = (f"{name}: {json.dumps(value, ensure_ascii=False)[:_LONGEST_TOLD]}" for name, value in lost.items())
        words.append(f"({'; '.join(told)})")
    return " ".join(words)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
