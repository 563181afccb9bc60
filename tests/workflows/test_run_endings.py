"""Every way a run can end: outcome, reason, Temporal status, and what is kept of the answer."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from activities.tool_threads import ToolCancelled
from perdure import Agent, Approval, Limits, Price, tool
from perdure.testing import Step, call, calls, failure, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import fake_chat
from tests.lab import Run, closed, eventually, laboratory

USED = {"input_tokens": 400, "output_tokens": 100}


@tool(effect="read")
def look(at: str = "x") -> str:
    """Look."""
    return f"seen {at}"


@tool(effect="write")
def crash_hard() -> str:
    """End unknown: the tool outlives its time."""
    threading.Event().wait(20)
    return "late"


def looking(*more: Step, words: str = "I look.", **fields: Any) -> list[Step]:
    """A reply with words and a call, and what comes after."""
    return [{**reply(words), **calls("look"), **fields}, *more]


ENDINGS: list[tuple[str, list[Step], dict[str, Any], str, str | None]] = [
    ("success", [reply("ok")], {}, "success", None),
    ("max_steps", looking(), {"limits": Limits(steps=1)}, "budget_exceeded", "max_steps"),
    ("max_tool_calls", [*looking(), *looking()], {"limits": Limits(tool_calls=1)}, "budget_exceeded", "max_tool_calls"),
    ("max_tokens", looking(usage=USED), {"limits": Limits(tokens=501)}, "budget_exceeded", "max_tokens"),
    (
        "max_cost",
        looking(usage=USED),
        {"limits": Limits(cost_usd=Decimal("0.0005"))},
        "budget_exceeded",
        "max_cost",
    ),
    ("truncated", [reply("Half an ans", finish="length")], {}, "no_solution", "truncated"),
    ("filtered", [reply("", finish="filtered")], {}, "blocked", "filtered"),
    ("refused", [reply("I will not.", finish="refused")], {}, "no_solution", "refused"),
    ("empty", [reply("")] * 3, {}, "failed", "empty"),
    ("provider_error", [failure("authentication", "bad key")], {}, "failed", "provider_error"),
    ("not_found", [failure("not_found", "no such model")], {}, "failed", "provider_error"),
    ("quota", [failure("quota", "no money")], {}, "failed", "provider_error"),
    ("context_length", [failure("context_length", "too long")], {}, "failed", "context_length"),
    ("configuration", [failure("configuration", "no key")], {}, "failed", "configuration"),
    ("loop", [calls("look")] * 6, {}, "no_solution", "loop"),
    ("verify", [reply("a"), reply("b")], {"verify": lambda ctx: "no"}, "no_solution", "verify"),
    (
        "output_schema",
        [reply("no json"), reply('{"n":"x"}')],
        {"output": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
        "no_solution",
        "output_schema",
    ),
    ("cut_calls", [{**calls("look"), "finish": "length"}] * 4, {}, "failed", "truncated"),
]


@pytest.mark.parametrize(
    ("script", "options", "outcome", "reason"), [e[1:] for e in ENDINGS], ids=[e[0] for e in ENDINGS]
)
async def test_how_runs_end(
    serve: Serve, script: list[Step], options: dict[str, Any], outcome: str, reason: str | None
) -> None:
    """Outcome and reason are these in the result, in the status and in Temporal, and every call has one result."""
    price = Price(input=Decimal(1), output=Decimal(1))
    agent = Agent("ending", scripted(*script, price=price), tools=[look], **options)
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.ended()
    assert (result["outcome"], result["reason"]) == (outcome, reason)
    status = await run.status()
    assert (status["state"], status["outcome"], status["reason"]) == ("closed", outcome, reason)
    described = await run.handle.describe()
    failing = outcome in {"failed", "invalid_input"}
    assert described.status == (WorkflowExecutionStatus.FAILED if failing else WorkflowExecutionStatus.COMPLETED)
    assert result["agent"] == "ending"
    assert result["outcome"] != "success" or result["output"]
    asked = [part["id"] for m in await run.messages() for part in m.get("parts", ()) if part["type"] == "call"]
    assert list(await run.results()) == asked
    assert (await run.events())[-1]["type"] == "run_ended"


@pytest.mark.parametrize("limits", [Limits(steps=1), Limits(tokens=501), Limits(cost_usd=Decimal("0.0005"))])
async def test_the_partial_answer_is_kept(serve: Serve, limits: Limits) -> None:
    """Where a limit ends the run, the last words of the model are the output."""
    price = Price(input=Decimal(1), output=Decimal(1))
    agent = Agent(
        "partial",
        scripted(*looking(words="So far: 7.", usage=USED), repeat=True, price=price),
        tools=[look],
        limits=limits,
    )
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["outcome"], result["output"]) == ("budget_exceeded", "So far: 7.")


@pytest.mark.parametrize("kind", ["rate_limit", "server", "overloaded", "connection", "malformed", "truncated_stream"])
async def test_passing_failures_are_retried(serve: Serve, kind: str) -> None:
    """A failure that passes costs an attempt and no step."""
    script = {**failure(kind, times=1, then=reply("Better."))}
    script["error"]["retry_after"] = 0.01
    agent = Agent("patient", scripted(script))
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["output"], result["steps"]) == ("Better.", 1)


async def test_an_unknown_price_fails_a_run_with_a_limit_on_cost(serve: Serve) -> None:
    """A limit on cost and a model without a price cannot go together; nothing is sent."""
    async with fake_chat({"text": "hi"}) as fake:
        agent = Agent("poor", fake.model("no-such-model-anywhere"), limits=Limits(cost_usd=Decimal("0.1")))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], fake.requests) == ("failed", "unknown_price", [])
    assert "Price" in result["message"]


async def test_the_deadline_cuts_a_model_call(serve: Serve) -> None:
    """A model that takes longer than the deadline is cancelled and the run ends with `timeout`."""
    async with fake_chat({"text": "late", "hold": asyncio.Event()}) as fake:
        agent = Agent("late", fake.model(), limits=Limits(deadline=0.5))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], result["steps"]) == ("timeout", "deadline", 0)


async def test_the_deadline_cuts_a_tool(serve: Serve) -> None:
    """A tool that takes longer than the deadline is interrupted, and its call is answered."""

    @tool(effect="read")
    async def sleep() -> None:
        await asyncio.sleep(60)

    agent = Agent("late", scripted({**reply("I sleep."), **calls("sleep")}), tools=[sleep], limits=Limits(deadline=0.5))
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.result()
    assert (result["outcome"], result["reason"], result["output"]) == ("timeout", "deadline", "I sleep.")
    assert (await run.results())["c1"].startswith("interrupted")


async def test_waiting_for_a_person_does_not_use_up_the_deadline(serve: Serve) -> None:
    """The clock of the deadline stands still while an approval waits."""

    @tool(effect="read", approval=Approval(timeout="1h"))
    def open_door() -> str:
        return "open"

    agent = Agent("doorman", scripted(calls("open_door"), reply("ok")), tools=[open_door], limits=Limits(deadline=1.0))
    lab = await serve(agent)
    run = await lab.start(agent)
    [pending] = await run.asks()
    before = time.monotonic()
    await eventually(lambda: time.monotonic() > before + 1.5)
    assert await run.state() == "waiting_approval"
    await run.update("approve", {"call_id": pending["call_id"]})
    assert (await run.result())["output"] == "ok"


async def test_stop_keeps_what_there_is(serve: Serve) -> None:
    """`stop` lets the present step end, asks the model no more, and the run completes with reason `stopped`."""
    began, go = threading.Event(), threading.Event()

    @tool(effect="write")
    def act() -> str:
        began.set()
        assert go.wait(20)
        return "acted"

    agent = Agent("worker", scripted({**reply("Acting."), **calls("act")}, reply("never")), tools=[act])
    lab = await serve(agent)
    run = await lab.start(agent)
    await eventually(began.is_set)
    assert await run.update("stop", {"reason": "lunch"}) == {"stopping": True}
    go.set()
    result = await run.result()
    assert (result["outcome"], result["reason"], result["output"]) == ("no_solution", "stopped", "Acting.")
    assert (await run.results())["c1"] == "acted"


async def test_stop_withdraws_what_waits_for_approval(serve: Serve) -> None:
    """A run that waits for a person can be stopped; the call is not executed."""

    @tool(effect="write", approval=True)
    def pay() -> str:
        raise AssertionError("must not run")

    agent = Agent("payer", scripted(calls("pay"), reply("never")), tools=[pay])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.asks()
    await run.send("stop", {})
    assert (await run.result())["reason"] == "stopped"
    assert (await run.results())["c1"].startswith("not executed")
    assert await run.pending() == []


async def cancelled(handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    """Cancel a run and return its status once it has ended."""
    await handle.cancel()
    run = Run(handle)
    with pytest.raises(asyncio.CancelledError):
        await run.result()
    described = await handle.describe()
    assert described.status == WorkflowExecutionStatus.CANCELED
    return await run.status()


async def test_cancel_reaches_a_running_model_call(serve: Serve) -> None:
    """A cancelled run closes its connection to the model and ends cancelled."""
    async with fake_chat({"text": "so far", "hold_end": asyncio.Event()}) as fake:
        agent = Agent("talker", fake.model())
        lab = await serve(agent)
        run = await lab.start(agent)
        await eventually(lambda: fake.requests)
        status = await cancelled(run.handle)
    assert (status["state"], status["outcome"], status["reason"]) == ("closed", "cancelled", "cancelled")


@pytest.mark.parametrize("effect", ["read", "write"])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_cancel_reaches_a_running_tool(serve: Serve, kind: str, effect: Any) -> None:
    """A cancelled run interrupts its tools, which can clean up; the run ends cancelled and the calls are answered."""
    began, cleaned = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        try:
            while True:
                time.sleep(0.01)
        except ToolCancelled:
            cleaned.set()
            raise

    async def work_async() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cleaned.set()
            raise

    worker = tool(effect=effect, name="work")(work if kind == "sync" else work_async)
    agent = Agent("worker", scripted(calls("work"), reply("never")), tools=[worker])
    lab = await serve(agent)
    run = await lab.start(agent)
    await eventually(began.is_set)
    assert (await cancelled(run.handle))["outcome"] == "cancelled"
    await eventually(cleaned.is_set)
    expected = "interrupted" if effect == "read" else "outcome unknown: the run ended while it ran"
    assert (await run.results())["c1"].startswith(expected)
    assert len(await run.events("tool_unknown")) == (effect == "write")


async def test_cancel_while_an_approval_waits(serve: Serve) -> None:
    """A cancelled run withdraws what waits for a person."""

    @tool(effect="write", approval=True)
    def pay() -> str:
        raise AssertionError("must not run")

    agent = Agent("payer", scripted(calls("pay"), reply("never")), tools=[pay])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.asks()
    assert (await cancelled(run.handle))["pending"] == []


@pytest.mark.parametrize(
    ("on_unknown", "outcome", "reason"), [("tell", "success", None), ("fail", "failed", "unknown_outcome")]
)
async def test_an_unknown_outcome(serve: Serve, on_unknown: Any, outcome: str, reason: str | None) -> None:
    """A write that outlives its time is never repeated: the model is told, or the run fails, as the tool says."""
    runs: list[int] = []

    @tool(effect="write", timeout=0.3, on_unknown=on_unknown)
    async def send() -> None:
        runs.append(1)
        await asyncio.sleep(30)

    agent = Agent("sender", scripted(calls("send"), reply("{{last_tool_text}}")), tools=[send])
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["outcome"], result["reason"], runs) == (outcome, reason, [1])
    if outcome == "success":
        assert result["output"].startswith("outcome unknown: send did not end within 0.3 s")


async def test_an_identical_call_after_an_unknown_outcome_needs_a_person(serve: Serve) -> None:
    """The same write again waits for approval, with the reason; another one does not."""
    runs: list[str] = []

    @tool(effect="write", timeout=0.3)
    async def send(to: str) -> str:
        runs.append(to)
        if len(runs) == 1:
            await asyncio.sleep(30)
        return f"sent {to}"

    script = [calls("send", to="a"), calls("send", to="b"), calls("send", to="a"), reply("{{last_tool_text}}")]
    agent = Agent("sender", scripted(*script), tools=[send])
    lab = await serve(agent)
    run = await lab.start(agent)
    [pending] = await run.asks()
    assert (pending["call_id"], pending["reason"]) == ("c3", "an earlier identical call has an unknown outcome")
    await run.update("deny", {"by": "ann", "reason": "it arrived"})
    assert (await run.result())["output"] == "not executed: denied by ann: it arrived"
    assert runs == ["a", "b"]


@pytest.mark.parametrize(
    ("answer", "shown", "runs"),
    [("done", "a person confirmed that this was done", 1), ("not done", "a person confirmed that this was not done", 1),
     ("retry", "sent", 2)],
)  # fmt: skip
async def test_a_person_says_what_became_of_a_call(serve: Serve, answer: str, shown: str, runs: int) -> None:
    """`ask` asks a person; the answers are done, not done and retry, and nothing else."""
    seen: list[int] = []

    @tool(effect="write", timeout=0.3, on_unknown="ask")
    async def send() -> str:
        seen.append(1)
        if len(seen) == 1:
            await asyncio.sleep(30)
        return "sent"

    agent = Agent("sender", scripted(calls("send"), reply("{{last_tool_text}}")), tools=[send])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("question")
    status = await run.status()
    assert (status["state"], [q["question_id"] for q in status["questions"]]) == ("waiting_answer", ["q-c1"])
    await run.send("answer", {"question_id": "q-c1", "text": "perhaps"})
    await run.send("answer", {"question_id": "q-c9", "text": "done"})
    assert len(await run.seen("message_refused", 2)) == 2
    await run.update("answer", {"question_id": "q-c1", "text": answer})
    assert (await run.result())["output"].startswith(shown)
    assert len(seen) == runs


async def test_limit_on_calls_inside_one_reply(serve: Serve) -> None:
    """Calls within the limit run, the others are answered, and the run ends; nothing is left open."""
    agent = Agent(
        "eager",
        scripted({**reply("Both."), **calls(call("look", at="a"), call("look", at="b"))}),
        tools=[look],
        limits=Limits(tool_calls=1),
    )
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.result()
    assert (result["outcome"], result["reason"], result["tool_calls"]) == ("budget_exceeded", "max_tool_calls", 1)
    assert await run.results() == {"c1": "seen a", "c2": "not executed: the limit of 1 tool calls is reached"}


async def test_messages_to_a_closed_run_do_no_harm(serve: Serve) -> None:
    """Queries of a closed run answer as before, also after a worker that never saw it has to rebuild it."""
    agent = Agent("done", scripted(reply("ok")))
    lab = await serve(agent)
    run = await lab.start(agent)
    await closed(run)
    status = await run.status()
    assert (status["state"], status["output"]) == ("closed", "ok")


@pytest.mark.parametrize("waits_for", ["approval", "question"])
async def test_a_worker_that_stops_leaves_its_runs_alone(
    client: Client, data_dir: Path, waits_for: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker that stops forgets its runs without a sound, and they go on elsewhere as if nothing had been."""

    @tool(effect="write", approval=True)
    def pay() -> str:
        return "paid"

    @tool(effect="write", timeout=0.2, on_unknown="ask")
    async def send() -> str:
        await asyncio.sleep(30)
        return "sent"

    step = calls("pay") if waits_for == "approval" else calls("send")
    agent = Agent("mover", scripted(step, reply("{{last_tool_text}}")), tools=[pay, send])
    async with laboratory(client, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.seen("approval_requested" if waits_for == "approval" else "question")
    gc.collect()
    async with laboratory(client, data_dir, agent, queue=lab.queue):
        if waits_for == "approval":
            await run.update("approve", {})
            assert (await run.result())["output"] == "paid"
        else:
            await run.update("answer", {"question_id": "q-c1", "text": "done"})
            assert (await run.result())["output"].startswith("a person confirmed that this was done")
    assert "Exception ignored" not in capfd.readouterr().err
