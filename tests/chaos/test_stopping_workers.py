"""A worker is asked to stop (SIGTERM): what must not be cut is finished, the rest is done elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.conftest import Stage, call
from tests.chaos.test_lost_workers import TOLD, model_call_runs

pytestmark = pytest.mark.slow

GRACE = 30.0
"""Seconds: the longest write of these agents is 20 s, and the worker adds 5."""


@pytest.mark.parametrize("tool", ["pay", "pay_async"])
async def test_a_write_is_finished_before_its_worker_stops(stage: Stage, tool: str) -> None:
    """The deed is done once, its result is recorded, and the worker exits with 0."""
    first = await stage.serve()
    handle = await stage.start(call(tool, to="bob", amount=1, gate="g"), TOLD)
    await stage.begun(tool=tool)
    first.terminate()
    await stage.serve()
    assert "stopping" in first.log.read_text()
    assert first.alive
    stage.open("g")
    assert await stage.output(handle) == "paid bob 1"
    assert await asyncio.to_thread(first.wait, GRACE) == 0
    assert len(stage.ledger(tool=tool)) == len(stage.ledger("end", tool=tool)) == 1
    assert not await stage.events(handle, "tool_unknown")


async def test_a_read_is_given_up_and_repeated_elsewhere(stage: Stage) -> None:
    """A read that would hold its worker up runs again on another one; the worker exits with 0."""
    first = await stage.serve()
    handle = await stage.start(call("look", name="it", gate="g"), TOLD)
    await stage.begun(tool="look")
    first.terminate()
    await stage.serve()
    await stage.begun(2, tool="look")
    stage.open("g")
    assert await stage.output(handle) == "it seen in attempt 2"
    assert await asyncio.to_thread(first.wait, GRACE) == 0


async def test_a_model_call_is_repeated_elsewhere(stage: Stage) -> None:
    """A model call that outlasts the grace of its worker is made again by another one."""
    stage.model.replies.extend([{"text": "late"}, {"text": "said"}])
    hold = stage.model.held(1)
    first = await stage.serve()
    handle = await stage.start(agent="payer")
    await model_call_runs(stage, handle.id)
    first.terminate()
    await stage.serve()
    assert await stage.output(handle) == "said"
    hold.set()
    assert await asyncio.to_thread(first.wait, GRACE) == 0
    assert len(stage.model.requests) == 2


async def test_a_run_goes_on_at_once_after_its_worker_stopped(stage: Stage) -> None:
    """A worker that stops hands its runs over: one that waits for approval is taken on by the next worker."""
    first = await stage.serve()
    handle = await stage.start(call("pay_approved", to="bob", amount=1), TOLD)
    await stage.state(handle, "waiting_approval")
    first.terminate()
    assert await asyncio.to_thread(first.wait, GRACE) == 0
    await handle.signal("approve", {})
    await stage.serve()
    assert await stage.output(handle) == "paid bob 1"
