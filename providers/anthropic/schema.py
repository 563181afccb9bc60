"""JSON Schemas as the Anthropic API accepts them, for the input of tools and for answers."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from jsonschema import Draft202012Validator

from providers.text import clean_json

Schema = dict[str, Any]

# With formats, for a pattern that is no regular expression is refused too.
_META = Draft202012Validator(Draft202012Validator.META_SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DEFINITION = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
_UNIONS = ("allOf", "anyOf", "oneOf")
_KEYWORDS_OF: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems"),
    "string": ("format",),
    "integer": (),
    "number": (),
    "boolean": (),
    "null": (),
}
_STRUCTURE = frozenset({"properties", "required", "additionalProperties", "items"})
_FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"])
_MOST_OPTIONAL, _MOST_UNIONS = 24, 16
"""Optional properties and unions in a schema for answers, beyond which the API refuses it as too complex."""


def input_schema(parameters: Mapping[str, Any]) -> Schema:
    """The schema of a tool's input, reduced where the API would refuse it; what is lost is told in the description.

    The API wants draft 2020-12 with an object at the root, no union there, and plain names of properties.
    """
    reduced: Schema = json.loads(_reduced(json.dumps(clean_json(parameters))))
    return reduced


@functools.lru_cache(maxsize=1024)
def _reduced(text: str) -> str:
    schema: Schema = json.loads(text)
    schema.pop("$schema", None)
    schema = {**_followed(schema, schema), "type": "object"}
    schema.setdefault("properties", {})
    lost: Schema = {}
    for path in _faults(schema):
        lost[".".join(map(str, path))] = _take(schema, path)
    _flatten(schema, lost)
    unnamed = [name for name in schema["properties"] if not _PROPERTY.fullmatch(name)]
    for name in unnamed:
        lost[f"properties.{name}"] = schema["properties"].pop(name)
    if unnamed:
        schema["required"] = [name for name in schema.get("required", ()) if name not in unnamed]
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]
    if lost:
        schema["description"] = _described(schema.get("description"), lost)
    return json.dumps(schema)


def _followed(schema: Schema, root: Schema) -> Schema:
    """The schema with a reference at its top replaced by what it means."""
    match = _DEFINITION.fullmatch(str(schema.get("$ref")))
    if not match:
        return schema
    target = _definitions(root).get(match.group(1))
    rest = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
    return {**target, **rest} if isinstance(target, Mapping) else rest


def _definitions(root: Schema) -> Schema:
    found = [root[field] for field in ("definitions", "$defs") if isinstance(root.get(field), Mapping)]
    return {name: definition for definitions in found for name, definition in definitions.items()}


def _faults(schema: Schema) -> Iterator[list[str | int]]:
    """Paths of keywords that are not draft 2020-12; the caller takes each out before it asks for the next."""
    while error := next(_META.iter_errors(schema), None):
        path = list(error.absolute_path)
        while isinstance(path[-1], int):
            path.pop()
        yield path


def _take(schema: Any, path: Sequence[str | int]) -> Any:
    for step in path[:-1]:
        schema = schema[step]
    taken = schema.pop(path[-1])
    if list(path) == ["properties"]:
        schema["properties"] = {}
    return taken


def _flatten(schema: Schema, lost: Schema) -> None:
    """Take unions off the root: properties of all branches are offered, none is demanded but by all."""
    for union in _UNIONS:
        if union not in schema:
            continue
        branches = lost[union] = schema.pop(union)
        demands: list[set[str]] = []
        for branch in branches:
            branch = _followed(branch, schema) if isinstance(branch, dict) else {}
            schema["properties"] = {**branch.get("properties", {}), **schema["properties"]}
            demands.append(set(branch.get("required", ())))
        common = set.union(*demands) if union == "allOf" else set.intersection(*demands)
        if common:
            schema["required"] = sorted({*schema.get("required", ()), *common})


def answer_schema(schema: Mapping[str, Any]) -> Schema | None:
    """The schema of an answer for constrained decoding; None where it would change what the schema means.

    Objects are closed, and constraints that the API does not know move into the description: the answer is checked
    against the schema itself in the end. Free dictionaries, values of any type, lists of anything and recursion cannot
    be said.
    """
    root: Schema = clean_json(schema)
    definitions = _definitions(root)
    uses: dict[str, set[str]] = {"#": set()}
    try:
        made = _closed(_followed(root, root), uses["#"])
        if definitions:
            made["$defs"] = {name: _closed(item, uses.setdefault(name, set())) for name, item in definitions.items()}
        TopologicalSorter(uses).prepare()
    except (_CannotClose, CycleError, RecursionError):
        return None
    known = all(used <= definitions.keys() for used in uses.values())
    optional, unions = _count(made)
    fits = optional <= _MOST_OPTIONAL and unions <= _MOST_UNIONS
    return made if known and fits and made.get("type") == "object" else None


class _CannotClose(Exception):
    """The schema means something that constrained decoding cannot say."""


def _closed(schema: Any, uses: set[str]) -> Schema:
    if not isinstance(schema, dict):
        raise _CannotClose
    if "$ref" in schema:
        match = _DEFINITION.fullmatch(str(schema["$ref"]))
        if not match:
            raise _CannotClose
        uses.add(match.group(1))
        return {"$ref": f"#/$defs/{match.group(1)}"}
    rest = {k: v for k, v in schema.items() if not k.startswith(("$", "x-")) and k != "definitions"}
    if "allOf" in rest:
        branches = rest.pop("allOf")
        if len(branches) != 1 or not isinstance(branches[0], dict):
            raise _CannotClose
        return _closed({**branches[0], **rest}, uses)
    made = _shape(rest, uses)
    for keyword in ("title", "description"):
        if keyword in rest:
            made[keyword] = rest.pop(keyword)
    if rest:
        made["description"] = _described(made.get("description"), rest)
    return made


def _shape(rest: Schema, uses: set[str]) -> Schema:
    """What the schema lets through; the keywords that say it are taken out of `rest`."""
    types = rest.pop("type", None)
    literals: Schema = {k: rest[k] for k in ("enum", "const") if k in rest and _is_plain(rest[k], several=k == "enum")}
    union = next((rest.pop(keyword) for keyword in ("anyOf", "oneOf") if keyword in rest), None)
    if literals or union is not None:
        if rest.keys() & _STRUCTURE or (literals and union is not None):
            raise _CannotClose
        for keyword in literals:
            del rest[keyword]
        if union is None:
            return literals
        inherited = {} if types is None else {"type": types}
        return {"anyOf": [_closed({**inherited, **item} if isinstance(item, dict) else item, uses) for item in union]}
    named = types if isinstance(types, list) else [types]
    if not named or any(kind not in _KEYWORDS_OF for kind in named):
        raise _CannotClose
    shapes = []
    for kind in named:
        own = {keyword: rest.pop(keyword) for keyword in _KEYWORDS_OF[kind] if keyword in rest}
        shape = _of_type(kind, own, uses)
        rest |= own  # what the shape left over
        shapes.append(shape)
    return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}


def _of_type(kind: str, own: Schema, uses: set[str]) -> Schema:
    made: Schema = {"type": kind}
    if kind == "object":
        properties, required = own.pop("properties", {}), own.pop("required", [])
        # Closing an object without properties would leave only {}.
        if own.pop("additionalProperties", not properties) is not False or not set(required) <= properties.keys():
            raise _CannotClose
        made["properties"] = {name: _closed(item, uses) for name, item in properties.items()}
        made |= {"required": required, "additionalProperties": False}
    elif kind == "array":
        made["items"] = _closed(own.pop("items", None), uses)
        if own.get("minItems") in (0, 1):
            made["minItems"] = own.pop("minItems")
    elif kind == "string" and own.get("format") in _FORMATS:
        made["format"] = own.pop("format")
    return made


def _is_plain(value: Any, *, several: bool) -> bool:
    values = value if several else [value]
    return isinstance(values, list) and bool(values) and not any(isinstance(v, dict | list) for v in values)


def _count(schema: Any) -> tuple[int, int]:
    """Optional properties and unions, at every depth."""
    if isinstance(schema, list):
        counts = [_count(item) for item in schema]
    elif isinstance(schema, dict):
        counts = [_count(item) for item in schema.values()]
        if isinstance(properties := schema.get("properties"), dict) and schema.get("type") == "object":
            counts.append((len(properties) - len(schema["required"]), 0))
        if isinstance(schema.get("anyOf"), list):
            counts.append((0, 1))
    else:
        return 0, 0
    return sum(optional for optional, _ in counts), sum(unions for _, unions in counts)


def _described(description: object, lost: Mapping[str, Any]) -> str:
    """The description with constraints that nothing else says any more."""
    told = ", ".join(f"{keyword}: {json.dumps(value, ensure_ascii=False)}" for keyword, value in lost.items())
    return f"{description}\n\n{{{told}}}" if description else f"{{{told}}}"
