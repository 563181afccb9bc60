"""A request in the Anthropic Messages format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import SystemMessage, TextPart
from perdure.model_call import ModelRequest, ToolDefinition
from providers.anthropic.schema import answer_schema, input_schema
from providers.anthropic.turns import turns_of, unresolved
from providers.base import WireRequest
from providers.text import clean, clean_json

PATH = "/v1/messages"
HEADERS = {"anthropic-version": "2026-10-21"}

MOST_TOKENS = 32_000
"""Tokens of one reply, besides a budget for thinking, where the author does not say.

The format demands a number. This one is within the output limit of the models that the API serves, and leaves room for
adaptive thinking and long arguments; what is not used is not paid. A run's own limits only lower it.
"""
LEAST_BUDGET = 1_024
"""Tokens of thinking below which the API refuses a budget."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_FORCED = ("any", "tool")
_ADDED = ("tools",)
"""Lists of `params` that stand beside ours instead of replacing them: tools that the server runs."""

Wire = dict[str, Any]


def build(name: str, request: ModelRequest) -> WireRequest:
    """The HTTP request; raises ProviderError (INVALID_REQUEST) for what the format cannot say.

    `params={"cache_control": ...}` of a model is the mark for the prompt cache; None turns it off.
    """
    params = dict(request.params)
    cache = params.pop("cache_control", {"type": "ephemeral"})
    body: Wire = {"model": request.model, "max_tokens": _max_tokens(request, params)}
    config = params.get("output_config", {})
    constrained = isinstance(config, Mapping) and config.get("format", ...) is not None
    schema = answer_schema(request.output_schema) if request.output_schema is not None and constrained else None
    if system := _system(name, request, told=schema is None):
        body["system"] = [{"type": "text", "text": system}]
    turns = body["messages"] = turns_of(name, request.messages)
    if request.tools:
        body |= _tools(name, request)
    if schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    body["stream"] = True
    if cache is not None:
        # Tools stand before the system prompt, so that one mark covers both.
        stable = [body[field][-1] for field in ("system", "tools") if field in body]
        # What the server has said itself goes back as it came.
        said = next(turn for turn in reversed(turns) if turn["role"] == "user")
        for block in [*stable[:1], said["content"][-1]]:
            block["cache_control"] = cache
    body = _merged(body, _translated(params))
    body = _merged(body, params)
    _fit_thinking(body, turns)
    return WireRequest(path=PATH, body=body, headers=HEADERS, stream=bool(body.get("stream")))


def _max_tokens(request: ModelRequest, params: Wire) -> Any:
    given = [params.pop(field, None) for field in ("max_tokens", "max_completion_tokens")]
    for limit in given:
        if limit is not None:
            return limit
    most = MOST_TOKENS + (_budget(params.get("thinking")) or 0)
    return most if request.max_tokens is None else min(request.max_tokens, most)


def _translated(params: Wire) -> Wire:
    """What the names of Chat Completions mean here; they are taken out of the params."""
    wire: Wire = {}
    params.pop("seed", None)  # the format has none
    effort, stop = params.pop("reasoning_effort", None), params.pop("stop", None)
    if effort == "none":
        wire["thinking"] = {"type": "disabled"}
    elif effort is not None:
        wire["thinking"] = {"type": "adaptive"}
        wire["output_config"] = {"effort": "low" if effort == "minimal" else effort}
    sequences = [stop] if isinstance(stop, str) else stop or []
    if kept := [text for text in sequences if str(text).strip()]:
        wire["stop_sequences"] = kept
    return wire


def _merged(body: Wire, changes: Mapping[str, Any]) -> Wire:
    """The changes over the body: objects deeply, None takes a field out, and `tools` are added."""
    made = dict(body)
    for field, value in changes.items():
        if value is None:
            made.pop(field, None)
        elif isinstance(value, Mapping):
            known = made.get(field)
            made[field] = _merged(known if isinstance(known, dict) else {}, value)
        elif field in _ADDED and isinstance(value, list) and field in made:
            made[field] = [*made[field], *value]
        else:
            made[field] = value
    return made


def _fit_thinking(body: Wire, turns: list[Wire]) -> None:
    """Bring thinking below the limit of the reply; leave it out where the API would refuse the request for it."""
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") not in ("adaptive", "enabled"):
        return
    choice = body.get("tool_choice")
    impossible = isinstance(choice, dict) and choice.get("type") in _FORCED
    budget, limit = _budget(thinking), body["max_tokens"]
    if budget is not None:
        if isinstance(limit, int) and budget >= limit:
            thinking["budget_tokens"] = limit // 2
            impossible = impossible or limit // 2 < LEAST_BUDGET
        impossible = impossible or _continues_without_thinking(turns)
    if impossible:
        del body["thinking"]


def _budget(thinking: object) -> int | None:
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return budget if isinstance(budget, int) else None


def _continues_without_thinking(turns: list[Wire]) -> bool:
    """Whether a turn goes on that began without thinking, perhaps as another vendor's model."""
    closes = turns[-1]["role"] == "user"
    if closes and turns[-1]["content"][0]["type"] != "tool_result":
        return False
    return turns[-2 if closes else -1]["content"][0]["type"] not in ("thinking", "redacted_thinking")


def _system(name: str, request: ModelRequest, *, told: bool) -> str:
    texts = [request.instructions]
    for message in request.messages:
        if isinstance(message, SystemMessage):
            for part in message.parts:
                if part.type == "blob":
                    raise unresolved(name, part)
                if not isinstance(part, TextPart):
                    raise ProviderError(
                        ErrorKind.INVALID_REQUEST, f"{name}: this {part.type} cannot stand in a system message"
                    )
                texts.append(part.text)
    if request.output_schema is not None and told:
        schema = json.dumps(clean_json(request.output_schema), ensure_ascii=False)
        texts.append(f"Answer with one JSON object that satisfies this JSON Schema, and nothing else: {schema}")
    return "\n\n".join(clean(text) for text in texts if text.strip())


def _tools(name: str, request: ModelRequest) -> Wire:
    names = [tool.name for tool in request.tools]
    for tool in names:
        if not _TOOL_NAME.fullmatch(tool):
            raise ProviderError(
                ErrorKind.INVALID_REQUEST,
                f"{name}: tool {tool!r} cannot be offered: a name is 1 to 128 of A-Z, a-z, 0-9, _ and -",
            )
    wire: Wire = {"tools": [_definition(tool) for tool in request.tools]}
    choice: Wire = {"type": {"auto": "auto", "required": "any", "none": "none"}.get(request.tool_choice, "tool")}
    if choice["type"] == "tool":
        if request.tool_choice not in names:
            raise ProviderError(
                ErrorKind.INVALID_REQUEST,
                f"{name}: tool_choice {request.tool_choice!r} is none of the tools {', '.join(names)}",
            )
        choice["name"] = request.tool_choice
    if not request.parallel_tools and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    if choice != {"type": "auto"}:
        wire["tool_choice"] = choice
    return wire


def _definition(tool: ToolDefinition) -> Wire:
    described = {"description": clean(tool.description)} if tool.description.strip() else {}
    return {"name": tool.name, **described, "input_schema": input_schema(tool.parameters)}
