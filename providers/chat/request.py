"""A request in the Chat Completions format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import (
    AssistantMessage,
    BlobPart,
    CallPart,
    Message,
    SystemMessage,
    TextPart,
    ThinkingPart,
    ToolMessage,
    UserMessage,
)
from perdure.model_call import ModelRequest, ToolDefinition
from providers.base import WireRequest
from providers.chat.content import plain, shown_by_tool, unresolved, user_content
from providers.details import own_details
from providers.naming import named_calls
from providers.pairing import paired
from providers.strict_schema import can_be_strict
from providers.text import clean, clean_json

PATH = "/chat/completions"
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Names under which servers show reasoning as text; `reasoning_details` is the list form."""
ASKED = "Answer with one JSON object that satisfies this JSON Schema"
"""How the instructions begin to speak of a schema for the answer."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")

Wire = dict[str, Any]


@dataclass(frozen=True)
class Quirks:
    """In what servers of this format differ; `params={"quirks": {...}}` of a model overrides single fields."""

    max_tokens_field: str = "max_tokens"
    stream_usage: bool = True
    """Ask for usage in the stream with `stream_options`."""
    system: Literal["system", "developer", "user"] = "system"
    """Role of the instructions; `user` puts them before the first user message, for templates without a system role."""
    merge_turns: bool = False
    """Join messages of one role that follow each other, for templates that demand alternation."""
    reasoning: Literal["echo", "require", "omit"] = "echo"
    """Send reasoning back where it came from; `require` also sends an empty one beside calls that came without it."""
    output: Literal["json_schema", "json_object", "instructions"] = "json_schema"
    """How a schema for the answer is told beside the instructions, which always have it."""


_QUIRKS: TypeAdapter[Quirks] = TypeAdapter(Quirks)


def build(name: str, request: ModelRequest, quirks: Quirks) -> WireRequest:
    """The HTTP request; raises ProviderError (INVALID_REQUEST, CONFIGURATION) for what the format cannot say."""
    params = dict(request.params)
    quirks = _overridden(quirks, params.pop("quirks", {}))
    body: Wire = {"model": request.model, "messages": _messages(name, request, quirks)}
    if request.tools:
        body |= _tools(name, request)
    if request.output_schema is not None and quirks.output != "instructions":
        body["response_format"] = _response_format(request.output_schema, quirks)
    if request.max_tokens is not None and not params.keys() & set(_MAX_TOKENS_FIELDS):
        body[quirks.max_tokens_field] = request.max_tokens
    body["stream"] = True
    if quirks.stream_usage and params.get("stream", True):
        body["stream_options"] = {"include_usage": True}
    body = {field: value for field, value in (body | params).items() if value is not None}
    return WireRequest(path=PATH, body=body, stream=bool(body.get("stream")))


def _overridden(quirks: Quirks, changes: Any) -> Quirks:
    known = {field.name for field in fields(Quirks)}
    if not isinstance(changes, Mapping) or not changes.keys() <= known:
        raise ProviderError(
            ErrorKind.CONFIGURATION, f'params["quirks"] of a model takes an object with {", ".join(sorted(known))}'
        )
    try:
        return _QUIRKS.validate_python({**asdict(quirks), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ProviderError(ErrorKind.CONFIGURATION, f'params["quirks"] of a model: {where}: {first["msg"]}') from error


def _messages(name: str, request: ModelRequest, quirks: Quirks) -> list[Wire]:
    system = [request.instructions]
    system += [plain(name, m) for m in request.messages if isinstance(m, SystemMessage)]
    if request.output_schema is not None:
        # Beside a response_format too: many servers enforce it without telling the model, some ignore or refuse it.
        schema = json.dumps(clean_json(request.output_schema), ensure_ascii=False)
        system.append(f"{ASKED}, and nothing else: {schema}")
    turns = _turns(name, paired(m for m in request.messages if not isinstance(m, SystemMessage)), quirks)
    instructions = "\n\n".join(clean(text) for text in system if text)
    if instructions and quirks.system == "user":
        at = next((i for i, turn in enumerate(turns) if turn["role"] == "user"), 0)
        turns.insert(at, {"role": "user", "content": instructions})
        turns[at : at + 2] = _merged(turns[at : at + 2])
    elif instructions:
        turns.insert(0, {"role": quirks.system, "content": instructions})
    return _merged(turns) if quirks.merge_turns else turns


def _turns(name: str, messages: Sequence[Message], quirks: Quirks) -> list[Wire]:
    turns: list[Wire] = []
    taken: set[str] = set()
    waiting: list[tuple[str, CallPart]] = []
    files: list[Wire] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            call_id, call = waiting.pop(0)
            kind, shown = shown_by_tool(name, message)
            text = plain(name, message, beside=True)
            turns.append({"role": "tool", "tool_call_id": call_id, "content": text or (f"({kind})" if shown else "")})
            if shown:
                label = f"{kind.capitalize()} from the result of {clean(call.tool)} ({call_id}):"
                files += [{"type": "text", "text": label}, *shown]
            if not waiting and files:
                # A tool message holds text only, so what a tool shows follows in the user's name.
                turns.append({"role": "user", "content": files})
                files = []
        elif isinstance(message, AssistantMessage):
            waiting = named_calls(name, message, taken)
            turn = _assistant(name, message, waiting, quirks)
            turns += [turn] if turn else []
        elif isinstance(message, UserMessage) and message.parts:
            turns.append({"role": "user", "content": user_content(name, message)})
    return turns


def _assistant(name: str, message: AssistantMessage, calls: list[tuple[str, CallPart]], quirks: Quirks) -> Wire | None:
    for part in message.parts:
        if isinstance(part, BlobPart):
            raise unresolved(name, part)
    content = clean("".join(part.text for part in message.parts if isinstance(part, TextPart)))
    if not content and not calls:
        return None
    turn: Wire = {"role": "assistant", "content": content or None}
    if calls:
        turn["tool_calls"] = [_call(name, call_id, call) for call_id, call in calls]
    if quirks.reasoning != "omit":
        turn |= _reasoning(name, (part for part in message.parts if isinstance(part, ThinkingPart)))
    if quirks.reasoning == "require" and calls:
        turn.setdefault("reasoning_content", "")
    return turn


def _reasoning(name: str, parts: Iterable[ThinkingPart]) -> Wire:
    fields: Wire = {}
    for part in parts:
        details = own_details(part.details, name)
        for field in REASONING_FIELDS:
            if details.get(field) is True:
                fields[field] = fields.get(field, "") + clean(part.text)
        if details.get("reasoning_details"):
            fields["reasoning_details"] = [*fields.get("reasoning_details", ()), *details["reasoning_details"]]
    return fields


def _call(name: str, call_id: str, call: CallPart) -> Wire:
    details = own_details(call.details, name)
    extra = {field: value for field, value in details.items() if field not in ("provider", "id", "function")}
    # A made-up name that the format forbids would have the whole conversation refused from now on.
    tool = re.sub(r"[^A-Za-z0-9_-]", "_", call.tool)[:64] or "unnamed"
    arguments = json.dumps(clean_json(call.arguments), ensure_ascii=False, separators=(",", ":"))
    function = {"name": tool, "arguments": arguments, **(details.get("function") or {})}
    return {"id": call_id, "type": "function", "function": function, **extra}


def _merged(turns: list[Wire]) -> list[Wire]:
    """Neighbours of one role joined, where they hold nothing but content."""
    merged: list[Wire] = []
    for turn in turns:
        last = merged[-1] if merged else {}
        bare = last.keys() == turn.keys() == {"role", "content"}
        if bare and last["role"] == turn["role"] and turn["role"] in ("user", "assistant"):
            merged[-1] = {"role": turn["role"], "content": _joined(last["content"], turn["content"])}
        else:
            merged.append(turn)
    return merged


def _joined(first: str | list[Wire], second: str | list[Wire]) -> str | list[Wire]:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [
        part
        for content in (first, second)
        for part in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
    ]


def _tools(name: str, request: ModelRequest) -> Wire:
    names = [tool.name for tool in request.tools]
    for tool in names:
        if not _TOOL_NAME.fullmatch(tool):
            raise ProviderError(
                ErrorKind.INVALID_REQUEST,
                f"{name}: tool {tool!r} cannot be offered: a name is 1 to 64 of A-Z, a-z, 0-9, _ and -",
            )
    wire: Wire = {"tools": [_definition(tool) for tool in request.tools]}
    if request.tool_choice in ("required", "none"):
        wire["tool_choice"] = request.tool_choice
    elif request.tool_choice != "auto":
        if request.tool_choice not in names:
            raise ProviderError(
                ErrorKind.INVALID_REQUEST,
                f"{name}: tool_choice {request.tool_choice!r} is none of the tools {', '.join(names)}",
            )
        wire["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}}
    if not request.parallel_tools:
        wire["parallel_tool_calls"] = False
    return wire


def _definition(tool: ToolDefinition) -> Wire:
    function: Wire = {"name": tool.name, "description": clean(tool.description)}
    function["parameters"] = clean_json(tool.parameters) or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _response_format(schema: Mapping[str, Any], quirks: Quirks) -> Wire:
    if quirks.output == "json_object":
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": clean_json(schema), "strict": can_be_strict(schema)},
    }
