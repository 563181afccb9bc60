"""The activity that calls a model: rebuild the conversation, send, fold the stream, and record one clean reply."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities._failures import to_application_error
from activities.beats import Beats
from activities.blobs import PREVIEW, patiently, resolve_parts, shrink_call, shrink_parts
from activities.bus import Bus, Voice
from activities.earlier import spent_after_reset
from activities.exchange import Exchange
from activities.prices import affordable_output, cost_of
from activities.shutdown import until_stopping
from activities.stores.base import BlobStore
from activities.tally import CHARS
from activities.transcript import Contexts, Transcripts, chain_of
from perdure.agent import AgentSpec
from perdure.arguments import check_arguments, parse_arguments
from perdure.canonical import clean, clean_text
from perdure.contracts import MOST_CALLS, NOTHING, OFFLOAD_CHARS, OUTPUT_LIMIT, ModelInput, ModelOutput
from perdure.errors import ProviderError
from perdure.messages import (
    AssistantMessage,
    AssistantPart,
    BlobPart,
    CallPart,
    Message,
    TextPart,
    ThinkingPart,
    Usage,
    text_of,
)
from perdure.model import Model
from perdure.tools import ToolSpec
from providers.base import Finish, ModelReply, ModelRequest, RawCall, RawText, ToolDefinition

MOST_ARGUMENTS, MOST_OF_A_CALL = 32_000_000, 8_000_000
"""Bytes of the arguments of one reply, and characters of one call's."""
MOST_INLINE = 800_000
"""Bytes of them that stay in its message, which must fit a query's answer for workers that do not remember it."""
TOO_LARGE = "not executed: the arguments of this reply are too large together; do it in smaller pieces"
CUT = "not executed: the reply was cut by the output limit; send it again, smaller"


LEAST_OUTPUT, USEFUL_OUTPUT = 16, 1_000
"""Tokens of output below which no call is made, and for which a higher limit is asked."""


@dataclass
class Room:
    """What the arguments of one reply may still have, in bytes."""

    inline: int = MOST_INLINE
    all: int = MOST_ARGUMENTS


@dataclass(frozen=True)
class Over:
    """A limit that the call would cross, and how much of it is missing."""

    reason: str
    short: Decimal


