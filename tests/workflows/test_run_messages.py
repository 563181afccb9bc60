"""Messages to a run and questions of it: good ones work, bad ones are answered or recorded and never harm the run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.service import RPCError

from perdure import Agent, tool
from perdure.testing import calls, reply, scripted
from tests.conftest import Serve
from tests.lab import Lab, Run


def raw(data: bytes, **metadata: bytes) -> RawValue:
    """A payload as a stranger's client may send it."""
    return RawValue(Payload(metadata=metadata or {"encoding": b"json/plain"}, data=data))


@tool(effect="write", approval=True)
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


BAD: list[tuple[str, str, list[Any]]] = [
    ("none", "say", []),
    ("null", "say", [None]),
    ("list", "say", [["text", "hi"]]),
    ("text", "say", ["hi"]),
    ("number", "approve", [7]),
    ("two_payloads", "say", [{"text": "a"}, {"text": "b"}]),
    ("unknown_field", "say", [{"text": "a", "txet": "b"}]),
    ("empty_text", "say", [{"text": ""}]),
    ("text_of_another_type", "say", [{"text": 5}]),
    ("too_long", "say", [{"text": "x" * 200_001}]),
    ("long_message_id", "say", [{"text": "x", "message_id": "x" * 201}]),
    ("unknown_name", "aprove", [{"call_id": "c1"}]),
    ("strange_name", "\u202e" + "x" * 300, [{}]),
    ("broken_json", "say", [raw(b"{broken")]),
    ("broken_utf8", "say", [raw(b'{"text": "\xff\xfe"}')]),
    ("no_encoding", "say", [raw(b"{}", nothing=b"x")]),
    ("unknown_encoding", "say", [raw(b"{}", encoding=b"binary/secret")]),
    ("bytes", "say", [raw(b"\x00\x01", encoding=b"binary/plain")]),
    ("nan", "say", [raw(b'{"text": NaN}')]),
    ("deep", "decide", [raw(b"[" * 50_000 + b"]" * 50_000)]),
    ("decision_of_a_list", "decide", [["c1", True]]),
    ("no_verdict", "decide", [{"call_id": "c1"}]),
    ("ok_is_yes", "decide", [{"call_id": "c1", "approve": "yes"}]),
    ("approve_is_one", "decide", [{"call_id": "c1", "approve": 1}]),
    ("call_of_another_type", "approve", [{"call_id": 1}]),
    ("unknown_call", "approve", [{"call_id": "c99"}]),
    ("approve_with_a_verdict", "approve", [{"call_id": "c1", "approve": False}]),
    ("unknown_decision_field", "approve", [{"call_id": "c1", "boss": True}]),
    ("unknown_remember", "approve", [{"call_id": "c1", "remember": "all"}]),
    ("wrong_digest", "approve", [{"call_id": "c1", "digest": "sha256:00"}]),
    ("answer_without_question", "answer", [{"question_id": "q-c1", "text": "done"}]),
    ("answer_of_nothing", "answer", []),
    ("stop_with_a_list", "stop", [[1]]),
    ("stop_with_an_unknown_field", "stop", [{"why": "x"}]),
]


@pytest.fixture
async def waiting(serve: Serve) -> tuple[Lab, Run]:
    """A run that waits for the approval of c1."""
    agent = Agent("payer", scripted(calls("pay", to="bob"), reply("{{last_tool_text}}")), tools=[pay])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.asks()
    return lab, run


async def test_bad_signals_are_recorded_and_harmless(waiting: tuple[Lab, Run]) -> None:
    """Each bad signal leaves one event with the reason and changes nothing; a right one works afterwards."""
    _, run = waiting
    for _, name, payloads in BAD:
        await run.send(name, *payloads)
    refused = await run.seen("message_refused", len(BAD))
    assert [event["message"] for event in refused] == [name[:100] for _, name, _ in BAD]
    assert all(event["reason"] for event in refused)
    status = await run.status()
    assert (status["state"], status["said"], status["stopping"]) == ("waiting_approval", 0, None)
    await run.send("approve", {"call_id": "c1"})
    assert (await run.result())["output"] == "paid bob"


