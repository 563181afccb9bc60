"""Streams of runs: whoever watches, and whenever, sees exactly what is recorded, and the run does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client as TemporalClient

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, Approval, Client, NoAnswer, NoSuchRun, Unreachable, tool
from perdure.embedded import EmbeddedServer
from perdure.handle import Handle
from perdure.status import StreamEvent
from tests.conftest import Serve
from tests.fake_chat import FakeChat, fake_chat
from tests.lab import Lab, Run, laboratory
from tests.viewing import Viewing, recorded

WORDS = [f"word{number} " for number in range(1_000)]
WRITTEN = {EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED}


@tool(effect="read")
def look(city: str) -> str:
    """Look."""
    return f"{city}: 9C"


@tool(effect="write", approval=Approval(timeout="10m"))
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


LOOK = {"tool": "look", "arguments": {"city": "Oslo"}}
PAY = {"tool": "pay", "arguments": {"to": "bob"}}


def talker(fake: FakeChat) -> Agent:
    """An agent whose model is the fake server."""
    return Agent("talker", fake.model(), tools=[look, pay])


def handle_of(lab: Lab, run: Run, run_id: str | None = None) -> Handle:
    """The run as users hold it."""
    return Client(lab.client).handle(run.id, run_id)


async def history_of(run: Run) -> list[Any]:
    """The types of all events of a run's history."""
    return [event.event_type async for event in run.handle.fetch_history_events()]


async def slowly(stream: AsyncIterator[StreamEvent], seconds: float) -> AsyncIterator[StreamEvent]:
    """The same stream, with a consumer that needs so long for each event."""
    async for event in stream:
        await asyncio.sleep(seconds)
        yield event


async def test_viewers_rebuild_the_text_and_leave_no_trace(serve: Serve) -> None:
    """Of 1,000 tokens: at once, late, slow, and broken off and back from a cursor; the history is that of no viewer."""
    middle = asyncio.Event()
    answer = {"text": WORDS, "pause": 0.002, "hold_at": {500: middle}}
    async with fake_chat({**answer, "hold_at": {}}, answer) as fake:
        lab = await serve(talker(fake))
        unwatched = await lab.start("talker")
        await unwatched.result()
        run = await lab.start("talker")
        handle = handle_of(lab, run)
        early, late, slow, back = Viewing(), Viewing(), Viewing(), Viewing()
        async with asyncio.TaskGroup() as group:
            group.create_task(early.follow(handle.stream()))
            group.create_task(slow.follow(slowly(handle.stream(), 0.5)))
            async with aclosing(handle.stream()) as stream:
                await back.until(stream, "text", 2)
            assert back.text
            assert "".join(WORDS).startswith(back.text)
            group.create_task(late.follow(handle.stream()))
            middle.set()
            back.text = ""
            group.create_task(back.follow(handle.stream(after=back.cursor)))
        texts = await recorded(run)
        assert texts == {1: "".join(WORDS)}
        for viewer in (early, late, slow, back):
            assert viewer.replies == texts
            assert viewer.types == ["run_started", "reply", "run_ended"]
        assert early.deltas > 3
        watched = await history_of(run)
        assert watched == await history_of(unwatched)
        assert not WRITTEN & set(watched)


async def test_a_closed_run_is_streamed_alike(serve: Serve) -> None:
    """After its end a run gives the same events and texts, from the beginning and from every cursor."""
    async with fake_chat({"text": ["one ", "two"], "calls": [LOOK]}, {"text": ["three"]}) as fake:
        lab = await serve(talker(fake))
        run = await lab.start("talker")
        handle = handle_of(lab, run)
        live = await Viewing().follow(handle.stream())
        texts = await recorded(run)
        assert live.replies == texts == {1: "one two", 2: "three"}
        assert live.types == ["run_started", "reply", "tool_start", "tool_end", "reply", "run_ended"]
        for after in range(len(live.types) + 1):
            again = await Viewing().follow(handle.stream(after=after))
            assert again.types == live.types[after:]
            assert again.replies == {
                step: text for step, text in texts.items() if (step == 2 and after < 5) or after < 2
            }