class ModelActivities:
    """Calls models through one exchange; everything it needs comes through the constructor."""

    def __init__(
        self,
        client: Client,
        exchange: Exchange,
        transcripts: Transcripts,
        contexts: Contexts,
        store: BlobStore,
        bus: Bus,
    ) -> None:
        self._client = client
        self._exchange = exchange
        self._transcripts = transcripts
        self._contexts = contexts
        self._store = store
        self._bus = bus

    @activity.defn(name="call_model")
    async def call_model(self, task: ModelInput) -> ModelOutput:
        """One attempt of one model call."""
        run = chain_of(task.conversation.run)
        async with Beats() as beats:
            context = await self._contexts.get(self._client)
            beats.voice = Voice(self._bus, context, run, task.conversation.count)
            messages = await self._transcripts.load(task.conversation, self._client, run)
            model = context.spec.models[0]
            try:
                prepared, tokens = await self._prepare(context.spec, messages, task, beats.tally.before)
                if isinstance(prepared, Over):
                    lost = _lost(model, beats.tally.before)
                    return ModelOutput(message=NOTHING, over=prepared.reason, short=_plain(prepared.short), **lost)
                beats.tally.asks(tokens)
                asked = self._exchange.complete(model, prepared, beats.text)
                reply = await until_stopping(asked)
            except asyncio.CancelledError:
                if not _is_given_up():
                    raise
                beats.tally.gives_up()
                return ModelOutput(message=NOTHING, **_lost(model, beats.tally.used))
            except ProviderError as error:
                lost = _lost(model, beats.tally.used)
                # From None: the client's chain would not fit a failure.
                raise to_application_error(error, {"message": NOTHING, **lost}) from None
            # The reply is paid for.
            output = await patiently(lambda: self._record(context.spec, prepared, reply, task))
            output = output.model_copy(update=await self._lost_before(model, beats.tally.before, task))
        self._transcripts.remember(run, output.message)
        return output

    async def _lost_before(self, model: Model, before: Usage, task: ModelInput) -> dict[str, Any]:
        """What attempts before this one have used, and what a reset threw away."""
        lost = _lost(model, before)
        if not task.after_reset:
            return lost
        info = activity.info()
        run_id = info.workflow_run_id or ""
        thrown = await spent_after_reset(self._client, info.workflow_id or "", run_id, task.counted)
        cost = Decimal(lost.get("lost_cost", "0")) + thrown.cost
        usage = lost.get("lost", Usage()) + thrown.usage
        return {"lost": usage, "lost_cost": _plain(cost), "counted": run_id}

    async def _prepare(
        self, spec: AgentSpec, messages: list[Message], task: ModelInput, before: Usage
    ) -> tuple[ModelRequest | Over, int]:
        """The request, or the limit that it would cross, and about how many tokens it is.

        What earlier attempts have used is gone.
        """
        model = spec.models[0]
        max_tokens: int | None = None
        whole = [await self._whole(message) if _refers(message) else message for message in messages]
        estimate = _estimate_tokens(spec.instructions, whole, [t.parameters for t in spec.tools])
        if task.tokens_left is not None:
            max_tokens = task.tokens_left - before.total - estimate
            if max_tokens < 1:
                return Over("max_tokens", Decimal(USEFUL_OUTPUT - max_tokens)), estimate
        if task.cost_left is not None:
            cost_left = Decimal(task.cost_left) - (cost_of(model, before) or Decimal(0))
            bought = affordable_output(model, estimate, cost_left)
            if bought is None:
                raise ApplicationError(
                    f"no price is known for {model.label!r}, and a limit on cost is set: "
                    "give Model(price=Price(input=..., output=...)) or remove cost_usd",
                    type="unknown_price",
                    non_retryable=True,
                )
            if bought < LEAST_OUTPUT:
                useful = cost_of(model, Usage(input_tokens=estimate, output_tokens=USEFUL_OUTPUT)) or Decimal(0)
                return Over("max_cost", useful - cost_left), estimate
            max_tokens = min(bought, max_tokens) if max_tokens is not None else min(bought, 100_000)
        request = ModelRequest(
            model=model.name,
            instructions=spec.instructions,
            messages=tuple(whole),
            tools=tuple(ToolDefinition(t.name, t.description, t.parameters) for t in spec.tools),
            tool_choice=task.tool_choice,
            parallel_tools=spec.parallel_tools,
            output_schema=spec.output_schema,
            max_tokens=max_tokens,
            params=model.params,
        )
        return request, estimate

    async def _whole(self, message: Message) -> Message:
        return message.model_copy(update={"parts": await resolve_parts(message.parts, self._store)})

    async def _record(self, spec: AgentSpec, request: ModelRequest, reply: ModelReply, task: ModelInput) -> ModelOutput:
        """The reply as it is recorded: calls named and checked, text cleaned, usage priced."""
        parts: list[AssistantPart] = []
        number, room = task.first_call, Room()
        for part in reply.parts:
            if isinstance(part, RawCall):
                call = _checked_call(part, f"c{number}", spec, cut=reply.finish is Finish.LENGTH)
                parts.append(await self._fit(call, spec.tool(part.tool), number - task.first_call, room))
                number += 1
            elif isinstance(part, RawText):
                parts.append(TextPart(type="text", text=clean_text(part.text), details=_details(part.details)))
            else:
                parts.append(ThinkingPart(type="thinking", text=clean_text(part.text), details=_details(part.details)))
        # An answer is also the run's output, so more of it stays in its message than of other texts.
        most, kept = (OFFLOAD_CHARS, PREVIEW) if number > task.first_call else (OUTPUT_LIMIT, OUTPUT_LIMIT - 100)
        shrunk = await shrink_parts(tuple(parts), self._store, most, kept)
        message = AssistantMessage(role="assistant", parts=shrunk, id=secrets.token_urlsafe(6))
        usage = reply.usage or _estimate_usage(request, message)
        cost = cost_of(spec.models[0], usage)
        structured, misfit = _structure(spec.output_schema, message, reply)
        return ModelOutput(
            message=message,
            usage=usage,
            cost=_plain(cost or Decimal(0)),
            unpriced=cost is None,
            finish=reply.finish.value,
            announced=reply.announced_calls and not message.calls,
            structured=structured,
            misfit=misfit,
        )

    async def _fit(self, call: CallPart, tool: ToolSpec | None, index: int, room: Room) -> CallPart:
        """The call with its arguments, with an excerpt of large ones, or refused where they are too large."""
        size = len(to_json(call.arguments))
        if size <= room.all:
            room.all -= size
            # What only the run itself reads is not fetched from the store.
            fetched = index < MOST_CALLS and not (tool is not None and (tool.agent is not None or tool.asks))
            if fetched and (size >= OFFLOAD_CHARS or size > room.inline):
                return await shrink_call(call, self._store)
            if size <= room.inline:
                room.inline -= size
                return call
        return call.model_copy(update={"arguments": {}, "error": TOO_LARGE})


