"""Workers killed at random moments until every run has ended: nothing twice, and every outcome true."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest

from tests.chaos.conftest import Handle, Stage, call
from tests.processes import WorkerProcess

pytestmark = pytest.mark.slow

RUNS = 20
SEED = 20_261_130
QUIET_AFTER = 30.0
"""Seconds after which no worker is killed any more."""


@pytest.mark.timeout(240)
async def test_workers_killed_at_random_never_repeat_a_write(stage: Stage) -> None:
    """Twenty runs of writes, approvals and children, while workers are killed: the ledger has nothing twice."""
    chance = random.Random(SEED)
    for gate in ("child", "later", "verify"):
        stage.open(gate)
    handles = [await start(stage, number) for number in range(RUNS)]
    approving = asyncio.create_task(approve_all(stage))
    killing = asyncio.create_task(kill_on(stage, [stage.launch(), stage.launch()], chance))
    began = time.monotonic()
    results = [await stage.result(handle, within=150) for handle in handles]
    if killing.done():
        killing.result()
    killing.cancel()
    assert len(stage.workers) > 3
    approving.cancel()
    assert {result["outcome"] for result in results} == {"success"}

    deeds = Counter((line["run"], line["call"]) for line in stage.ledger() if line["tool"] != "look")
    assert max(deeds.values()) == 1
    for handle, result in zip(handles, results, strict=True):
        await assert_told_the_truth(stage, handle, result["output"], deeds)
    print(f"{len(stage.workers)} workers, {time.monotonic() - began:.0f} s, {sum(deeds.values())} deeds")


async def start(stage: Stage, number: int) -> Handle:
    """Every fifth run has a child, the others three writes, one of them approved, and a read."""
    if number % 5 == 0:
        return await stage.start(agent="boss")
    to = {"to": f"p{number}", "pause_ms": 1_500}
    return await stage.start(
        call("pay", **to, amount=1),
        call("look", name=f"n{number}"),
        call("pay_approved", **to, amount=2),
        call("pay", **to, amount=3),
        {"text": "{{tool:c1}} | {{tool:c3}} | {{tool:c4}}"},
    )


async def approve_all(stage: Stage) -> None:
    """Approve whatever the inbox shows, again and again."""
    inbox = f"TaskQueue='{stage.queue}' AND PerdureState='waiting_approval' AND ExecutionStatus='Running'"
    while True:
        async for execution in stage.client.list_workflows(inbox):
            await stage.client.get_workflow_handle(execution.id).signal("approve", {})
        await asyncio.sleep(0.5)


async def kill_on(stage: Stage, workers: list[WorkerProcess], chance: random.Random) -> None:
    """Kill one of two workers soon after it serves, and start another in its place, again and again."""
    end = time.monotonic() + QUIET_AFTER
    while time.monotonic() < end:
        victim = chance.randrange(len(workers))
        while not workers[victim].serving:  # noqa: ASYNC110  another process says so in its log
            await asyncio.sleep(0.05)
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        workers[victim].kill()
        workers[victim] = stage.launch()


async def assert_told_the_truth(stage: Stage, handle: Handle, output: str, deeds: Counter[tuple[str, str]]) -> None:
    """What the run believes of its writes is what the ledger says."""
    unknown = {event["call_id"] for event in await stage.events(handle, "tool_unknown")}
    for part, call_id in zip(output.split(" | "), ("c1", "c3", "c4"), strict=False):
        if "helped" in part:
            assert sum(count for (run, _), count in deeds.items() if run.startswith(f"{handle.id}/")) <= 1
        elif call_id in unknown:
            assert "outcome unknown" in part
        else:
            assert part.startswith("paid p")
            assert deeds[(handle.id, call_id)] == 1
