"""What a run may spend: what is reserved, granted and given back never comes to more than there is."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.errors import ConfigError
from perdure.limits import (
    LEAST_MONEY,
    REASONS,
    Account,
    LimitReached,
    Limits,
    LimitsOverride,
    Need,
    Share,
    child_limits,
    reached,
)
from perdure.messages import Usage

LIMITS = Limits(steps=10, tool_calls=20, tokens=1000, cost_usd=Decimal(1))


def account(**fields: Any) -> Account:
    """An account on which something was spent."""
    return Account(**fields)


def test_everything_is_left_of_a_new_account() -> None:
    """Nothing is spent at the start; without a limit on cost nothing is said of it."""
    assert Account().left(LIMITS) == Share(steps=10, tool_calls=20, tokens=1000, cost_usd=Decimal(1))
    assert Account().left(Limits(steps=10)).cost_usd is None


@pytest.mark.parametrize(
    ("spent", "estimate", "reason", "missing"),
    [
        ({}, 0, None, None),
        ({}, 1000, None, None),
        ({}, 1001, "max_tokens", 1),
        ({"steps": 9}, 0, None, None),
        ({"steps": 10}, 0, "max_steps", 1),
        ({"steps": 8, "children": Share(steps=2)}, 0, "max_steps", 1),
        ({"reserved": {"c1": Share(steps=10)}}, 0, "max_steps", 1),
        ({"usage": Usage(input_tokens=600, output_tokens=300)}, 150, "max_tokens", 50),
        ({"reserved": {"c1": Share(tokens=400)}}, 700, "max_tokens", 100),
        ({"steps": 4, "cost_usd": Decimal(1)}, 0, "max_cost", Decimal("0.25")),
        ({"steps": 4, "cost_usd": Decimal("1.2")}, 0, "max_cost", Decimal("0.5")),
        ({"reserved": {"c1": Share(cost_usd=Decimal(1))}}, 0, "max_cost", LEAST_MONEY),
    ],
)
def test_a_step_is_checked_before_it_is_made(
    spent: dict[str, Any], estimate: int, reason: str | None, missing: Any
) -> None:
    """The first limit that the next model call would cross is named, with about how much of it is missing."""
    if reason is None:
        account(**spent).check_step(LIMITS, estimate)
        return
    with pytest.raises(LimitReached) as found:
        account(**spent).check_step(LIMITS, estimate)
    assert found.value.need is not None
    assert (found.value.reason, found.value.need.amount) == (reason, missing)


@pytest.mark.parametrize(("spent", "count", "missing"), [(0, 20, 0), (0, 21, 1), (18, 5, 3), (25, 1, 6)])
def test_tool_calls_are_checked_before_they_run(spent: int, count: int, missing: int) -> None:
    """All calls of a reply count together."""
    if not missing:
        account(tool_calls=spent).check_tool_calls(LIMITS, count)
        return
    with pytest.raises(LimitReached, match="max_tool_calls") as found:
        account(tool_calls=spent).check_tool_calls(LIMITS, count)
    assert found.value.need == Need(limit="tool_calls", amount=Decimal(missing))


@pytest.mark.parametrize(
    ("spent", "ways", "share"),
    [
        ({}, 1, Share(steps=10, tool_calls=20, tokens=1000, cost_usd=Decimal(1))),
        ({}, 4, Share(steps=2, tool_calls=5, tokens=250, cost_usd=Decimal("0.25"))),
        ({}, 40, Share(steps=1, tool_calls=1, tokens=25, cost_usd=Decimal("0.025"))),
        ({"steps": 9}, 3, Share(steps=1, tool_calls=6, tokens=333, cost_usd=Decimal(1) / 3)),
    ],
)
def test_shares_of_children(spent: dict[str, Any], ways: int, share: Share) -> None:
    """What is left is divided by those who wait; steps and calls are whole, and one at least while there are any."""
    made = account(**spent)
    assert made.reserve("c1", LIMITS, ways) == share
    assert made.reserved == {"c1": share}


@pytest.mark.parametrize(
    ("spent", "reason"),
    [
        ({"steps": 10}, "max_steps"),
        ({"tool_calls": 20}, "max_tool_calls"),
        ({"usage": Usage(output_tokens=999)}, "max_tokens"),
        ({"cost_usd": Decimal(1)}, "max_cost"),
        ({"steps": 99}, "max_steps"),
    ],
)
def test_no_share_of_nothing(spent: dict[str, Any], reason: str) -> None:
    """A child that could do nothing is not started, and nothing is reserved for it."""
    made = account(**spent)
    with pytest.raises(LimitReached, match=reason) as found:
        made.reserve("c1", LIMITS, 2)
    assert found.value.need is not None
    assert found.value.need.amount > 0
    assert made.reserved == {}


@pytest.mark.parametrize(
    ("need", "granted"),
    [
        (Need(limit="steps", amount=Decimal(2)), Decimal(2)),
        (Need(limit="steps", amount=Decimal(6)), None),
        (Need(limit="tokens", amount=Decimal(1)), Decimal(62)),
        (Need(limit="tokens", amount=Decimal(500)), Decimal(500)),
        (Need(limit="tokens", amount=Decimal(501)), None),
        (Need(limit="cost_usd", amount=Decimal("0.01")), Decimal("0.0625")),
        (Need(limit="cost_usd", amount=Decimal("0.6")), None),
        (Need(limit="deadline", amount=Decimal(1)), None),
    ],
)
def test_grants(need: Need, granted: Decimal | None) -> None:
    """A child gets at least what it asks for, a bit more where there is plenty, and nothing that is not there."""
    half = Share(steps=2, tool_calls=5, tokens=250, cost_usd=Decimal("0.25"))
    made = account(reserved={"c1": half, "c2": half}, steps=1)
    assert made.grant("c1", need, LIMITS) == granted
    before = 0 if need.limit == "deadline" else getattr(half, need.limit)
    after = 0 if need.limit == "deadline" else getattr(made.reserved["c1"], need.limit)
    assert after - before == (granted or 0)
    assert made.reserved["c2"] == half


def test_a_stranger_gets_nothing() -> None:
    """Only children that have a share can get more; money is not given where it has no limit."""
    need = Need(limit="steps", amount=Decimal(1))
    assert Account().grant("c9", need, LIMITS) is None
    money = Need(limit="cost_usd", amount=Decimal(1))
    assert account(reserved={"c1": Share(steps=1)}).grant("c1", money, Limits()) is None


def test_settling_what_a_child_says() -> None:
    """Its own numbers are booked and the rest of its share is there again."""
    made = Account()
    made.reserve("c1", LIMITS, 1)
    used = made.settle(
        "c1", {"usage": {"input_tokens": 30, "output_tokens": 10}, "cost_usd": "0.2", "steps": 3, "tool_calls": 4}
    )
    assert (used.total, made.reserved, made.unconfirmed.total) == (40, {}, 0)
    assert made.left(LIMITS) == Share(steps=7, tool_calls=16, tokens=960, cost_usd=Decimal("0.8"))


def test_settling_a_child_that_says_nothing() -> None:
    """It counts as having spent all it had, as an estimate."""
    made = Account()
    share = made.reserve("c1", LIMITS, 2)
    assert made.settle("c1", {"outcome": "failed"}).total == share.tokens
    assert (made.unconfirmed.total, made.unconfirmed_cost) == (share.tokens, share.cost_usd)
    assert made.left(LIMITS) == Share(steps=5, tool_calls=10, tokens=500, cost_usd=Decimal("0.5"))


def test_settling_an_overshoot() -> None:
    """A child that has used more than it had is booked in full; then nothing is left."""
    made = Account()
    made.reserve("c1", LIMITS, 1)
    made.settle("c1", {"usage": {"output_tokens": 1200}, "cost_usd": "1.5", "steps": 11})
    assert made.left(LIMITS) == Share(steps=-1, tool_calls=20, tokens=-200, cost_usd=Decimal("-0.5"))
    with pytest.raises(LimitReached):
        made.check_step(LIMITS, 0)


def test_estimates_are_kept_apart() -> None:
    """They count like everything else, and can be told from what providers have said."""
    made = Account()
    made.spend(Usage(input_tokens=10), Decimal("0.1"))
    made.spend(Usage(output_tokens=5), Decimal("0.05"), confirmed=False)
    assert (made.usage.total, made.cost_usd) == (15, Decimal("0.15"))
    assert (made.unconfirmed.total, made.unconfirmed_cost) == (5, Decimal("0.05"))


# --- any order of events --------------------------------------------------------------------------------------------

AMOUNTS = st.decimals(Decimal("0.0001"), Decimal(50), places=4)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(1, 40)),
        st.tuples(st.just("grant"), st.integers(0, 9), st.sampled_from(["steps", "tool_calls", "tokens"]),
                  st.integers(1, 400).map(Decimal)),
        st.tuples(st.just("grant"), st.integers(0, 9), st.just("cost_usd"), AMOUNTS),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 100)),
        st.tuples(st.just("lose"), st.integers(0, 9)),
        st.tuples(st.just("step"), st.integers(0, 300)),
    ),
    max_size=40,
)  # fmt: skip


def play(made: Account, limits: Limits, events: list[tuple[Any, ...]]) -> None:
    """Let things happen to an account, as a run does them: each only where the account allows it."""
    needs: list[Need | None] = []
    for number, (kind, *values) in enumerate(events):
        open_ = list(made.reserved)
        child = open_[values[0] % len(open_)] if open_ and kind in {"grant", "settle", "lose"} else None
        try:
            if kind == "reserve":
                made.reserve(f"c{number}", limits, values[0])
            elif kind == "step":
                made.check_step(limits, values[0])
                made.steps += 1
                made.spend(Usage(input_tokens=values[0]), Decimal(0))
            elif child is not None and kind == "grant":
                made.grant(child, Need(limit=values[1], amount=values[2]), limits)
            elif child is not None:
                part = Decimal(values[1]) / 100 if kind == "settle" else None
                made.settle(child, used(made.reserved[child], part) if part is not None else {})
        except LimitReached as error:
            needs.append(error.need)
    assert all(need is not None and need.override for need in needs)  # whatever is missing can be asked for


def used(share: Share, part: Decimal) -> dict[str, Any]:
    """The result of a child that has used a part of its share."""
    return {
        "usage": {"input_tokens": int(share.tokens * part)},
        "cost_usd": str((share.cost_usd or Decimal(0)) * part),
        "steps": int(share.steps * part),
        "tool_calls": int(share.tool_calls * part),
    }


@given(
    EVENTS,
    st.builds(
        Limits,
        steps=st.integers(1, 60),
        tool_calls=st.integers(1, 60),
        tokens=st.integers(1, 5000),
        cost_usd=st.none() | AMOUNTS,
    ),
)
def test_never_more_than_there_is(events: list[tuple[Any, ...]], limits: Limits) -> None:
    """Whatever happens in whatever order: spent and reserved together stay within the limits."""
    made = Account()
    play(made, limits, events)
    left = made.left(limits)
    assert min(left.steps, left.tool_calls, left.tokens) >= 0
    assert left.cost_usd is None or left.cost_usd >= -Decimal("1e-20")


@given(EVENTS)
def test_everything_is_given_back(events: list[tuple[Any, ...]]) -> None:
    """When all children have ended without using anything, only what was booked before is gone."""
    made = Account()
    play(made, LIMITS, events)
    booked = (made.steps + made.children.steps, made.usage.total, made.cost_usd)
    for child in list(made.reserved):
        made.settle(child, used(Share(), Decimal(0)))
    left = made.left(LIMITS)
    assert left.cost_usd is not None
    assert (LIMITS.steps - left.steps, LIMITS.tokens - left.tokens) == booked[:2]
    assert abs(Decimal(1) - left.cost_usd - booked[2]) < Decimal("1e-20")


# --- limits themselves ----------------------------------------------------------------------------------------------


def test_a_start_only_lowers() -> None:
    """Each limit is the lower one; money is limited where either side says so."""
    asked = LimitsOverride.model_validate({"steps": 99, "tokens": 5, "cost_usd": "0.5", "deadline": "10m"})
    lowered = Limits(steps=10).lowered(asked)
    assert (lowered.steps, lowered.tokens, lowered.cost_usd) == (10, 5, Decimal("0.5"))
    assert lowered.deadline.total_seconds() == 600
    assert LIMITS.lowered(None) is LIMITS
    assert LIMITS.lowered(LimitsOverride(steps=3)).cost_usd == Decimal(1)


@pytest.mark.parametrize(
    ("by", "most", "steps", "cost"),
    [
        ({"steps": 5}, None, 15, Decimal(1)),
        ({"cost_usd": "0.5"}, None, 10, Decimal("1.5")),
        ({"steps": 5}, Limits(steps=12), 12, Decimal(1)),
        ({"steps": 5}, Limits(steps=3), 10, Decimal(1)),
        ({"cost_usd": 7}, Limits(), 10, Decimal(8)),
        ({"cost_usd": 7}, Limits(cost_usd=Decimal(2)), 10, Decimal(2)),
    ],
)
def test_raising(by: dict[str, Any], most: Limits | None, steps: int, cost: Decimal) -> None:
    """Limits are added to, a grant not beyond the agent's own; nothing becomes lower by it."""
    raised = LIMITS.raised(LimitsOverride.model_validate(by), most)
    assert (raised.steps, raised.cost_usd) == (steps, cost)


