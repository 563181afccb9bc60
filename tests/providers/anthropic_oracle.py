"""The official SDK's types and the API's written rules as judges of requests for Anthropic; also what tests build."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message as SdkMessage
from anthropic.types import RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from perdure.messages import MESSAGES, Message
from perdure.model_call import ModelReply, ModelRequest, ToolDefinition
from providers.anthropic.provider import Anthropic
from providers.base import ServerSentEvent, WireRequest, WireResponse
from providers.sse import Decoder
from tests.providers.oracle import strict

GOLDEN = Path(__file__).parent / "golden" / "anthropic"
PROVIDER = Anthropic()
OWN = {"provider": "anthropic"}
ADD = ToolDefinition(
    "add",
    "Sum of two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)

_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def judge(wire: WireRequest) -> dict[str, Any]:
    """The body, which the SDK's type of a request takes and which keeps the rules that no type says."""
    assert wire.path == "/v1/messages"
    assert wire.headers == {"anthropic-version": "2026-10-21"}
    body: dict[str, Any] = json.loads(json.dumps(wire.body, ensure_ascii=False).encode())
    assert wire.stream is body["stream"]
    strict(MessageCreateParamsStreaming if wire.stream else MessageCreateParamsNonStreaming).validate_python(body)
    judge_turns(body["messages"])
    for tool in body.get("tools", ()):
        if "type" not in tool:  # else the server runs it
            judge_input_schema(tool["input_schema"])
    marks = json.dumps(body).count('"cache_control"')
    assert marks <= 4
    return body


def judge_input_schema(schema: Mapping[str, Any]) -> None:
    """What the API checks of a tool's schema."""
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert not schema.keys() & {"anyOf", "oneOf", "allOf", "$schema"}
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in schema["properties"])


def judge_turns(turns: list[dict[str, Any]]) -> None:
    """What the API checks of a conversation."""
    assert [turn["role"] for turn in turns] == [("user", "assistant")[n % 2] for n in range(len(turns))]
    _judge_server_tools(turns)
    called: list[str] = []
    seen: set[str] = set()
    for turn in turns:
        kinds = [block["type"] for block in turn["content"]]
        assert kinds
        for block in turn["content"]:
            inner = block.get("content", ()) if block["type"] == "tool_result" else ()
            assert all(b["text"].strip() for b in [block, *inner] if b["type"] == "text")
            if block.get("is_error"):
                assert {b["type"] for b in inner} == {"text"}
        results = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
        assert results == called
        assert kinds[: len(results)] == ["tool_result"] * len(results)
        called = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        assert kinds[len(kinds) - len(called) :] == ["tool_use"] * len(called)
        assert kinds[-1] not in ("thinking", "redacted_thinking")
        assert len(set(called)) == len(called)
        assert not seen & set(called)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]+", call_id) for call_id in called)
        seen |= set(called)


def _judge_server_tools(turns: list[dict[str, Any]]) -> None:
    """The server's own calls have their results in the same turn, but for those of a turn that goes on."""
    waiting: list[str] = []
    for turn in turns:
        if turn["role"] == "user" and {block["type"] for block in turn["content"]} != {"tool_result"}:
            assert waiting == []
        for block in turn["content"] if turn["role"] == "assistant" else ():
            if block["type"] == "server_tool_use":
                waiting.append(block["id"])
            elif block["type"].endswith("_tool_result"):
                waiting.remove(block["tool_use_id"])


def messages(*items: dict[str, Any]) -> tuple[Message, ...]:
    """Messages from their JSON, where a string stands for one text part."""
    read = [
        {
            **item,
            "parts": [{"type": "text", "text": part} if isinstance(part, str) else part for part in item["parts"]],
        }
        for item in items
    ]
    return tuple(MESSAGES.validate_python(read))


def request(*items: dict[str, Any], **fields: Any) -> ModelRequest:
    """A request with these messages."""
    return ModelRequest(**{"model": "claude-sonnet-5", "instructions": "", "messages": messages(*items), **fields})


def user(*parts: Any) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "parts": parts or ("U",)}


def assistant(*parts: Any) -> dict[str, Any]:
    """A reply."""
    return {"role": "assistant", "parts": parts}


def call(call_id: str, **fields: Any) -> dict[str, Any]:
    """A call of `add` as a part."""
    return {"type": "call", "id": call_id, "tool": "add", "arguments": {"a": 1, "b": 2}, **fields}


def result(call_id: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    """A tool result."""
    return {"role": "tool", "call": call_id, "parts": parts, **fields}


def thought(text: str = "hm", **details: Any) -> dict[str, Any]:
    """A thinking part of this provider."""
    return {"type": "thinking", "text": text, "details": {**OWN, **details}}


def body_of(asked: ModelRequest) -> dict[str, Any]:
    """The judged body of a request."""
    return judge(PROVIDER.build(asked))


def sent(*items: dict[str, Any], **fields: Any) -> list[tuple[str, list[dict[str, Any]]]]:
    """The turns of a request without marks for the cache: role and blocks."""
    turns = body_of(request(*items, params={"cache_control": None}, **fields))["messages"]
    return [(turn["role"], turn["content"]) for turn in turns]


def parsed(body: bytes) -> ModelReply:
    """The reply of a whole body."""
    return PROVIDER.parse(WireResponse(200, {"content-type": "application/json"}, body))


def events(stream: bytes) -> list[ServerSentEvent]:
    """The events of a stream."""
    return Decoder().feed(stream)


def folded(stream: bytes) -> tuple[ModelReply, str]:
    """The reply of a stream, and the text that was shown on the way."""
    fold = PROVIDER.fold()
    shown = "".join([fold.feed(event) for event in events(stream)])
    return fold.finish(), shown


def sdk_message(case: str) -> SdkMessage:
    """A recorded body or stream as the SDK reads it, strictly."""
    if not case.endswith(".sse"):
        return SdkMessage.model_validate_json((GOLDEN / case).read_bytes())
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events((GOLDEN / case).read_bytes()):
        if event.event != "ping":
            snapshot = accumulate_event(
                event=_EVENT.validate_json(event.data), current_snapshot=snapshot, json_bufs=buffers
            )
    return SdkMessage.model_validate_json(snapshot.model_dump_json(warnings=False))
