"""What a run may spend, checked before it is spent."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from perdure.durations import Duration, parse_duration
from perdure.messages import Usage
from perdure.settings import Settings

Money = Annotated[Decimal, Field(gt=0, allow_inf_nan=False)]


class Limits(Settings):
    """The most that one run may use; all finite except money, which is off until it is set."""

    steps: StrictInt = Field(50, ge=1, le=10_000)
    """Model calls."""
    tool_calls: StrictInt = Field(200, ge=1, le=100_000)
    tokens: StrictInt = Field(1_000_000, ge=1)
    """Input and output of all model calls."""
    cost_usd: Money | None = None
    deadline: Duration = Field(default_factory=lambda: parse_duration("1h"))
    """Time outside the waiting states."""

    def lowered(self, override: LimitsOverride | None) -> Limits:
        """These limits with `override` applied where it is lower."""
        if override is None:
            return self
        asked = {name: value for name, value in override if value is not None}
        own = {name: value for name, value in self if value is not None}
        return Limits(**{name: min(asked.get(name, value), value) for name, value in (asked | own).items()})


class LimitsOverride(BaseModel):
    """Limits that a start asks for: each at most the agent's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int | None = Field(None, ge=1)
    tool_calls: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1)
    cost_usd: Money | None = None
    deadline: Duration | None = None


class LimitReached(Exception):
    """A limit would be crossed by the next thing; `reason` is the stable word (`max_steps`, `deadline`, ...)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Account(BaseModel):
    """What a run has spent, its finished children included."""

    model_config = ConfigDict(extra="forbid")

    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    active: float = 0.0
    """Seconds outside the waiting states, up to the last settled moment."""

    def check_step(self, limits: Limits, estimate: int) -> None:
        """Raise LimitReached where one more model call of about `estimate` tokens would cross a limit."""
        if self.steps >= limits.steps:
            raise LimitReached("max_steps")
        if self.usage.total + estimate > limits.tokens:
            raise LimitReached("max_tokens")
        if limits.cost_usd is not None and self.cost_usd >= limits.cost_usd:
            raise LimitReached("max_cost")

    def spend(self, usage: Usage, cost: Decimal) -> None:
        """Settle one model call, or what a child used."""
        self.usage = self.usage + usage
        self.cost_usd += cost

    def share(self, limits: Limits, seconds_left: float, ways: int) -> dict[str, Any]:
        """What is left, divided by `ways`, as the limits of a child's input; raises LimitReached where nothing is."""
        tokens = (limits.tokens - self.usage.total) // ways
        if tokens < 1:
            raise LimitReached("max_tokens")
        slice_: dict[str, Any] = {"tokens": tokens, "deadline": max(1.0, seconds_left)}
        if limits.cost_usd is not None:
            cost = (limits.cost_usd - self.cost_usd) / ways
            if cost <= 0:
                raise LimitReached("max_cost")
            slice_["cost_usd"] = str(cost)
        return slice_
