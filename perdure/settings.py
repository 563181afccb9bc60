"""The base of everything an author writes: frozen, closed, and wrong values named when they are constructed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from perdure.errors import ConfigError

MOST_PROBLEMS, MOST_CHARS = 10, 2_000
"""How many problems are told, and characters of each."""
NAME_CHARS = 100
"""Characters of a field's name, which a stranger may have chosen."""


Path = tuple[int | str, ...]
_PLAIN = {"tuple_type": "must be a list", "dict_type": "must be an object", "model_type": "must be an object"}
"""What pydantic calls by the names of Python's types, or of ours."""


def problems_of(error: ValidationError, name: Callable[[Path], Path] = tuple) -> str:
    """One line for all problems of a validation error: `field: what is wrong`, without the values.

    A check of several fields together names them itself. `name` turns the path of a field into what the user calls it.
    """
    problems = list(_problems(error))
    shown = [f"{_place(name(path), kind)}{text}"[:MOST_CHARS] for path, kind, text in problems[:MOST_PROBLEMS]]
    return "; ".join([*shown, *([f"and {len(problems) - MOST_PROBLEMS} more"] if problems[MOST_PROBLEMS:] else [])])


def _problems(error: ValidationError, at: Path = ()) -> Iterator[tuple[Path, str, str]]:
    """Path, kind and text of each problem; those of settings inside settings have the whole path."""
    for problem in error.errors(include_url=False, include_input=False):
        path, context = (*at, *problem["loc"]), problem.get("ctx", {})
        inner = validation_error_of(context.get("error"))
        if inner is not None:
            yield from _problems(inner, path)
        elif (kind := context.get("class_name")) in _authored(Settings):
            yield path, problem["type"], f"must be {kind}(...), or an object with its fields"
        else:
            yield path, problem["type"], _PLAIN.get(problem["type"], problem["msg"].removeprefix("Value error, "))


def validation_error_of(error: BaseException | None) -> ValidationError | None:
    """The ValidationError that a ConfigError of Settings tells in words."""
    told = error.__context__ if isinstance(error, ConfigError) else None
    return told if isinstance(told, ValidationError) else None


def _authored(kind: type[Settings]) -> set[str]:
    """Names of what authors write, which they know; those of other types are not for them."""
    return {kind.__name__}.union(*(_authored(sub) for sub in kind.__subclasses__()))


def _place(path: Path, kind: str) -> str:
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
