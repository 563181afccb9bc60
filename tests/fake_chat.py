"""A Chat Completions server on loopback: it keeps every request and answers from a list, streaming."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from perdure.model import Model, Price

Answer = Mapping[str, Any]
"""`text`, `calls` (as `perdure.testing.call` makes them), `usage`, `finish`; or `status` with `body`; `hold` (an
asyncio.Event) is waited for before the reply begins, and before its end mark where `hold_end` is given. `text` may be a
list of deltas; `pause` are seconds between two chunks, `hold_at` maps the number of a chunk to an Event that it waits
for, `cut` is the number of chunks after which the connection breaks."""


@dataclass
class FakeChat:
    """The server: `requests` are the decoded bodies so far, in order of arrival."""

    answers: list[Answer | Callable[[dict[str, Any]], Answer]]
    base_url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    dropped: int = 0
    """Connections that the other side closed before its reply was complete."""

    def model(self, name: str = "m", price: Price | None = None, **params: Any) -> Model:
        """A model at this server."""
        return Model(provider="compatible", name=name, base_url=self.base_url, price=price, params=params)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one request each."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))))
            self.requests.append(body)
            self.headers.append(headers)
            self.paths.append(head.split()[1])
            item = self.answers[min(len(self.requests), len(self.answers)) - 1]
            await self._answer(item(body) if callable(item) else item, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.dropped += 1
        finally:
            with contextlib.suppress(ConnectionError):
                writer.close()
                await writer.wait_closed()

    async def _answer(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        if answer.get("hold"):
            await answer["hold"].wait()
        if "status" in answer:
            payload = json.dumps(answer.get("body", {"error": {"message": "no"}})).encode()
            head = f"HTTP/1.1 {answer['status']} X\r\ncontent-type: application/json\r\nconnection: close\r\n"
            writer.write(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for number, chunk in enumerate(chunks_of(answer)):
            if answer.get("cut") == number:
                return
            if (gate := answer.get("hold_at", {}).get(number)) is not None:
                await gate.wait()
            await asyncio.sleep(answer.get("pause", 0))
            writer.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await writer.drain()
        if answer.get("hold_end"):
            await answer["hold_end"].wait()
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()


def chunks_of(answer: Answer) -> Sequence[dict[str, Any]]:
    """The chunks of a streamed reply."""
    said = answer.get("text") or []
    deltas: list[dict[str, Any]] = [{"content": text} for text in ([said] if isinstance(said, str) else said)]
    for index, item in enumerate(answer.get("calls", ())):
        given = item["arguments"]
        function = {"name": item["tool"], "arguments": given if isinstance(given, str) else json.dumps(given)}
        deltas.append({"tool_calls": [{"index": index, "id": f"x{index}", "type": "function", "function": function}]})
    finish = answer.get("finish") or ("tool_calls" if answer.get("calls") else "stop")
    usage = answer.get("usage", {"prompt_tokens": 10, "completion_tokens": 5})
    return [
        *({"choices": [{"delta": delta}]} for delta in deltas),
        {"choices": [{"delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": usage},
    ]


@asynccontextmanager
async def fake_chat(*answers: Answer | Callable[[dict[str, Any]], Answer]) -> AsyncIterator[FakeChat]:
    """Serve on a free port; the last answer is given to every later request."""
    fake = FakeChat(list(answers))
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        server.close()
        await asyncio.sleep(0)
