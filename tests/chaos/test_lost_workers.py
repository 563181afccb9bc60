"""A worker is killed at every kind of moment: runs go on elsewhere, and no write ever happens twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from tests.chaos.conftest import STATE, Stage, call
from tests.processes import eventually

pytestmark = pytest.mark.slow

TOLD = {"text": "{{last_tool_text}}"}


@pytest.mark.parametrize("tool", ["pay", "pay_async"])
async def test_a_write_whose_worker_is_lost_is_unknown_and_never_repeated(stage: Stage, tool: str) -> None:
    """The deed happens once; the model is told that its outcome is unknown."""
    first = await stage.serve()
    handle = await stage.start(call(tool, to="bob", amount=1, gate="g"), TOLD)
    await stage.begun(tool=tool)
    first.kill()
    stage.open("g")
    await stage.serve()
    assert "outcome unknown: its worker was lost" in await stage.output(handle)
    assert len(stage.ledger(tool=tool)) == 1
    [event] = await stage.events(handle, "tool_unknown")
    assert event["call_id"] == "c1"


@pytest.mark.parametrize(("decision", "deeds"), [("approve", 2), ("deny", 1)])
async def test_an_identical_call_after_an_unknown_one_needs_a_person(stage: Stage, decision: str, deeds: int) -> None:
    """The model may ask for the same again, but only a person lets it run."""
    first = await stage.serve()
    again = call("pay", to="bob", amount=1, gate="g")
    handle = await stage.start(again, again, TOLD)
    await stage.begun(tool="pay")
    first.kill()
    stage.open("g")
    await stage.serve()
    status = await stage.state(handle, "waiting_approval")
    [pending] = status["pending"]
    assert (pending["call_id"], pending["reason"]) == ("c2", "an earlier identical call has an unknown outcome")
    assert len(stage.ledger(tool="pay")) == 1
    await handle.execute_update(decision, {"call_id": "c2", "by": "ann"})
    output = await stage.output(handle)
    assert ("paid bob 1" in output) == (decision == "approve")
    assert len(stage.ledger(tool="pay")) == deeds


@pytest.mark.parametrize(
    ("answer", "told", "deeds"),
    [
        ("done", "a person confirmed that this was done", 1),
        ("not done", "a person confirmed that this was not done", 1),
        ("retry", "paid bob 1", 2),
    ],
)
async def test_a_person_says_what_became_of_it(stage: Stage, answer: str, told: str, deeds: int) -> None:
    """With on_unknown="ask" the run waits; other answers are refused, and only `retry` does it again."""
    first = await stage.serve()
    handle = await stage.start(call("pay_ask", to="bob", amount=1, gate="g"), TOLD)
    await stage.begun(tool="pay_ask")
    first.kill()
    stage.open("g")
    await stage.serve()
    status = await stage.state(handle, "waiting_answer")
    [question] = status["questions"]
    assert question["question_id"] == "q-c1"
    assert question["options"] == ["done", "not done", "retry"]
    await handle.signal("answer", {"question_id": "q-c1", "text": "perhaps"})
    assert len(stage.ledger()) == 1
    await handle.execute_update("answer", {"question_id": "q-c1", "text": answer, "by": "ann"})
    assert told in await stage.output(handle)
    lines = stage.ledger(tool="pay_ask")
    assert len(lines) == deeds
    assert len({line["key"] for line in lines}) == 1
    assert len(await stage.events(handle, "message_refused")) == 1


@pytest.mark.parametrize("by_update", [False, True], ids=["signal", "update"])
async def test_a_message_right_after_an_early_query_does_not_harm_the_run(stage: Stage, by_update: bool) -> None:
    """A worker that is asked before it is given the run's task shows more than history says; messages stay in order."""
    first = await stage.serve()
    handle = await stage.start(call("pay_ask", to="bob", amount=1, gate="g"), {**TOLD, "repeat": True})
    await stage.begun(tool="pay_ask")
    first.kill()
    early = asyncio.create_task(handle.query("status"))  # waits at the server for a worker

    async def lost() -> bool:
        kinds = [event.event_type async for event in handle.fetch_history_events()]
        return EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT in kinds

    await eventually(lost, "the server notices the loss")
    stage.launch()
    await early
    answer = {"question_id": "q-c1", "text": "done"}
    if by_update:
        with suppress(WorkflowUpdateFailedError):  # refused: for history, nothing was asked yet
            await handle.execute_update("answer", answer)
    else:
        await handle.signal("answer", answer)
    await handle.signal("say", {"text": "hurry"})

    async def ended() -> bool:
        described = await handle.describe()
        if described.typed_search_attributes.get(STATE) == "waiting_answer":
            with suppress(WorkflowUpdateFailedError):
                await handle.execute_update("answer", answer)
        return described.status is not WorkflowExecutionStatus.RUNNING

    await eventually(ended, "the run ends")
    assert "was done" in await stage.output(handle)
    assert len(stage.ledger(tool="pay_ask")) == 1