async def test_calls_and_approvals(serve: Serve) -> None:
    """A call that waits is told while it waits; the decision, the deed and the answer follow."""
    async with fake_chat({"text": "I pay.", "calls": [PAY]}, {"text": "Done."}) as fake:
        lab = await serve(talker(fake))
        seen = Viewing()
        async for event in Client(lab.client, task_queue=lab.queue).stream("talker", "Pay.", id=f"{lab.queue}-pay"):
            seen.take(event)
            if event.type == "approval_requested":
                assert seen.replies == {1: "I pay."}
                await Client(lab.client).handle(f"{lab.queue}-pay").approve()
        deed = ["approval_requested", "approval_decided", "tool_start", "tool_end"]
        assert seen.types == ["run_started", "reply", *deed, "reply", "run_ended"]
        assert seen.replies == {1: "I pay.", 2: "Done."}


async def test_two_runs_at_once(serve: Serve) -> None:
    """Each viewer sees its own run alone."""

    def echo(body: dict[str, Any]) -> dict[str, Any]:
        return {"text": [f"{body['messages'][-1]['content']} {number} " for number in range(50)], "pause": 0.01}

    async with fake_chat(echo) as fake:
        lab = await serve(talker(fake))
        runs = [await lab.start("talker", prompt) for prompt in ("red", "blue")]
        seen = await asyncio.gather(*(Viewing().follow(handle_of(lab, run).stream()) for run in runs))
        for viewer, run, prompt in zip(seen, runs, ("red", "blue"), strict=True):
            assert viewer.replies == await recorded(run)
            assert viewer.replies[1].startswith(f"{prompt} 0")


async def test_a_reply_larger_than_a_beat_shows(serve: Serve) -> None:
    """A viewer that has missed the beginning of a long text gets all of it when it is recorded."""
    deltas = [f"{number:06}" + "x" * 994 for number in range(150)]
    gates = {2: asyncio.Event(), 120: asyncio.Event()}
    async with fake_chat({"text": deltas, "hold_at": gates}) as fake:
        lab = await serve(talker(fake))
        run = await lab.start("talker")
        handle = handle_of(lab, run)
        early, late = Viewing(), Viewing()
        stream = handle.stream()
        await early.until(stream, "text")
        gates[2].set()  # more than two windows until the next look
        async with asyncio.TaskGroup() as group:
            group.create_task(early.follow(stream))
            group.create_task(late.follow(handle.stream()))
            await asyncio.sleep(1)  # both look at the window's end meanwhile
            gates[120].set()
        assert early.replies == late.replies == {1: "".join(deltas)} == await recorded(run)
        assert "reset" not in early.live


async def test_a_reply_that_history_only_refers_to(serve: Serve) -> None:
    """Who has seen all of a text that lies outside of history keeps it; others get what the conversation has of it."""
    text, end = ["y" * 10_000] * 7, asyncio.Event()
    async with fake_chat({"text": text, "calls": [LOOK], "hold_at": {7: end}}, {"text": "ok"}) as fake:
        lab = await serve(talker(fake))
        run = await lab.start("talker")
        handle = handle_of(lab, run)
        early = Viewing()
        stream = handle.stream()
        await early.until(stream, "run_started")
        end.set()
        await early.follow(stream)
        late = await Viewing().follow(handle.stream())
        assert late.replies == await recorded(run)
        assert late.replies[1].endswith("characters in all ...]")
        assert early.replies[1] in {"".join(text), late.replies[1]}


async def test_a_broken_stream_is_reset(serve: Serve) -> None:
    """What a failed attempt has shown is void; why it is tried again is told; then the new attempt's text comes."""
    more = asyncio.Event()
    broken = {"text": ["old ", "text", "never"], "cut": 2, "hold_at": {1: more}}
    async with fake_chat(broken, {"text": ["new ", "text"], "pause": 0.3}) as fake:
        lab = await serve(talker(fake))
        run = await lab.start("talker")
        seen = Viewing()
        stream = handle_of(lab, run).stream()
        await seen.until(stream, "text")
        more.set()
        await seen.follow(stream)
        assert seen.replies == {1: "new text"} == await recorded(run)
        assert "reset" in seen.live
        assert "retrying" in seen.live


