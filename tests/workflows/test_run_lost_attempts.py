"""Money of attempts that came to nothing: cut, lost, cancelled, all failed; counted, priced, and shown apart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure import Agent, Limits, Price, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import call
from tests.conftest import Serve
from tests.fake_chat import FakeChat, fake_chat
from tests.lab import Lab, Run, eventually
from tests.processes import WorkerProcess

PRICE = Price(input=Decimal(1), output=Decimal(10))
WORDS = "abc " * 900
"""About 900 tokens."""
ASKED = "y" * 400
"""Instructions of about 100 tokens."""


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


CUT: dict[str, Any] = {"text": WORDS, "cut": 1}
"""A stream that breaks after 900 tokens."""


def talker(fake: FakeChat, **options: Any) -> Agent:
    """An agent of the fake model."""
    return Agent("talker", fake.model(price=PRICE), ASKED, **options)


async def spent(run: Run) -> Mapping[str, Any]:
    """The answer of the `usage` query."""
    answer: Mapping[str, Any] = await run.handle.query("usage")
    return answer


def price_of(usage: Mapping[str, Any]) -> Decimal:
    """What a usage costs."""
    cost: Decimal = (usage["input_tokens"] * PRICE.input + usage["output_tokens"] * PRICE.output) / 1_000_000
    return cost


def is_about(tokens: int, expected: int) -> bool:
    """Whether an estimate is near enough."""
    return expected <= tokens <= expected * 1.1 + 5


async def test_an_attempt_that_was_cut(serve: Serve) -> None:
    """Attempt 1 streams 900 tokens and is cut, attempt 2 answers: both are counted, the first as an estimate."""
    answer = {"text": "hi", "usage": {"prompt_tokens": 100, "completion_tokens": 20}}
    async with fake_chat(CUT, answer) as fake:
        agent = talker(fake)
        lab = await serve(agent)
        run = await lab.start(agent)
        result = await run.result()
        usage = await spent(run)
    lost = usage["unconfirmed"]
    assert (result["output"], len(fake.requests)) == ("hi", 2)
    assert is_about(lost["input_tokens"], 100)
    assert is_about(lost["output_tokens"], 900)
    assert usage["usage"]["input_tokens"] == 100 + lost["input_tokens"]
    assert usage["usage"]["output_tokens"] == 20 + lost["output_tokens"]
    assert Decimal(lost["cost_usd"]) == price_of(lost)
    assert Decimal(result["cost_usd"]) == price_of(usage["usage"])
    assert len(await run.events("attempts_lost")) == 1


async def test_several_attempts_that_were_cut(serve: Serve) -> None:
    """Every one of them counts."""
    async with fake_chat(CUT, CUT, {"text": "hi"}) as fake:
        agent = talker(fake)
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "hi"
        lost = (await spent(run))["unconfirmed"]
    assert is_about(lost["output_tokens"], 1_800)
    assert is_about(lost["input_tokens"], 200)


async def test_all_attempts_failed(serve: Serve) -> None:
    """A run that fails for good has spent what its attempts have."""
    async with fake_chat(CUT, {"status": 400, "body": {"error": {"message": "no"}}}) as fake:
        agent = talker(fake)
        lab = await serve(agent)
        run = await lab.start(agent)
        result = await run.ended()
        usage = await spent(run)
    assert (result["outcome"], result["reason"]) == ("failed", "provider_error")
    assert usage["usage"]["output_tokens"] == usage["unconfirmed"]["output_tokens"]
    assert is_about(usage["unconfirmed"]["output_tokens"], 900)
    assert Decimal(result["cost_usd"]) == price_of(usage["unconfirmed"]) > 0


async def test_an_attempt_without_any_answer_costs_nothing(serve: Serve) -> None:
    """A provider that refuses before it begins is not paid."""
    async with fake_chat({"status": 503}, {"text": "hi"}) as fake:
        agent = talker(fake)
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "hi"
        usage = await spent(run)
    assert usage["unconfirmed"]["input_tokens"] == usage["unconfirmed"]["output_tokens"] == 0


async def test_calls_that_were_cut(serve: Serve) -> None:
    """Pieces of calls are no text, but are counted as they come."""
    pieces = [call("look", n=n) for n in range(50)]
    async with fake_chat({"calls": pieces, "cut": 50}, {"text": "hi"}) as fake:
        agent = talker(fake)
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "hi"
        assert is_about((await spent(run))["unconfirmed"]["output_tokens"], 50)


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_call_that_is_cut_by_its_run(serve: Serve, how: str) -> None:
    """Cancelled in mid-stream: what was sent and said so far counts, priced."""
    never = asyncio.Event()
    async with fake_chat({"text": WORDS, "hold_at": {1: never}}) as fake:
        agent = talker(fake, limits=Limits(deadline="1h" if how == "cancel" else 2.0))
        lab = await serve(agent)
        run = await lab.start(agent)
        await shown(lab, run)
        if how == "cancel":
            await run.handle.cancel()
        ended = await run.ended()
        usage = await spent(run)
        never.set()
    assert ended["outcome"] == ("cancelled" if how == "cancel" else "timeout")
    lost = usage["unconfirmed"]
    assert is_about(lost["input_tokens"], 100)
    assert is_about(lost["output_tokens"], 900)
    assert Decimal(usage["cost_usd"]) == price_of(lost)


async def shown(lab: Lab, run: Run) -> None:
    """Wait until a heartbeat has what the model said."""

    async def there() -> bool:
        described = await run.handle.describe()
        pending = described.raw_description.pending_activities
        return any(WORDS[:40] in str(activity.heartbeat_details) for activity in pending)

    await eventually(there)


async def test_a_call_that_is_cut_before_its_answer_begins(serve: Serve) -> None:
    """What was sent counts, for nobody will say whether it was read."""
    hold = asyncio.Event()
    async with fake_chat({"text": "late", "hold": hold}) as fake:
        agent = talker(fake)
        lab = await serve(agent)
        run = await lab.start(agent)
        await eventually(lambda: fake.requests)
        await run.handle.cancel()
        await run.ended()
        hold.set()
        usage = await spent(run)
    assert is_about(usage["unconfirmed"]["input_tokens"], 100)
    assert usage["unconfirmed"]["output_tokens"] == 0


async def test_lost_attempts_count_for_limits(serve: Serve) -> None:
    """Tokens of attempts that were cut are gone: the next step is not made."""
    first = {"calls": [call("look", n=1)], "usage": {"prompt_tokens": 300, "completion_tokens": 5}}
    async with fake_chat(CUT, first, {"text": "never"}) as fake:
        agent = talker(fake, tools=[look], limits=Limits(tokens=1_300))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], len(fake.requests)) == ("budget_exceeded", "max_tokens", 2)


async def test_the_next_attempt_has_less_money(serve: Serve) -> None:
    """After an attempt that was cut the next one may say only as much as is left, and none is made for nothing."""
    budget = Limits(cost_usd=Decimal("0.012"))  # 100 tokens in, about 1,190 out
    async with fake_chat(CUT, {"text": "hi"}) as fake:
        agent = talker(fake, limits=budget)
        lab = await serve(agent)
        result = await lab.run(agent)
        first, second = (request["max_tokens"] for request in fake.requests)
    assert (result["outcome"], 1_150 < first < 1_200, second < 300) == ("success", True, True)
    async with fake_chat(CUT, {"text": "never"}) as fake:
        agent = talker(fake, limits=Limits(cost_usd=Decimal("0.0092")))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], len(fake.requests)) == ("budget_exceeded", "max_cost", 1)
    assert Decimal(result["cost_usd"]) > Decimal("0.009")


KILLED = """
from decimal import Decimal
from perdure import Agent, Model, Price

