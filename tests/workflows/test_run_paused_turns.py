"""A run whose model is at a server that speaks Anthropic's format and pauses over a long search of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Limits, Model, tool
from tests.conftest import Serve
from tests.providers.anthropic_oracle import judge_turns

GOLDEN = Path(__file__).parent.parent / "providers" / "golden" / "anthropic"
PAUSED = (GOLDEN / "paused.sse").read_bytes()
WHOLE = json.loads((GOLDEN / "paused.response.json").read_bytes())["content"]
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_02", "content": []}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has a key."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def said(reason: str, *blocks: dict[str, Any]) -> bytes:
    """A stream of whole blocks."""
    usage = {"input_tokens": 10, "output_tokens": 5}
    begin = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": blocks, "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": begin},
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def text(words: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": words}


@asynccontextmanager
async def fake_anthropic(streams: Sequence[bytes], requests: list[dict[str, Any]]) -> AsyncIterator[Model]:
    """A model at a server that gives these streams, the last one for ever, and keeps what it was asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(line for line in head.split("\r\n") if line.startswith("content-length: "))
        requests.append(json.loads(await reader.readexactly(int(length.partition(": ")[2]))))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(streams[min(len(requests), len(streams)) - 1])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield Model(provider="anthropic", name="m", base_url=address,
                    params={"tools": [SEARCH], "cache_control": None})  # fmt: skip
    finally:
        server.close()
        await asyncio.sleep(0)


async def test_a_paused_turn_goes_on(serve: Serve) -> None:
    """The server gets its own blocks back as they were and finishes; calls of the run's tools beside them run once."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 1}}
    streams = [PAUSED, said("pause_turn", FOUND, text("Looking."), use), said("end_turn", text("Rain."))]
    requests: list[dict[str, Any]] = []
    async with fake_anthropic(streams, requests) as model:
        agent = Agent("searcher", model, tools=[look])
        lab = await serve(agent)
        run = await lab.start(agent)
        result = await run.result()
    assert (result["outcome"], result["output"], result["steps"], len(requests)) == ("success", "Rain.", 3, 3)
    _, second, third = ([(turn["role"], turn["content"]) for turn in request["messages"]] for request in requests)
    assert second[1:] == [("assistant", WHOLE)]
    assert third[1] == ("assistant", [*WHOLE, FOUND, text("Looking."), use])
    assert [(role, content[0]["tool_use_id"]) for role, content in third[2:]] == [("user", "toolu_1")]
    for request in requests:
        judge_turns(request["messages"])
        assert [offered["name"] for offered in request["tools"]] == ["look", "web_search"]
    assert await run.results() == {"c1": "seen 1"}
    assert [event["tokens"] for event in await run.events("reply")] == [35, 15, 15]


async def test_a_turn_that_pauses_for_ever_ends_at_the_limit(serve: Serve) -> None:
    """Each pause is a step."""
    requests: list[dict[str, Any]] = []
    async with fake_anthropic([said("pause_turn", text("Searching."))], requests) as model:
        agent = Agent("patient", model, limits=Limits(steps=3))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], len(requests)) == ("budget_exceeded", "max_steps", 3)
    assert result["output"] == "Searching."
