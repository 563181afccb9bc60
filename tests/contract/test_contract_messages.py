"""Messages and queries by Temporal's command line: good ones act, bad ones change nothing and say why."""

from __future__ import annotations

import json

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue

from tests.contract.conftest import GARBAGE, Desk
from tests.processes import wait_for

pytestmark = pytest.mark.slow

WRONG = "sha256:" + "0" * 64

DECISIONS: list[tuple[str, str, str]] = [
    ("approve", "{}", "success"),
    ("approve", '{"call_id":"c1","by":"ann","reason":"fine"}', "paid bob 100"),
    ("deny", '{"call_id":"c1","by":"ann","reason":"too much"}', "not executed: denied by ann: too much"),
    ("decide", '{"call_id":"c1","approve":true,"digest":"DIGEST"}', "paid bob 100"),
    ("decide", '{"call_id":"c1","approve":false,"by":"ann"}', "not executed: denied by ann"),
    ("decide", '{"call_id":"c1","approve":true,"arguments":{"to":"bob","amount_cents":50}}', "paid bob 50"),
]


@pytest.mark.parametrize("by_update", [False, True], ids=["signal", "update"])
@pytest.mark.parametrize(("name", "payload", "expected"), DECISIONS)
def test_a_decision_by_signal_or_update_ends_the_wait(
    desk: Desk, name: str, payload: str, expected: str, by_update: bool
) -> None:
    """A decision by either way is taken, and what was approved is what runs."""
    workflow_id = desk.run("clerk")
    [pending] = desk.waiting(workflow_id)
    payload = payload.replace("DIGEST", pending["digest"])
    if by_update:
        code, said = desk.update(workflow_id, name, payload)
        assert code == 0, said
        assert "c1" in said
    else:
        desk.send(workflow_id, name, payload)
    result = desk.result(workflow_id)
    assert result["outcome"] == "success"
    if expected != "success":
        assert expected in result["output"]
    [decided] = desk.events(workflow_id, "approval_decided")
    assert decided["call_id"] == "c1"


@pytest.mark.parametrize("by_update", [False, True], ids=["signal", "update"])
def test_approve_without_a_call_id_decides_the_only_call(desk: Desk, by_update: bool) -> None:
    """While exactly one call waits, `approve` need not name it."""
    workflow_id = desk.run("clerk")
    desk.waiting(workflow_id)
    if by_update:
        assert desk.update(workflow_id, "approve", "{}")[0] == 0
    else:
        desk.send(workflow_id, "approve", "{}")
    assert "paid bob 100" in desk.result(workflow_id)["output"]


BAD: list[tuple[str, str, tuple[str, ...], str]] = [
    ("decide without payload", "decide", (), "a decision is an object"),
    ("approve without payload", "approve", (), "a decision is an object"),
    ("deny with null", "deny", ("null",), "a decision is an object"),
    ("stop without payload", "stop", (), "object"),
    ("decide with a list", "decide", ("[]",), "a decision is an object"),
    ("decide with null", "decide", ("null",), "a decision is an object"),
    ("approve with a string", "approve", ('"c1"',), "a decision is an object"),
    ("approve with a number", "approve", ("1",), "a decision is an object"),
    ("approve with two payloads", "approve", ('{"call_id":"c1"}', "{}"), "one payload, not 2"),
    ("approve of an unknown call", "approve", ('{"call_id":"c9"}',), "no call 'c9' waits"),
    (
        "approve with a wrong digest",
        "approve",
        (json.dumps({"call_id": "c1", "digest": WRONG}),),
        "digest does not match",
    ),
    ("decide with approve as text", "decide", ('{"call_id":"c1","approve":"yes"}',), "approve"),
    ("decide with approve as number", "decide", ('{"call_id":"c1","approve":1}',), "approve"),
    ("decide without approve", "decide", ('{"call_id":"c1"}',), "approve"),
    ("deny that says approve", "deny", ('{"call_id":"c1","approve":true}',), "approve"),
    ("approve with an unknown field", "approve", ('{"call":"c1"}',), "call"),
    ("approve with a call_id that is a number", "approve", ('{"call_id":1}',), "call_id"),
    (
        "approve with remember as a number",
        "approve",
        ('{"call_id":"c1","remember":1}',),
        "remember: must be",
    ),
    (
        "approve with another remember",
        "approve",
        ('{"call_id":"c1","remember":"all"}',),
        "remember: must be",
    ),
    ("approve with arguments that do not fit", "approve", ('{"call_id":"c1","arguments":{"to":1}}',), "arguments"),
    ("deny with arguments", "deny", ('{"call_id":"c1","arguments":{}}',), "arguments"),
    ("say without payload", "say", (), "object"),
    ("say with text alone", "say", ('"hi"',), "object"),
    ("say without text", "say", ("{}",), "text"),
    ("say with empty text", "say", ('{"text":""}',), "text"),
    ("say with a number", "say", ('{"text":7}',), "text"),
    ("answer to no question", "answer", ('{"question_id":"q-c1","text":"done"}',), "no question 'q-c1' is open"),
    ("answer without payload", "answer", (), "object"),
    ("stop with a list", "stop", ("[1]",), "object"),
    ("stop with a reason that is a number", "stop", ('{"reason":1}',), "reason"),
    ("unknown message", "aprove", ('{"call_id":"c1"}',), "no message is named 'aprove'"),
]


