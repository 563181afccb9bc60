"""The server is killed and comes back on the same file: runs go on, and no write happens twice."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.conftest import Stage, call
from tests.chaos.server import Server
from tests.chaos.test_lost_workers import TOLD
from tests.processes import eventually

pytestmark = pytest.mark.slow


async def test_the_server_is_killed_and_restarted_during_a_run(server: Server, own_stage: Stage) -> None:
    """A run that waits for a person, and one in a model call, go on after the server came back."""
    await own_stage.serve()
    waiting = await own_stage.start(call("pay_approved", to="bob", amount=1), TOLD)
    await own_stage.state(waiting, "waiting_approval")
    thinking = await own_stage.start(call("look", name="it"), {"text": "said", "delay_ms": 3_000})
    await own_stage.begun(tool="look")
    server.kill()
    server.restart()
    assert await own_stage.output(thinking) == "said"
    await waiting.signal("approve", {"call_id": "c1"})
    assert await own_stage.output(waiting) == "paid bob 1"
    assert len(own_stage.ledger(tool="pay_approved")) == len(own_stage.ledger(tool="look")) == 1


async def test_a_write_ends_while_the_server_is_down(server: Server, own_stage: Stage) -> None:
    """The server is away for longer than the write's heartbeat: done or unknown, never twice, and the truth is told."""
    await own_stage.serve()
    handle = await own_stage.start(call("pay", to="bob", amount=1, gate="g"), TOLD)
    await own_stage.begun(tool="pay")
    server.kill()
    own_stage.open("g")
    await own_stage.begun(phase="end", tool="pay")
    await asyncio.sleep(3)  # the outage itself: longer than the heartbeat of 2 s
    server.restart()
    output = await own_stage.output(handle)
    unknown = await own_stage.events(handle, "tool_unknown")
    assert output == "paid bob 1" if not unknown else "outcome unknown" in output
    assert len(own_stage.ledger(tool="pay")) == 1


async def test_a_write_runs_through_an_outage(server: Server, own_stage: Stage) -> None:
    """The write runs before, during and after the outage: one deed, and no second start of it."""
    await own_stage.serve()
    handle = await own_stage.start(call("pay", to="bob", amount=1, gate="g"), call("look", name="after"), TOLD)
    await own_stage.begun(tool="pay")
    server.kill()
    await asyncio.sleep(3)  # the outage itself: longer than the heartbeat of 2 s
    server.restart()

    async def answers() -> bool:
        return bool(await handle.query("status"))

    await eventually(answers, "the run answers")
    own_stage.open("g")
    assert "after seen" in await own_stage.output(handle)
    assert len(own_stage.ledger(tool="pay")) == 1


async def test_server_and_worker_are_killed_together(server: Server, own_stage: Stage) -> None:
    """A power cut in a write: afterwards its outcome is unknown, and it is not done again."""
    first = await own_stage.serve()
    handle = await own_stage.start(call("pay", to="bob", amount=1, gate="g"), TOLD)
    await own_stage.begun(tool="pay")
    first.kill()
    server.kill()
    own_stage.open("g")
    server.restart()
    await own_stage.serve()
    assert "outcome unknown" in await own_stage.output(handle)
    assert len(own_stage.ledger(tool="pay")) == 1
