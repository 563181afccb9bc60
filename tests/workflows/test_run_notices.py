"""What `notify=` is told, by function and by webhook, and that nothing which goes wrong there touches the run."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Any

import pytest
from pydantic import SecretStr

from perdure import Agent, Approval, Escalation, Limits, Notification, ask_human, tool
from perdure.decision_tokens import make_key
from perdure.testing import calls, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import fake_chat
from tests.lab import Run, eventually

PRIVATE, PUBLIC = make_key()
OK: dict[str, Any] = {"status": 200, "body": {}}


def payer(notify: Any, rule: Approval | None = None, **options: Any) -> Agent:
    """An agent whose payment waits for a person."""

    @tool(effect="write", approval=rule or True)
    def pay(to: str) -> str:
        return f"paid {to}"

    script = scripted(calls("pay", to="bob"), reply("{{last_tool_text}}"))
    return Agent("payer", script, tools=[pay], notify=notify, **options)


async def history_of(run: Run) -> str:
    """All that Temporal keeps of a run."""
    return (await run.handle.fetch_history()).to_json()


@pytest.mark.parametrize("kind", ["function", "async", "object", "positional", "any"])
async def test_a_function_is_told(serve: Serve, kind: str) -> None:
    """Whatever kind of function it is, it gets the call with digest, deadline and a token that decides, verified."""
    told: list[Notification] = []

    async def later(what: Notification) -> None:
        told.append(what)

    class Teller:
        async def __call__(self, what: Notification) -> None:
            told.append(what)

    def positional(what: Notification, /) -> None:
        told.append(what)

    def any_number(*what: Notification) -> None:
        told.extend(what)

    kinds: dict[str, Any] = {"function": told.append, "async": later, "object": Teller(), "positional": positional,
                             "any": any_number}  # fmt: skip
    agent = payer(kinds[kind], Approval(approvers=["ann", "@finance"], verified=True), groups={"finance": ["fay"]})
    lab = await serve(agent, decision_private_key=SecretStr(PRIVATE))
    run = await lab.start(agent, tenant="acme", user="eve", metadata={"m": "x"})
    [pending] = await run.asks()
    await eventually(lambda: told)
    [notice] = told
    assert (notice.kind, notice.run, notice.agent, notice.tenant, notice.user) == (
        "requested", run.id, "payer", "acme", "eve"
    )  # fmt: skip
    assert notice.metadata == {"m": "x"}
    assert notice.call is not None
    assert notice.call.model_dump(mode="json", exclude_none=True) == pending
    assert notice.deadline == notice.call.deadline.isoformat()
    assert set(notice.tokens) == {"ann", "fay"}
    await run.update("approve", {"token": notice.tokens["fay"]})
    assert (await run.result())["output"] == "paid bob"
    [event] = await run.events("approval_decided")
    assert (event["by"], event["verified"]) == ("fay", True)
    history = await history_of(run)
    assert notice.tokens["ann"] not in history
    assert PRIVATE not in history


async def test_all_that_is_told(serve: Serve) -> None:
    """Requests, reminders, escalations, expiries, questions and limits."""
    told: list[Notification] = []
    rule = Approval(approvers=["ann"], timeout=0.5, remind_every=0.3,
                    escalate=(Escalation(approvers=("boss",), timeout=0.3),))  # fmt: skip

    @tool(effect="write", approval=rule)
    def pay() -> None: ...

    script = scripted(calls("pay"), calls("ask_human", question="Why?"), reply("ok"))
    agent = Agent("payer", script, tools=[pay, ask_human], notify=told.append, on_limit="pause", limits=Limits(steps=2))
    lab = await serve(agent, decision_private_key=SecretStr(PRIVATE))
    run = await lab.start(agent)
    [question] = await run.seen("question")
    await run.update("answer", {"question_id": question["question_id"], "text": "so"})
    await run.seen("limit_reached")
    await eventually(lambda: len(told) == 6)
    await run.update("extend", {"steps": 1})
    assert (await run.result())["output"] == "ok"
    kinds = ["requested", "reminder", "escalated", "expired", "question", "limit"]
    assert sorted(n.kind for n in told) == sorted(kinds)
    by_kind = {n.kind: n for n in told}
    assert set(by_kind["escalated"].tokens) == {"boss"}
    assert by_kind["question"].question is not None
    assert by_kind["question"].question.text == "Why?"
    assert (by_kind["limit"].limit, by_kind["limit"].tokens) == ("max_steps", {})
    assert by_kind["limit"].deadline is not None
    assert await run.events("notify_failed") == []


@pytest.mark.slow
async def test_functions_that_do_harm(serve: Serve) -> None:
    """One that raises, exits, or forgets to await, is recorded; the run waits and is decided as ever."""

    def raising(what: Notification) -> None:
        raise ValueError("no mail server")

    def leaving(what: Notification) -> None:
        raise SystemExit(3)

    async def later(what: Notification) -> None: ...

    def forgetting(what: Notification) -> Any:
        return later(what)

    shown = {raising: "no mail server", leaving: "SystemExit", forgetting: "async def"}
    for function, reason in shown.items():
        agent = payer(function)
        lab = await serve(agent)
        run = await lab.start(agent)
        [failed] = await run.seen("notify_failed")
        assert reason in failed["error"]
        assert await run.state() == "waiting_approval"
        await run.update("approve", {})
        assert (await run.result())["output"] == "paid bob"


@pytest.mark.slow
async def test_a_function_that_never_returns(serve: Serve) -> None:
    """The decision is taken meanwhile, and the call runs; the end of the run waits a little for its notice at most."""
    begun, go_on = threading.Event(), threading.Event()

    def blocking(what: Notification) -> None:
        begun.set()
        go_on.wait(60)

    agent = payer(blocking)
    lab = await serve(agent)
    run = await lab.start(agent)
    await eventually(begun.is_set)
    await run.update("approve", {})
    await run.seen("tool_end")
    assert (await run.result())["output"] == "paid bob"
    go_on.set()


async def test_a_webhook_that_stumbles(serve: Serve) -> None:
    """It is told again after a 500, with the same idempotency key; everything of the notice is in the body."""
    async with fake_chat({"status": 500}, {"status": 503}, OK) as hook:
        agent = payer(hook.base_url, Approval(approvers=["ann"]))
        lab = await serve(agent, decision_private_key=SecretStr(PRIVATE))
        run = await lab.start(agent)
        await eventually(lambda: len(hook.requests) == 3)
        keys = {headers["idempotency-key"] for headers in hook.headers}
        assert len(keys) == 1
        assert hook.requests[0] == hook.requests[1] == hook.requests[2]
        body = hook.requests[0]
        assert (body["kind"], body["run"], body["call"]["call_id"]) == ("requested", run.id, "c1")
        await run.update("approve", {"token": body["tokens"]["ann"], "digest": body["call"]["digest"]})
        assert (await run.result())["output"] == "paid bob"
        assert [e["verified"] for e in await run.events("approval_decided")] == [True]
        assert await run.events("notify_failed") == []
        assert body["tokens"]["ann"].split(".")[0] not in (await history_of(run)).replace(body["tokens"]["ann"], "")


async def test_a_webhook_that_refuses(serve: Serve) -> None:
    """A 404 is not tried again and is recorded; a redirect is not followed."""
    async with fake_chat({"status": 404}) as hook:
        agent = payer(hook.base_url)
        lab = await serve(agent)
        run = await lab.start(agent)
        [failed] = await run.seen("notify_failed")
        assert "the webhook answered 404" in failed["error"]
        assert (len(hook.requests), await run.state()) == (1, "waiting_approval")
        await run.update("deny", {})
        await run.result()


@pytest.mark.slow
async def test_an_address_of_the_worker(serve: Serve) -> None:
    """`${VAR}` is the worker's; its value is in no history, not even where nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        dead = f"http://127.0.0.1:{closed_soon.getsockname()[1]}/hook/s3cr3t-path?key=s3cr3t-key"
    async with fake_chat(OK) as hook:
        os.environ["TEST_HOOK_LIVE"] = hook.base_url
        os.environ["TEST_HOOK_DEAD"] = dead
        os.environ["TEST_HOOK_ODD"] = "not an address s3cr3t"
        try:
            live = payer("${TEST_HOOK_LIVE}/path")
            lab = await serve(live)
            run = await lab.start(live)
            await eventually(lambda: hook.requests)
            await run.update("deny", {})
            await run.result()
            assert hook.base_url not in await history_of(run)
            for variable, reason in (("DEAD", "127.0.0.1"), ("ODD", ""), ("MISSING", "set TEST_HOOK_MISSING")):
                agent = payer(f"${{TEST_HOOK_{variable}}}")
                lab = await serve(agent)
                run = await lab.start(agent)
                [failed] = await run.seen("notify_failed")
                assert reason in failed["error"]
                await run.update("approve", {})
                assert (await run.result())["output"] == "paid bob"
                assert "s3cr3t" not in await history_of(run)
        finally:
            for name in ("LIVE", "DEAD", "ODD"):
                del os.environ[f"TEST_HOOK_{name}"]


