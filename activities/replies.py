"""A provider's reply as it is recorded: calls named and checked, text cleaned, usage priced, large things stored."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic_core import to_json

from activities.blobs import PREVIEW, shrink_call, shrink_parts
from activities.prices import cost_of, known_cost, plain
from activities.stores.base import BlobStore
from activities.tally import CHARS
from perdure.agent import AgentSpec
from perdure.answers import read_answer
from perdure.arguments import check_arguments, parse_arguments
from perdure.canonical import clean, clean_text
from perdure.contracts import MOST_CALLS, OFFLOAD_CHARS, OUTPUT_LIMIT, ModelOutput
from perdure.messages import (
    AssistantMessage,
    AssistantPart,
    CallPart,
    TextPart,
    ThinkingPart,
    Usage,
    text_of,
)
from perdure.model import Model
from perdure.model_call import Finish, ModelReply, ModelRequest, RawCall, RawText
from perdure.tools import ToolSpec

MOST_ARGUMENTS, MOST_OF_A_CALL = 32_000_000, 8_000_000
"""Bytes of the arguments of one reply, and characters of one call's."""
MOST_INLINE = 800_000
"""Bytes of them that stay in its message, which must fit a query's answer for workers that do not remember it."""
TOO_LARGE = "not executed: the arguments of this reply are too large together; do it in smaller pieces"
CUT = "not executed: the reply was cut by the output limit; send it again, smaller"


@dataclass
class Room:
    """What the arguments of one reply may still have, in bytes."""

    inline: int = MOST_INLINE
    all: int = MOST_ARGUMENTS


@dataclass(frozen=True)
class Asked:
    """What was asked, and of which model."""

    spec: AgentSpec
    model: Model
    request: ModelRequest
    first_call: int
    """Number of the first call of the reply."""
    sent: int
    """About how many tokens the request is."""


async def recorded(asked: Asked, reply: ModelReply, store: BlobStore) -> ModelOutput:
    """What of a reply is recorded; raises StoreDown where a large one cannot be kept."""
    spec, first = asked.spec, asked.first_call
    parts: list[AssistantPart] = []
    number, room = first, Room()
    for part in reply.parts:
        details = _details(part.details, asked.model)
        if isinstance(part, RawCall):
            call = _checked_call(part, f"c{number}", details, spec, cut=reply.finish is Finish.LENGTH)
            parts.append(await _fit(call, spec.tool(part.tool), number - first, room, store))
            number += 1
        elif isinstance(part, RawText):
            parts.append(TextPart(type="text", text=clean_text(part.text), details=details))
        else:
            parts.append(ThinkingPart(type="thinking", text=clean_text(part.text), details=details))
    # An answer is also the run's output, so more of it stays in its message than of other texts.
    most, kept = (OFFLOAD_CHARS, PREVIEW) if number > first else (OUTPUT_LIMIT, OUTPUT_LIMIT - 100)
    shrunk = await shrink_parts(tuple(parts), store, most, kept)
    message = AssistantMessage(role="assistant", parts=shrunk, id=secrets.token_urlsafe(6))
    usage = reply.usage or _estimated(asked, message)
    cost = cost_of(asked.model, usage)
    structured, misfit = _structure(spec.output_schema, message, reply)
    return ModelOutput(
        message=message,
        usage=usage,
        cost=plain(cost or Decimal(0)),
        unpriced=known_cost(asked.model, usage) is None,
        finish=reply.finish.value,
        announced=reply.announced_calls and not message.calls,
        structured=structured,
        misfit=misfit,
        model=asked.model.label if asked.model != spec.models[0] else None,
    )


async def _fit(call: CallPart, tool: ToolSpec | None, index: int, room: Room, store: BlobStore) -> CallPart:
    """The call with its arguments, with an excerpt of large ones, or refused where they are too large."""
    size = len(to_json(call.arguments))
    if size <= room.all:
        room.all -= size
        # What only the run itself reads is not fetched from the store.
        fetched = index < MOST_CALLS and not (tool is not None and (tool.agent is not None or tool.asks))
        if fetched and (size >= OFFLOAD_CHARS or size > room.inline):
            return await shrink_call(call, store)
        if size <= room.inline:
            room.inline -= size
            return call
    return call.model_copy(update={"arguments": {}, "error": TOO_LARGE})


def _checked_call(
    raw: RawCall, call_id: str, details: dict[str, Any] | None, spec: AgentSpec, *, cut: bool
) -> CallPart:
    """A call as it will run: decoded, validated and coerced once, before it is recorded."""
    parsed = parse_arguments(raw.arguments, max_chars=MOST_OF_A_CALL)
    arguments, error = parsed.value or {}, parsed.error
    tool = spec.tool(raw.tool)
    if cut:
        error = CUT
    elif error is None and tool is not None:
        checked = check_arguments(tool.parameters, arguments)
        error = f"arguments of {raw.tool}: {checked.error}" if checked.error else None
        arguments = checked.value
    elif error is not None:
        error = f"arguments of {raw.tool}: {error}"
    return CallPart(
        type="call",
        id=call_id,
        tool=clean_text(raw.tool)[:200],
        arguments=arguments,
        error=error,
        repaired=parsed.repaired,
        details=details,
    )


def _structure(schema: dict[str, Any] | None, message: AssistantMessage, reply: ModelReply) -> tuple[Any, str | None]:
    """The answer as an object where a schema is asked for, and why it does not fit."""
    if schema is None or message.calls or reply.finish is not Finish.STOP:
        return None, None
    answer = read_answer("".join(p.text for p in reply.parts if isinstance(p, RawText)), schema)
    return answer.value, answer.misfit


def _estimated(asked: Asked, message: AssistantMessage) -> Usage:
    """What was sent by the estimate, and four characters a token of the answer, where a provider reports nothing."""
    sizes = (call.whole.size if call.whole else len(json.dumps(call.arguments)) for call in message.calls)
    received = len(text_of(message)) + sum(sizes)
    return Usage(input_tokens=asked.sent, output_tokens=received // CHARS + 1)


def _details(details: Mapping[str, Any] | None, model: Model) -> dict[str, Any] | None:
    """What has to go back with a part; where it belongs to the model that said it, with that model's name."""
    if not details:
        return None
    cleaned: dict[str, Any] = clean(dict(details))
    return {**cleaned, "model": model.name} if cleaned.get("model", "") is None else cleaned
