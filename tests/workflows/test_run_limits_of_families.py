"""Limits over a tree of runs: children ask their parents for more, get it, or end; no tree spends beyond its limit."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure import Agent, Limits, Price, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import Step, call, calls, reply, scripted
from tests.conftest import Serve
from tests.lab import Lab, Run, eventually, laboratory

PRICE = Price(input=Decimal(1), output=Decimal(1))
USED = {"usage": {"input_tokens": 400, "output_tokens": 100}}


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def looking(count: int, answer: str = "found") -> list[Step]:
    """A script that looks so often and answers then."""
    return [*({**calls("look", n=n), **USED} for n in range(count)), {**reply(answer), **USED}]


def child_of(*script: Step, name: str = "child", **options: Any) -> Agent:
    """A child with a script."""
    return Agent(name, scripted(*script, price=PRICE), tools=[look], **options)


def parent_of(child: Agent, prompts: str = "p", name: str = "parent", **options: Any) -> Agent:
    """A parent that calls its child once for each letter, side by side, and answers then."""
    first = {**calls(*(call(child.name, prompt=p) for p in prompts)), **USED}
    return Agent(name, scripted(first, {**reply("ok"), **USED}, price=PRICE), tools=[child], **options)


async def answers(run: Run) -> list[str]:
    """What became of each child: its answer, or how it ended."""
    bodies = [json.loads(body) for body in (await run.results()).values()]
    return [body.get("error") or body["output"] for body in bodies]


async def children(lab: Lab, run: Run) -> list[Run]:
    """The child runs, as soon as one has begun."""
    started = await run.seen("child_started")
    found = [Run(lab.client.get_workflow_handle(event["workflow_id"])) for event in started]
    for child in found:
        await child.seen("run_started")
    return found


# --- asked for and given --------------------------------------------------------------------------------------------

ENOUGH: list[tuple[str, int, Limits]] = [
    ("steps", 3, Limits(steps=11)),
    ("tool_calls", 3, Limits(tool_calls=9)),
    ("tokens", 3, Limits(tokens=6_000)),
    ("cost", 3, Limits(cost_usd=Decimal("0.005"))),
]


@pytest.mark.parametrize(("looks", "limits"), [e[1:] for e in ENOUGH], ids=[e[0] for e in ENOUGH])
async def test_one_child_gets_what_the_other_does_not_need(serve: Serve, looks: int, limits: Limits) -> None:
    """Of two children one needs more than half of what there is: it asks when its share is used, and gets it."""
    lazy = child_of({**reply("nothing to do"), **USED}, name="lazy")
    keen = child_of(*looking(looks + 2), name="keen")
    both = {**calls(call("lazy", prompt="a"), call("keen", prompt="b")), **USED}
    parent = Agent("parent", scripted(both, {**reply("ok"), **USED}, price=PRICE), tools=[lazy, keen], limits=limits)
    lab = await serve(parent)
    run = await lab.start(parent)
    result = await run.result()
    assert (await answers(run), result["outcome"]) == (["nothing to do", "found"], "success")
    assert [event["granted"] for event in await run.events("limit_granted")].count(True) >= 1
    assert (await run.handle.query("usage"))["children"] == {"steps": looks + 4, "tool_calls": looks + 2}


TIGHT: list[tuple[str, Limits, str]] = [
    ("steps", Limits(steps=7), "max_steps"),
    ("tool_calls", Limits(tool_calls=7), "max_tool_calls"),
    ("tokens", Limits(tokens=4_500), "max_tokens"),
    ("cost", Limits(cost_usd=Decimal("0.0045")), "max_cost"),
]


@pytest.mark.parametrize(("limits", "reason"), [t[1:] for t in TIGHT], ids=[t[0] for t in TIGHT])
async def test_the_youngest_goes_without(serve: Serve, limits: Limits, reason: str) -> None:
    """Where all children ask and nothing is left, one is refused, and what it had helps the others."""
    child = child_of(*looking(40))
    parent = parent_of(child, "abc", limits=limits)
    lab = await serve(parent)
    run = await lab.start(parent)
    result = await run.result()
    assert all(f"({reason})" in answer for answer in await answers(run))
    refused = [event["call_id"] for event in await run.events("limit_granted") if not event["granted"]]
    assert sorted(refused) == ["c1", "c2", "c3"]
    usage = await run.handle.query("usage")
    assert usage["steps"] + usage["children"]["steps"] <= limits.steps
    assert usage["tool_calls"] + usage["children"]["tool_calls"] <= limits.tool_calls
    assert result["usage"]["input_tokens"] + result["usage"]["output_tokens"] <= limits.tokens + 500
    assert limits.cost_usd is None or Decimal(result["cost_usd"]) <= limits.cost_usd + Decimal("0.0005")


@pytest.mark.parametrize("on_limit", ["finish", "pause"])
async def test_a_paused_parent_is_extended(serve: Serve, on_limit: Any) -> None:
    """The parent waits for people where its children have used up everything; what they add reaches the children."""
    child = child_of(*looking(6), on_limit=on_limit)
    parent = parent_of(child, "ab", limits=Limits(steps=7), on_limit="pause")
    lab = await serve(parent)
    run = await lab.start(parent)
    await run.seen("limit_reached")
    status = await run.status()
    assert (status["state"], status["paused"]) == ("waiting_limit", "max_steps")
    await run.update("extend", {"steps": 20})
    assert ((await run.result())["outcome"], await answers(run)) == ("success", ["found", "found"])


async def test_a_child_that_is_extended_itself(serve: Serve) -> None:
    """People may extend the child that asks, too: it goes on with that, and its parent's pause ends."""
    child = child_of(*looking(4))
    parent = parent_of(child, limits=Limits(steps=4), on_limit="pause")
    lab = await serve(parent)
    run = await lab.start(parent)
    await run.seen("limit_reached")
    [asking] = await children(lab, run)
    await asking.update("extend", {"steps": 10})
    assert (await asking.result())["outcome"] == "success"

    async def paused_for_itself() -> bool:
        status = await run.status()
        return bool(status["paused"]) and status["step"] == 1 and not await open_children(run)

    await eventually(paused_for_itself)
    await run.update("extend", {"steps": 10})
    assert ((await run.result())["outcome"], await answers(run)) == ("success", ["found"])