async def test_bad_updates_are_refused_with_the_reason(waiting: tuple[Lab, Run]) -> None:
    """Each bad update is refused at once and leaves no trace; a right one works afterwards."""
    _, run = waiting
    before = (await run.handle.describe()).history_length
    for label, name, payloads in BAD:
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await run.update(name, *payloads)
        assert str(refusal.value.cause), label
    assert await run.events("message_refused") == []
    assert (await run.handle.describe()).history_length - before <= 3
    await run.update("approve", {"call_id": "c1"})
    assert (await run.result())["output"] == "paid bob"


async def test_signals_without_a_payload_that_are_right(waiting: tuple[Lab, Run]) -> None:
    """`approve` needs no payload while one call waits."""
    _, run = waiting
    await run.send("approve", {})
    assert (await run.result())["output"] == "paid bob"


async def test_signals_before_the_run_has_begun(serve: Serve) -> None:
    """What was said before the first step is taken in; a decision then is recorded as too early."""
    agent = Agent("early", scripted(reply("{{user}}")))
    lab = await serve(agent)
    handle = await lab.client.start_workflow(
        "AgentWorkflow",
        {"agent": "early", "prompt": "Go."},
        id="early-bird",
        task_queue=lab.queue,
        start_signal="say",
        start_signal_args=[{"text": "Before."}],
    )
    run = Run(handle)
    assert (await run.result())["output"] == "Before."


async def test_say_answers_with_the_queue(serve: Serve) -> None:
    """The update says how many messages wait, and tells of a duplicate."""
    go = threading.Event()

    @tool(effect="read")
    def wait() -> str:
        assert go.wait(20)
        return "ok"

    agent = Agent("listener", scripted(calls("wait"), reply("ok")), tools=[wait])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("tool_start")
    assert await run.update("say", {"text": "a", "message_id": "1"}) == {"queued": 1}
    assert await run.update("say", {"text": "b"}) == {"queued": 2}
    assert await run.update("say", {"text": "a", "message_id": "1"}) == {"queued": 2, "duplicate": True}
    go.set()
    await run.result()


@pytest.mark.parametrize(
    ("query", "payloads"),
    [
        ("events", [{"after": -1}]),
        ("events", [{"after": "1"}]),
        ("events", [[1]]),
        ("events", [{"after": True}]),
        ("conversation", ["x"]),
        ("events", [{"after": 1}, 2]),
        ("nothing", []),
    ],
)
async def test_bad_queries_are_refused(waiting: tuple[Lab, Run], query: str, payloads: list[Any]) -> None:
    """A query that cannot be answered says why and harms nothing."""
    _, run = waiting
    with pytest.raises((WorkflowQueryFailedError, RPCError)):
        await run.handle.query(query, args=payloads)
    await run.update("deny", {})
    assert (await run.result())["outcome"] == "success"


async def test_queries_page(serve: Serve) -> None:
    """Events and messages can be asked for from a point on."""
    agent = Agent("talker", scripted(reply("ok")))
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.result()
    everything = await run.handle.query("events")
    later = await run.handle.query("events", {"after": 1})
    assert [event["n"] for event in everything["events"]] == list(range(1, everything["last"] + 1))
    assert later["events"] == everything["events"][1:]
    assert everything["truncated"] is False
    page = await run.handle.query("conversation", {"after": 1})
    assert (len(page["messages"]), page["total"], page["next"]) == (1, 2, None)
    usage = await run.handle.query("usage")
    assert usage["steps"] == 1
    spec = await run.handle.query("spec")
    assert spec["spec"]["name"] == "talker"


async def test_updates_after_the_end(serve: Serve) -> None:
    """An update of a closed run is refused by the server."""
    agent = Agent("done", scripted(reply("ok")))
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.result()
    with pytest.raises(RPCError, match="already completed"):
        await run.update("say", {"text": "x"})
