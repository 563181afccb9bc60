"""One run as a tree: steps, calls, decisions and child runs, from the run itself or from Temporal alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console
from temporalio.client import Client as TemporalClient

from perdure import Agent, Approval, Limits, RetryTool, ToolContext, tool
from perdure.cli.family_tree import tree_of
from perdure.cli.tree import RunNode
from perdure.cli.tree_view import draw, duration
from perdure.client import Client
from perdure.testing import calls, reply, scripted
from tests.cli.command_line import CommandLine
from tests.conftest import Serve
from tests.lab import Run, closed, eventually, laboratory


@tool(effect="read")
def look(city: str) -> str:
    """Look."""
    return f"{city} \x1b[31mred [bold]9C"


@tool(effect="read", attempts=3)
def shaky(ctx: ToolContext) -> str:
    """Work in the second attempt."""
    if ctx.attempt == 1:
        raise RetryTool("the line was bad", delay=0.01)
    return "at last"


@tool(effect="write", approval=Approval(timeout="10m"))
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


reader = Agent("reader", scripted(calls("look", city="Oslo"), reply("It is {{last_tool_text}}")), tools=[look])
payer = Agent("payer", scripted(calls("pay", to="bob"), reply("Done: {{last_tool_text}}")), tools=[pay])
retrier = Agent("retrier", scripted(calls("shaky"), reply("{{last_tool_text}}")), tools=[shaky])
boss = Agent("boss", scripted(calls("reader", prompt="Oslo?"), reply("{{last_tool_text}}")), tools=[reader])
chief = Agent("chief", scripted(calls("boss", prompt="ask"), reply("{{last_tool_text}}")), tools=[boss])


def printed(node: RunNode) -> list[str]:
    """The tree as lines without its branches."""
    with open(os.devnull, "w") as nowhere:
        console = Console(width=200, record=True, markup=False, emoji=False, highlight=False, file=nowhere)
        console.print(draw(node))
    return [line.lstrip("│├└─ ").rstrip() for line in console.export_text().splitlines()]


@pytest.fixture
def cli_client(client: TemporalClient) -> Client:
    """A client as the commands have it."""
    return Client(TemporalClient(client.service_client, namespace=client.namespace))


async def test_steps_and_calls(serve: Serve, cli_client: Client) -> None:
    """Each step has its time, tokens and cost, each call its arguments, status, time, attempts and result."""
    lab = await serve(reader, retrier)
    run = await lab.start(reader)
    await closed(run)
    node = await tree_of(cli_client, run.id)
    first, second = node.steps
    (call,) = first.calls
    assert (first.step, first.attempts, first.tokens) == (1, 1, (await run.events("reply"))[0]["tokens"])
    assert first.seconds is not None
    assert (call.tool, call.arguments, call.status, call.attempts) == ("look", {"city": "Oslo"}, "done", 1)
    assert call.seconds is not None
    assert second.text == "It is Oslo \x1b[31mred [bold]9C"
    lines = printed(node)
    assert lines[0].startswith(f"reader {run.id}: success, scripted, 2 steps, 1 tool call, ")
    assert any(line.startswith('-> c1 look {"city": "Oslo"}  done  [') for line in lines)
    assert "= Oslo [31mred [bold]9C" in lines

    again = await lab.start(retrier)
    await closed(again)
    (shaken,) = (await tree_of(cli_client, again.id)).calls()
    assert (shaken.attempts, shaken.result) == (2, "at last")


async def test_decisions(serve: Serve, cli_client: Client) -> None:
    """A call that waits says so; once decided it has who, when, why and what was changed."""
    lab = await serve(payer)
    run = await lab.start(payer)
    await run.asks()
    (waiting,) = (await tree_of(cli_client, run.id)).calls()
    assert waiting.status == "waiting_approval"
    decided = {"call_id": "c1", "approve": True, "by": "ann", "reason": "[b]fine", "arguments": {"to": "eve"}}
    await run.update("decide", decided)
    await closed(run)
    node = await tree_of(cli_client, run.id)
    (call,) = node.calls()
    (decision,) = call.decisions
    assert (decision.by, decision.reason, decision.approve, decision.edited) == ("ann", "[b]fine", True, True)
    assert (call.arguments, call.status) == ({"to": "eve"}, "done")
    lines = printed(node)
    assert any('c1 pay approved by ann: [b]fine with changed arguments {"to": "eve"}' in line for line in lines)


async def test_child_runs(serve: Serve, cli_client: Client) -> None:
    """Children of children hang below the call that started them; beyond the bounds it is said where to look."""
    lab = await serve(reader, boss, chief)
    run = await lab.start(chief)
    await closed(run)
    (call,) = (await tree_of(cli_client, run.id)).calls()
    assert call.run is not None
    (below,) = call.run.calls()
    assert below.run is not None
    assert (call.run.status.agent, below.run.status.agent) == ("boss", "reader")
    assert [c.tool for c in below.run.calls()] == ["look"]
    (call,) = (await tree_of(cli_client, run.id, most=1)).calls()
    assert call.run is None
    assert call.not_shown == f"see it with `perdure show {call.child}`"
    (call,) = (await tree_of(cli_client, run.id, depth=1)).calls()
    assert call.run is not None
    (below,) = call.run.calls()
    assert below.run is None
    assert below.not_shown == f"see it with `perdure show {below.child}`"


async def test_a_child_that_is_paused(serve: Serve, cli_client: Client) -> None:
    """Below the child stands the command that lets it go on."""
    small = Agent(
        "small", scripted(calls("look"), reply("end")), tools=[look], limits=Limits(steps=1), on_limit="pause"
    )
    head = Agent("head", scripted(calls("small", prompt="go"), reply("{{last_tool_text}}")), tools=[small])
    run = await (await serve(small, head)).start(head)
    await eventually(lambda: _is_in(run, "waiting_limit"))
    node = await tree_of(cli_client, run.id)
    (call,) = node.calls()
    assert f"paused on max_steps: perdure extend {call.child} --steps 10" in printed(node)
    assert call.child is not None
    await cli_client.handle(call.child).extend(steps=10)
    assert '"output": "end"' in (await run.result())["output"]


async def _is_in(run: Run, state: str) -> bool:
    return await run.state() == state


async def test_without_a_worker(serve: Serve, cli_client: Client, client: TemporalClient, data_dir: Path) -> None:
    """When nobody answers for a run, history still tells its steps, calls and children."""
    async with laboratory(client, data_dir, reader, boss) as lab:
        run = await lab.start(boss)
        await closed(run)
    alone = Client(cli_client.temporal, answer_wait=1.0)
    node = await tree_of(alone, run.id)
    assert node.status.silent is not None
    assert [step.step for step in node.steps] == [1, 2]
    (call,) = node.calls()
    assert (call.call_id, call.status) == ("c1", "done")
    assert call.run is not None
    assert [(c.call_id, c.tool) for c in call.run.calls()] == [("c1", "look Oslo")]
    assert any("from history alone" in line for line in printed(node))


@pytest.mark.slow
def test_the_tree_as_json(perdure: CommandLine, new_id: str) -> None:
    """`--json` gives the same tree as data, with the status and the result beside it."""
    perdure("run", "reader", "x", "--id", new_id)
    shown = perdure.json("show", new_id)
    assert [step["step"] for step in shown["steps"]] == [1, 2]
    (call,) = shown["steps"][0]["calls"]
    assert (call["call_id"], call["tool"], call["arguments"], call["status"]) == (
        "c1",
        "look",
        {"city": "Oslo"},
        "done",
    )
    assert (shown["status"]["id"], shown["result"]["outcome"]) == (new_id, "success")
    text = perdure("show", new_id).stdout
    assert "step 1: [red]looking  [" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.3, "12 s"), (185, "3m 05s"), (7_860, "2h 11m")]
)
def test_durations(seconds: float, words: str) -> None:
    """Short ones have a tenth, long ones no seconds."""
    assert duration(seconds) == words
