"""The base of everything an author writes: frozen, closed, and wrong values named when they are constructed."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from perdure.errors import ConfigError


def problems_of(error: ValidationError) -> str:
    """One line for all problems of a validation error: `field: what is wrong`, without the values."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'value'}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    )


class Settings(BaseModel):
    """Frozen data; a wrong or unknown field raises ConfigError that names the class and the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, /, **data: Any) -> None:  # a field may be called self
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError(f"{type(self).__name__}: {problems_of(error)}") from None
