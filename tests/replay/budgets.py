"""Runs whose histories are kept for what they show of limits: a run that gets nowhere, and a child that gets more."""

from __future__ import annotations

from perdure import Limits, ToolLoop
from perdure.testing import call, calls, reply
from tests.lab import Lab, closed
from tests.replay.scenarios import Handle, agent, scenario, simple

simple("nothing_new", *(calls("look", n=n) for n in range(9)), strategy=ToolLoop(max_idle=3))

keen = agent("keen", *(calls("look", n=n) for n in range(4)), reply("found"))
lazy = agent("lazy", reply("nothing"))
agent(
    "generous",
    calls(call("lazy", prompt="a"), call("keen", prompt="b")),
    reply("ok"),
    tools=[lazy, keen],
    limits=Limits(steps=8),
)


@scenario("child_gets_more")
async def child_gets_more(lab: Lab) -> list[Handle]:
    """A child asks its parent for more steps, and gets what its sibling has not used."""
    run = await lab.start("generous")
    await closed(run)
    started = await run.events("child_started")
    return [run.handle, *(lab.client.get_workflow_handle(event["workflow_id"]) for event in started)]
