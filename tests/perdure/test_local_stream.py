"""Streams in a plain script: each piece of text as the model gives it, by plain iteration."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import perdure
from perdure import Agent, Model, tool
from perdure.local_process import Local
from perdure.status import StreamEvent
from tests.viewing import Viewing

pytestmark = pytest.mark.slow

PIECES = [f"{number:05} " for number in range(500)]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A server and worker of this process."""
    with perdure.local(data_dir=tmp_path_factory.mktemp("local")) as made:
        yield made


def pieces(name: str, gate: threading.Event) -> Agent:
    """An agent whose answer comes in many pieces at once, as soon as somebody watches."""

    @tool(effect="read", name=f"{name}_wait")
    def wait() -> str:
        """Wait."""
        assert gate.wait(30)
        return "watched"

    first = {"text": "I wait.", "calls": [{"tool": f"{name}_wait"}]}
    second = {"text": "".join(PIECES), "chunks": len(PIECES)}
    return Agent(name, Model(provider="scripted", params={"script": [first, second]}), tools=[wait])


def texts(events: list[StreamEvent], step: int) -> list[Any]:
    """The pieces of one reply."""
    return [event.text for event in events if event.type == "text" and event.step == step]


def test_every_piece_comes(local: Local) -> None:
    """An answer of 500 pieces is told in 500 pieces, and is what is recorded."""
    gate = threading.Event()
    events = []
    for event in local.stream(pieces("all", gate), "Go.", id="every-piece"):
        events.append(event)
        if event.type == "reply":
            gate.set()
    assert texts(events, 2) == PIECES
    assert [event.n for event in events if event.n is not None] == list(range(1, 7))
    assert events[-1].type == "run_ended"
    assert events[-1].model_extra == {"outcome": "success"}
    again = list(local.stream("all", "Go.", id="every-piece"))
    assert texts(again, 2) == ["".join(PIECES)]
    assert [event.type for event in local.handle("every-piece").stream(after=4)] == ["text", "reply", "run_ended"]


def test_a_slow_reader_gets_it_all(local: Local) -> None:
    """Who reads nothing until the run has ended rebuilds the same text; the run has not waited for it."""
    gate = threading.Event()
    run = local.start(pieces("slow", gate), "Go.")
    stream = run.stream()
    seen = Viewing()
    for event in stream:
        seen.take(event)
        if event.type == "reply":
            gate.set()
            run.result()
    assert seen.replies == {1: "I wait.", 2: "".join(PIECES)}


def test_two_viewers_and_one_that_leaves(local: Local) -> None:
    """A viewer that stops in the middle leaves nothing behind; another one goes on."""
    gate = threading.Event()
    run = local.start(pieces("two", gate), "Go.")
    leaving = run.stream()
    assert next(leaving).type == "run_started"
    gate.set()
    while (event := next(leaving)).type != "text":
        pass
    leaving.close()
    seen = Viewing()
    for event in run.stream():
        seen.take(event)
    assert seen.replies == {1: "I wait.", 2: "".join(PIECES)}
