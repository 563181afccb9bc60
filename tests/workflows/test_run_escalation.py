"""Approvals over time and people: escalation, reminders, remembered and signed decisions, in whole runs."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest
from pydantic import SecretStr
from temporalio.client import WorkflowUpdateFailedError

from perdure import Agent, Approval, Escalation, Tool, allow, ask, tool
from perdure.decision_tokens import make_key, sign_decision
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve
from tests.lab import Run

PRIVATE, PUBLIC = make_key()


def payment(ledger: list[str], **options: Any) -> Tool:
    """A tool that pays."""

    def pay(to: str, cents: int = 1) -> str:
        ledger.append(f"{to} {cents}")
        return f"paid {to} {cents}"

    return tool(**{"effect": "write", "approval": True, **options})(pay)


async def refused(run: Run, name: str, payload: Any) -> str:
    """The reason why an update is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as refusal:
        await run.update(name, payload)
    return str(refusal.value.cause)


async def test_other_approvers_are_asked_next(serve: Serve) -> None:
    """Where nobody decides in time the next stage's approvers may, and only they; each step is an event."""
    ledger: list[str] = []
    boss = Escalation(approvers=("@board",), timeout="1h", quorum=2)
    rule = Approval(approvers=["ann"], timeout=0.5, remind_every=0.2, escalate=(boss,))
    agent = Agent("payer", scripted(calls("pay", to="bob"), reply("{{last_tool_text}}")),
                  tools=[payment(ledger, approval=rule)], groups={"board": ["bea", "bob"]})  # fmt: skip
    lab = await serve(agent)
    run = await lab.start(agent)
    [escalated] = await run.seen("approval_escalated")
    kinds = [e["type"] for e in await run.events() if e["type"].startswith("approval_")]
    assert kinds[0] == "approval_requested"
    assert kinds[-1] == "approval_escalated"
    assert set(kinds[1:-1]) == {"approval_reminder"}
    assert (escalated["call_id"], escalated["stage"], escalated["approvers"]) == ("c1", 1, ["@board"])
    [pending] = await run.pending()
    assert (pending["stage"], pending["quorum"], pending["approvers"]) == (1, 2, ["@board"])
    assert datetime.fromisoformat(pending["deadline"]) == datetime.fromisoformat(escalated["deadline"])
    assert "may not decide" in await refused(run, "approve", {"by": "ann"})
    assert "may not decide" in await refused(run, "approve", {"by": "@board"})
    assert (await run.update("approve", {"by": "bea"}))["open"] is True
    assert (await run.update("approve", {"by": "bob"}))["open"] is False
    assert ((await run.result())["output"], ledger) == ("paid bob 1", ["bob 1"])


@pytest.mark.parametrize(("on_timeout", "outcome"), [("deny", "success"), ("fail", "failed"), ("approve", "success")])
async def test_the_last_stage_ends(serve: Serve, on_timeout: str, outcome: str) -> None:
    """After all stages the rule's own `on_timeout` counts."""
    ledger: list[str] = []
    rule = Approval(timeout=0.2, on_timeout=on_timeout, escalate=(Escalation(timeout=0.2), Escalation(timeout=0.2)))
    agent = Agent("payer", scripted(calls("pay", to="bob"), reply("ok")), tools=[payment(ledger, approval=rule)])
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.ended())["outcome"] == outcome
    assert ledger == (["bob 1"] if on_timeout == "approve" else [])
    assert [e["stage"] for e in await run.events("approval_escalated")] == [1, 2]
    assert len(await run.events("approval_expired")) == 1


@pytest.mark.parametrize("verdict", ["approve", "deny"])
@pytest.mark.parametrize(("said", "asked"), [(None, ["c1", "c2", "c3"]), (True, ["c1", "c3"]), ("tool", ["c1"])])
async def test_a_remembered_decision(serve: Serve, verdict: str, said: Any, asked: list[str]) -> None:
    """It holds for the same call, or for every call of the tool, in later replies of the run."""
    ledger: list[str] = []
    script = [calls("pay", to="a"), calls("pay", to="a"), calls("pay", to="b"), reply("{{tool:c3}}")]
    agent = Agent("payer", scripted(*script), tools=[payment(ledger)])
    lab = await serve(agent)
    run = await lab.start(agent)
    for number, call_id in enumerate(asked, 1):
        await run.seen("approval_requested", number)
        given = {"call_id": call_id, "by": "ann", **({"remember": said} if said is not None else {})}
        await run.update(verdict, given)
    result = await run.result()
    assert [e["call_id"] for e in await run.events("approval_requested")] == asked
    assert [e["call_id"] for e in await run.events("approval_remembered")] == sorted({"c1", "c2", "c3"} - set(asked))
    assert ledger == (["a 1", "a 1", "b 1"] if verdict == "approve" else [])
    if said == "tool" and verdict == "deny":
        assert result["output"] == "not executed: denied: as decided before for such calls"


