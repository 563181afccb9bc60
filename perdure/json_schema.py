"""JSON Schemas of strangers: where their subschemas are, whether they can be used, values brought into their types.

A schema is read in the draft that its `$schema` names, 2020-12 without one. References are followed inside the schema
only; nothing is ever fetched.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from perdure.errors import ConfigError

if TYPE_CHECKING:
    from referencing._core import Resolver

_ONE = ("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames", "additionalItems",
        "unevaluatedItems", "unevaluatedProperties", "contentSchema")  # fmt: skip
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SAME_VALUE_ONE = ("not", "if", "then", "else")
_SAME_VALUE_LIST = ("allOf", "anyOf", "oneOf")
_MAX_SCHEMAS = 10_000
"""How many schemas may apply to one value; more is an attack, not a description."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,3999})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,3999})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class CompiledSchema:
    """A schema ready for use: its object form, validator and resolver, or the problem why it cannot be used."""

    schema: dict[str, Any]
    validator: Validator
    resolver: Resolver[Any]
    problem: str | None


def transform(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A copy of the schema with `change` applied to it and each of its subschemas, innermost first.

    Only schemas are changed: names of properties and the values of `default`, `enum` and the like stay as they are.
    """
    if not isinstance(schema, Mapping):
        return schema
    copy = dict(schema)
    for keyword in copy:
        held = copy[keyword]
        if keyword in _LIST and isinstance(held, list):
            copy[keyword] = [transform(item, change) for item in held]
        elif keyword in _NAMED and isinstance(held, Mapping):
            copy[keyword] = {name: transform(item, change) for name, item in held.items()}
        elif keyword in _ONE:
            copy[keyword] = transform(held, change)
    return change(copy)


def subschemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas directly inside a schema."""
    for keyword, held in schema.items():
        if keyword in _LIST and isinstance(held, list):
            yield from held
        elif keyword in _NAMED and isinstance(held, Mapping):
            yield from held.values()
        elif keyword in _ONE:
            yield held


def normalise_schema(schema: Any) -> dict[str, Any]:
    """The object form of a schema of parameters or answers: None and {} have no properties, a missing type is `object`.

    Raises ConfigError for a root that is not an object.
    """
    if schema is None or schema == {}:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping):
        raise ConfigError(f"the schema must be a JSON object that describes an object, not {schema!r:.80}")
    types = schema.get("type", "object")
    if types != "object" and not (isinstance(types, list) and "object" in types):
        raise ConfigError(f'the schema has "type": {types!r:.80}; it must be "object", with "properties"')
    return {**schema, "type": "object"}


def check_schema(schema: Any) -> str | None:
    """Why a schema of an object cannot be used, or None: root, validity, references. Never raises."""
    try:
        return compile_schema(schema).problem
    except ConfigError as error:
        return str(error)
    except (TypeError, ValueError, RecursionError) as error:
        return f"the schema is not JSON: {str(error)[:200]}"


def compile_schema(schema: Any) -> CompiledSchema:
    """The schema ready for use, cached by its text.

    Raises ConfigError for a root that is not an object; TypeError, ValueError or RecursionError for what is not JSON.
    """
    return _compile(json.dumps(normalise_schema(schema)))


def coerce(schema: Any, value: Any, compiled: CompiledSchema) -> Any:
    """The value brought into the types that the schema wants, where its meaning is beyond doubt; else left as it is.

    "5" and 5.0 become 5 for an integer, "0.5" becomes 0.5 for a number, "true" becomes true for a boolean: each only
    where the value itself does not fit. In `anyOf` and `oneOf` the first branch counts that fits as it is, else the
    first that fits after coercion. No defaults are filled in. The result is still to be validated.
    """
    return _coerce(schema, value, compiled.resolver, compiled.validator)


@functools.lru_cache(maxsize=256)
def _compile(text: str) -> CompiledSchema:
    schema: dict[str, Any] = json.loads(text)
    draft = _tolerant(validator_for(schema, default=Draft202012Validator))
    specification = specification_with(str(schema.pop("$schema", "")), default=DRAFT202012)
    registry: Registry[Any] = Registry()
    resolver = registry.resolver_with_root(specification.create_resource(schema))
    problem = _find_problem(schema, draft, resolver, specification)
    return CompiledSchema(schema, draft(schema, registry=registry), resolver, problem)


@functools.cache
def _tolerant(draft: Any) -> Any:
    """The draft, without patterns that Python cannot read: they are ECMA-262's, and the tool's server checks them."""
    check = draft.VALIDATORS["pattern"]

    def pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if _compiles(pattern):
            yield from check(validator, pattern, instance, schema) or ()

    return extend(draft, {"pattern": pattern})  # type: ignore[no-untyped-call]


def _compiles(pattern: Any) -> bool:
    try:
        re.compile(pattern)
    except (re.error, TypeError, OverflowError, RecursionError):
        return False
    return True