async def open_children(run: Run) -> bool:
    """Whether a child has not ended."""
    return len(await run.events("child_started")) > len(await run.events("child_ended"))


async def test_a_pause_for_a_child_ends_with_it(serve: Serve) -> None:
    """A parent that waits for what only its child needs goes on when that child ends otherwise."""
    child = child_of(*looking(40))
    parent = parent_of(child, limits=Limits(steps=20, tool_calls=3), on_limit="pause")
    lab = await serve(parent)
    run = await lab.start(parent)
    await run.seen("limit_reached")
    [asking] = await children(lab, run)
    await asking.send("stop", {})
    assert (await run.result())["outcome"] == "success"
    assert await answers(run) == ["the agent ended no_solution (stopped)"]


async def test_a_child_keeps_within_its_own_limits(serve: Serve) -> None:
    """However much its parent has left, a child does not get beyond what its agent allows."""
    child = child_of(*looking(40), limits=Limits(steps=6))
    parent = parent_of(child, "ab", limits=Limits(steps=9, tokens=10_000_000))
    lab = await serve(parent)
    run = await lab.start(parent)
    assert (await run.result())["outcome"] in {"success", "budget_exceeded"}
    for one in await children(lab, run):
        status = await one.status()
        assert status["limits"]["steps"] <= 6
        assert (status["step"] <= 6, status["reason"]) == (True, "max_steps")


async def test_a_childs_own_limit_on_cost(serve: Serve) -> None:
    """A limit on cost of the child's own ends it, though its parent could pay."""
    child = child_of(*looking(40), limits=Limits(cost_usd=Decimal("0.001"), steps=5, deadline="10m"))
    parent = parent_of(child, limits=Limits(cost_usd=Decimal(1)))
    lab = await serve(parent)
    run = await lab.start(parent)
    result = await run.result()
    assert await answers(run) == ["the agent ended budget_exceeded (max_cost)"]
    assert Decimal(result["cost_usd"]) <= Decimal("0.0025")
    assert await run.events("limit_granted") == []


async def test_a_childs_own_limit_pauses_the_child(serve: Serve) -> None:
    """A child that pauses at its own limit shows in its parent, whose clock stands still, and is extended itself."""
    child = child_of(*looking(2), limits=Limits(steps=1), on_limit="pause")
    parent = parent_of(child)
    lab = await serve(parent)
    run = await lab.start(parent)
    [paused] = await children(lab, run)
    await paused.seen("limit_reached")

    async def both_wait() -> bool:
        return (await run.state(), await paused.state()) == ("waiting_limit", "waiting_limit")

    await eventually(both_wait)
    await paused.update("extend", {"steps": 5})
    assert ((await run.result())["outcome"], await answers(run)) == ("success", ["found"])


async def test_two_levels(serve: Serve) -> None:
    """A grandchild's need climbs to the top, and what people add there comes down to it."""
    grandchild = child_of(*looking(6), name="grandchild")
    child = parent_of(grandchild, "x", name="child")
    parent = parent_of(child, "p", limits=Limits(steps=5), on_limit="pause")
    lab = await serve(parent)
    run = await lab.start(parent)
    await run.seen("limit_reached")
    [middle] = await children(lab, run)
    [low] = await children(lab, middle)
    assert (await low.status())["step"] <= 3
    await run.update("extend", {"steps": 20})
    result = await run.result()
    assert (result["outcome"], await answers(run)) == ("success", ["ok"])
    assert result["usage"]["input_tokens"] == 400 * (2 + 2 + 7)
    assert (await run.handle.query("usage"))["children"]["steps"] == 2 + 7


