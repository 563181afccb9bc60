"""What a run may spend: reserved before it is spent, settled after, over the whole tree of its child runs."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationInfo, field_validator

from perdure.durations import Duration, parse_duration
from perdure.messages import Usage
from perdure.settings import Settings

MOST_TOKENS, MOST_MONEY = 10**12, Decimal(10**9)
"""What limits may be at most: numbers that every reader of JSON can hold."""

Money = Annotated[Decimal, Field(gt=0, le=MOST_MONEY, allow_inf_nan=False)]


class Limits(Settings):
    """The most that one run and its children may use; all finite except money, which is off until it is set."""

    steps: StrictInt = Field(50, ge=1, le=10_000)
    """Model calls."""
    tool_calls: StrictInt = Field(200, ge=1, le=100_000)
    tokens: StrictInt = Field(1_000_000, ge=1, le=MOST_TOKENS)
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

    def raised(self, by: LimitsOverride, most: Limits | None = None) -> Limits:
        """These limits with `by` added, none of them by it above `most`; what has no limit keeps none.

        Raises ConfigError where a limit would be higher than any may be.
        """
        own, tops = dict(self), dict(most or ())
        added = {name: own[name] + value for name, value in by if value is not None and own[name] is not None}
        kept = {name: max(own[name], min(value, tops.get(name) or value)) for name, value in added.items()}
        return Limits(**(own | kept))


class LimitsOverride(BaseModel):
    """Limits that a start asks for, each at most the agent's own, or by how much `extend` raises them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int | None = Field(None, ge=1)
    tool_calls: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    cost_usd: Money | None = None
    deadline: Duration | None = None