def test_bad_signals_change_nothing_and_are_recorded(desk: Desk) -> None:
    """Every bad signal is refused into the event log, the request stays as it was, and the run goes on."""
    workflow_id = desk.run("clerk")
    before = desk.waiting(workflow_id)
    for _, name, inputs, _ in BAD:
        desk.send(workflow_id, name, *inputs)

    def refused() -> list[dict[str, str]]:
        found = desk.events(workflow_id, "message_refused")
        return found if len(found) == len(BAD) else []

    for (_, name, _, why), event in zip(BAD, wait_for(refused, "all refusals are recorded"), strict=True):
        assert event["message"] == name
        assert why in event["reason"]
    assert desk.waiting(workflow_id) == before
    desk.send(workflow_id, "approve", '{"call_id":"c1"}')
    assert desk.result(workflow_id)["outcome"] == "success"
    desk.assert_never_stuck(workflow_id)


def test_bad_updates_are_refused_with_the_reason_and_leave_no_trace(desk: Desk) -> None:
    """Every bad update fails for its sender with the reason; history does not know of it."""
    workflow_id = desk.run("clerk")
    before = desk.waiting(workflow_id)
    for label, name, inputs, why in BAD:
        code, said = desk.update(workflow_id, name, *inputs)
        assert code != 0, label
        assert why in said, label
    assert desk.waiting(workflow_id) == before
    assert not desk.events(workflow_id, "message_refused")
    assert not [kind for kind in desk.history(workflow_id) if "UPDATE" in kind]
    assert desk.update(workflow_id, "approve", '{"call_id":"c1"}')[0] == 0
    assert desk.result(workflow_id)["outcome"] == "success"
    desk.assert_never_stuck(workflow_id)


async def test_signals_that_cannot_be_read_are_recorded(desk: Desk) -> None:
    """Damaged payloads of any kind never harm the run."""
    workflow_id = desk.run("clerk")
    desk.waiting(workflow_id)
    handle = (await Client.connect(desk.address)).get_workflow_handle(workflow_id)
    for payload in GARBAGE.values():
        for name in ("approve", "say", "no such thing"):
            await handle.signal(name, RawValue(payload))
    await handle.signal("say", args=[RawValue(Payload()), RawValue(Payload())])
    wait_for(
        lambda: len(desk.events(workflow_id, "message_refused")) == 3 * len(GARBAGE) + 1, "all refusals are recorded"
    )
    desk.send(workflow_id, "approve", "{}")
    assert "paid bob 100" in desk.result(workflow_id)["output"]
    desk.assert_never_stuck(workflow_id)