async def test_a_dangerous_call_is_asked_for_before_and_after(stage: Stage) -> None:
    """A dangerous call runs after approval, and its unknown outcome is a person's to say."""
    first = await stage.serve()
    handle = await stage.start(call("wipe", to="disk", amount=1, gate="g"), TOLD)
    await stage.state(handle, "waiting_approval")
    await handle.execute_update("approve", {"call_id": "c1"})
    await stage.begun(tool="wipe")
    first.kill()
    await stage.serve()
    await stage.state(handle, "waiting_answer")
    await handle.execute_update("answer", {"question_id": "q-c1", "text": "done"})
    assert "was done" in await stage.output(handle)
    assert len(stage.ledger(tool="wipe")) == 1


async def test_an_unknown_outcome_can_end_the_run(stage: Stage) -> None:
    """With on_unknown="fail" the run ends as failed with a reason."""
    first = await stage.serve()
    handle = await stage.start(call("pay_fail", to="bob", amount=1, gate="g"), TOLD)
    await stage.begun(tool="pay_fail")
    first.kill()
    await stage.serve()
    with pytest.raises(WorkflowFailureError) as caught:
        await stage.result(handle)
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "failed"
    assert caught.value.cause.details[0]["reason"] == "unknown_outcome"
    assert len(stage.ledger()) == 1


async def test_the_writes_after_a_lost_one_still_run_once_and_in_order(stage: Stage) -> None:
    """Of several writes in one reply only the one that ran is unknown; those behind it run afterwards."""
    first = await stage.serve()
    calls = [call("pay", to=to, amount=1, gate=gate)["calls"][0] for to, gate in (("a", ""), ("b", "g"), ("c", ""))]
    handle = await stage.start({"calls": calls}, {"text": "{{tool:c1}} | {{tool:c2}} | {{tool:c3}}"})
    await stage.begun(to="b")
    first.kill()
    await stage.serve()
    one, two, three = (await stage.output(handle)).split(" | ")
    assert (one, three) == ("paid a 1", "paid c 1")
    assert "outcome unknown" in two
    assert [line["to"] for line in stage.ledger()] == ["a", "b", "c"]


@pytest.mark.parametrize("tool", ["look", "put"])
async def test_a_repeatable_call_is_repeated_with_the_same_key(stage: Stage, tool: str) -> None:
    """A read or idempotent call whose worker is lost runs again, with the key that it had."""
    first = await stage.serve()
    handle = await stage.start(call(tool, name="it", gate="g"), TOLD)
    await stage.begun(tool=tool)
    first.kill()
    stage.open("g")
    await stage.serve()
    assert "attempt 2" in await stage.output(handle)
    one, two = stage.ledger(tool=tool)
    assert one["key"] == two["key"]
    assert one["pid"] != two["pid"]