async def test_two_levels_that_nobody_extends(serve: Serve) -> None:
    """Without more the grandchild ends first, and each level above with what it gives back."""
    grandchild = child_of(*looking(40), name="grandchild")
    child = parent_of(grandchild, "xy", name="child")
    parent = parent_of(child, "pq", limits=Limits(steps=12, tokens=10**6))
    lab = await serve(parent)
    run = await lab.start(parent)
    result = await run.result()
    assert result["outcome"] in {"success", "budget_exceeded"}
    assert result["usage"]["input_tokens"] <= 400 * 12
    assert result["steps"] + result["children"]["steps"] <= 12


@pytest.mark.slow
async def test_a_child_that_runs_out_of_time(serve: Serve) -> None:
    """It ends before its parent does, so what it has used is on its parent's account."""
    child = Agent("child", scripted({**calls("sleep"), **USED}, reply("never"), price=PRICE), tools=[sleep])
    parent = parent_of(child, limits=Limits(deadline=8.0))
    lab = await serve(parent)
    run = await lab.start(parent)
    result = await run.result()
    [ended] = await run.events("child_ended")
    assert (ended["outcome"], ended["tokens"]) == ("timeout", 500)
    assert result["usage"]["input_tokens"] >= 800


# --- children that say nothing --------------------------------------------------------------------------------------


async def test_a_terminated_child(serve: Serve) -> None:
    """It counts as having spent all it had, shown as unconfirmed, and its parent goes on with what is left."""
    waits = Agent("waits", scripted(calls("sleep"), reply("never"), price=PRICE), tools=[sleep])
    one = child_of({**reply("quick"), **USED}, name="one")
    both = {**calls(call("waits", prompt="a"), call("one", prompt="b")), **USED}
    script = [both, {**reply("ok"), **USED}]
    parent = Agent("parent", scripted(*script, price=PRICE), tools=[waits, one], limits=Limits(tokens=100_500))
    lab = await serve(parent)
    run = await lab.start(parent)
    await run.seen("child_started", 2)
    lost = (await children(lab, run))[0]
    await lost.seen("tool_start")
    share = (await lost.status())["limits"]["tokens"]
    await lost.handle.terminate()
    result = await run.result()
    usage = await run.handle.query("usage")
    assert (result["outcome"], usage["unconfirmed"]["input_tokens"]) == ("success", share)
    assert result["usage"]["input_tokens"] == share + 3 * 400
    assert "the agent ended failed" in (await run.results())["c1"]


async def test_a_cancelled_child(serve: Serve) -> None:
    """A child that was cancelled by itself counts what it has used, for it can still be asked."""
    waits = Agent("waits", scripted({**calls("sleep"), **USED}, reply("never"), price=PRICE), tools=[sleep])
    parent = parent_of(waits)
    lab = await serve(parent)
    run = await lab.start(parent)
    [stopped] = await children(lab, run)
    await stopped.seen("tool_start")
    await stopped.handle.cancel()
    result = await run.result()
    assert (result["outcome"], result["usage"]["input_tokens"]) == ("success", 3 * 400)
    assert "the agent ended cancelled" in (await run.results())["c1"]


@tool(effect="read")
async def sleep() -> str:
    """Take very long."""
    await asyncio.sleep(60)
    return "awake"


# --- many at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
async def test_five_children_and_a_small_budget(
    serve: Serve, temporal_server: EmbeddedServer, data_dir: Path, workers: int
) -> None:
    """Five children of one reply that each want three calls, on one worker or two, with calls that fail at first."""
    flaky = {"kind": "overloaded", "message": "busy", "times": 1}
    script = [{**step, "error": flaky} for step in looking(2)]
    child = child_of(*script)
    parent = parent_of(child, "abcde", limits=Limits(cost_usd=Decimal("0.005"), steps=100))
    lab = await serve(parent)
    async with AsyncExitStack() as stack:
        for _ in range(workers - 1):
            other = await Client.connect(temporal_server.address, data_converter=lab.client.data_converter)
            await stack.enter_async_context(laboratory(other, data_dir, parent, queue=lab.queue))
        run = await lab.start(parent)
        result = await run.result()
    assert Decimal(result["cost_usd"]) <= Decimal("0.0055")
    ends = Counter(answer.partition("(")[2].rstrip(")") or answer for answer in await answers(run))
    assert set(ends) <= {"found", "max_cost"}
    assert ends["max_cost"] >= 3


async def test_messages_between_runs_from_strangers(serve: Serve) -> None:
    """Who is no child gets nothing, and what makes no sense is refused; the run goes on."""
    agent = Agent("lonely", scripted(calls("sleep"), reply("never")), tools=[sleep], limits=Limits(steps=5))
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("tool_start")
    need = {"child": "x", "need": {"limit": "steps", "amount": "1"}, "number": 1}
    bad = [("_child_needs", need), ("_child_needs", {**need, "need": {"limit": "x", "amount": "NaN"}})]
    for name, payload in [*bad, ("_grant", {"more": {"steps": "many"}}), ("_child_waits", {"child": "x"})]:
        await run.send(name, payload)
    await run.seen("message_refused", 4)
    await run.send("_grant", {"more": {"steps": 50}})
    await run.send("say", {"text": "hello"})
    await run.seen("said")
    assert (await run.status())["limits"]["steps"] == 5
    await run.handle.cancel()
