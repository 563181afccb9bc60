"""A model's arguments of a tool call: its text to an object, and the object to what the tool's schema wants.

Both are pure and give the same answer each time; what is wrong comes back as text that the model can act on.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jsonschema.exceptions import ValidationError

from perdure.canonical import clean, clean_text
from perdure.errors import ConfigError, PerdureError
from perdure.json_schema import CompiledSchema, check_schema, coerce, compile_schema, normalise_schema
from perdure.repair import repair, unfence

__all__ = [
    "ArgumentError",
    "CheckedArguments",
    "ParsedArguments",
    "check_arguments",
    "check_schema",
    "near_names",
    "normalise_schema",
    "parse_arguments",
]

MAX_CHARS = 1_000_000
MAX_DEPTH = 100
MAX_PROBLEMS = 5
_MAX_DIGITS = 4000
_MAX_SHOWN = 200

_AGAIN = "Send the call again with one complete JSON object as its arguments."
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


class ArgumentError(PerdureError):
    """Arguments that a tool cannot take; the message tells the model what to change."""


@dataclass(frozen=True)
class ParsedArguments:
    """The object that a model's text means, or `error`; `repaired` when the text was damaged or wrapped."""

    value: dict[str, Any] | None
    error: str | None = None
    repaired: bool = False


@dataclass(frozen=True)
class CheckedArguments:
    """The arguments in the types of the schema, or as they came with `error`."""

    value: dict[str, Any]
    error: str | None = None


def parse_arguments(raw: str | Mapping[str, Any] | None, *, max_chars: int = MAX_CHARS) -> ParsedArguments:
    """Read the arguments of a tool call as a provider delivered them. Never raises.

    No arguments (None, blank text, `null`, `[]`) are {}. A mapping is taken as it is. An object that was encoded twice
    is decoded once more; an object in a code fence and damage with a single reading are repaired (see `repair`), both
    marked `repaired`. Raw control characters in strings are accepted; lone surrogates and NUL become U+FFFD.
    An error are: other arrays and scalars, several values, trailing text, duplicate keys, NaN and infinities, numbers
    of more than 4000 digits, nesting deeper than 100, more than `max_chars` characters, and text that was cut.
    """
    try:
        value, repaired = _read(raw, max_chars)
    except ArgumentError as error:
        return ParsedArguments(None, clean_text(f"{error}. {_AGAIN}"))
    return ParsedArguments(clean(value), None, repaired)


