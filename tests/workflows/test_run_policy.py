"""The policy of an agent: it judges every call before any of its reply runs, and whatever goes wrong denies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, allow, ask, deny, tool
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve

RAN: list[str] = []


@tool(effect="write", permissions=["money"], egress=True)
def pay(to: str) -> str:
    """Pay."""
    RAN.append(to)
    return f"paid {to}"


@tool(effect="write", approval=True)
def pay_asking(to: str) -> str:
    """Pay after approval."""
    RAN.append(to)
    return f"paid {to}"


@pytest.fixture(autouse=True)
def _forget() -> None:
    RAN.clear()


def crash(call: Any) -> Any:
    """Fail."""
    raise RuntimeError("policy server down")


def leave(call: Any) -> Any:
    """Try to end the process."""
    raise SystemExit(1)


async def allow_later(call: Any) -> Any:
    """Judge asynchronously."""
    return allow()


@pytest.mark.parametrize(
    ("policy", "shown"),
    [
        (lambda call: allow(), "paid bob"),
        (allow_later, "paid bob"),
        (lambda call: deny("no money"), "not executed: denied by policy: no money"),
        (crash, "not executed: denied by policy: the policy failed: RuntimeError: policy server down"),
        (leave, "not executed: denied by policy: the policy failed: SystemExit: 1"),
        (lambda call: True, "not executed: denied by policy: the policy returned bool"),
        (lambda call: None, "not executed: denied by policy: the policy returned NoneType"),
        (lambda call: "allow", "not executed: denied by policy: the policy returned str"),
        (lambda call: allow, "not executed: denied by policy: the policy returned function"),
    ],
    ids=["allow", "async", "deny", "crash", "exit", "true", "none", "text", "uncalled"],
)
async def test_decisions(serve: Serve, policy: Any, shown: str) -> None:
    """Only `allow()` lets a call run."""
    agent = Agent("payer", scripted(calls("pay", to="bob"), reply("ok")), tools=[pay], policy=policy)
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["outcome"] == "success"
    assert (await run.results())["c1"].startswith(shown)
    paid = shown.startswith("paid")
    assert (["bob"] if paid else []) == RAN
    assert len(await run.events("policy_denied")) == (0 if paid else 1)


@pytest.mark.slow
async def test_a_policy_that_does_not_answer(serve: Serve) -> None:
    """A policy that is too slow denies; it gets 8 seconds."""

    async def slow(call: Any) -> Any:
        await asyncio.sleep(60)
        return allow()

    agent = Agent("payer", scripted(calls("pay", to="bob"), reply("ok")), tools=[pay], policy=slow)
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.result()
    assert "did not answer within" in (await run.results())["c1"]
    assert RAN == []


async def test_a_policy_may_ask_a_person(serve: Serve) -> None:
    """`ask` makes any call wait for approval, with the reason."""
    agent = Agent(
        "payer",
        scripted(calls(call("pay", to="a"), call("pay", to="b")), reply("ok")),
        tools=[pay],
        policy=lambda call: ask("large") if call.arguments["to"] == "b" else allow(),
    )
    lab = await serve(agent)
    run = await lab.start(agent)
    [pending] = await run.asks()
    assert (pending["call_id"], pending["reason"]) == ("c2", "large")
    await run.update("approve", {})
    await run.result()
    assert RAN == ["a", "b"]


async def test_allow_does_not_replace_an_approval(serve: Serve) -> None:
    """A tool that needs approval needs it whatever the policy allows; a denial comes before any approval."""
    judge = {"a": allow(), "b": deny("never")}
    agent = Agent(
        "payer",
        scripted(calls(call("pay_asking", to="a"), call("pay_asking", to="b")), reply("ok")),
        tools=[pay_asking],
        policy=lambda call: judge[call.arguments["to"]],
    )
    lab = await serve(agent)
    run = await lab.start(agent)
    assert [p["call_id"] for p in await run.asks()] == ["c1"]
    await run.update("approve", {})
    await run.result()
    assert RAN == ["a"]


async def test_what_a_policy_sees(serve: Serve) -> None:
    """The policy sees tool, arguments, effect, labels, agent, step, and who the run is for."""
    seen: list[Any] = []

    def judge(call: Any) -> Any:
        seen.append(call)
        return allow()

    agent = Agent("payer", scripted(calls("pay", to="bob"), reply("ok")), tools=[pay], policy=judge)
    lab = await serve(agent)
    await lab.run(agent, tenant="acme", user="ann", data={"k": 1}, metadata={"m": "x"})
    [call] = seen
    assert call.model_dump() == {
        "id": "c1", "tool": "pay", "arguments": {"to": "bob"}, "effect": "write", "agent": "payer", "step": 1,
        "permissions": ("money",), "egress": True, "untrusted": False, "tenant": "acme", "user": "ann",
        "data": {"k": 1}, "metadata": {"m": "x"},
    }  # fmt: skip