def _find_problem(
    root: dict[str, Any], draft: Any, resolver: Resolver[Any], specification: Specification[Any]
) -> str | None:
    try:
        draft.check_schema(root, format_checker=FormatChecker(formats=()))
        seen: set[int] = set()
        costs: dict[int, float] = {}
        pending: list[tuple[Any, Resolver[Any]]] = [(root, resolver)]
        while pending:
            schema, resolver = pending.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            if "$id" in schema and schema is not root:
                resolver = resolver.in_subresource(specification.create_resource(schema))
            for pattern in schema.get("patternProperties", {}):
                if not _compiles(pattern):
                    return f"the schema has a property pattern that cannot be read: {pattern!r:.100}"
            for keyword in _REFERENCES:
                if keyword in schema:
                    found = resolver.lookup(schema[keyword])
                    draft.check_schema(found.contents, format_checker=FormatChecker(formats=()))
                    pending.append((found.contents, found.resolver))
            if _count_schemas(schema, resolver, costs) > _MAX_SCHEMAS:
                return "the schema refers to itself without end, or its alternatives multiply beyond use"
            pending.extend((inner, resolver) for inner in subschemas(schema))
    except SchemaError as error:
        return f"the schema is invalid at {error.json_path}: {error.message[:200]}"
    except Unresolvable as error:
        return f"the schema refers to {error.ref!r:.200}, which is not in it; references are not fetched"
    except Exception as error:
        # References may point anywhere; what the libraries raise then is not one of their errors.
        return f"the schema cannot be used: {type(error).__name__}: {str(error)[:200]}"
    return None


def _count_schemas(schema: Any, resolver: Resolver[Any], costs: dict[int, float]) -> float:
    """How many schemas a validator visits for one value, not counting its members; infinite for a circle."""
    if not isinstance(schema, Mapping):
        return 1
    if id(schema) not in costs:
        costs[id(schema)] = float("inf")
        inner = [schema[keyword] for keyword in _SAME_VALUE_ONE if keyword in schema]
        inner += (part for keyword in _SAME_VALUE_LIST for part in schema.get(keyword, ()))
        inner += schema.get("dependentSchemas", {}).values()
        total = 1 + sum(_count_schemas(part, resolver, costs) for part in inner)
        if "$ref" in schema:
            found = resolver.lookup(schema["$ref"])
            total += _count_schemas(found.contents, found.resolver, costs)
        costs[id(schema)] = total
    return costs[id(schema)]


def _coerce(schema: Any, value: Any, resolver: Resolver[Any], validator: Validator) -> Any:
    if not isinstance(schema, Mapping):
        return value
    if "$ref" in schema:
        found = resolver.lookup(schema["$ref"])
        value = _coerce(found.contents, value, found.resolver, validator)
    for part in schema.get("allOf", ()):
        value = _coerce(part, value, resolver, validator)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            value = _coerce_branch(schema[keyword], value, resolver, validator)
    value = _coerce_scalar(_types(schema), value)
    if isinstance(value, dict):
        return {n: _coerce(_member_schema(schema, n), member, resolver, validator) for n, member in value.items()}
    if isinstance(value, list):
        return [_coerce(_item_schema(schema, i), item, resolver, validator) for i, item in enumerate(value)]
    return value


def _coerce_branch(branches: list[Any], value: Any, resolver: Resolver[Any], validator: Validator) -> Any:
    for branch in branches:
        if validator.evolve(schema=branch).is_valid(value):
            return _coerce(branch, value, resolver, validator)
    for branch in branches:
        candidate = _coerce(branch, value, resolver, validator)
        if validator.evolve(schema=branch).is_valid(candidate):
            return candidate
    return value


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    types = schema.get("type", ())
    return (types,) if isinstance(types, str) else tuple(types)


def _coerce_scalar(types: tuple[str, ...], value: Any) -> Any:
    match value:
        case str() if "string" not in types:
            if "integer" in types and _INTEGER.fullmatch(value):
                return int(value)
            if "number" in types and _NUMBER.fullmatch(value) and float(value) - float(value) == 0:
                return json.loads(value)
            if "boolean" in types and value in ("true", "false"):
                return value == "true"
        case float() if "integer" in types and "number" not in types and value.is_integer():
            return int(value)
    return value


def _member_schema(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties", {})
    if name in properties:
        return properties[name]
    patterns = schema.get("patternProperties", {})
    return next((patterns[p] for p in patterns if re.search(p, name)), schema.get("additionalProperties"))


def _item_schema(schema: Mapping[str, Any], index: int) -> Any:
    first = schema.get("prefixItems", ())
    items = schema.get("items")
    if isinstance(items, list):
        first, items = items, schema.get("additionalItems")
    return first[index] if index < len(first) else items