def _checked_call(raw: RawCall, call_id: str, spec: AgentSpec, *, cut: bool) -> CallPart:
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
        details=_details(raw.details),
    )


def _structure(schema: dict[str, Any] | None, message: AssistantMessage, reply: ModelReply) -> tuple[Any, str | None]:
    """The answer as an object where a schema is asked for, and why it does not fit."""
    if schema is None or message.calls or reply.finish is not Finish.STOP:
        return None, None
    parsed = parse_arguments("".join(p.text for p in reply.parts if isinstance(p, RawText)))
    if parsed.error is not None or parsed.value is None:
        return None, "it must be nothing but one JSON object that fits the given schema"
    checked = check_arguments(schema, parsed.value)
    return (None, f"it does not fit the schema: {checked.error}") if checked.error else (checked.value, None)


def _lost(model: Model, usage: Usage) -> dict[str, Any]:
    """Fields of a ModelOutput about what came to nothing."""
    return {"lost": usage, "lost_cost": _plain(cost_of(model, usage) or Decimal(0))} if usage.total else {}


def _refers(message: Message) -> bool:
    """Whether a part of it lies in the store."""
    return any(isinstance(p, BlobPart) or (isinstance(p, CallPart) and p.whole is not None) for p in message.parts)


def _is_given_up() -> bool:
    """Whether the run has cancelled this call, and not its worker."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


def _sent_tokens(request: ModelRequest) -> int:
    return _estimate_tokens(request.instructions, request.messages, [t.parameters for t in request.tools])


def _estimate_tokens(instructions: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int:
    """About how many tokens a request is."""
    said = len(instructions) + sum(len(text_of(message)) for message in messages)
    return (said + sum(len(json.dumps(dict(parameters))) for parameters in tools)) // CHARS


def _estimate_usage(request: ModelRequest, message: AssistantMessage) -> Usage:
    """Four characters a token, where a provider reports nothing."""
    sizes = (call.whole.size if call.whole else len(json.dumps(call.arguments)) for call in message.calls)
    received = len(text_of(message)) + sum(sizes)
    return Usage(input_tokens=_sent_tokens(request) + 1, output_tokens=received // CHARS + 1)


def _details(details: Mapping[str, Any] | None) -> dict[str, Any] | None:
    cleaned: dict[str, Any] | None = clean(dict(details)) if details else None
    return cleaned


def _plain(cost: Decimal) -> str:
    return format(cost.normalize(), "f")
