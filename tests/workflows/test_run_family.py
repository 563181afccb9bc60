"""Approvals of child runs at their root: paths, states, clocks, wrong approvers, and decisions that reach both."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure import Agent, Approval, Client, Escalation, Limits, tool
from perdure.decision_tokens import make_key, sign_decision
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve
from tests.lab import Lab, Run, eventually

PRIVATE, PUBLIC = make_key()


async def refused(run: Run, name: str, payload: Any) -> str:
    """The reason why an update is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as refusal:
        await run.update(name, payload)
    return str(refusal.value.cause)


def family(ledger: list[str], depth: int = 1, rule: Approval | None = None, **options: Any) -> Agent:
    """A root whose descendant pays."""

    @tool(effect="write", approval=rule or True)
    def pay(to: str, cents: int) -> str:
        ledger.append(f"{to} {cents}")
        return f"paid {to} {cents}"

    found = Agent("leaf", scripted(calls("pay", to="bob", cents=1), reply("{{last_tool_text}}")), tools=[pay])
    for level in range(depth):
        script = scripted(calls(found.name, prompt="p"), reply("{{tool:c1.output}}"))
        found = Agent(f"level{level}", script, tools=[found], **options)
    return found


async def waiting(serve: Serve, root: Agent, count: int = 1, **options: Any) -> tuple[Lab, Run]:
    """A run of the root, in whose family so many calls wait."""
    lab = await serve(root, **options)
    run = await lab.start(root)
    await run.asks(count)
    return lab, run


async def child_of(lab: Lab, run: Run) -> Run:
    """The first child of a run."""
    started, *_ = await run.seen("child_started")
    child = Run(lab.client.get_workflow_handle(started["workflow_id"]))
    await child.seen("run_started")
    return child


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("verdict", ["approve", "deny"])
async def test_a_call_is_decided_at_the_root(serve: Serve, depth: int, verdict: str) -> None:
    """Its path names the calls that lead to it; deciding the only one needs no path."""
    ledger: list[str] = []
    root = family(ledger, depth)
    lab, run = await waiting(serve, root)
    [pending] = await run.pending()
    path = "c1/" * depth + "c1"
    assert (pending["call_id"], pending["tool"], pending["arguments"]) == (path, "pay", {"to": "bob", "cents": 1})
    assert await run.state() == "waiting_approval"
    leaf = run
    for _ in range(depth):
        leaf = await child_of(lab, leaf)
    assert pending["run"] == leaf.id
    [own] = await leaf.pending()
    assert (own["call_id"], own["digest"]) == ("c1", pending["digest"])
    answer = await run.update(verdict, {"call_id": path, "digest": pending["digest"]} if depth > 1 else {})
    assert answer == {"call_id": path, "open": False}
    output = (await run.result())["output"]
    assert (output, ledger) == (("paid bob 1", ["bob 1"]) if verdict == "approve" else ("not executed: denied", []))
    assert [e["call_id"] for e in await run.events("approval_decided")] == [path]


async def test_the_clocks_stand_still(serve: Serve) -> None:
    """Waiting longer than the deadlines of root and child ends neither."""
    ledger: list[str] = []
    rule = Approval(timeout=1.5, on_timeout="approve")
    root = family(ledger, 2, rule, limits=Limits(deadline=1.2))
    lab = await serve(root)
    run = await lab.start(root)
    result = await run.result()
    assert (result["outcome"], ledger) == ("success", ["bob 1"])
    assert (await run.handle.query("usage"))["active_seconds"] < 1.2


