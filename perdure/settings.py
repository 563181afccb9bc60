"""The base of everything an author writes: frozen, closed, and wrong values named when they are constructed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from perdure.errors import ConfigError

MOST_PROBLEMS, MOST_CHARS = 10, 2_000
"""How many problems are told, and characters of each."""
NAME_CHARS = 100
"""Characters of a field's name, which a stranger may have chosen."""


def problems_of(error: ValidationError) -> str:
    """One line for all problems of a validation error: `field: what is wrong`, without the values.

    A check of several fields together names them itself.
    """
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [
        f"{_place(problem['loc'], problem['type'])}{problem['msg'].removeprefix('Value error, ')}"[:MOST_CHARS]
        for problem in problems[:MOST_PROBLEMS]
    ]
    return "; ".join([*shown, *([f"and {len(problems) - MOST_PROBLEMS} more"] if problems[MOST_PROBLEMS:] else [])])


def _place(path: tuple[int | str, ...], kind: str) -> str:
    if path:
        return f"{'.'.join(str(part)[:NAME_CHARS] for part in path)}: "
    return "" if kind == "value_error" else "value: "


def must(holds: Callable[[Any], bool], wanted: str) -> Callable[[Any], Any]:
    """For a pydantic validator: refuses values for which `holds` is false, and says what is wanted, not what it got."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(f"must {wanted}")
        return value

    return check


class Settings(BaseModel):
    """Frozen data; a wrong or unknown field raises ConfigError that names the class and the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, /, *values: Any, **data: Any) -> None:  # a field may be called self
        if values:
            example = next(iter(type(self).model_fields))
            raise ConfigError(f"{type(self).__name__} takes keyword arguments such as {example}=...")
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError(f"{type(self).__name__}: {problems_of(error)}") from None
