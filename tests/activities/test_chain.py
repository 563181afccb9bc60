"""Who is asked next: a property over any failures, and the delays, by the clock that is given."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities._failures import RETRYABLE
from activities.chain import AT_ONCE, Chain, Turns, chain_for, turns_of
from perdure import Model, Price
from perdure.agent import AgentSpec
from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage

NOW = 1_000_000.0
FINAL = [kind for kind in ErrorKind if not RETRYABLE[kind]]
PASSING = [kind for kind in ErrorKind if RETRYABLE[kind]]


def spec(count: int) -> AgentSpec:
    """An agent with so many models."""
    prices = [Price(input=Decimal(10**n), output=Decimal(0)) for n in range(count)]
    return AgentSpec(
        name="a", models=tuple(Model(provider="compatible", name=f"m{n}", price=p) for n, p in enumerate(prices))
    )


def chain(count: int, turns: Turns | None = None, before: Usage | None = None) -> Chain:
    """The chain of an attempt."""
    return chain_for(spec(count), [], turns or Turns(), before or Usage())


def fails(kind: ErrorKind = ErrorKind.SERVER, wait: float | None = None) -> ProviderError:
    """A failure."""
    return ProviderError(kind, "no", retry_after=wait)


def played(count: int, failures: Sequence[ProviderError], now: float = NOW) -> list[tuple[int, float | None]]:
    """Who is asked with each failure, and the delay after it."""
    turns, told = Turns(), []
    for failure in failures:
        attempt = chain(count, turns)
        handover = attempt.after(failure, now)
        told.append((attempt.place, handover.pause if handover else None))
        if handover is None:
            break
        turns = turns_of([{"turns": handover.turns.model_dump(mode="json", exclude_defaults=True)}])
    return told


@given(st.integers(1, 6), st.lists(st.sampled_from(ErrorKind), min_size=6, max_size=6))
def test_any_failures(count: int, kinds: list[ErrorKind]) -> None:
    """Who failed for good is not asked, all that are left have their turn in a round, and only then time passes."""
    dead: set[int] = set()
    waiting = list(range(count))
    for (place, pause), kind in zip(played(count, [fails(kind) for kind in kinds]), kinds, strict=False):
        assert place == waiting.pop(0)
        dead |= {place} if kind in FINAL else set()
        if not waiting:
            waiting = [other for other in range(count) if other not in dead]
            assert pause is None
        else:
            assert pause == AT_ONCE


@pytest.mark.parametrize("kind", FINAL)
def test_nobody_is_left(kind: ErrorKind) -> None:
    """After the last one that fails for good nothing follows; one that may pass is asked again."""
    assert chain(1).after(fails(kind), NOW) is None
    assert chain(2).after(fails(kind), NOW) is not None


@pytest.mark.parametrize("kind", PASSING)
def test_one_model_is_asked_again(kind: ErrorKind) -> None:
    """After the delay that it asks for, or Temporal's own."""
    assert played(1, [fails(kind), fails(kind, 7.0), fails(kind, 90_000.0)]) == [(0, None), (0, 7.0), (0, 3_600.0)]


WAITS: list[tuple[list[float | None], list[tuple[int, float | None]]]] = [
    ([None, None, None], [(0, AT_ONCE), (1, None), (0, AT_ONCE)]),
    ([3_600, None, None], [(0, AT_ONCE), (1, None), (1, None)]),
    ([None, 3_600, None, None], [(0, AT_ONCE), (1, None), (0, None), (0, None)]),
    ([20, 5, None], [(0, AT_ONCE), (1, 5), (1, None)]),
    ([5, 20, None], [(0, AT_ONCE), (1, 5), (0, None)]),
]


@pytest.mark.parametrize(("waits", "expected"), WAITS)
def test_who_wants_to_be_left_alone(waits: list[float | None], expected: list[tuple[int, float | None]]) -> None:
    """They are passed over while others are left; where all want it, whose time comes first is waited for."""
    assert played(2, [fails(wait=wait) for wait in waits]) == expected


def test_a_wish_ends() -> None:
    """Whose time has passed has its turn again, at once where nobody has a better one."""
    first = chain(2).after(fails(wait=5.0), NOW)
    assert first is not None
    second = chain(2, first.turns).after(fails(), NOW + 6)
    assert second is not None
    assert (chain(2, second.turns).place, second.pause) == (0, AT_ONCE)


def test_attempts_that_nobody_ended() -> None:
    """A lost one had its turn; an interrupted one is made again; those that failed for good stay out in both."""
    handover = chain(3).after(fails(ErrorKind.AUTHENTICATION), NOW)
    assert handover is not None
    attempt = chain(3, handover.turns)
    assert (attempt.place, chain(3, attempt.turns).place, chain(3, attempt.interrupted).place) == (1, 2, 1)
    assert chain(3, chain(3, attempt.turns).turns).place == 1


def test_all_are_dead_and_nobody_heard_it() -> None:
    """The call is tried again from the beginning."""
    assert chain(2, Turns(turn=2, dead=(0, 1))).place == 0


def test_usage_is_its_own_models() -> None:
    """What attempts used is kept by model, in any order, and each part has its own price."""
    used = [Usage(input_tokens=n) for n in (1_000_000, 3_000_000, 6_000_000)]
    first = chain(2, None, Usage())
    second = chain(2, first.turns, used[0])
    third = chain(2, second.turns, used[1])
    assert third.place == 0
    assert third.turns.spent(used[2]) == {0: Usage(input_tokens=4_000_000), 1: Usage(input_tokens=2_000_000)}
    assert [first.cost(used[0]), second.cost(used[1]), third.cost(used[2])] == [1, 21, 24]


@pytest.mark.parametrize("details", [[], ["x"], [{}], [{"turns": 5}], [{"turns": {"dead": "x"}}], [{"turns": None}]])
def test_details_that_say_nothing(details: list[object]) -> None:
    """Without a heartbeat, or with one of other code, a call begins anew."""
    assert turns_of(details) == Turns()
