"""A server on loopback that speaks the Responses format and goes on with replies in the background."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from perdure.model import Model, Price

Answer = Mapping[str, Any]
"""`text` is a list of deltas, or `status` with `error`. `hold_at` maps the number of an event to an asyncio.Event that
it waits for in the first stream, `cuts` are the numbers of the events before which the first, second, ... stream of the
reply breaks off, `gone` says that the reply cannot be asked for again, `fails` that it ends with that error."""


@dataclass
class FakeResponses:
    """The server: `asked` are its requests in order, as method and address; `bodies` are those of new replies."""

    answers: Sequence[Answer]
    base_url: str = ""
    asked: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    streams: dict[str, int] = field(default_factory=dict)

    def model(self, name: str = "m", price: Price | None = None, **fields: Any) -> Model:
        """A model at this server that answers in the background."""
        params = {"background": True, **fields.pop("params", {})}
        return Model(provider="openai", name=name, base_url=self.base_url, price=price, params=params, **fields)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            method, address, _ = head.split("\r\n", 1)[0].split(" ")
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.asked.append(f"{method.upper()} {address}")
            await self._answer(method, urlsplit(address), body, writer)
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    async def _answer(self, method: str, address: Any, body: bytes, writer: asyncio.StreamWriter) -> None:
        if method == "post" and address.path.endswith("/responses"):
            self.bodies.append(json.loads(body))
            known, after = f"resp_{len(self.bodies)}", -1
        else:
            known = address.path.split("/responses/")[1].split("/")[0]
            after = int(parse_qs(address.query).get("starting_after", ["-1"])[0])
        number = int(known.removeprefix("resp_"))
        answer = self.answers[min(number, len(self.answers)) - 1]
        if address.path.endswith("/cancel"):
            await _whole(writer, 200, {"id": known, "status": "cancelled"})
        elif method == "get" and answer.get("gone"):
            await _whole(writer, 404, {"error": {"message": f"Response with id '{known}' not found."}})
        elif "status" in answer:
            await _whole(writer, answer["status"], {"error": answer.get("error", {"message": "no"})})
        else:
            await self._stream(known, answer, self.bodies[number - 1], after, writer)

    async def _stream(
        self, known: str, answer: Answer, asked: Mapping[str, Any], after: int, writer: asyncio.StreamWriter
    ) -> None:
        self.streams[known] = turn = self.streams.get(known, 0) + 1
        cuts = answer.get("cuts", ())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for event in events_of(known, answer, asked):
            at = event["sequence_number"]
            if at <= after:
                continue
            if turn <= len(cuts) and at == cuts[turn - 1]:
                return
            if turn == 1 and (gate := answer.get("hold_at", {}).get(at)) is not None:
                await gate.wait()
            writer.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            await writer.drain()


def events_of(known: str, answer: Answer, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of a reply: one that it was created, one a delta, one at its end."""
    response = {"id": known, "model": "m", "background": asked.get("background", False), "status": "in_progress"}
    words = "".join(answer["text"])
    item = {"type": "message", "id": "msg", "content": [{"type": "output_text", "text": words}]}
    usage = {"input_tokens": 10, "output_tokens": 5}
    end: dict[str, Any] = {"type": "response.completed", "response": {**response, "status": "completed",
                           "output": [item], "usage": usage}}  # fmt: skip
    if error := answer.get("fails"):
        end = {"type": "response.failed", "response": {**response, "status": "failed", "error": error}}
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "msg",
               "delta": delta} for delta in answer["text"]]  # fmt: skip
    events = [{"type": "response.created", "response": response}, *deltas, end]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


async def _whole(writer: asyncio.StreamWriter, status: int, body: Mapping[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(data)}"
    writer.write(f"{head}\r\n\r\n".encode() + data)
    await writer.drain()


@asynccontextmanager
async def fake_responses(*answers: Answer) -> AsyncIterator[FakeResponses]:
    """Serve on a free port; the last answer is given to every later request."""
    fake = FakeResponses(answers)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        server.close()
        await asyncio.sleep(0)
