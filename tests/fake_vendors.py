"""Vendors on loopback that refuse a conversation unless their opaque parts come back exactly where they were.

Every reply with calls carries parts that only its vendor understands: seals, encrypted reasoning, signatures. A call is
`look(n)` with a number of its own, by which its vendor knows its turn again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from perdure.model import Model

Wire = dict[str, Any]

AWKWARD = ' Zwei L\u00e4nder \U0001f30d\u2028 und 1+1 = "2"\\n \n'
"""Text that somebody on the way may want to tidy up."""

PROVIDERS = {
    "anthropic": "anthropic",
    "gemini": "gemini",
    "responses": "openai",
    "deepseek": "deepseek",
    "signed": "compatible",
}
"""The vendors here, and under which provider each is asked; `signed` is Gemini in the format of Chat Completions."""


class Broken(Exception):
    """Why a vendor refuses a conversation."""


@dataclass
class FakeVendors:
    """The server: the steps are taken in order by the requests that come and keep the rules.

    `call` gives two calls with opaque parts, `done` the last answer, `refuse` a refusal for good.
    """

    steps: list[str]
    size: int = 24
    """Characters of an opaque part."""
    base_url: str = ""
    requests: list[tuple[str, Wire]] = field(default_factory=list)
    """Vendor and body, of those that kept the rules."""
    broken: list[str] = field(default_factory=list)
    """Rules that were not kept."""
    issued: dict[int, tuple[str, str, Any]] = field(default_factory=dict)
    """By the number of a turn's first call: vendor, model and what it said."""

    def model(self, vendor: str, name: str = "m", **params: Any) -> Model:
        """A model of a vendor."""
        base_url = f"{self.base_url}/{vendor}"
        return Model(provider=PROVIDERS[vendor], name=name, base_url=base_url, api_key_env="PATH", params=params)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            status, kind, payload = self._answer(head.split(" ")[1], body)
            said = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n"
            writer.write(f"{said}content-length: {len(payload)}\r\n\r\n".encode() + payload)
            await writer.drain()
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    def _answer(self, path: str, body: Wire) -> tuple[int, str, bytes]:
        vendor = path.split("/")[1]
        model = path.rpartition("/")[2].partition(":")[0] if vendor == "gemini" else body["model"]
        try:
            self._check(vendor, model, body)
        except Broken as error:
            self.broken.append(f"{vendor}: {error}")
            return _refusal(400, str(error))
        self.requests.append((vendor, body))
        step = self.steps[min(len(self.requests), len(self.steps)) - 1]
        if step == "refuse":
            return _refusal(403, "not today")
        number = 10 * len(self.requests)
        said = SAID[vendor](number, self.size) if step == "call" else DONE[vendor]
        if step == "call":
            self.issued[number] = (vendor, model, said)
        if body.get("stream", False) is True or "streamGenerateContent" in path:
            events = STREAMED[vendor](said)
            lines = [f"event: {event['type']}\n" if "type" in event else "" for event in events]
            sent = [f"{line}data: {json.dumps(event)}\n\n" for line, event in zip(lines, events, strict=True)]
            end = "data: [DONE]\n\n" if vendor in CHAT else ""
            return 200, "text/event-stream", ("".join(sent) + end).encode()
        return 200, "application/json", json.dumps(WHOLE[vendor](said)).encode()

    def _check(self, vendor: str, model: str, body: Wire) -> None:
        """Each turn has the opaque parts of whoever said it where he is asked, and none elsewhere."""
        turns = list(TURNS[vendor](body))
        numbers = [number for number, _ in turns]
        if numbers != list(self.issued):
            raise Broken(f"the turns are {numbers} instead of {list(self.issued)}")
        for number, turn in turns:
            maker, made_by, said = self.issued[number]
            own = maker == vendor and (made_by == model or vendor != "gemini")
            expected = OPAQUE[vendor](said) if own else FOREIGN[vendor]
            if turn != expected:
                raise Broken(f"turn {number} of {maker} has {_short(turn)} instead of {_short(expected)}")
        text = json.dumps(body)
        for number, (maker, made_by, _) in self.issued.items():
            own = maker == vendor and (made_by == model or vendor != "gemini")
            if not own and f"SEAL-{number}-" in text:
                raise Broken(f"something of turn {number} of {maker} was sent")
        if vendor == "responses" and (body["store"] or "reasoning.encrypted_content" not in body["include"]):
            raise Broken("encrypted reasoning was not asked for")


def _refusal(status: int, message: str) -> tuple[int, str, bytes]:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    return status, "application/json", json.dumps(error).encode()


def _short(value: Any) -> str:
    return repr(value)[:300]


def seal(number: int, what: str, size: int) -> str:
    """Base64 with all of its odd characters, of that length at least."""
    return f"SEAL-{number}-{what}+/".ljust(size, "x") + "=="


# What each vendor says of a turn with two calls, `look(number)` and `look(number + 1)`.


