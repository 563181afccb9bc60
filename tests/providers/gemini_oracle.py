"""The official SDK's types as judges of requests for Gemini and of what we read in its replies; what tests build."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.genai import types
from pydantic import BaseModel

from perdure.messages import MESSAGES, AssistantMessage, CallPart, Message, Usage
from perdure.model_call import Finish, ModelReply, ModelRequest, RawCall, RawText, RawThinking
from providers.base import ServerSentEvent, WireRequest
from providers.gemini.provider import Gemini

PROVIDER = Gemini()
MODEL = "gemini-3.8-flash"
OWN = {"provider": "gemini", "model": MODEL}

_FIELDS: Mapping[str, type[BaseModel]] = {
    "systemInstruction": types.Content,
    "toolConfig": types.ToolConfig,
    "generationConfig": types.GenerationConfig,
}
_FREE = frozenset({"args", "response", "parametersJsonSchema", "responseJsonSchema"})


def judge(wire: WireRequest) -> None:
    """Every field of a request is known to the SDK under its wire name, and the API's rules of turns are kept."""
    body = dict(wire.body)
    for content in body["contents"]:
        _judge(types.Content, content)
    for tool in body.get("tools", ()):
        _judge(types.Tool, tool)
        for declaration in tool["functionDeclarations"]:
            if "parametersJsonSchema" in declaration:
                judge_schema(declaration["parametersJsonSchema"])
    for field, model in _FIELDS.items():
        if field in body:
            _judge(model, body[field])
    if schema := body.get("generationConfig", {}).get("responseJsonSchema"):
        judge_schema(schema)
    unknown = body.keys() - _FIELDS.keys() - {"contents", "tools"}
    assert not unknown, unknown
    _judge_turns(body["contents"])


def judge_schema(schema: Any) -> None:
    """The schema is within the SDK's type of a JSON Schema and our narrower subset, in every node."""
    types.JSONSchema.model_validate(schema, by_alias=True, by_name=False)
    assert not schema.keys() & {"$ref", "$defs", "default", "pattern", "oneOf", "uniqueItems"}, schema
    assert isinstance(schema.get("type", ""), str)
    assert all(isinstance(value, str) for value in schema.get("enum", ()))
    assert schema.get("anyOf", [True])
    further = schema.get("additionalProperties", False)
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for node in [*inner, *([schema["items"]] if "items" in schema else []), *([further] if further else [])]:
        judge_schema(node)


def _judge(model: type[BaseModel], value: Any) -> None:
    model.model_validate(value, by_alias=True, by_name=False)
    for key in _keys(value):
        assert "_" not in key, key


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            if key not in _FREE:
                yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)


def _judge_turns(contents: Sequence[Mapping[str, Any]]) -> None:
    """First the user, then in alternation; nothing empty; the calls of a turn answered in order at the next's head."""
    assert contents[0]["role"] == "user"
    for before, after in itertools.pairwise(contents):
        assert {before["role"], after["role"]} == {"user", "model"}
    for number, content in enumerate(contents):
        assert content["parts"]
        kinds = [next(iter(part.keys() - {"thought", "thoughtSignature"})) for part in content["parts"]]
        assert all(part.get("text", True) or "thoughtSignature" in part for part in content["parts"])
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        following = contents[number + 1]["parts"][: len(calls)] if number + 1 < len(contents) else []
        answers = [part.get("functionResponse", {}) for part in following]
        assert [(c.get("id"), c["name"]) for c in calls] == [(a.get("id"), a.get("name")) for a in answers]
        asked = sum("functionCall" in part for part in contents[number - 1]["parts"]) if number else 0
        assert kinds.count("functionResponse") == asked
    ids = [part["functionCall"]["id"] for c in contents for part in c["parts"] if "id" in part.get("functionCall", {})]
    assert len(ids) == len(set(ids))


def request(*items: dict[str, Any], **fields: Any) -> ModelRequest:
    """A request with messages from their JSON, where a string stands for one text part."""
    read = [
        {**item, "parts": [text(item["parts"])] if isinstance(item["parts"], str) else item["parts"]} for item in items
    ]
    return ModelRequest(
        **{"model": MODEL, "instructions": "", "messages": tuple(MESSAGES.validate_python(read)), **fields}
    )


def body(asked: ModelRequest) -> dict[str, Any]:
    """The body of a request, once the judge has passed it."""
    wire = PROVIDER.build(asked)
    judge(wire)
    json.dumps(wire.body, ensure_ascii=False, allow_nan=False).encode()
    return dict(wire.body)