async def test_a_call_that_always_loses_its_worker_is_given_up(stage: Stage) -> None:
    """After three lost workers a read call is an error that the model sees; the run goes on."""
    handle = await stage.start(call("look", name="it", gate="g"), TOLD)
    for attempt in (1, 2, 3):
        worker = await stage.serve()
        await stage.begun(attempt, tool="look")
        worker.kill()
    await stage.serve()
    assert "failed after 3 attempts: its worker was lost" in await stage.output(handle)
    assert len(stage.ledger(tool="look")) == 3


async def test_a_run_waits_for_approval_without_a_worker(stage: Stage) -> None:
    """Killed while nothing runs: the request is still there, and what was approved meanwhile runs once."""
    first = await stage.serve()
    handle = await stage.start(call("pay_approved", to="bob", amount=1), TOLD)
    before = await stage.state(handle, "waiting_approval")
    first.kill()
    await handle.signal("approve", {"call_id": "c1", "by": "ann"})
    assert not stage.ledger()
    await stage.serve()
    assert await stage.output(handle) == "paid bob 1"
    assert len(stage.ledger(tool="pay_approved")) == 1
    [decided] = await stage.events(handle, "approval_decided")
    assert decided["by"] == "ann"
    [requested] = await stage.events(handle, "approval_requested")
    assert requested["digest"] == before["pending"][0]["digest"]


async def test_a_child_run_survives_its_worker(stage: Stage) -> None:
    """Killed in a write of a child: the child is told, the parent gets its answer, nothing happens twice."""
    stage.open("later")
    first = await stage.serve()
    handle = await stage.start(agent="boss")
    [line] = await stage.begun(tool="pay")
    assert line["run"].startswith(f"{handle.id}/c1-")
    first.kill()
    stage.open("child")
    await stage.serve()
    assert "helped: outcome unknown" in await stage.output(handle)
    assert len(stage.ledger(tool="pay")) == 1


async def test_of_two_workers_one_is_lost(stage: Stage) -> None:
    """Several runs on two workers: those of the lost one go on with the other, nothing twice."""
    workers = [stage.launch(), stage.launch()]
    handles = [
        await stage.start(call("pay", to=f"p{n}", amount=n, gate="g"), call("look", name=f"n{n}"), TOLD)
        for n in range(6)
    ]
    lines = await stage.begun(6, tool="pay")
    lost = next(w for w in workers if w.pid == lines[0]["pid"])
    ours = {line["run"] for line in lines if line["pid"] == lost.pid}
    lost.kill()
    stage.open("g")
    for handle in handles:
        assert "seen" in await stage.output(handle)
        assert len(await stage.events(handle, "tool_unknown")) == (handle.id in ours)
    assert len(stage.ledger(tool="pay")) == 6


async def test_a_model_call_is_repeated_after_its_heartbeat(stage: Stage) -> None:
    """Killed in a model call: another worker asks again, and the reply is in the conversation once."""
    first = await stage.serve()
    handle = await stage.start({"text": "said", "delay_ms": 3_000})
    await model_call_runs(stage, handle.id)
    first.kill()
    await stage.serve()
    assert await stage.output(handle, within=80) == "said"
    conversation = await handle.query("conversation")
    assert [m["role"] for m in conversation["messages"]] == ["user", "assistant"]
    assert (await handle.query("usage"))["steps"] == 1


async def test_a_verify_call_is_repeated(stage: Stage) -> None:
    """Killed while the answer is checked: it is checked again, and accepted only then."""
    first = await stage.serve()
    handle = await stage.start(agent="checked")
    await stage.begun(phase="verify")
    first.kill()
    stage.open("verify")
    await stage.serve()
    assert await stage.output(handle, within=80) == "an answer"
    assert len(stage.ledger("verify")) == 2


async def model_call_runs(stage: Stage, workflow_id: str) -> None:
    """Wait until a worker has begun a model call."""
    handle = stage.client.get_workflow_handle(workflow_id)

    async def begun() -> bool:
        described = await handle.describe()
        return any(
            activity.activity_type.name == "call_model" and activity.HasField("last_started_time")
            for activity in described.raw_description.pending_activities
        )

    await eventually(begun, "a model call runs")