talker = Agent(
    "talker",
    Model(provider="compatible", name="m", base_url="{url}", price=Price(input=Decimal(1), output=Decimal(10))),
    "y" * 400,
)
"""


@pytest.mark.slow
async def test_a_worker_that_is_killed_while_its_model_speaks(
    client: Client, temporal_server: EmbeddedServer, tmp_path: Path
) -> None:
    """What the killed worker has shown last is an estimate of what its attempt has cost."""
    never = asyncio.Event()
    async with fake_chat({"text": WORDS, "hold_at": {1: never}}, {"text": "hi"}) as fake:
        agents = tmp_path / "agents_of_killed.py"
        agents.write_text(KILLED.replace("{url}", fake.base_url))
        queue = f"q-{tmp_path.name}"

        def launch(number: int) -> WorkerProcess:
            return WorkerProcess(agents, address=temporal_server.address, queue=queue, data_dir=tmp_path,
                                 log=tmp_path / f"{number}.log")  # fmt: skip

        first = launch(1)
        try:
            await eventually(lambda: first.serving)
            lab = Lab(client, queue, None)  # type: ignore[arg-type]
            run = await lab.start("talker")
            await shown(lab, run)
        finally:
            first.close()
        second = launch(2)
        try:
            result = await asyncio.wait_for(run.handle.result(), 120)
            usage = await spent(run)
        finally:
            never.set()
            second.close()
    assert (result["output"], len(fake.requests)) == ("hi", 2)
    assert is_about(usage["unconfirmed"]["output_tokens"], 900)
    assert is_about(usage["unconfirmed"]["input_tokens"], 100)
    assert Decimal(result["cost_usd"]) == price_of(usage["usage"])
