"""Runs from start to result with nothing but Temporal's command line."""

from __future__ import annotations

import json

import pytest

from tests.contract.conftest import Desk
from tests.processes import wait_for

pytestmark = pytest.mark.slow

RESULT = {
    "outcome", "output", "structured", "reason", "steps", "tool_calls", "usage", "cost_usd", "agent", "spec_digest",
}  # fmt: skip


def test_start_list_approve_result(desk: Desk) -> None:
    """The whole way of an approval: start, find it in the inbox, look, approve, read the result."""
    workflow_id = desk.start('{"agent":"clerk","prompt":"Pay invoice 42","tenant":"acme","user":"ann"}')
    [pending] = desk.waiting(workflow_id)
    assert pending["arguments"] == {"to": "bob", "amount_cents": 100}
    assert pending["digest"].startswith("sha256:")
    assert (pending["stage"], pending["quorum"]) == (0, 1)
    status = desk.cli.query(workflow_id, "status")
    assert (status["state"], status["agent"], status["outcome"]) == ("waiting_approval", "clerk", None)
    assert desk.cli.query(workflow_id, "approvals")["pending"] == [pending]
    assert workflow_id in listed(desk, "PerdureState='waiting_approval' AND ExecutionStatus='Running'")
    desk.send(workflow_id, "approve", '{"call_id":"c1","by":"ann"}')
    result = desk.result(workflow_id)
    assert set(result) == RESULT
    assert (result["outcome"], result["output"], result["reason"]) == ("success", "Result: paid bob 100", None)
    assert (result["steps"], result["tool_calls"], result["agent"]) == (2, 1, "clerk")
    assert set(result["usage"]) == {"input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"}
    assert result["spec_digest"].startswith("sha256:")
    for query in (
        "PerdureOutcome='success' AND PerdureAgent='clerk' AND PerdureTenant='acme' AND PerdureUser='ann'",
        "PerdureState='closed' AND PerdureSteps=2 AND PerdureTokens>0 AND PerdureModel='scripted'",
    ):
        wait_for(lambda query=query: workflow_id in listed(desk, query), query)  # type: ignore[misc]


def listed(desk: Desk, query: str) -> list[str]:
    """Ids of the runs that a query finds."""
    found = desk.cli.json("workflow", "list", "--query", query)
    return [item["execution"]["workflowId"] for item in found]


def test_a_second_start_returns_the_running_one(desk: Desk) -> None:
    """Without flags the id of a running run is attached to; after it has closed, a new run begins."""
    command = desk.starting("twice", '{"agent":"clerk","prompt":"go"}')
    first = desk.cli.json(*command)["runId"]
    assert desk.cli.json(*command)["runId"] == first
    desk.waiting("twice")
    desk.send("twice", "deny", "{}")
    desk.result("twice")
    assert desk.cli.json(*command)["runId"] != first
    desk.waiting("twice")
    desk.send("twice", "deny", "{}")
    desk.result("twice")


def test_a_second_start_can_be_an_error(desk: Desk) -> None:
    """With both flags an id is used once and for all."""
    command = desk.starting("once", '{"agent":"clerk","prompt":"go"}')
    command += ["--id-reuse-policy", "RejectDuplicate", "--fail-existing"]
    desk.cli.json(*command)
    running = desk.cli.run(*command)
    assert running.returncode != 0
    assert "already" in running.stderr
    desk.waiting("once")
    desk.send("once", "deny", "{}")
    desk.result("once")
    closed = desk.cli.run(*command)
    assert closed.returncode != 0
    assert "already" in closed.stderr


COMPLETED = [
    ("structured", {}, "success", None),
    ("stubborn", {}, "no_solution", "verify"),
    ("looping", {}, "budget_exceeded", "max_steps"),
    ("reader", {"limits": {"tool_calls": 1, "tokens": 1}}, "budget_exceeded", "max_tokens"),
    ("slow", {}, "timeout", "deadline"),
    ("filtered", {}, "blocked", "filtered"),
]


@pytest.mark.parametrize(("agent", "fields", "outcome", "reason"), COMPLETED)
def test_completed_outcomes_are_results(
    desk: Desk, agent: str, fields: dict[str, object], outcome: str, reason: str | None
) -> None:
    """Outcomes that are no failure close the run as Completed, with the whole result as JSON."""
    result = desk.result(desk.run(agent, **fields))
    assert set(result) == RESULT
    assert (result["outcome"], result["reason"]) == (outcome, reason)
    if agent == "structured":
        assert result["structured"] == {"to": "bob", "amount_cents": 100}
        assert json.loads(result["output"]) == result["structured"]


