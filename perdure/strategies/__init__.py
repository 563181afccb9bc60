"""Strategies: agent algorithms as plain async functions over a Runtime, and the table of them.

A strategy is named by its class of parameters. `runners` has the functions: they need Runtime, which needs this table.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from perdure.errors import ConfigError
from perdure.settings import Settings
from perdure.strategies.parameters import ToolLoop

STRATEGIES: dict[str, type[Settings]] = {"ToolLoop": ToolLoop}
"""Name of a strategy to its parameters."""


class StrategySpec(Settings):
    """A strategy as data; parameters that it does not know are refused here."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Refuse unknown names and parameters."""
        if self.name not in STRATEGIES:
            raise ConfigError(f"strategy: {self.name!r} is none of {sorted(STRATEGIES)}")
        STRATEGIES[self.name](**self.params)

    def parameters(self) -> Settings:
        """The parameters with defaults."""
        return STRATEGIES[self.name](**self.params)


def strategy_spec(parameters: Settings) -> StrategySpec:
    """The data of a strategy given by its parameters."""
    name = type(parameters).__name__
    return StrategySpec(name=name, params=parameters.model_dump(mode="json", exclude_defaults=True))


__all__ = ["STRATEGIES", "StrategySpec", "ToolLoop", "strategy_spec"]
