"""Cases H: money of attempts that failed, budgets under parallel load with retries, and limits that are raised."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure import Agent, Limits, Price, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import fake_chat
from tests.lab import eventually, laboratory

PRICE = Price(input=Decimal(0), output=Decimal(1000))
"""A tenth of a cent each token."""


@tool(effect="read")
def echo(text: str) -> str:
    """Say it again."""
    return text


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("failing", [False, True], ids=["steady", "cut_at_first"])
async def test_case_125_five_children_on_a_small_budget(
    serve: Serve, temporal_server: EmbeddedServer, data_dir: Path, workers: int, failing: bool
) -> None:
    """Streams, retries, several workers: the tree spends at most 0.10, and a share that is used up sends none."""
    spent: list[int] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        if "child" not in json.dumps(body["messages"][0]):
            done = any(message["role"] == "tool" for message in body["messages"])
            made: dict[str, Any] = {"text": "ok"} if done else {"calls": [call("child", prompt=p) for p in "abcde"]}
            return {**made, "usage": {"prompt_tokens": 1, "completion_tokens": 0}}
        most = min(40, body["max_tokens"])
        spent.append(most)
        if failing and len(spent) <= 2:
            return {"text": ["word"] * 8, "cut": 4}
        usage = {"prompt_tokens": 1, "completion_tokens": most}
        return {"calls": [call("echo", text=f"{len(spent):c}")], "usage": usage}

    async with fake_chat(answer) as fake, AsyncExitStack() as stack:
        child = Agent("child", fake.model(price=PRICE), "You are a child.", tools=[echo])
        boss = Agent(
            "boss", fake.model(price=PRICE), "You lead.", tools=[child], limits=Limits(cost_usd=Decimal("0.1"))
        )
        lab = await serve(boss)
        for _ in range(workers - 1):
            other = await Client.connect(temporal_server.address, data_converter=lab.client.data_converter)
            await stack.enter_async_context(laboratory(other, data_dir, boss, queue=lab.queue))
        run = await lab.start(boss)
        result = await run.result()
        texts = await run.results()
    assert Decimal(result["cost_usd"]) <= Decimal("0.10")
    assert all("budget_exceeded (max_cost)" in text for text in texts.values())
    paid = [most for number, most in enumerate(spent) if not failing or number > 1]
    assert sum(paid) <= 100


async def test_case_128_money_of_attempts_that_failed(serve: Serve) -> None:
    """900 tokens were streamed and cut, then 100/20 answered: the sum has both, the estimate is shown apart."""
    cut = {"text": ["abc "] * 1_000, "cut": 900}
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    async with fake_chat(cut, {"text": "hi", "usage": usage}) as fake:
        agent = Agent("talker", fake.model(price=Price(input=Decimal(1), output=Decimal(1))))
        lab = await serve(agent)
        run = await lab.start(agent)
        result = await run.result()
        told = await run.handle.query("usage")
    assert 890 <= told["unconfirmed"]["output_tokens"] <= 910
    assert result["usage"]["output_tokens"] == 20 + told["unconfirmed"]["output_tokens"]
    assert result["usage"]["input_tokens"] == 100 + told["unconfirmed"]["input_tokens"]
    tokens = result["usage"]["input_tokens"] + result["usage"]["output_tokens"]
    assert Decimal(result["cost_usd"]) == Decimal(tokens) / 1_000_000


async def test_case_128_cancelled_in_mid_stream(serve: Serve) -> None:
    """What was said before the cancel is an estimate in the sum."""
    never = asyncio.Event()
    async with fake_chat({"text": ["abc "] * 500, "hold_at": {400: never}}) as fake:
        agent = Agent("talker", fake.model(price=Price(input=Decimal(1), output=Decimal(1))))
        lab = await serve(agent)
        run = await lab.start(agent)
        await eventually(lambda: said(run, 1_600))
        await run.handle.cancel()
        await run.ended()
        never.set()
        told = await run.handle.query("usage")
    assert told["usage"]["output_tokens"] == told["unconfirmed"]["output_tokens"] == 400
    assert Decimal(told["cost_usd"]) >= Decimal("0.0004")


async def said(run: Any, characters: int) -> bool:
    """Whether the last heartbeat has so much text."""
    described = (await run.handle.describe()).raw_description
    beats = [json.loads(p.data) for a in described.pending_activities for p in a.heartbeat_details.payloads]
    return any(len(beat["text"]) >= characters for beat in beats)


async def test_case_130_the_limit_is_raised(serve: Serve) -> None:
    """A run that pauses right after an answer with two calls goes on when it is extended; no call runs twice."""
    ran: list[str] = []

    @tool(effect="write")
    def act(what: str) -> str:
        ran.append(what)
        return f"did {what}"

    both = {**reply("I do both."), **calls(call("act", what="a"), call("act", what="b"))}
    agent = Agent("actor", scripted(both, reply("{{tool:c1}}, {{tool:c2}}")), tools=[act],
                  limits=Limits(steps=1), on_limit="pause")  # fmt: skip
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("limit_reached")
    assert ran == ["a", "b"]
    await run.update("extend", {"steps": 1})
    assert ((await run.result())["output"], ran) == ("did a, did b", ["a", "b"])


async def test_case_130_time_runs_out_while_an_approval_waits(serve: Serve) -> None:
    """The clock stands still while people are waited for; a limit after it ends the run with nothing pending."""

    @tool(effect="write", approval=True)
    def pay(to: str) -> str:
        return f"paid {to}"

    agent = Agent("payer", scripted(calls("pay", to="a"), reply("never")), tools=[pay],
                  limits=Limits(steps=1, deadline="1h"))  # fmt: skip
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.asks()
    await run.update("approve", {})
    result = await run.result()
    assert (result["outcome"], result["reason"], await run.pending()) == ("budget_exceeded", "max_steps", [])
    assert await run.results() == {"c1": "paid a"}


async def test_case_130_a_run_that_was_stopped_by_money_goes_on_in_another(serve: Serve) -> None:
    """A new run continues the conversation of one that had no money left, without doing its calls again."""
    async with fake_chat({"text": "Before.", "calls": [call("echo", text="x")]}, {"text": "After."}) as fake:
        price = Price(input=Decimal(0), output=Decimal(1000))
        agent = Agent("spender", fake.model(price=price), tools=[echo])
        lab = await serve(agent)
        run = await lab.start(agent, limits={"cost_usd": "0.02"})
        result = await run.result()
        assert (result["outcome"], result["reason"], result["output"]) == ("budget_exceeded", "max_cost", "Before.")
        again = await lab.run(agent, "Go on.", continue_from=run.id, limits={"cost_usd": "1"})
    assert again["output"] == "After."
    roles = [message["role"] for message in fake.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "user"]