class LimitReached(Exception):
    """A limit would be crossed by the next thing; `reason` is the stable word (`max_steps`, `deadline`, ...).

    `need` says how much of which limit (a field of Limits) is missing, where that is known.
    """

    def __init__(self, reason: str, need: Need | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.need = need


class Need(BaseModel):
    """So much more of one limit would let a run go on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: Literal["steps", "tool_calls", "tokens", "cost_usd", "deadline"]
    amount: Decimal = Field(gt=0, le=MOST_TOKENS, allow_inf_nan=False)

    @field_validator("amount")
    @classmethod
    def _whole(cls, amount: Decimal, info: ValidationInfo) -> Decimal:
        if info.data.get("limit") != "cost_usd" and amount % 1:
            raise ValueError("must be a whole number")
        return amount

    @property
    def override(self) -> LimitsOverride:
        """As an extension of limits."""
        return LimitsOverride.model_validate({self.limit: self.amount})


REASONS: Mapping[str, str] = {
    "steps": "max_steps",
    "tool_calls": "max_tool_calls",
    "tokens": "max_tokens",
    "cost_usd": "max_cost",
    "deadline": "deadline",
}
"""The stable word of each limit."""
CHILD_MARGIN = 10.0
"""Seconds by which the time of a child run ends before its parent's, or a tenth of it where that is less."""
LEAST_MONEY = Decimal("0.001")
"""US dollars that are asked for where nothing was spent yet."""


class Share(BaseModel):
    """A part of what may be spent: what a child run has got, or has used."""

    model_config = ConfigDict(extra="forbid")

    steps: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: Decimal | None = None
    """None without a limit on cost."""


class Account(BaseModel):
    """What a run has spent, its finished children included, and what its open children may spend."""

    model_config = ConfigDict(extra="forbid")

    steps: int = 0
    """Model calls of the run itself."""
    tool_calls: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    active: float = 0.0
    """Seconds outside the waiting states, up to the last settled moment."""
    children: Share = Field(default_factory=Share)
    """Steps and tool calls of finished children; their tokens and cost are in `usage` and `cost_usd`."""
    reserved: dict[str, Share] = Field(default_factory=dict)
    """What open children may spend, by the call that started each."""
    unconfirmed: Usage = Usage()
    """The part of `usage` that is estimated: attempts that failed, were lost or cancelled."""
    unconfirmed_cost: Decimal = Decimal(0)

    # --- what is left -------------------------------------------------------------------------------------------------

    def left(self, limits: Limits) -> Share:
        """What neither is spent nor reserved."""
        reserved = self.reserved.values()
        return Share(
            steps=limits.steps - self.steps - self.children.steps - sum(s.steps for s in reserved),
            tool_calls=limits.tool_calls
            - self.tool_calls
            - self.children.tool_calls
            - sum(s.tool_calls for s in reserved),
            tokens=limits.tokens - self.usage.total - sum(s.tokens for s in reserved),
            cost_usd=None
            if limits.cost_usd is None
            else limits.cost_usd - self.cost_usd - sum(s.cost_usd or Decimal(0) for s in reserved),
        )

    @property
    def _step_cost(self) -> Decimal:
        """What a model call has cost on average."""
        return self.cost_usd / max(1, self.steps + self.children.steps)

    def check_step(self, limits: Limits, estimate: int) -> None:
        """Raise LimitReached where one more model call of about `estimate` tokens would cross a limit."""
        left = self.left(limits)
        if left.steps < 1:
            raise reached("steps", 1 - left.steps)
        if left.tokens < estimate:
            raise reached("tokens", estimate - left.tokens)
        if left.cost_usd is not None and left.cost_usd <= 0:
            raise reached("cost_usd", self._step_cost - left.cost_usd)

    def check_tool_calls(self, limits: Limits, count: int) -> None:
        """Raise LimitReached where so many more tool calls would cross the limit."""
        if (short := count - self.left(limits).tool_calls) > 0:
            raise reached("tool_calls", short)

    # --- spending -----------------------------------------------------------------------------------------------------

    def spend(self, usage: Usage, cost: Decimal, *, confirmed: bool = True) -> None:
        """Settle one model call, or what a child used; `confirmed=False` is an estimate."""
        self.usage = self.usage + usage
        self.cost_usd += cost
        if not confirmed:
            self.unconfirmed = self.unconfirmed + usage
            self.unconfirmed_cost += cost

    def reserve(self, child: str, limits: Limits, ways: int) -> Share:
        """Give a child its part of what is left, divided by `ways`; raises LimitReached where nothing is."""
        left = self.left(limits)
        share = Share(
            # Steps and calls are whole: the first children of many get one each rather than none.
            steps=max(left.steps // ways, min(1, left.steps)),
            tool_calls=max(left.tool_calls // ways, min(1, left.tool_calls)),
            tokens=left.tokens // ways,
            cost_usd=None if left.cost_usd is None else left.cost_usd / ways,
        )
        for name, amount in share:
            if amount is not None and amount <= 0:
                raise reached(name, self._step_cost if name == "cost_usd" else 1)
        self.reserved[child] = share
        return share

    def grant(self, child: str, need: Need, limits: Limits) -> Decimal | None:
        """Raise what a child may spend by at least what it needs, and say by how much; None where that is not there."""
        left, share = self.left(limits), self.reserved.get(child)
        there = getattr(left, need.limit, None)
        if share is None or there is None or there < need.amount:
            return None
        # A bit more than it needs, so that it need not ask again for every step.
        more = there / (4 * len(self.reserved)) if need.limit == "cost_usd" else there // (4 * len(self.reserved))
        amount = max(need.amount, Decimal(more))
        field = getattr(share, need.limit) + (amount if need.limit == "cost_usd" else int(amount))
        self.reserved[child] = share.model_copy(update={need.limit: field})
        return amount

    def settle(self, child: str, result: Mapping[str, Any]) -> Usage:
        """Book what a child has spent, as its result says, and give back the rest; returns its tokens.

        A child that left no result, because it was terminated, counts as having spent all it had.
        """
        share = self.reserved.pop(child, Share())
        known = "usage" in result
        usage = Usage.model_validate(result["usage"]) if known else Usage(input_tokens=share.tokens)
        cost = Decimal(result.get("cost_usd") or 0) if known else share.cost_usd or Decimal(0)
        self.spend(usage, cost, confirmed=known)
        # A child's own numbers do not have those of its children.
        levels = (result, result.get("children", {})) if known else (share.model_dump(),)
        self.children = Share(
            steps=self.children.steps + sum(level.get("steps", 0) for level in levels),
            tool_calls=self.children.tool_calls + sum(level.get("tool_calls", 0) for level in levels),
        )
        return usage


def reached(limit: str, short: int | Decimal) -> LimitReached:
    """The error of a limit of which so much is missing, and a bit where that cannot be said."""
    least = LEAST_MONEY if limit == "cost_usd" else Decimal(1)
    return LimitReached(REASONS[limit], Need(limit=cast(Any, limit), amount=max(Decimal(short), least)))


def child_limits(share: Share, seconds_left: float) -> dict[str, Any]:
    """A share as the limits of a child's input; its time ends before its parent's, who learns then what it has used."""
    cost = {} if share.cost_usd is None else {"cost_usd": str(share.cost_usd)}
    whole = {"steps": share.steps, "tool_calls": share.tool_calls, "tokens": share.tokens}
    return {**whole, **cost, "deadline": max(1.0, seconds_left - min(CHILD_MARGIN, seconds_left / 10))}