def test_a_failed_run_carries_its_result(desk: Desk) -> None:
    """A failed run is Failed, its type the outcome, the result its details, and the command line exits with 1."""
    workflow_id = desk.run("broken")
    failure = desk.failure(workflow_id)
    info = failure["applicationFailureInfo"]
    assert info["type"] == "failed"
    [details] = info["details"]
    assert set(details) == RESULT
    assert (details["outcome"], details["reason"]) == ("failed", "provider_error")
    assert "wrong key" in failure["message"]
    assert desk.cli.run("workflow", "result", "-w", workflow_id).returncode == 1
    assert desk.cli.query(workflow_id, "status")["outcome"] == "failed"


def test_a_cancelled_run_is_canceled(desk: Desk) -> None:
    """Cancelling ends a waiting run as Canceled; `status` still says what there was."""
    workflow_id = desk.run("clerk")
    desk.waiting(workflow_id)
    desk.cli.run("workflow", "cancel", "-w", workflow_id)
    assert desk.closed(workflow_id)["status"] == "CANCELED"
    status = desk.cli.query(workflow_id, "status")
    assert (status["state"], status["outcome"], status["pending"]) == ("closed", "cancelled", None)


def test_execute_prints_the_result(desk: Desk) -> None:
    """`temporal workflow execute` starts, waits and prints the result as JSON."""
    command = [
        "workflow",
        "execute",
        "--type",
        "AgentWorkflow",
        "--task-queue",
        desk.queue,
        "--workflow-id",
        "executed",
    ]
    done = desk.cli.json(*command, "--input", '{"agent":"echo","prompt":"hello"}')
    assert done["result"]["output"] == "hello"


FIELDS = [
    ({"prompt": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
    ({"prompt": None, "messages": [{"role": "user", "content": "x"}]}, "x"),
    ({"data": {"n": [1, None, "ü"]}}, '{"n":[1,null,"ü"]}'),
    ({"metadata": {"ticket": "OPS-7"}}, "go"),
]


@pytest.mark.parametrize(("fields", "seen"), FIELDS)
def test_fields_of_the_input_reach_the_model(desk: Desk, fields: dict[str, object], seen: str) -> None:
    """Parts, conversations and data are what the model sees."""
    whole = {"agent": "echo", "prompt": "go", **fields}
    workflow_id = desk.start(json.dumps({name: value for name, value in whole.items() if value is not None}))
    assert seen in desk.result(workflow_id)["output"].replace("\n", "")


def test_an_agent_as_data_needs_no_deploy(desk: Desk) -> None:
    """An agent in the input uses tools of the worker by name, and lower limits than its own."""
    script = [
        {"calls": [{"tool": "weather", "arguments": {"city": "Bonn"}}]},
        {"text": "It is {{last_tool_text}}"},
    ]
    model = {"provider": "scripted", "params": {"script": script}}
    agent = {"name": "adhoc", "model": model, "tools": ["weather"], "instructions": "Be brief."}
    workflow_id = desk.start(json.dumps({"agent": agent, "prompt": "go", "limits": {"steps": 2}}))
    result = desk.result(workflow_id)
    assert (result["agent"], result["output"]) == ("adhoc", "It is Bonn: 9C")
    assert desk.cli.query(workflow_id, "status")["limits"]["steps"] == 2


def test_a_run_continues_an_earlier_conversation(desk: Desk) -> None:
    """`continue_from` puts the conversation of a closed run before the prompt; call ids go on."""
    first = desk.run("reader")
    desk.result(first)
    second = desk.start(json.dumps({"agent": "echo", "prompt": "more", "continue_from": first}))
    assert desk.result(second)["output"] == "more"
    messages = desk.cli.query(second, "conversation")["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "user", "assistant"]


def test_a_result_of_megabytes_stays_out_of_history(desk: Desk) -> None:
    """A tool result of 3 MB works; result and queries are plain JSON after it, and history stays small."""
    workflow_id = desk.run("hoarder")
    assert desk.result(workflow_id)["output"] == "kept"
    [tool] = [m for m in desk.cli.query(workflow_id, "conversation")["messages"] if m["role"] == "tool"]
    assert tool["parts"][0]["size"] == 3 * 1_048_576
    assert desk.cli.query(workflow_id, "status")["state"] == "closed"
    described = desk.cli.json("workflow", "describe", "-w", workflow_id)
    assert int(described["workflowExecutionInfo"]["historySizeBytes"]) < 40_000
