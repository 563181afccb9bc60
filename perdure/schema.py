"""Argument schemas of Python functions: from annotations and docstring to JSON Schema, and from JSON back to Python."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from perdure.annotations import is_context, resolve_annotation
from perdure.arguments import MAX_PROBLEMS, ArgumentError, check_arguments
from perdure.canonical import clean
from perdure.errors import ConfigError
from perdure.json_schema import transform

_MAX_SHOWN = 200
_UNDESCRIBED = (PydanticUserError, ConfigError, TypeError, NameError, ValueError)
"""What pydantic raises for types that it cannot read, or that JSON Schema cannot say."""


@dataclass(frozen=True)
class _Parameter:
    """A parameter as a field of the model: its names in Python and JSON, and what `create_model` takes."""

    python: str
    alias: str
    definition: Any
    supplied: bool
    """The default, if any, is pydantic's and not the function's, so it must be passed."""


@dataclass(frozen=True)
class FunctionSchema:
    """What a model is told of a function, and how its arguments become Python values."""

    name: str
    description: str
    """The docstring without its sections."""
    parameters: dict[str, Any]
    """JSON Schema of a closed object; `required` and `$defs` only where there are any."""
    context_parameter: str | None
    _model: type[BaseModel] = field(repr=False, compare=False)
    _fields: dict[str, _Parameter] = field(repr=False, compare=False)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Python keyword arguments from JSON arguments: coerced, checked and brought into their types.

        Parameters that were not given are left to the function's own defaults. Raises ArgumentError with up to five
        lines `<path>: <problem>`.
        """
        checked = check_arguments(self.parameters, clean(arguments))
        if checked.error is not None:
            raise ArgumentError(checked.error)
        try:
            # JSON mode, so that models in strict mode accept dates and enums as well.
            model = self._model.model_validate_json(json.dumps(checked.value, allow_nan=False))
        except ValidationError as error:
            raise ArgumentError(_explain(error)) from None
        except ValueError as error:
            raise ArgumentError(f"the arguments are not JSON: {error!s:.200}") from None
        return {
            parameter.python: getattr(model, key)
            for key, parameter in self._fields.items()
            if parameter.supplied or key in model.model_fields_set
        }


def describe(fn: Callable[..., Any], *, context_type: type | None = None) -> FunctionSchema:
    """The schema of a function or bound method for a model.

    A parameter of `context_type`, also where it is optional, is hidden and named in `context_parameter`; the caller
    injects it. Raises ConfigError, naming function, parameter and fix, for what a model cannot call by JSON: lambdas,
    partials, callable objects, `*args`, `**kwargs`, positional-only parameters, missing, unresolvable or non-JSON
    annotations.
    """
    name = _check_function(fn)
    docs = _read_docstring(fn)
    fields: dict[str, _Parameter] = {}
    context: str | None = None
    for parameter in inspect.signature(fn).parameters.values():
        _check_parameter(name, parameter)
        annotation = resolve_annotation(fn, parameter, context_type)
        if context_type is not None and is_context(annotation, context_type):
            if context:
                _refuse(name, parameter.name, f"is a second {context_type.__name__}", "keep one")
            context = parameter.name
            continue
        made = _define_field(name, parameter, annotation, docs.parameters.get(parameter.name))
        if made.alias in {other.alias for other in fields.values()}:
            _refuse(name, parameter.name, f"has the name {made.alias!r}, which is taken", "rename one")
        # Fields are numbered, for a parameter may be called like an attribute of pydantic's models, or `_x`.
        fields[f"p{len(fields)}"] = made
    model, parameters = _build(name, fields)
    return FunctionSchema(name, docs.description, parameters, context, model, fields)


@dataclass(frozen=True)
class _Docs:
    description: str
    parameters: dict[str, str]