def test_the_first_decision_counts(desk: Desk) -> None:
    """A later decision about the same call is refused with how it was decided, by signal and by update."""
    workflow_id = desk.run("pair")
    desk.waiting(workflow_id, calls=2)
    code, said = desk.update(workflow_id, "approve", "{}")
    assert code != 0
    assert "c1, c2" in said
    assert desk.update(workflow_id, "deny", '{"call_id":"c1","by":"ann"}')[0] == 0
    code, said = desk.update(workflow_id, "approve", '{"call_id":"c1","by":"eve"}')
    assert code != 0
    assert "already decided: denied by ann" in said
    desk.send(workflow_id, "approve", '{"call_id":"c1","by":"eve"}')
    desk.send(workflow_id, "approve", '{"call_id":"c2","by":"ann"}')
    output = desk.result(workflow_id)["output"]
    assert "not executed: denied by ann" in output
    assert "paid eve 7" in output
    [refused] = desk.events(workflow_id, "message_refused")
    assert "already decided" in refused["reason"]


def test_say_is_taken_in_before_the_next_model_call(desk: Desk) -> None:
    """What is said during a run is in the conversation once, however often it is sent with the same id."""
    workflow_id = desk.run("clerk")
    desk.waiting(workflow_id)
    desk.send(workflow_id, "say", '{"text":"and hurry","message_id":"m1"}')
    code, said = desk.update(workflow_id, "say", '{"text":"and hurry","message_id":"m1"}')
    assert code == 0
    assert "duplicate" in said
    desk.send(workflow_id, "approve", "{}")
    assert desk.result(workflow_id)["outcome"] == "success"
    messages = desk.cli.query(workflow_id, "conversation")["messages"]
    said_parts = [m["parts"][0]["text"] for m in messages if m["role"] == "user"]
    assert said_parts == ["go", "and hurry"]


def test_stop_ends_after_the_present_step(desk: Desk) -> None:
    """A stopped run is Completed with what there is; what waited for approval does not run."""
    workflow_id = desk.run("clerk")
    desk.waiting(workflow_id)
    desk.send(workflow_id, "stop", '{"reason":"lunch"}')
    result = desk.result(workflow_id)
    assert (result["outcome"], result["reason"]) == ("no_solution", "stopped")
    assert not desk.events(workflow_id, "tool_start")


def test_a_closed_run_answers_queries_and_refuses_messages(desk: Desk) -> None:
    """Queries work on closed runs; messages fail for their sender."""
    workflow_id = desk.run("reader")
    desk.result(workflow_id)
    assert desk.cli.query(workflow_id, "status")["state"] == "closed"
    assert desk.cli.query(workflow_id, "approvals")["pending"] is None
    assert desk.cli.query(workflow_id, "usage")["steps"] == 2
    assert desk.cli.query(workflow_id, "spec")["spec"]["name"] == "reader"
    assert len(desk.cli.query(workflow_id, "conversation")["messages"]) == 4
    assert desk.cli.query(workflow_id, "conversation", '{"after":3}')["messages"][0]["role"] == "assistant"
    everything = desk.cli.query(workflow_id, "events")
    assert everything["events"][0]["type"] == "run_started"
    assert everything["events"][-1]["type"] == "run_ended"
    later = desk.cli.query(workflow_id, "events", json.dumps({"after": everything["last"] - 1}))["events"]
    assert [e["type"] for e in later] == ["run_ended"]
    assert desk.cli.run("workflow", "signal", "-w", workflow_id, "--name", "stop").returncode != 0
    assert desk.update(workflow_id, "stop", "{}")[0] != 0


BAD_QUERIES = [
    ("unknown name", "stats", (), "stats"),
    ("two arguments", "events", ('{"after":0}', "{}"), "one argument, not 2"),
    ("negative", "events", ('{"after":-1}',), "whole number"),
    ("text", "conversation", ('{"after":"x"}',), "whole number"),
    ("a list", "conversation", ("[1]",), "whole number"),
]


def test_bad_queries_fail_for_their_caller_only(desk: Desk) -> None:
    """A bad query fails with a reason; the run neither changes nor stops answering."""
    workflow_id = desk.run("clerk")
    desk.waiting(workflow_id)
    for label, name, inputs, why in BAD_QUERIES:
        arguments = ["workflow", "query", "-w", workflow_id, "--name", name]
        done = desk.cli.run(*arguments, *(a for text in inputs for a in ("--input", text)))
        assert done.returncode != 0, label
        assert why in done.stderr, label
    desk.send(workflow_id, "approve", "{}")
    assert desk.result(workflow_id)["outcome"] == "success"
    desk.assert_never_stuck(workflow_id)
