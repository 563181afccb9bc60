"""Sinks: events as typed, redacted lines or calls, and sinks that are broken."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Agent, Client, tool
from perdure.announcement import Announcement
from perdure.embedded import EmbeddedServer
from perdure.errors import ConfigError
from perdure.event import Event
from perdure.events import ApprovalRequested, RunEnded, Text, ToolEnd
from perdure.outlets import JsonLines, Outlet
from perdure.sinks import EventSinks
from perdure.testing import calls, reply, scripted
from tests.conftest import Serve
from tests.lab import eventually

AT = "2026-01-01T00:00:00+00:00"
SECRET = "sk-abcdefghijklmnopqrstuvwx"


def event(number: int, kind: str = "said", **fields: Any) -> dict[str, Any]:
    """An event that a client has seen."""
    return {"run": "r", "n": number, "at": AT, "type": kind, **fields}


def lines(file: Path) -> list[dict[str, Any]]:
    """What a file holds."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_file_gets_a_line_of_json_an_event(tmp_path: Path) -> None:
    """Appended, in order, redacted; only its owner may read it."""
    file = tmp_path / "events.jsonl"
    for begin in (1, 4):
        sinks = EventSinks(events_file=file, secrets=["correct-horse-battery"])
        for number in range(begin, begin + 3):
            sinks.put(event(number, text=f"{SECRET} and correct-horse-battery ä", password="x"))
        sinks.close()
    assert [line["n"] for line in lines(file)] == [1, 2, 3, 4, 5, 6]
    assert {line["text"] for line in lines(file)} == {"[redacted] and [redacted] ä"}
    assert {line["password"] for line in lines(file)} == {"[redacted]"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_function_gets_each_event_as_its_type() -> None:
    """In order, redacted."""
    seen: list[Event] = []
    sinks = EventSinks(on_event=seen.append)
    sinks.put(event(1, "tool_end", call_id="c1", tool="pay", status="done"))
    sinks.put(event(2, "approval_requested", reason=f"for {SECRET}"))
    sinks.put(event(3, "run_ended", outcome="success"))
    sinks.close()
    end, asked, last = seen
    assert isinstance(end, ToolEnd)
    assert end.call_id == "c1"
    assert isinstance(asked, ApprovalRequested)
    assert asked.reason == "for [redacted]"
    assert isinstance(last, RunEnded)


async def test_an_async_function_runs_on_the_loop_that_is_given() -> None:
    """Or on one of its own, and one event after the other in both cases."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def take(_: Event) -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)

    here = asyncio.get_running_loop()
    for loop in (here, None):
        sinks = EventSinks(on_event=take, loop=loop)
        sinks.put(event(1))
        sinks.put(event(2))
        await asyncio.to_thread(sinks.close)
    assert loops[:2] == [here, here]
    assert len(set(loops[2:])) == 1
    assert here not in loops[2:]


def test_text_in_pieces_is_redacted_as_a_whole() -> None:
    """A credential that comes in pieces is not seen; offsets fit what is shown; a reset voids what is held back."""
    seen: list[Event] = []
    sinks = EventSinks(on_event=seen.append)
    text = f"The key of the house is {SECRET} as you know, and that is all there is to say about it."
    for attempt in (1, 2):
        if attempt == 2:
            sinks.put({"run": "r", "at": AT, "type": "reset", "attempt": 2})
        for index in range(0, len(text), 5):
            piece = {"text": text[index : index + 5], "attempt": attempt, "offset": index}
            sinks.put({"run": "r", "at": AT, "type": "text", **piece})
    sinks.put(event(1, "reply", step=1))
    sinks.close()
    whole = text.replace(SECRET, "[redacted]")
    first = [e for e in seen if isinstance(e, Text) and e.attempt == 1]
    second = [e for e in seen if isinstance(e, Text) and e.attempt == 2]
    assert whole.startswith("".join(e.text for e in first))
    assert "".join(e.text for e in second) == whole
    assert [e.offset for e in second] == [len("".join(e.text for e in second[:i])) for i in range(len(second))]
    assert seen[-1].type == "reply"


# --- broken ones ----------------------------------------------------------------------------------------------------


def broken_paths(folder: Path) -> dict[str, Path]:
    """Files that cannot be written."""
    (folder / "folder").mkdir()
    return {"folder": folder / "folder", "full": Path("/dev/full")}


@pytest.mark.parametrize("folder", ["typo", "typo/deeper", "file"])
def test_a_file_in_no_folder_is_refused(tmp_path: Path, folder: str) -> None:
    """At once, with what names it; no folder is made, for it may be mistyped."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"PERDURE_EVENTS_FILE.*: there is no folder '{tmp_path / folder}'"):
        EventSinks(events_file=tmp_path / folder / "e.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", ["folder", "full"])
def test_a_file_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """And nobody else notices."""
    seen: list[Event] = []
    sinks = EventSinks(events_file=broken_paths(tmp_path)[kind], on_event=seen.append)
    for number in range(5):
        sinks.put(event(number))
    sinks.close()
    assert [one.n for one in seen] == [0, 1, 2, 3, 4]
    [record] = caplog.records
    assert "events file" in record.getMessage()
    assert record.levelno == logging.WARNING


def test_a_file_that_can_be_written_again_goes_on(tmp_path: Path) -> None:
    """What was lost is lost; a line that was torn does not spoil the next."""
    file = tmp_path / "folder" / "events.jsonl"
    (tmp_path / "folder").mkdir()
    writer = JsonLines(file, "PERDURE_EVENTS_FILE")
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").write_text("in the way")
    with pytest.raises(OSError):  # noqa: PT011  # which one depends on the system
        writer.write([{"n": 1}])
    (tmp_path / "folder").unlink()
    (tmp_path / "folder").mkdir()
    writer.write([{"n": 2}])
    writer.write([{"n": 3}])
    writer.close()
    assert lines(file) == [{"n": 2}, {"n": 3}]


def test_a_function_that_raises_is_logged_once_and_called_again(caplog: pytest.LogCaptureFixture) -> None:
    """Its next event may be taken."""
    seen: list[int | None] = []

    def take(one: Event) -> None:
        seen.append(one.n)
        raise ValueError("no")

    sinks = EventSinks(on_event=take)
    for number in range(3):
        sinks.put(event(number))
    sinks.close()
    assert seen == [0, 1, 2]
    [record] = caplog.records
    assert "on_event ValueError: no" in record.getMessage()


def test_a_function_that_blocks_holds_nobody_up() -> None:
    """Neither who puts events nor other sinks; closing does not wait for ever."""
    release, arrived = threading.Event(), threading.Event()

    def take(_: Event) -> None:
        arrived.set()
        release.wait()

    sinks = EventSinks(on_event=take)
    for number in range(20_000):
        sinks.put(event(number))
    assert arrived.wait(30)
    sinks.close(within=0.1)
    release.set()


def test_a_slow_end_loses_the_oldest_and_is_told_how_many(caplog: pytest.LogCaptureFixture) -> None:
    """What it gets later is the newest."""
    release = threading.Event()
    taken: list[tuple[list[int], int]] = []

    def take(batch: list[int], dropped: int) -> None:
        release.wait(30)
        taken.append((batch, dropped))

    outlet: Outlet[int] = Outlet("slow", take, most=10)
    outlet.put(0)
    while outlet.waiting:  # its thread has taken the first
        pass
    for number in range(1, 101):
        outlet.put(number)
    release.set()
    assert outlet.close(30)
    assert taken == [([0], 0), (list(range(91, 101)), 90)]
    assert "too slow" in caplog.text


# --- on a worker ----------------------------------------------------------------------------------------------------


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def clerk() -> Agent:
    """An agent with one call."""
    return Agent(name="clerk", model=scripted(calls("look", n=1), reply(f"Done with {SECRET}.")), tools=[look])


async def test_sinks_of_a_worker_get_every_event_of_its_runs(serve: Serve, tmp_path: Path) -> None:
    """The file and the function the same, with the envelope, and with the text of replies."""
    file, seen = tmp_path / "events.jsonl", list[Event]()
    lab = await serve(clerk(), events_file=file, on_event=seen.append)
    run = await lab.start("clerk", metadata={"team": "blue"}, tenant="acme")
    await run.result()
    await eventually(lambda: seen and seen[-1].type == "run_ended")
    await eventually(lambda: file.exists() and lines(file)[-1]["type"] == "run_ended")
    log = await run.events()
    recorded = [one for one in lines(file) if "n" in one]
    assert [(one["n"], one["type"]) for one in recorded] == [(one["n"], one["type"]) for one in log]
    assert [one.model_dump(mode="json", exclude_unset=True)["type"] for one in seen] == [o["type"] for o in lines(file)]
    assert {(one["run"], one["agent"], one["tenant"], one["metadata"]["team"]) for one in lines(file)} == {
        (run.id, "clerk", "acme", "blue")
    }
    assert {len(one["trace_id"]) for one in lines(file)} == {32}
    assert "".join(one.text for one in seen if isinstance(one, Text)) == "Done with [redacted]."
    assert SECRET not in file.read_text()


def raises(_: Event) -> None:
    """A sink that is broken."""
    raise RuntimeError("no")


async def hangs(_: Event) -> None:
    """A sink that never returns."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("on_event", [raises, hangs])
async def test_broken_sinks_harm_no_run(serve: Serve, on_event: Callable[[Event], Any]) -> None:
    """Runs end as if there were none."""
    lab = await serve(clerk(), events_file=Path("/dev/full"), on_event=on_event)
    results = await asyncio.gather(*(lab.run("clerk") for _ in range(3)))
    assert [result["outcome"] for result in results] == ["success"] * 3


def test_what_a_run_announces_can_be_put_as_it_is() -> None:
    """A worker's announcement and a client's event are the same to a sink."""
    seen: list[Event] = []
    sinks = EventSinks(on_event=seen.append)
    sinks.put(Announcement("w", "x", "x", "", "clerk", None, {"n": 1, "at": AT, "type": "said"}))
    sinks.close()
    assert [(one.run, one.type, one.n) for one in seen] == [("w", "said", 1)]
    assert os.environ is not None


# --- at a client, and in a script -------------------------------------------------------------------------------------


async def test_sinks_of_a_client_get_what_its_streams_see(
    serve: Serve, temporal_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Redacted for the sinks, whole for the viewer; an async function runs on the client's loop."""
    file, seen, loops = tmp_path / "events.jsonl", list[Event](), set[asyncio.AbstractEventLoop]()

    async def take(one: Event) -> None:
        loops.add(asyncio.get_running_loop())
        seen.append(one)

    lab = await serve(clerk())
    client = await Client.connect(
        address=temporal_server.address, task_queue=lab.queue, events_file=file, on_event=take
    )
    viewed = [one async for one in client.stream("clerk", "Go.")]
    await eventually(lambda: seen and seen[-1].type == "run_ended")
    await eventually(lambda: file.exists() and lines(file)[-1]["type"] == "run_ended")
    assert [one.n for one in seen if one.n] == [one.n for one in viewed if one.n]
    assert SECRET in "".join(one.text or "" for one in viewed if one.type == "text")
    assert "".join(one.text for one in seen if isinstance(one, Text)) == "Done with [redacted]."
    assert len({one["run"] for one in lines(file)}) == 1
    assert loops == {asyncio.get_running_loop()}


@pytest.mark.slow
def test_sinks_of_a_script(tmp_path: Path) -> None:
    """`perdure.local` has the same two."""
    file, seen = tmp_path / "events.jsonl", list[Event]()
    with perdure.local(data_dir=tmp_path / "data", events_file=file, on_event=seen.append) as p:
        assert p.run(clerk(), "Go.").outcome == "success"
    assert [one["type"] for one in lines(file)] == [one.type for one in seen]
    assert seen[-1].type == "run_ended"