async def test_an_unknown_outcome_is_asked_about_anew(serve: Serve) -> None:
    """Whatever was remembered: after an unknown outcome an identical call needs a person who knows that."""

    @tool(effect="write", approval=True, timeout=0.2)
    async def pay(to: str) -> None:
        await asyncio.sleep(30)

    agent = Agent("payer", scripted(calls("pay", to="a"), calls("pay", to="a"), reply("ok")), tools=[pay])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("approval_requested")
    await run.update("approve", {"remember": "tool"})
    _, second = await run.seen("approval_requested", 2)
    assert (second["call_id"], second["reason"]) == ("c2", "an earlier identical call has an unknown outcome")
    await run.update("deny", {})
    await run.result()


async def test_a_policy_asks_about_something_else(serve: Serve) -> None:
    """A yes to every call of a tool is none to calls that the policy asks about for another reason."""
    ledger: list[str] = []

    def judge(call: Any) -> Any:
        return ask("a large amount") if call.arguments["cents"] > 100 else allow()

    script = [calls("pay", to=n, cents=c) for n, c in (("a", 1), ("b", 2), ("c", 500), ("d", 600))]
    agent = Agent("payer", scripted(*script, reply("ok")), tools=[payment(ledger)], policy=judge)
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("approval_requested")
    await run.update("approve", {"remember": "tool"})
    _, large = await run.seen("approval_requested", 2)
    assert (large["call_id"], large["reason"]) == ("c3", "a large amount")
    await run.update("approve", {"remember": "tool"})
    await run.result()
    assert ledger == ["a 1", "b 2", "c 500", "d 600"]


async def test_edited_calls_and_dangerous_tools(serve: Serve) -> None:
    """What was changed, and every call of a dangerous tool, cannot be remembered."""
    ledger: list[str] = []
    agent = Agent("payer", scripted(calls(call("pay", to="a")), reply("ok")),
                  tools=[payment(ledger, effect="dangerous")])  # fmt: skip
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.asks()
    edited = {"arguments": {"to": "b", "cents": 2}, "remember": True}
    assert "cannot be remembered" in await refused(run, "approve", edited)
    assert "decide each of its calls" in await refused(run, "approve", {"remember": "tool"})
    await run.update("approve", {"remember": "call"})
    await run.result()
    assert ledger == ["a 1"]


async def test_a_signed_decision(serve: Serve) -> None:
    """With `verified=True` only a token counts; who it speaks for is recorded as verified."""
    ledger: list[str] = []
    rule = Approval(verified=True, approvers=["ann", "@finance"])
    agent = Agent("payer", scripted(calls("pay", to="bob"), reply("ok")),
                  tools=[payment(ledger, approval=rule)], groups={"finance": ["fay"]})  # fmt: skip
    lab = await serve(agent, decision_keys=(PUBLIC,))
    run = await lab.start(agent)
    [pending] = await run.asks()
    bound: dict[str, Any] = {"run": run.id, "call_id": "c1", "digest": pending["digest"]}
    good = sign_decision(PRIVATE, **bound, by="fay")
    assert "needs a decision with a signed token" in await refused(run, "approve", {"by": "ann"})
    assert "may not decide" in await refused(run, "approve", {"token": sign_decision(PRIVATE, **bound, by="eve")})
    for wrong in (
        sign_decision(make_key()[0], **bound, by="ann"),
        sign_decision(PRIVATE, **{**bound, "run": "another"}, by="ann"),
        good[:-4] + "AAAA",
        "garbage",
        "W1tb" * 4_000 + ".x.y",
    ):
        assert "token" in await refused(run, "approve", {"token": wrong})
        await run.send("approve", {"token": wrong})
    assert "is not whom the token speaks for" in await refused(run, "approve", {"token": good, "by": "ann"})
    assert len(await run.seen("message_refused", 5)) == 5
    assert (await run.state(), ledger) == ("waiting_approval", [])
    await run.update("approve", {"token": good})
    await run.result()
    [event] = await run.events("approval_decided")
    assert (event["by"], event["verified"], ledger) == ("fay", True, ["bob 1"])


async def test_keys_are_frozen_with_the_run(serve: Serve) -> None:
    """A run without a key believes no token; the private key's own public key is known."""
    agent = Agent("payer", scripted(calls("pay", to="bob"), reply("ok")), tools=[payment([])])
    for settings, answer in (({}, "knows no decision key"), ({"decision_private_key": SecretStr(PRIVATE)}, None)):
        lab = await serve(agent, **settings)
        run = await lab.start(agent)
        [pending] = await run.asks()
        token = sign_decision(PRIVATE, run=run.id, call_id="c1", digest=pending["digest"], by="ann")
        if answer:
            assert answer in await refused(run, "approve", {"token": token})
            await run.update("deny", {})
        else:
            assert (await run.update("approve", {"token": token}))["open"] is False
        await run.result()