async def test_who_may_decide_at_the_root(serve: Serve) -> None:
    """The child's rule holds there: approvers, stages, quorum, and tokens for the child's call."""
    ledger: list[str] = []
    boss = Escalation(approvers=("boss", "bea"), quorum=2, timeout="1h")
    rule = Approval(approvers=["ann"], timeout=0.5, verified=True, escalate=(boss,))
    root = family(ledger, 2, rule)
    _, run = await waiting(serve, root, decision_keys=(PUBLIC,))

    async def escalated() -> dict[str, Any] | None:
        found = await run.pending()
        return found[0] if found and found[0]["stage"] == 1 else None

    pending = await eventually(escalated)
    assert (pending["approvers"], pending["quorum"]) == (["boss", "bea"], 2)
    bound: dict[str, Any] = {"call_id": "c1", "digest": pending["digest"]}
    assert "signed token" in await refused(run, "approve", {"by": "boss"})
    at_the_root = sign_decision(PRIVATE, **bound, run=run.id, by="boss")
    assert "another run" in await refused(run, "approve", {"token": at_the_root})
    ann, boss_, bea = (sign_decision(PRIVATE, **bound, run=pending["run"], by=by) for by in ("ann", "boss", "bea"))
    assert "may not decide" in await refused(run, "approve", {"token": ann})
    assert (await run.update("approve", {"token": boss_}))["open"] is True
    assert "already decided" in await refused(run, "approve", {"token": boss_})
    assert ledger == []
    assert (await run.update("approve", {"token": bea}))["open"] is False
    assert ((await run.result())["output"], ledger) == ("paid bob 1", ["bob 1"])
    assert [e["verified"] for e in await run.events("approval_decided")] == [True, True]


async def test_a_decision_at_the_child_clears_the_root(serve: Serve) -> None:
    """The root shows the call no more and refuses it."""
    ledger: list[str] = []

    @tool(effect="write", approval=True)
    def pay(to: str) -> str:
        ledger.append(to)
        return to

    leaf = Agent("leaf", scripted(calls("pay", to="a"), calls("pay", to="b"), reply("ok")), tools=[pay])
    root = Agent("root", scripted(calls("leaf", prompt="p"), reply("end")), tools=[leaf])
    lab, run = await waiting(serve, root)
    child = await child_of(lab, run)
    await child.update("approve", {"call_id": "c1"})

    async def only_the_second() -> bool:
        return [p["call_id"] for p in await run.pending()] == ["c1/c2"]

    await eventually(only_the_second)
    assert "no call 'c1/c1' waits" in await refused(run, "approve", {"call_id": "c1/c1"})
    await run.update("approve", {})
    await run.result()
    assert ledger == ["a", "b"]


async def test_what_the_child_refuses_is_shown_again(serve: Serve) -> None:
    """Arguments are checked where the call runs: after a refusal there the root shows that it still waits."""
    ledger: list[str] = []
    root = family(ledger, 2)
    _, run = await waiting(serve, root)
    await run.update("approve", {"arguments": {"to": "eve", "cents": "many"}})
    await run.seen("approval_requested", 2)
    assert [p["call_id"] for p in await run.asks()] == ["c1/c1/c1"]
    assert (await run.state(), ledger) == ("waiting_approval", [])
    await run.update("approve", {"arguments": {"to": "eve", "cents": 5}})
    assert "paid eve 5" in (await run.result())["output"]
    assert ledger == ["eve 5"]


async def test_remembering_reaches_no_further_than_the_child(serve: Serve) -> None:
    """What is remembered for a child's call is asked of the root's own."""
    ledger: list[str] = []

    @tool(effect="write", approval=True)
    def pay(to: str) -> str:
        ledger.append(to)
        return to

    leaf = Agent("leaf", scripted(calls("pay", to="a"), calls("pay", to="b"), reply("ok")), tools=[pay])
    root = Agent("root", scripted(calls("leaf", prompt="p"), calls("pay", to="a"), reply("end")), tools=[leaf, pay])
    _, run = await waiting(serve, root)
    await run.update("approve", {"remember": "tool"})
    await run.seen("approval_requested", 2)
    assert ([p["call_id"] for p in await run.pending()], ledger) == (["c2"], ["a", "b"])
    await run.update("deny", {})
    await run.result()