class _Generator(GenerateJsonSchema):
    """pydantic's schemas, but quiet about defaults that are no JSON, and without bytes."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        raise ConfigError("bytes cannot be JSON; take a str, such as base64, and decode it")


def _check_function(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", None) or repr(fn)[:100]
    if isinstance(fn, functools.partial) or not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        raise ConfigError(f"{name}: a tool must be a function or a bound method; wrap it in a def with annotations")
    if fn.__name__ == "<lambda>":
        raise ConfigError("a lambda cannot be a tool: it has no name, annotations or docstring; write a def")
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first and first.name in ("self", "cls") and first.annotation is first.empty and "." in fn.__qualname__:
        raise ConfigError(f"{name}: this method is not bound; pass it from an instance, as in `thing.{name}`")
    return name


def _check_parameter(name: str, parameter: inspect.Parameter) -> None:
    match parameter.kind:
        case parameter.VAR_POSITIONAL:
            _refuse(name, f"*{parameter.name}", "has no name for a model", "take a list, as in `items: list[str]`")
        case parameter.VAR_KEYWORD:
            _refuse(name, f"**{parameter.name}", "has no schema", "name the parameters, or take a `dict[str, ...]`")
        case parameter.POSITIONAL_ONLY:
            _refuse(name, parameter.name, "is positional-only, but tools are called by name", "remove the `/`")
    if parameter.annotation is parameter.empty:
        _refuse(name, parameter.name, "has no annotation", f"annotate it, for example `{parameter.name}: str`")


def _refuse(name: str, parameter: str, problem: str, fix: str) -> NoReturn:
    raise ConfigError(f"{name}: parameter `{parameter}` {problem}; {fix}")


def _define_field(name: str, parameter: inspect.Parameter, annotation: Any, documented: str | None) -> _Parameter:
    required = parameter.default is parameter.empty
    info = (
        FieldInfo.from_annotation(annotation)
        if required
        else FieldInfo.from_annotated_attribute(annotation, parameter.default)
    )
    alias = info.validation_alias or info.alias or parameter.name
    if not isinstance(alias, str):
        _refuse(name, parameter.name, "has several aliases", "give it one")
    texts = [part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, str)]
    extra: dict[str, Any] = {"alias": alias, "validation_alias": alias}
    if info.description is None and (description := "\n".join(texts) or documented):
        extra["description"] = description
    # Indexed, for mypy reads `Annotated[...]` with a value in it as a type.
    described = Annotated.__class_getitem__((annotation, Field(**extra)))  # type: ignore[attr-defined]
    return _Parameter(
        parameter.name,
        alias,
        described if required else (described, parameter.default),
        required or isinstance(parameter.default, FieldInfo),
    )


def _build(name: str, fields: dict[str, _Parameter]) -> tuple[type[BaseModel], dict[str, Any]]:
    try:
        return _generate(name, fields)
    except _UNDESCRIBED as error:
        for key, parameter in fields.items():
            try:
                _generate(name, {key: parameter})
            except _UNDESCRIBED as cause:
                problem = f"cannot be described to a model ({str(cause).splitlines()[0]})"
                _refuse(name, parameter.python, problem, "use types that JSON can carry and pydantic knows")
        raise ConfigError(f"{name}: the parameters cannot be described together ({error})") from error


def _generate(name: str, fields: dict[str, _Parameter]) -> tuple[type[BaseModel], dict[str, Any]]:
    definitions = {key: parameter.definition for key, parameter in fields.items()}
    model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **definitions)
    generated = transform(model.model_json_schema(schema_generator=_Generator), _tidy)
    order = ("type", "properties", "required", "additionalProperties", "$defs")
    return model, {keyword: generated[keyword] for keyword in order if keyword in generated}


def _tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes from names, and closed where properties are listed."""
    schema = {keyword: held for keyword, held in schema.items() if keyword != "title"}
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def _read_docstring(fn: Callable[..., Any]) -> _Docs:
    text = inspect.getdoc(fn) or ""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return _Docs(text, {})
    description = "\n\n".join(part for part in (parsed.short_description, parsed.long_description) if part)
    documented = {
        name.strip().lstrip("*"): parameter.description
        for parameter in parsed.params
        for name in parameter.arg_name.split(",")
        if parameter.description
    }
    return _Docs(description, documented)


def _explain(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False)
    lines = []
    for problem in problems[:MAX_PROBLEMS]:
        path = ".".join(str(step) for step in problem["loc"]) or "arguments"
        shown = "" if problem["type"] == "missing" else f", got {problem['input']!r:.{_MAX_SHOWN}}"
        lines.append(f"{path}: {problem['msg'][:500]}{shown}")
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"and {len(problems) - MAX_PROBLEMS} more problems")
    return "\n".join(lines)
