"""Annotations of parameters as objects: resolved from text, searched for the context, readable for pydantic."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typing_extensions

from perdure.errors import ConfigError

_UNIONS = (typing.Union, types.UnionType)


def resolve_annotation(fn: Callable[..., Any], parameter: inspect.Parameter, context_type: type | None) -> Any:
    """The annotation as an object.

    Raises ConfigError where its names cannot be found at the module level of the function.
    """
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    # The context's type is often imported for type checkers only.
    known = {context_type.__name__: context_type} if context_type else {}
    names = {**known, **getattr(inspect.unwrap(fn), "__globals__", {})}
    try:
        return _port(typing.get_type_hints(holder, globalns=names, include_extras=True)[parameter.name])
    except Exception as error:
        # Evaluating an annotation runs its code, which may raise anything.
        raise ConfigError(
            f"{fn.__name__}: parameter `{parameter.name}` has the annotation {parameter.annotation!r}, which cannot be "
            f"resolved ({error}); define or import its types at module level"
        ) from error


def is_context(annotation: Any, context_type: type) -> bool:
    """Whether the annotation is the context's type, also inside Annotated, a union or with type arguments."""
    origin = typing.get_origin(annotation)
    if origin is Annotated or origin in _UNIONS:
        members = typing.get_args(annotation)
        return any(is_context(member, context_type) for member in (members[:1] if origin is Annotated else members))
    return annotation is context_type or origin is context_type


def _port(annotation: Any) -> Any:
    """The annotation with each `typing.TypedDict` made anew by typing_extensions, for pydantic before Python 3.12."""
    if sys.version_info >= (3, 12):
        return annotation
    if typing.is_typeddict(annotation):
        return _port_typed_dict(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    ported = arguments if origin in (None, typing.Literal) else tuple(_port(argument) for argument in arguments)
    if ported == arguments:
        return annotation
    if origin in _UNIONS:
        return typing.Union[ported]  # noqa: UP007
    if origin is Annotated:
        return Annotated.__class_getitem__(ported)
    return origin[ported]


@functools.cache
def _port_typed_dict(kind: Any) -> Any:
    keys: dict[str, Any] = {}
    for key, hint in typing.get_type_hints(kind, include_extras=True).items():
        marker = typing.Required if key in kind.__required_keys__ else typing.NotRequired
        if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
            marker, hint = typing.get_origin(hint), typing.get_args(hint)[0]
        keys[key] = marker[_port(hint)]
    made: Any = typing_extensions.TypedDict(kind.__name__, keys)  # type: ignore[misc]
    for name in ("__doc__", "__module__", "__qualname__", "__pydantic_config__"):
        if hasattr(kind, name):
            setattr(made, name, getattr(kind, name))
    return made
