"""The names of attributes in traces: OpenTelemetry's for generative AI, and our own.

OpenTelemetry's names still change, and live in a repository of their own; these are those of November 2026.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from perdure.agent import AgentSpec
from perdure.announcement import Announcement, Ended
from perdure.contracts import ModelOutput, ToolInput, ToolOutput
from perdure.messages import AssistantMessage, CallPart, Message, TextPart, ToolMessage, text_of
from perdure.model import Model

Attributes = dict[str, Any]

MOST_CONTENT = 128 * 1024
"""Characters of one attribute that holds content, before it is redacted."""

PROVIDERS = {
    "openai": "openai",
    "openai-chat": "openai",
    "anthropic": "anthropic",
    "gemini": "gcp.gemini",
    "deepseek": "deepseek",
    "groq": "groq",
    "moonshot": "moonshot_ai",
}
"""Providers whose name is another one there; others keep theirs."""

SHOWN = frozenset(
    [
        *("about", "approve", "by", "call_id", "deadline", "edited", "granted", "limit", "on_timeout", "outcome"),
        *("paused", "question_id", "stage", "step", "tool", "verified"),
    ]
)
"""Fields of events that may stand in a trace without being content."""


def of_run(told: Announcement, ended: Ended, *, content: bool) -> Attributes:
    """A whole run. Its tokens have names of our own: they are the sum of what its model calls show."""
    event = told.event
    made = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": told.agent,
        "gen_ai.conversation.id": told.workflow_id,
        "gen_ai.request.model": ended.model,
        "error.type": event["outcome"] if is_failure(told) else None,
        "perdure.outcome": event.get("outcome"),
        "perdure.reason": event.get("reason"),
        "perdure.steps": ended.steps,
        "perdure.cost_usd": ended.cost_usd,
        "perdure.input_tokens": ended.usage.input_tokens,
        "perdure.output_tokens": ended.usage.output_tokens,
        **_of_any(told),
        **{f"perdure.metadata.{name}": value for name, value in told.metadata.items()},
    }
    if content:
        asked = [{"role": role, "parts": [_part(part) for part in parts]} for role, parts in ended.asked]
        made["gen_ai.input.messages"] = _json(asked)
        answer = {"role": "assistant", "parts": [{"type": "text", "content": ended.output}]}
        made["gen_ai.output.messages"] = _json([answer]) if ended.output else None
    return _present(made)


def of_tool_call(told: Announcement) -> Attributes:
    """A tool call from its beginning to its result, waits and further attempts included."""
    event = told.event
    return _present(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event["tool"],
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": event["call_id"],
            "gen_ai.agent.name": told.agent,
            "gen_ai.conversation.id": told.workflow_id,
            "error.type": tool_error(told),
            "perdure.status": event.get("status"),
            **_of_any(told),
        }
    )


def of_tool_attempt(task: ToolInput, output: ToolOutput | None, attempt: int, *, content: bool) -> Attributes:
    """One attempt of a tool call on a worker."""
    made = {
        "gen_ai.tool.name": task.tool,
        "gen_ai.tool.call.id": task.call,
        "perdure.attempt": attempt,
        "perdure.status": output.status if output else None,
    }
    if content:
        made["gen_ai.tool.call.arguments"] = _json(task.arguments)
        made["gen_ai.tool.call.result"] = text_of(output.message)[:MOST_CONTENT] if output and output.message else None
    return _present(made)


def of_model_call(
    spec: AgentSpec, run: str, output: ModelOutput | None, attempt: int, messages: Sequence[Message] | None
) -> Attributes:
    """One attempt of a model call; with `messages` also what was said."""
    model = spec.model_named(output.model if output else None)
    made: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(model.provider, model.provider),
        "gen_ai.request.model": model.name,
        "gen_ai.agent.name": spec.name,
        "gen_ai.conversation.id": run,
        "gen_ai.output.type": "json" if spec.output_schema else "text",
        "perdure.attempt": attempt,
        **_server(model),
    }
    finish = ""
    if output is not None:
        finish = "tool_calls" if output.message.calls else output.finish
        made |= {
            "gen_ai.response.finish_reasons": [finish],
            "gen_ai.usage.input_tokens": output.usage.input_tokens,
            "gen_ai.usage.output_tokens": output.usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": output.usage.cached_tokens or None,
            "gen_ai.usage.reasoning.output_tokens": output.usage.reasoning_tokens or None,
            "perdure.cost_usd": None if output.unpriced else output.cost,
        }
    if messages is not None:
        if spec.instructions:
            made["gen_ai.system_instructions"] = _json([{"type": "text", "content": spec.instructions}])
        made["gen_ai.input.messages"] = _json([_message(message) for message in messages])
        if output is not None:
            made["gen_ai.output.messages"] = _json([{**_message(output.message), "finish_reason": finish}])
    return _present(made)


def of_event(event: Mapping[str, Any]) -> Attributes:
    """What may be shown of an event inside a run's span."""
    return _present({f"perdure.{name}": value for name, value in event.items() if name in SHOWN})


def is_failure(told: Announcement) -> bool:
    """Whether a run has failed."""
    return told.event.get("outcome") in {"failed", "invalid_input", "timeout", "cancelled"}


def tool_error(told: Announcement) -> str | None:
    """The kind of error that a tool call has ended with."""
    if told.event.get("status") == "unknown":
        return "unknown_outcome"
    return "tool_error" if told.event.get("error") else None


def _of_any(told: Announcement) -> Attributes:
    return {
        "perdure.workflow_id": told.workflow_id,
        "perdure.run_id": told.run_id,
        "perdure.tenant": told.tenant,
    }


def _server(model: Model) -> Attributes:
    if model.base_url is None:
        return {}
    address = urlsplit(model.base_url)
    return {"server.address": address.hostname, "server.port": address.port}


def _message(message: Message) -> Attributes:
    return {"role": message.role, "parts": list(_parts(message))}


def _parts(message: Message) -> Iterable[Attributes]:
    if isinstance(message, ToolMessage):
        yield {"type": "tool_call_response", "id": message.call, "response": text_of(message)}
        return
    for part in message.parts:
        if isinstance(part, CallPart) and isinstance(message, AssistantMessage):
            yield {"type": "tool_call", "id": part.id, "name": part.tool, "arguments": part.arguments}
        else:
            yield _part(part)


def _part(part: Any) -> Attributes:
    return {"type": "text", "content": part.text} if isinstance(part, TextPart) else {"type": part.type}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:MOST_CONTENT]


def _present(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value not in (None, "")}
