"""Circuit breakers: when they open, what they let through, and what runs notice of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from activities._failures import RETRYABLE
from activities.breakers import FAILURES, OPEN_SECONDS, SPARED, Breakers
from perdure import Agent
from perdure.errors import ErrorKind, ProviderError
from tests.conftest import Serve
from tests.fake_chat import fake_chat
from tests.lab import eventually

COUNTED = [kind for kind in ErrorKind if RETRYABLE[kind] and kind not in SPARED]
OTHERS = [kind for kind in ErrorKind if kind not in COUNTED]
SOON = {"error": {"message": "down", "details": [{"retryDelay": "0.01s"}]}}


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def fail(breakers: Breakers, kind: ErrorKind, times: int = 1, wait: float | None = None) -> ProviderError:
    """Count failures of one address and return the last."""
    error = ProviderError(kind, "no")
    for _ in range(times):
        error = ProviderError(kind, "no", retry_after=wait)
        breakers.failed("a", error)
    return error


def is_open(breakers: Breakers, address: str = "a") -> bool:
    """Whether nothing is sent there."""
    try:
        breakers.check(address)
    except ProviderError:
        return True
    return False


@pytest.mark.parametrize("kind", COUNTED)
def test_it_opens(kind: ErrorKind) -> None:
    """After five failures in a row of a kind that speaks of the address; other addresses are not concerned."""
    breakers = Breakers(Clock())
    fail(breakers, kind, FAILURES - 1)
    assert not is_open(breakers)
    fail(breakers, kind)
    assert is_open(breakers)
    assert not is_open(breakers, "b")


@pytest.mark.parametrize("kind", OTHERS)
def test_it_stays_closed(kind: ErrorKind) -> None:
    """What speaks of the request, the key or the rate does not count, however often, and ends a row."""
    breakers = Breakers(Clock())
    fail(breakers, kind, FAILURES * 2)
    assert not is_open(breakers)
    fail(breakers, ErrorKind.SERVER, FAILURES - 1)
    fail(breakers, kind)
    fail(breakers, ErrorKind.SERVER, FAILURES - 1)
    assert not is_open(breakers)


def test_it_says_how_long() -> None:
    """In the refusal, and in the failure that opens it, which keeps a longer wish of the provider."""
    clock = Clock()
    breakers = Breakers(clock)
    assert fail(breakers, ErrorKind.SERVER, FAILURES - 1).retry_after is None
    assert fail(breakers, ErrorKind.SERVER).retry_after == OPEN_SECONDS
    assert fail(breakers, ErrorKind.OVERLOADED, wait=900.0).retry_after == 900.0
    clock.now += 10
    with pytest.raises(
        ProviderError, match="a failed 6 times in a row; nothing is sent there for 20 s more"
    ) as refused:
        breakers.check("a")
    assert (refused.value.kind, refused.value.retry_after) == (ErrorKind.OVERLOADED, 20.0)


def test_one_call_tries() -> None:
    """When its time is over exactly one call is let through; its success closes it, its failure opens it again."""
    clock = Clock()
    breakers = Breakers(clock)
    fail(breakers, ErrorKind.CONNECTION, FAILURES)
    clock.now += OPEN_SECONDS
    assert [is_open(breakers) for _ in range(3)] == [False, True, True]
    fail(breakers, ErrorKind.CONNECTION)
    assert is_open(breakers)
    clock.now += OPEN_SECONDS
    assert [is_open(breakers) for _ in range(3)] == [False, True, True]
    breakers.succeeded("a")
    assert [is_open(breakers) for _ in range(3)] == [False, False, False]
    fail(breakers, ErrorKind.CONNECTION, FAILURES - 1)
    assert not is_open(breakers)


def test_the_call_that_tries_may_be_lost() -> None:
    """Where nothing is heard of it another one tries after the same time."""
    clock = Clock()
    breakers = Breakers(clock)
    fail(breakers, ErrorKind.TIMEOUT, FAILURES)
    clock.now += OPEN_SECONDS
    assert not is_open(breakers)
    clock.now += OPEN_SECONDS
    assert not is_open(breakers)


async def test_an_open_breaker_costs_no_request(serve: Serve) -> None:
    """Runs with several models ask the next one, without a request to the address that is down."""
    async with fake_chat({"status": 500}) as broken, fake_chat({"text": "hi"}) as fake:
        agent = Agent("chained", [broken.model("a"), fake.model("b")])
        lab = await serve(agent)
        results = [await lab.run(agent) for _ in range(FAILURES + 3)]
    assert {result["output"] for result in results} == {"hi"}
    assert (len(broken.requests), len(fake.requests)) == (FAILURES, FAILURES + 3)


async def test_with_one_model_the_call_waits(serve: Serve) -> None:
    """The attempt after the failure that opens the breaker comes when it lets one through, and not in vain before."""
    async with fake_chat({"status": 500, "body": SOON}) as fake:
        agent = Agent("alone", fake.model())
        lab = await serve(agent)
        run = await lab.start(agent)

        async def waits() -> float | None:
            for pending in (await run.handle.describe()).raw_description.pending_activities:
                if pending.attempt == FAILURES + 1:
                    return pending.next_attempt_schedule_time.seconds - pending.last_attempt_complete_time.seconds
            return None

        assert abs(await eventually(waits) - OPEN_SECONDS) <= 1
        assert len(fake.requests) == FAILURES
        await run.handle.terminate()


@pytest.mark.slow
async def test_with_one_model_the_call_comes_back(serve: Serve) -> None:
    """The sixth attempt is sent and answers; another run that comes meanwhile waits and answers too."""
    down = {"status": 500, "body": SOON}
    async with fake_chat(*[down] * FAILURES, {"text": "hi"}) as fake:
        agent = Agent("alone", fake.model())
        lab = await serve(agent)
        run = await lab.start(agent)
        await eventually(lambda: len(fake.requests) == FAILURES)
        other = await lab.start(agent)
        results = await asyncio.gather(run.result(), other.result())
    assert [result["output"] for result in results] == ["hi", "hi"]
    assert len(fake.requests) == FAILURES + 2
