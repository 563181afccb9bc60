"""Agents as tools: child runs, what their parents get of them, and one account for all."""

from __future__ import annotations

import asyncio
import json
import threading
from decimal import Decimal

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import Agent, Limits, Price, ToolContext, tool
from perdure.testing import call, calls, failure, reply, scripted
from tests.conftest import Serve
from tests.lab import Run, eventually

PRICE = Price(input=Decimal(1), output=Decimal(1))
USED = {"input_tokens": 400, "output_tokens": 100}


async def test_a_child_run(serve: Serve) -> None:
    """The child's answer, steps and tokens are the result of the call, and its spend is on the parent's account."""
    child = Agent("child", scripted({**reply("42 for {{user}}"), "usage": USED}, price=PRICE))
    ask = {**calls("child", prompt="the question"), "usage": USED}
    parent = Agent("parent", scripted(ask, {**reply("ok"), "usage": USED}, price=PRICE), tools=[child])
    lab = await serve(parent)
    run = await lab.start(parent, tenant="acme", user="ann", metadata={"m": "x"})
    result = await run.result()
    assert json.loads((await run.results())["c1"]) == {"output": "42 for the question", "steps": 1, "tokens": 500}
    assert (result["usage"]["input_tokens"], result["usage"]["output_tokens"]) == (1200, 300)
    assert (result["cost_usd"], result["steps"], result["tool_calls"]) == ("0.0015", 2, 1)
    [started] = await run.events("child_started")
    assert started["workflow_id"].startswith(f"{run.id}/c1-")
    spec = await lab.client.get_workflow_handle(started["workflow_id"]).query("spec")
    assert (spec["tenant"], spec["user"], spec["metadata"]) == ("acme", "ann", {"m": "x"})


async def test_a_structured_child(serve: Serve) -> None:
    """An answer that fits the child's schema comes as an object."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    child = Agent("child", scripted(reply('{"n": 4}')), output=schema)
    parent = Agent("parent", scripted(calls("child", prompt="p"), reply("n is {{tool:c1.output.n}}")), tools=[child])
    lab = await serve(parent)
    assert (await lab.run(parent))["output"] == "n is 4"


@pytest.mark.parametrize(
    ("child", "shown"),
    [
        (Agent("child", scripted(failure("authentication", "no key"))), "the agent ended failed (provider_error)"),
        (Agent("child", scripted(reply("x"), repeat=True), verify=lambda ctx: "no"), "ended no_solution (verify)"),
        (Agent("child", scripted(calls("nothing"), repeat=True), limits=Limits(steps=2)), "(max_steps)"),
    ],
    ids=["failed", "no_solution", "budget"],
)  # fmt: skip
async def test_a_child_that_does_not_succeed_is_an_error_of_the_call(serve: Serve, child: Agent, shown: str) -> None:
    """The parent's model sees how the child ended, and goes on."""
    parent = Agent("parent", scripted(calls("child", prompt="p"), reply("sad")), tools=[child])
    lab = await serve(parent)
    run = await lab.start(parent)
    assert (await run.result())["output"] == "sad"
    [message] = [m for m in await run.messages() if m["role"] == "tool"]
    assert message["error"] is True
    assert shown in message["parts"][0]["text"]


async def test_children_share_what_is_left(serve: Serve) -> None:
    """Two children of one reply get half each of what the parent has left; together they cannot overspend."""
    child = Agent("child", scripted({**calls("nothing"), "usage": USED}, repeat=True, price=PRICE))
    both = {**calls(call("child", prompt="a"), call("child", prompt="b")), "usage": USED}
    parent = Agent(
        "parent",
        scripted(both, {**reply("ok"), "usage": USED}, price=PRICE),
        tools=[child],
        limits=Limits(cost_usd=Decimal("0.0045"), tokens=100_000),
    )
    lab = await serve(parent)
    run = await lab.start(parent)
    result = await run.result()
    texts = [json.loads(text) for text in (await run.results()).values()]
    assert [text["error"] for text in texts] == ["the agent ended budget_exceeded (max_cost)"] * 2
    assert Decimal(result["cost_usd"]) <= Decimal("0.0045") + Decimal("0.0005")
    limits = [
        (await lab.client.get_workflow_handle(e["workflow_id"]).query("status"))["limits"]
        for e in await run.events("child_started")
    ]
    assert [Decimal(one["cost_usd"]) for one in limits] == [Decimal("0.002")] * 2
    assert [one["tokens"] for one in limits] == [49_750] * 2