def _say_anthropic(number: int, size: int) -> list[Wire]:
    # Every other turn shows nothing of its thinking, as the API does on demand.
    text = AWKWARD if number % 20 else ""
    return [
        {"type": "thinking", "thinking": text, "signature": seal(number, "signature", size)},
        {"type": "redacted_thinking", "data": seal(number, "redacted", size)},
        {"type": "text", "text": "I look."},
        *({"type": "tool_use", "id": f"toolu_{n}", "name": "look", "input": {"n": n}} for n in (number, number + 1)),
    ]


def _say_gemini(number: int, size: int) -> list[Wire]:
    signed = {"thoughtSignature": seal(number, "signature", size)}
    first: list[Wire] = [{"text": AWKWARD, "thought": True}]
    if number % 20:
        first.append({"text": "Let me see. "})
        first.append({"text": "I look.", "thoughtSignature": seal(number, "text", size)})
    return [
        *first,
        {"functionCall": {"name": "look", "args": {"n": number}}, **signed},
        {"functionCall": {"name": "look", "args": {"n": number + 1}}},
    ]


def _say_responses(number: int, size: int) -> list[Wire]:
    return [
        {
            "type": "reasoning",
            "id": f"rs_{number}",
            "summary": [{"type": "summary_text", "text": AWKWARD}] if number % 20 else [],
            "encrypted_content": seal(number, "reasoning", size),
        },
        *(
            {
                "type": "function_call",
                "id": f"fc_{n}",
                "call_id": f"call_{n}",
                "name": "look",
                "arguments": json.dumps({"n": n}),
                "status": "completed",
            }
            for n in (number, number + 1)
        ),
    ]


def _chat_calls(number: int) -> list[Wire]:
    return [
        {"id": f"x{n}", "type": "function", "function": {"name": "look", "arguments": json.dumps({"n": n})}}
        for n in (number, number + 1)
    ]


def _say_deepseek(number: int, size: int) -> Wire:
    reasoning = f"{AWKWARD}{seal(number, 'reasoning', size)}{AWKWARD}"
    return {"role": "assistant", "content": "", "reasoning_content": reasoning, "tool_calls": _chat_calls(number)}


def _say_signed(number: int, size: int) -> Wire:
    calls = _chat_calls(number)
    calls[0]["extra_content"] = {"google": {"thought_signature": seal(number, "signature", size)}}
    return {"role": "assistant", "content": None, "tool_calls": calls}


SAID = {
    "anthropic": _say_anthropic,
    "gemini": _say_gemini,
    "responses": _say_responses,
    "deepseek": _say_deepseek,
    "signed": _say_signed,
}
DONE: Mapping[str, Any] = {
    "anthropic": [{"type": "text", "text": "done"}],
    "gemini": [{"text": "done"}],
    "responses": [
        {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
    ],
    "deepseek": {"role": "assistant", "content": "done"},
    "signed": {"role": "assistant", "content": "done"},
}
CHAT = ("deepseek", "signed")


# What has to come back of a turn: its opaque parts with their places among the calls.


def _opaque_anthropic(blocks: Sequence[Wire]) -> list[Wire]:
    return [block for block in blocks if block["type"] != "text"]


def _opaque_gemini(parts: Sequence[Wire]) -> list[Wire]:
    # Only what bears a signature has to come back.
    return [part for part in parts if "functionCall" in part or "thoughtSignature" in part]


def _opaque_responses(items: Sequence[Wire]) -> list[Wire]:
    return [item if item["type"] == "reasoning" else {"call_id": item["call_id"]} for item in items]


def _opaque_deepseek(message: Wire) -> Wire:
    return {"reasoning_content": message["reasoning_content"]}


def _opaque_signed(message: Wire) -> list[Wire]:
    return [call.get("extra_content", {}) for call in message["tool_calls"]]


OPAQUE: Mapping[str, Any] = {
    "anthropic": _opaque_anthropic,
    "gemini": _opaque_gemini,
    "responses": _opaque_responses,
    "deepseek": _opaque_deepseek,
    "signed": _opaque_signed,
}
EMPTY = "nothing that is opaque"
FOREIGN: Mapping[str, Any] = {
    "anthropic": EMPTY,
    "gemini": EMPTY,
    "responses": EMPTY,
    "deepseek": {"reasoning_content": ""},  # which this vendor wants beside every call
    "signed": [{}, {}],
}


# The turns with calls in a request: the number of the first call, and what is opaque.


def _turns_anthropic(body: Wire) -> Any:
    for message in body["messages"]:
        blocks = [{k: v for k, v in block.items() if k != "cache_control"} for block in message["content"]]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if calls:
            bare = not any("thinking" in block["type"] for block in blocks)
            own = all(call["id"] == f"toolu_{call['input']['n']}" for call in calls)
            yield calls[0]["input"]["n"], EMPTY if bare and not own else _opaque_anthropic(blocks)


def _turns_gemini(body: Wire) -> Any:
    for content in body["contents"]:
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        if calls:
            bare = not any("thoughtSignature" in part or "thought" in part for part in content["parts"])
            yield calls[0]["args"]["n"], EMPTY if bare else _opaque_gemini(content["parts"])


def _turns_responses(body: Wire) -> Any:
    turn: list[Wire] = []
    for item in [*body["input"], {"role": "end"}]:
        kind = item.get("type")
        if kind in ("reasoning", "function_call"):
            turn.append(item)
        elif turn and kind == "function_call_output":
            calls = [item for item in turn if item["type"] == "function_call"]
            bare = len(calls) == len(turn)
            own = all(call["call_id"] == f"call_{json.loads(call['arguments'])['n']}" for call in calls)
            number = json.loads(calls[0]["arguments"])["n"]
            yield number, EMPTY if bare and not own else _opaque_responses(turn)
            turn = []


def _turns_chat(vendor: str, body: Wire) -> Any:
    for message in body["messages"]:
        if calls := message.get("tool_calls"):
            number = json.loads(calls[0]["function"]["arguments"])["n"]
            if vendor == "deepseek" and "reasoning_content" not in message:
                raise Broken(f"reasoning_content is missing from turn {number}")
            yield number, OPAQUE[vendor](message)


TURNS: Mapping[str, Any] = {
    "anthropic": _turns_anthropic,
    "gemini": _turns_gemini,
    "responses": _turns_responses,
    "deepseek": lambda body: _turns_chat("deepseek", body),
    "signed": lambda body: _turns_chat("signed", body),
}


# Replies as one body.


def _whole_anthropic(blocks: list[Wire]) -> Wire:
    stop = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": blocks, "stop_reason": stop,
            "usage": usage}  # fmt: skip