@pytest.mark.slow
async def test_a_webhook_that_never_answers(serve: Serve) -> None:
    """The run is decided and its call runs while the webhook is silent; messages after the end are refused."""
    silence = asyncio.Event()
    async with fake_chat({**OK, "hold": silence}) as hook:
        agent = payer(hook.base_url)
        lab = await serve(agent)
        run = await lab.start(agent)
        await eventually(lambda: hook.requests)
        await run.update("approve", {})
        await run.seen("tool_end")
        assert (await run.result())["output"] == "paid bob"
        silence.set()


@pytest.mark.slow
async def test_what_is_said_after_the_end(serve: Serve) -> None:
    """While the last notices go out nothing is taken in any more, for nobody would see it; a cancel changes nothing."""
    silence = asyncio.Event()
    async with fake_chat({**OK, "hold": silence}) as hook:
        agent = payer(hook.base_url, Approval(timeout=0.2))
        lab = await serve(agent)
        run = await lab.start(agent)
        await run.seen("approval_expired")
        await eventually(lambda: hook.requests)

        async def over() -> bool:
            return await run.state() == "closed"

        await eventually(over)
        await run.send("say", {"text": "wait"})
        await run.send("approve", {"call_id": "c1"})
        refused = await run.seen("message_refused", 2)
        assert [e["reason"] for e in refused] == ["the run has ended"] * 2
        await run.handle.cancel()
        result = await run.result()
        assert (result["outcome"], result["output"]) == (
            "success", "not executed: the approval expired, nobody decided in time"
        )  # fmt: skip
        silence.set()
