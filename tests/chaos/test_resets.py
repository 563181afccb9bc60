"""`temporal workflow reset`: what was done in the part that was thrown away is not done again."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import Stage, call
from tests.chaos.test_lost_workers import TOLD
from tests.processes import eventually

pytestmark = pytest.mark.slow

PAY = call("pay", to="bob", amount=1)


async def test_reset_to_before_a_write_attaches_its_result(stage: Stage) -> None:
    """The write is not done again: the result of the earlier run stands, twice over."""
    await stage.serve()
    handle = await stage.start(PAY, TOLD)
    assert await stage.output(handle) == "paid bob 1"
    for _ in range(2):
        await stage.reset(handle, await stage.decided_before(handle, "call_tool"))
        assert await stage.output(handle) == "paid bob 1"
    assert len(stage.ledger(tool="pay")) == 1


async def test_reset_tells_large_calls_apart(stage: Stage) -> None:
    """Writes whose arguments are too large for history are attached by all of them, not by what history shows."""
    first, second = (call("pay", to=f"{'b' * 100_000}{end}", amount=1) for end in "xy")
    await stage.serve()
    handle = await stage.start(first, second, {"text": "{{tool:c1}} {{tool:c2}}"})
    output = await stage.output(handle)
    assert "x 1 paid" in output
    assert output.endswith("y 1")
    await stage.reset(handle, await stage.decided_before(handle, "call_tool"))
    assert await stage.output(handle) == output
    assert [line["to"][-1] for line in stage.ledger(tool="pay")] == ["x", "y"]


async def test_reset_to_the_first_model_call_attaches_too(stage: Stage) -> None:
    """The model is asked again, makes the same call, and gets the earlier run's result."""
    await stage.serve()
    handle = await stage.start(PAY, call("look", name="it"), PAY, {"text": "{{tool:c1}} | {{tool:c3}}"})
    assert await stage.output(handle) == "paid bob 1 | paid bob 1"
    assert len(stage.ledger(tool="pay")) == 2
    await stage.reset(handle, await stage.decided_before(handle, "call_model"))
    assert await stage.output(handle) == "paid bob 1 | paid bob 1"
    assert len(stage.ledger(tool="pay")) == 2


async def test_reset_where_the_model_then_calls_under_another_id(stage: Stage) -> None:
    """Calls are told apart by what they do, not by their number: the write is attached under its new id."""
    look, pay = call("look", name="it")["calls"][0], PAY["calls"][0]
    stage.model.replies.extend([PAY, {"text": "first"}])
    await stage.serve()
    handle = await stage.start(agent="payer")
    assert await stage.output(handle) == "first"
    stage.model.replies.extend([{"calls": [look, pay]}, {"text": "second"}])
    await stage.reset(handle, await stage.decided_before(handle, "call_model"))
    assert await stage.output(handle) == "second"
    results = [m for m in stage.model.requests[-1]["messages"] if m["role"] == "tool"]
    assert [m["content"] for m in results] == ["it seen in attempt 1", "paid bob 1"]
    assert len(stage.ledger(tool="pay")) == 1


async def test_reset_where_the_model_then_wants_something_else(stage: Stage) -> None:
    """Another call than before is no repetition: it runs."""
    stage.model.replies.extend([PAY, {"text": "first"}])
    await stage.serve()
    handle = await stage.start(agent="payer")
    assert await stage.output(handle) == "first"
    stage.model.replies.extend([call("pay", to="bob", amount=2), {"text": "second"}])
    await stage.reset(handle, await stage.decided_before(handle, "call_model"))
    assert await stage.output(handle) == "second"
    assert [line["amount"] for line in stage.ledger(tool="pay")] == [1, 2]


async def test_reset_during_a_write_leaves_it_unknown(stage: Stage) -> None:
    """A write that was running when its run was reset is not started again; the model is told."""
    await stage.serve()
    handle = await stage.start(call("pay", to="bob", amount=1, gate="g"), TOLD)
    await stage.begun(tool="pay")
    await stage.reset(handle, await stage.decided_before(handle, "call_tool"))
    assert "outcome unknown: the run was reset" in await stage.output(handle)
    stage.open("g")
    await stage.begun(phase="end", tool="pay")
    await stage.reset(handle, await stage.decided_before(handle, "call_tool"))
    assert "outcome unknown: the run was reset" in await stage.output(handle)
    assert len(stage.ledger(tool="pay")) == 1


async def test_reset_after_an_unknown_write_does_not_repeat_it(stage: Stage) -> None:
    """A write whose worker was lost, then a reset to before it: still unknown, still one deed."""
    first = await stage.serve()
    handle = await stage.start(call("pay", to="bob", amount=1, gate="g"), TOLD)
    await stage.begun(tool="pay")
    first.kill()
    stage.open("g")
    await stage.serve()
    assert "outcome unknown" in await stage.output(handle)
    await stage.reset(handle, await stage.decided_before(handle, "call_tool"))
    assert "outcome unknown" in await stage.output(handle)
    assert len(stage.ledger(tool="pay")) == 1


async def test_reset_of_an_approved_write_asks_or_attaches(stage: Stage) -> None:
    """An approved write that was done is attached after a reset, with the approval that history has."""
    await stage.serve()
    handle = await stage.start(call("pay_approved", to="bob", amount=1), TOLD)
    await stage.state(handle, "waiting_approval")
    await handle.signal("approve", {"by": "ann"})
    assert await stage.output(handle) == "paid bob 1"
    await stage.reset(handle, await stage.decided_before(handle, "call_model"))
    latest = stage.client.get_workflow_handle(handle.id)
    # The signal is applied again, before the call that it decides exists; a person is asked once more.
    await stage.state(latest, "waiting_approval")
    await latest.signal("approve", {"by": "ann"})
    assert await stage.output(handle) == "paid bob 1"
    assert len(stage.ledger(tool="pay_approved")) == 1


async def test_reset_attaches_to_a_child_that_has_ended(stage: Stage) -> None:
    """A child run is not started again: the parent takes the answer of the one that exists."""
    for gate in ("child", "later"):
        stage.open(gate)
    await stage.serve()
    handle = await stage.start(agent="boss")
    assert await stage.output(handle) == "helped: paid child 1"
    await stage.reset(handle, await stage.decided_before(handle, "call_model"))
    assert await stage.output(handle) == "helped: paid child 1"
    assert len(stage.ledger(tool="pay")) == 1
    assert await children(stage, handle.id) == 1


async def test_reset_while_a_child_runs_does_not_start_another(stage: Stage) -> None:
    """A child that runs while its parent is reset is the only one, and its write happens once."""
    stage.open("later")
    await stage.serve()
    handle = await stage.start(agent="boss")
    await stage.begun(tool="pay")
    await stage.reset(handle, await stage.decided_before(handle, "call_model"))
    latest = stage.client.get_workflow_handle(handle.id)

    async def attached() -> bool:
        described = await latest.describe()
        pending = described.raw_description.pending_activities
        return any(activity.activity_type.name == "await_child" for activity in pending) or described.status != 1

    await eventually(attached, "the parent waits for its child")
    stage.open("child")
    result = await stage.result(handle)
    assert result["outcome"] == "success", result
    assert len(stage.ledger(tool="pay")) == 1
    assert await children(stage, handle.id) == 1


async def children(stage: Stage, workflow_id: str) -> int:
    """How many runs of children there are."""
    query = f"TaskQueue='{stage.queue}' AND WorkflowId STARTS_WITH '{workflow_id}/'"
    return len([execution async for execution in stage.client.list_workflows(query)])