async def test_children_run_side_by_side(serve: Serve) -> None:
    """Three children whose tools wait for each other all end."""
    barrier = threading.Barrier(3, timeout=20)

    @tool(effect="read")
    def meet() -> str:
        barrier.wait()
        return "met"

    child = Agent("child", scripted(calls("meet"), reply("{{last_tool_text}} {{user}}")), tools=[meet])
    parent = Agent("parent", scripted(calls(*(call("child", prompt=p) for p in "abc")), reply("ok")), tools=[child])
    lab = await serve(parent)
    run = await lab.start(parent)
    await run.result()
    assert [json.loads(t)["output"] for t in (await run.results()).values()] == ["met a", "met b", "met c"]


async def test_keys_of_a_child_begin_with_its_parents(serve: Serve) -> None:
    """A write of a child has a key that begins with the key of the call that started it."""
    keys: list[str] = []

    @tool(effect="write")
    def act(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "ok"

    child = Agent("child", scripted(calls("act"), reply("ok")), tools=[act])
    parent = Agent("parent", scripted(calls("child", prompt="p"), reply("ok")), tools=[child])
    lab = await serve(parent)
    run = await lab.start(parent)
    await run.result()
    [key] = keys
    described = await run.handle.describe()
    parts = key.split("/")
    assert (len(parts), parts[0], parts[1], parts[4]) == (6, described.run_id, "c1", "c1")


async def test_cancel_reaches_children(serve: Serve) -> None:
    """A cancelled parent cancels its children."""
    began = threading.Event()

    @tool(effect="read")
    async def sleep() -> None:
        began.set()
        await asyncio.sleep(60)

    child = Agent("child", scripted(calls("sleep"), reply("never")), tools=[sleep])
    parent = Agent("parent", scripted(calls("child", prompt="p"), reply("never")), tools=[child])
    lab = await serve(parent)
    run = await lab.start(parent)
    await eventually(began.is_set)
    [started] = await run.events("child_started")
    await run.handle.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run.result()
    handle = lab.client.get_workflow_handle(started["workflow_id"])

    async def ended() -> bool:
        return (await handle.describe()).status == WorkflowExecutionStatus.CANCELED

    await eventually(ended)


async def test_an_approval_inside_a_child(serve: Serve) -> None:
    """A child that waits for a person is found by its id, and the parent waits for it."""

    @tool(effect="write", approval=True)
    def pay() -> str:
        return "paid"

    child = Agent("child", scripted(calls("pay"), reply("{{last_tool_text}}")), tools=[pay])
    parent = Agent("parent", scripted(calls("child", prompt="p"), reply("{{tool:c1.output}}")), tools=[child])
    lab = await serve(parent)
    run = await lab.start(parent)
    [started] = await run.seen("child_started")
    below = Run(lab.client.get_workflow_handle(started["workflow_id"]))
    await below.seen("approval_requested")
    await below.update("approve", {})
    assert (await run.result())["output"] == "paid"


async def test_a_stranger_cannot_pose_as_a_parent(serve: Serve) -> None:
    """A second input, which only parents give, is refused from outside."""
    agent = Agent("lonely", scripted(reply("hi")))
    lab = await serve(agent)
    run = await lab.begin({"agent": "lonely", "prompt": "x"}, {"key_prefix": "evil", "seconds_left": 9e9})
    result = await run.ended()
    assert "a run takes one JSON object, not 2" in result["message"]