def test_what_has_no_limit_keeps_none() -> None:
    """Raising a limit on cost that is not there makes none."""
    assert Limits().raised(LimitsOverride(cost_usd=Decimal(1))).cost_usd is None


@pytest.mark.parametrize("by", [{"steps": 9_999}, {"tool_calls": 100_000}, {"deadline": "3650d"}, {"tokens": 10**12}])
def test_raising_too_far(by: dict[str, Any]) -> None:
    """A limit stays within what any limit may be, or the run could not be continued as new."""
    with pytest.raises(ConfigError, match=next(iter(by))):
        Limits().raised(LimitsOverride.model_validate(by))


@pytest.mark.parametrize(
    "need",
    [
        {"limit": "patience", "amount": "1"},
        {"limit": "steps", "amount": "0.5"},
        {"limit": "steps", "amount": "0"},
        {"limit": "cost_usd", "amount": "NaN"},
        {"limit": "cost_usd", "amount": "Infinity"},
        {"limit": "tokens", "amount": "1e99"},
    ],
)
def test_needs_that_make_no_sense(need: dict[str, Any]) -> None:
    """What a child asks for is checked: it comes in a message that anybody can send."""
    with pytest.raises(ValidationError):
        Need.model_validate(need)


@pytest.mark.parametrize("limit", [name for name in REASONS if name != "deadline"])
@pytest.mark.parametrize("short", [0, -3, 2])
def test_what_is_missing_can_be_asked_for(limit: str, short: int) -> None:
    """Whatever is missing, what is asked for is more than nothing."""
    error = reached(limit, short)
    assert error.need is not None
    assert getattr(error.need.override, limit) >= max(short, LEAST_MONEY)
    assert error.reason == REASONS[limit]


def test_limits_of_a_child() -> None:
    """A share is the limits of a child's input; its time ends a bit before its parent's, and is a second at least."""
    share = Share(steps=1, tool_calls=2, tokens=3, cost_usd=Decimal("0.5"))
    made = LimitsOverride.model_validate(child_limits(share, 90))
    assert (made.steps, made.tool_calls, made.tokens, made.cost_usd) == (1, 2, 3, Decimal("0.5"))
    assert made.deadline is not None
    assert made.deadline.total_seconds() == 81
    assert child_limits(share, 3_600)["deadline"] == 3_590
    assert child_limits(Share(), -5) == {"steps": 0, "tool_calls": 0, "tokens": 0, "deadline": 1.0}