def text(words: str, **details: Any) -> dict[str, Any]:
    """A text part."""
    return {"type": "text", "text": words, **({"details": details} if details else {})}


def call(call_id: str, tool: str = "add", **fields: Any) -> dict[str, Any]:
    """A call as a part."""
    return {"type": "call", "id": call_id, "tool": tool, "arguments": {"a": 1, "b": 2}, **fields}


def user(parts: Any = "U") -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "parts": parts}


def assistant(*parts: Any) -> dict[str, Any]:
    """A reply."""
    return {"role": "assistant", "parts": [text(part) if isinstance(part, str) else part for part in parts]}


def result(call_id: str, parts: Any = "3", **fields: Any) -> dict[str, Any]:
    """A tool result."""
    return {"role": "tool", "call": call_id, "parts": parts, **fields}


def stored(reply: ModelReply, model: str = MODEL) -> AssistantMessage:
    """A reply as a run stores it: details with the model that was asked, calls under the run's ids, through JSON."""
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(reply.parts, 1):
        details = {"details": {**part.details, "model": model}} if part.details else {}
        if isinstance(part, RawCall):
            assert part.arguments is None or isinstance(part.arguments, Mapping)
            made = {"type": "call", "id": f"r{number}", "tool": part.tool, "arguments": dict(part.arguments or {})}
        else:
            made = {"type": "thinking" if isinstance(part, RawThinking) else "text", "text": part.text}
        parts.append({**made, **details})
    return AssistantMessage.model_validate_json(json.dumps({"role": "assistant", "parts": parts}))


def dumped(*messages: Message) -> list[dict[str, Any]]:
    """Messages as the JSON that `request` takes."""
    made: list[dict[str, Any]] = MESSAGES.dump_python(list(messages), mode="json")
    return made


def answers(message: AssistantMessage) -> list[dict[str, Any]]:
    """A result for each call of a reply."""
    return [result(part.id) for part in message.parts if isinstance(part, CallPart)]


def folded(events: Sequence[str]) -> tuple[ModelReply, str]:
    """The reply of a stream's events, and the text shown on the way."""
    fold = PROVIDER.fold()
    shown = "".join([fold.feed(ServerSentEvent(data)) for data in events])
    return fold.finish(), shown


def chunks_of(stream: bytes) -> list[str]:
    """The data of each event of a recorded stream, split without our decoder."""
    return [block.removeprefix("data: ") for block in stream.decode().strip().split("\n\n")]


_FINISH = {"STOP": Finish.STOP, "MAX_TOKENS": Finish.LENGTH, "SAFETY": Finish.FILTERED}


def agree(ours: ModelReply, bodies: Sequence[Any]) -> None:
    """What the SDK reads in one body or in all chunks is what we read: texts, calls, signatures, end, usage."""
    read = [types.GenerateContentResponse.model_validate(body, by_alias=True, by_name=False) for body in bodies]
    candidates = [response.candidates[0] for response in read if response.candidates]
    parts = [part for c in candidates if c.content for part in c.content.parts or ()]
    calls: list[types.FunctionCall] = []
    for part in parts:
        if part.function_call and part.function_call not in calls:
            calls.append(part.function_call)
    assert "".join(part.text or "" for part in parts if not part.thought) == "".join(
        part.text for part in ours.parts if isinstance(part, RawText)
    )
    assert "".join(part.text or "" for part in parts if part.thought) == "".join(
        part.text for part in ours.parts if isinstance(part, RawThinking)
    )
    assert [(c.id, c.name, c.args) for c in calls] == [
        ((part.details or {}).get("id"), part.tool, part.arguments) for part in ours.parts if isinstance(part, RawCall)
    ]
    theirs = [types.Part(thought_signature=part.thought_signature) for part in parts if part.thought_signature]
    signatures = [(part.details or {}).get("thoughtSignature") for part in ours.parts]
    assert theirs == [
        types.Part.model_validate({"thoughtSignature": signature}) for signature in signatures if signature
    ]
    reason = [c.finish_reason for c in candidates if c.finish_reason][-1]
    assert ours.finish is _FINISH[reason.value]
    usage = [response.usage_metadata for response in read if response.usage_metadata][-1]
    assert ours.usage == Usage(
        input_tokens=(usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        cached_tokens=usage.cached_content_token_count or 0,
        output_tokens=(usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
        reasoning_tokens=usage.thoughts_token_count or 0,
    )
    assert ours.model == next(response.model_version for response in read if response.model_version)