def check_arguments(schema: Mapping[str, Any] | None, value: dict[str, Any]) -> CheckedArguments:
    """Coerce arguments safely (see `coerce`), then validate them against a tool's parameters schema. Never raises.

    Names that the root's `properties` do not list are refused, unless the schema speaks of further ones itself.
    Defaults are not filled in. The error lists up to five problems, each `<path>: <problem>`.
    """
    try:
        compiled = compile_schema(schema)
        if compiled.problem:
            return CheckedArguments(value, compiled.problem)
        coerced = coerce(compiled.schema, value, compiled)
        # Taken lazily, for a value may have a hundred thousand problems.
        problems: dict[str, None] = {}
        for problem in _find_problems(compiled, coerced):
            problems[problem] = None
            if len(problems) > MAX_PROBLEMS:
                break
    except ConfigError as error:
        return CheckedArguments(value, str(error))
    except RecursionError:
        return CheckedArguments(value, "the schema refers to itself without end, or the value is too deep")
    except Exception as error:
        # The schema is a stranger's, and its faults show in many ways; a call must be answered all the same.
        return CheckedArguments(value, f"the schema cannot be used: {type(error).__name__}: {error!s:.200}")
    if not problems:
        return CheckedArguments(coerced)
    shown = list(problems)
    shown[MAX_PROBLEMS:] = ["and further problems"] if len(shown) > MAX_PROBLEMS else []
    return CheckedArguments(value, clean_text("\n".join(shown)))


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that the name was probably meant to be, nearest first; case does not count."""
    by_fold: dict[str, list[str]] = {}
    for candidate in known:
        by_fold.setdefault(candidate.casefold(), []).append(candidate)
    close = difflib.get_close_matches(name.casefold()[:_MAX_SHOWN], by_fold, n=3, cutoff=0.6)
    return [candidate for fold in close for candidate in by_fold[fold]][:3]


def _read(raw: str | Mapping[str, Any] | None, max_chars: int) -> tuple[dict[str, Any], bool]:
    if raw is None:
        return {}, False
    text = raw if isinstance(raw, str) else _encode(raw)
    if len(text) > max_chars:
        raise ArgumentError(f"the arguments have {len(text)} characters, more than the {max_chars} allowed")
    if not (text := text.strip()):
        return {}, False
    value, repaired = _decode_or_repair(text)
    if value is None or value == []:
        return {}, repaired
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value, repaired = _decode(value), True
    if not isinstance(value, dict):
        raise ArgumentError(f"the arguments must be one JSON object, not {_kind(value)}")
    return value, repaired


def _encode(raw: Any) -> str:
    try:
        return json.dumps(dict(raw) if isinstance(raw, Mapping) else raw, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"the arguments are not JSON: {error!s:.200}") from None


def _decode_or_repair(text: str) -> tuple[Any, bool]:
    try:
        return _load(text), False
    except json.JSONDecodeError as damage:
        inner = unfence(text)
        for candidate in (inner, repair(inner or text)):
            if candidate is not None:
                try:
                    return _load(candidate), True
                except json.JSONDecodeError:
                    continue
        raise ArgumentError(_describe_damage(text, damage)) from None


def _decode(text: str) -> Any:
    try:
        return _load(text)
    except json.JSONDecodeError as damage:
        raise ArgumentError(_describe_damage(text, damage)) from None


def _load(text: str) -> Any:
    _check_depth(text)
    return json.loads(
        text,
        strict=False,
        object_pairs_hook=_unique,
        parse_int=_read_int,
        parse_float=_read_float,
        parse_constant=_refuse_constant,
    )


def _check_depth(text: str) -> None:
    """Count brackets before the decoder, which recurses and would overflow."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
        if depth > MAX_DEPTH:
            raise ArgumentError(f"the arguments are nested deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ArgumentError(f"the key {_shorten(json.dumps(twice, ensure_ascii=False))} appears more than once")
    return members


def _read_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ArgumentError(f"a number has more than {_MAX_DIGITS} digits")
    return int(digits)


def _read_float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ArgumentError(f"the number {_shorten(digits)} is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ArgumentError(f"{name} is not a JSON value; leave the parameter out or use null or a number")


def _describe_damage(text: str, damage: json.JSONDecodeError) -> str:
    if damage.msg == "Extra data":
        if text[damage.pos] in "{[":
            return "there are several JSON values one after the other; make one call for each"
        return f"there is text after the end of the JSON: {_shorten(text[damage.pos :])}"
    if damage.pos >= len(text) or damage.msg.startswith("Unterminated string"):
        return "the arguments end before the JSON is complete"
    near = _shorten(text[max(0, damage.pos - 20) : damage.pos + 20])
    return f"the arguments are not valid JSON: {damage.msg}, line {damage.lineno} column {damage.colno}, near {near}"


def _find_problems(compiled: CompiledSchema, value: dict[str, Any]) -> Iterator[str]:
    yield from _refuse_unknown(compiled.schema, value)
    errors: Iterable[ValidationError] = compiled.validator.iter_errors(value)
    for error in errors:
        yield from _explain(error)


def _refuse_unknown(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[str]:
    """Names that a tool does not know, where its schema names its parameters and is silent about others."""
    elsewhere = ("additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "$dynamicRef", "allOf",
                 "anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "propertyNames")  # fmt: skip
    if "properties" in schema and not any(keyword in schema for keyword in elsewhere):
        allowed = schema["properties"]
        yield from (_unknown(name, "", allowed) for name in value if name not in allowed)


def _unknown(name: str, path: str, allowed: Iterable[str]) -> str:
    names = list(allowed)
    near = near_names(name, names)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    listed = f"allowed: {', '.join(names)}" if names else "no parameters are allowed here"
    return f"{_shorten(_join(path, name))}: unknown; {hint}{listed:.1000}"


def _explain(error: ValidationError) -> Iterator[str]:
    path = _path(error.absolute_path)
    wanted: Any = error.validator_value
    schema: Any = error.schema
    instance: Any = error.instance
    match error.validator:
        case "required":
            yield from (f"{_join(path, name)}: required, but missing" for name in wanted if name not in instance)
        case "additionalProperties" if wanted is False:
            allowed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
            extra = (name for name in instance if name not in allowed)
            yield from (
                _unknown(name, path, allowed) for name in extra if not any(re.search(p, name) for p in patterns)
            )
        case "anyOf" | "oneOf" if error.context:
            tried = dict.fromkeys(line for inner in error.context for line in _explain(inner))
            yield f"{path or 'arguments'}: fits none of the alternatives ({_shorten('; '.join(tried), 400)})"
        case keyword:
            explain = _PROBLEMS.get(str(keyword))
            yield f"{path or 'arguments'}: {explain(error) if explain else _shorten(error.message)}"


_PROBLEMS: dict[str, Callable[[ValidationError], str]] = {
    "type": lambda e: f"must be {_listed(e.validator_value)}, not {_kind(e.instance)} {_show(e.instance)}".rstrip(),
    "enum": lambda e: (
        f"must be one of {_shorten(json.dumps(e.validator_value, ensure_ascii=False), 600)}, not {_show(e.instance)}"
    ),
    "const": lambda e: f"must be {_show(e.validator_value)}, not {_show(e.instance)}",
}


def _listed(types: Any) -> str:
    return types if isinstance(types, str) else " or ".join(types)


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
    return "array"


def _show(value: Any) -> str:
    return "" if value is None else _shorten(json.dumps(value, ensure_ascii=False))


def _shorten(text: str, limit: int = _MAX_SHOWN) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _path(steps: Iterable[str | int]) -> str:
    path = ""
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else _join(path, step)
    return path


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