async def test_a_child_that_is_cancelled_meanwhile(serve: Serve) -> None:
    """Nothing of it waits any more, and the root goes on with its other children."""

    @tool(effect="write", approval=True)
    def pay() -> str:
        return "paid"

    leaf = Agent("leaf", scripted(calls("pay"), reply("{{last_tool_text}}")), tools=[pay])
    both = calls(call("leaf", prompt="a"), call("leaf", prompt="b"))
    root = Agent("root", scripted(both, reply("end")), tools=[leaf])
    lab, run = await waiting(serve, root, 2)
    child = await child_of(lab, run)
    await child.handle.cancel()
    await run.seen("child_ended")
    assert [p["call_id"] for p in await run.pending()] == ["c2/c1"]
    assert "no call 'c1/c1' waits" in await refused(run, "approve", {"call_id": "c1/c1"})
    await run.update("approve", {})
    assert (await run.result())["output"] == "end"
    assert "cancelled" in (await run.results())["c1"]


async def test_a_stop_at_the_root_reaches_its_children(serve: Serve) -> None:
    """The present step ends though a descendant waits for a person."""
    ledger: list[str] = []
    root = family(ledger, 2)
    lab, run = await waiting(serve, root)
    await run.update("stop", {"reason": "enough"})
    result = await run.result()
    assert (result["reason"], ledger, await run.pending()) == ("stopped", [], [])
    child = await child_of(lab, run)
    assert ((await child.result())["reason"], (await child.status())["stopping"]) == ("stopped", "enough")


async def test_the_inbox_shows_each_call_once(serve: Serve) -> None:
    """Calls of root and children, each with the run that waits for it; `under` keeps those of one tree."""
    ledger: list[str] = []

    @tool(effect="write", approval=True)
    def pay(to: str) -> str:
        ledger.append(to)
        return to

    leaf = Agent("leaf", scripted(calls("pay", to="{{user}}"), reply("ok")), tools=[pay])
    both = calls(call("leaf", prompt="a"), call("leaf", prompt="b"), call("pay", to="own"))
    root = Agent("root", scripted(both, reply("end")), tools=[leaf, pay])
    lab, run = await waiting(serve, root, 3)
    assert sorted(p["call_id"] for p in await run.pending()) == ["c1/c1", "c2/c1", "c3"]
    client = Client(lab.client)

    async def three() -> Any:
        found = await client.approvals(under=run.id)
        return found if len(found) == 3 else None

    inbox = await eventually(three)
    assert [c.call_id for c in inbox].count("c1") == 2
    children = {e["workflow_id"] for e in await run.events("child_started")}
    assert {c.run for c in inbox} == {run.id, *children}
    await run.update("approve", {"call_id": "c2/c1"})
    for found in inbox:
        if found.run == run.id:
            await client.handle(run.id).approve("c3")
    await run.seen("child_ended")
    assert [p["call_id"] for p in await run.pending()] == ["c1/c1"]
    await client.handle(run.id).deny("c1/c1", reason="no")
    await run.result()


async def test_a_stranger_cannot_show_calls(serve: Serve) -> None:
    """What is no open child of the run is refused, and what a forged report holds harms nothing."""
    root = family([])
    lab, run = await waiting(serve, root)
    [pending] = await run.pending()
    child = await child_of(lab, run)
    forged = {"pending": {**pending, "deadline": "2030-01-01T00:00:00"}, "rule": {}, "stage_began": "2030-01-01"}
    reports: list[Any] = [
        {"child": "stranger", "requests": []},
        {"child": child.id, "requests": [forged]},
        {"child": child.id, "requests": [{}]},
        {"child": child.id, "x": 1},
        [],
        "x",
    ]
    for told in reports:
        assert await refused(run, "_child_waits", told)
        await run.send("_child_waits", told)
    await run.seen("message_refused", 6)
    assert await run.pending() == [pending]
    await run.update("deny", {})
    await run.result()