def _whole_gemini(parts: list[Wire]) -> Wire:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


def _whole_responses(items: list[Wire]) -> Wire:
    return {"id": "r", "object": "response", "status": "completed", "model": "m", "output": items}


def _whole_chat(message: Wire) -> Wire:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


WHOLE: Mapping[str, Any] = {
    "anthropic": _whole_anthropic,
    "gemini": _whole_gemini,
    "responses": _whole_responses,
    "deepseek": _whole_chat,
    "signed": _whole_chat,
}


# Replies as events, opaque parts in the pieces in which they come.


def _stream_anthropic(blocks: list[Wire]) -> list[Wire]:
    whole = _whole_anthropic(blocks)
    events: list[Wire] = [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
    for at, block in enumerate(blocks):
        begun, deltas = dict(block), []
        match block["type"]:
            case "thinking":
                begun |= {"thinking": "", "signature": ""}
                halves = (block["thinking"][:5], block["thinking"][5:])
                deltas += [{"type": "thinking_delta", "thinking": half} for half in halves if half]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case "text":
                begun["text"] = ""
                deltas.append({"type": "text_delta", "text": block["text"]})
            case "tool_use":
                begun["input"] = {}
                deltas.append({"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
        events.append({"type": "content_block_start", "index": at, "content_block": begun})
        events += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": at})
    end = {"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"]}, "usage": {"output_tokens": 5}}
    return [*events, end, {"type": "message_stop"}]


def _stream_gemini(parts: list[Wire]) -> list[Wire]:
    events = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts]
    return [*events, {"candidates": [{"content": {"role": "model", "parts": []}, "finishReason": "STOP"}]}]


def _stream_responses(items: list[Wire]) -> list[Wire]:
    events: list[Wire] = [{"type": "response.created", "response": {"status": "in_progress", "output": []}}]
    for at, item in enumerate(items):
        begun = {**item, "encrypted_content": "incomplete"} if item["type"] == "reasoning" else item
        events.append({"type": "response.output_item.added", "output_index": at, "item": begun})
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    return [*events, {"type": "response.completed", "response": _whole_responses(items)}]


def _stream_chat(message: Wire) -> list[Wire]:
    deltas: list[Wire] = []
    if reasoning := message.get("reasoning_content"):
        deltas += [{"reasoning_content": reasoning[:5]}, {"reasoning_content": reasoning[5:]}]
    if message["content"]:
        deltas.append({"content": message["content"]})
    for at, call in enumerate(message.get("tool_calls", ())):
        deltas.append({"tool_calls": [{"index": at, **call}]})
    finish = _whole_chat(message)["choices"][0]["finish_reason"]
    return [
        *({"choices": [{"index": 0, "delta": delta}]} for delta in deltas),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
    ]


STREAMED: Mapping[str, Any] = {
    "anthropic": _stream_anthropic,
    "gemini": _stream_gemini,
    "responses": _stream_responses,
    "deepseek": _stream_chat,
    "signed": _stream_chat,
}


@asynccontextmanager
async def fake_vendors(*steps: str, size: int = 24) -> AsyncIterator[FakeVendors]:
    """Serve all vendors on one free port; the last step is taken by every later request."""
    vendors = FakeVendors(list(steps), size)
    server = await asyncio.start_server(vendors.serve, "127.0.0.1", 0, limit=2**20)
    vendors.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield vendors
    finally:
        server.close()
        await asyncio.sleep(0)