@pytest.mark.parametrize(("how", "reason"), [("cancel", "cancelled"), ("terminate", "terminated")])
async def test_an_end_in_mid_stream(serve: Serve, how: str, reason: str) -> None:
    """Half a text that is never recorded is void; the end is told also where the run had no time to say so."""
    never = asyncio.Event()
    async with fake_chat({"text": ["half ", "more"], "hold_at": {1: never}}) as fake:
        lab = await serve(talker(fake))
        run = await lab.start("talker")
        handle = handle_of(lab, run)
        seen = Viewing()
        stream = handle.stream()
        await seen.until(stream, "text")
        await getattr(run.handle, how)()
        await seen.follow(stream)
        never.set()
        assert (seen.text, seen.replies) == ("", {})
        assert seen.ending["reason"] == reason
        late = await Viewing().follow(handle.stream())
        assert (late.types, late.ending["reason"]) == (seen.types, reason)


async def test_half_characters(serve: Serve) -> None:
    """A character in two halves, NUL and lone surrogates end as they are recorded."""
    text = ["a\ud83d", "\ude00b", "\x00", "\ud800", "end"]
    async with fake_chat({"text": text, "pause": 0.3}) as fake:
        lab = await serve(talker(fake))
        run = await lab.start("talker")
        seen = await Viewing().follow(handle_of(lab, run).stream())
        assert seen.replies == await recorded(run) == {1: "a\N{GRINNING FACE}b\ufffd\ufffdend"}


async def test_continue_as_new(tmp_path_factory: pytest.TempPathFactory, data_dir: Path, store: FileStore) -> None:
    """A stream goes on through the runs of a chain, and one of a single run of it ends with that."""
    settings = {"limit.historyCount.suggestContinueAsNew": "20"}
    turns: list[dict[str, Any]] = [*({"text": f"turn {n}", "calls": [LOOK]} for n in range(12)), {"text": "end"}]
    with EmbeddedServer(tmp_path_factory.mktemp("chain"), headless=True, dynamic_config=settings) as server:
        client = await TemporalClient.connect(server.address, data_converter=data_converter(store))
        async with fake_chat(*turns) as fake, laboratory(client, data_dir, talker(fake)) as lab:
            run = await lab.start("talker")
            seen = await Viewing().follow(handle_of(lab, run).stream())
            assert seen.types.count("continued") > 1
            assert seen.replies == await recorded(run)
            first = handle_of(lab, run, run.handle.first_execution_run_id)
            part = await Viewing().follow(first.stream())
            assert not {"continued", "run_ended"} & {*part.types, *part.live}
            assert part.replies.items() <= seen.replies.items()


async def test_errors(serve: Serve, client: TemporalClient) -> None:
    """A run that does not exist, and one without a worker, are told by name; the latter after the stated patience."""
    users = Client(client, task_queue="deserted-stream", answer_wait=1)
    with pytest.raises(NoSuchRun, match="'no-such-stream'"):
        await anext(users.handle("no-such-stream").stream())
    handle = await users.start("talker", "Go.")
    with pytest.raises(NoAnswer, match="no worker is polling queue 'deserted-stream'"):
        await anext(handle.stream(patience=0))
    event = await anext(handle.stream())
    assert event.type == "silent"
    assert "no worker is polling queue 'deserted-stream'" in (event.text or "")
    await handle.temporal.terminate("of no use")


@pytest.mark.slow
async def test_no_server(tmp_path: Path) -> None:
    """A server that has gone is told by its address after the stated patience."""
    with EmbeddedServer(tmp_path, headless=True) as server:
        address = server.address
        handle = await (await Client.connect(address=address)).start("talker", "Go.")
    with pytest.raises(Unreachable, match=address):
        await anext(handle.stream(patience=0))
