"""The activity that calls a model: rebuild the conversation, choose who answers, send, and record one clean reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from temporalio import activity
from temporalio.client import Client

from activities._failures import UnknownPrice, to_application_error
from activities.beats import Beats
from activities.blobs import patiently, resolve_parts
from activities.bus import Bus, Voice
from activities.chain import Chain, chain_for
from activities.earlier import spent_after_reset
from activities.exchange import Exchange
from activities.prices import affordable_output, cost_of, plain
from activities.replies import Asked, recorded
from activities.shutdown import until_stopping
from activities.stores.base import BlobStore
from activities.token_counts import Calibration
from activities.transcript import Contexts, Transcripts, chain_of
from perdure.agent import AgentSpec
from perdure.contracts import NOTHING, ModelInput, ModelOutput
from perdure.errors import ProviderError
from perdure.messages import BlobPart, CallPart, Message, Usage
from perdure.model import Model
from perdure.model_call import ModelReply, ModelRequest, ToolDefinition

LEAST_OUTPUT, USEFUL_OUTPUT = 16, 1_000
"""Tokens of output below which no call is made, and for which a higher limit is asked."""
MOST_OUTPUT = 100_000
"""Tokens of output that no model says at once; money for as many or more is no limit."""


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
        self._calibration = Calibration()

    @activity.defn(name="call_model")
    async def call_model(self, task: ModelInput) -> ModelOutput:
        """One attempt of one model call."""
        run = chain_of(task.conversation.run)
        async with Beats() as beats:
            context = await self._contexts.get(self._client)
            beats.voice = Voice(self._bus, context, run, task.conversation.count)
            messages = await self._transcripts.load(task.conversation, self._client, run)
            chain = chain_for(context.spec, messages, beats.turns, beats.tally.before)
            model = chain.model
            if other := chain.named(beats.claims.other_than(model.label)):
                await self._exchange.abandon(other, beats.claims)
            beats.claims.keeps_only(model.label)
            # What this attempt takes over is no loss.
            chain = chain_for(context.spec, messages, beats.turns, beats.tally.before)
            beats.turns = chain.turns
            try:
                prepared, tokens = await self._prepare(context.spec, chain, messages, task, beats.tally.before)
                if isinstance(prepared, Over):
                    lost = _lost(chain, beats.tally.before)
                    return ModelOutput(message=NOTHING, over=prepared.reason, short=plain(prepared.short), **lost)
                beats.tally.asks(tokens)
                asking = self._exchange.complete(model, prepared, beats.text, beats.claims, whatever=_is_last())
                reply = await until_stopping(asking)
            except asyncio.CancelledError:
                if not _is_given_up():
                    beats.turns = chain.interrupted
                    raise
                beats.tally.gives_up()
                await self._exchange.abandon(model, beats.claims)
                return ModelOutput(message=NOTHING, **_lost(chain, beats.tally.used))
            except ProviderError as error:
                handover = chain.after(error, time.time())
                beats.turns = handover.turns if handover else chain.turns
                if handover is None or _is_last() or beats.turns.turn != chain.place:
                    await self._exchange.abandon(model, beats.claims)
                details = {"message": NOTHING, **_lost(chain, beats.tally.used)}
                pause = handover.pause if handover else None
                # From None: the client's chain would not fit a failure.
                raise to_application_error(error, details, final=handover is None, pause=pause) from None
            except Exception:  # the worker stops, or a store is down
                beats.turns = chain.interrupted
                raise
            # The reply is paid for.
            if reply.usage is not None:
                self._calibration.learn(model, prepared, reply.usage.input_tokens)
            asked = Asked(context.spec, model, prepared, task.first_call, tokens)
            output = await self._recorded(asked, reply)
            output = output.model_copy(update=await self._lost_before(chain, beats.tally.before, task))
        self._transcripts.remember(run, output.message)
        return output

    async def _recorded(self, asked: Asked, reply: ModelReply) -> ModelOutput:
        return await patiently(lambda: recorded(asked, reply, self._store))

    async def _lost_before(self, chain: Chain, before: Usage, task: ModelInput) -> dict[str, Any]:
        """What attempts before this one have used, and what a reset threw away."""
        lost = _lost(chain, before)
        if not task.after_reset:
            return lost
        info = activity.info()
        run_id = info.workflow_run_id or ""
        thrown = await spent_after_reset(self._client, info.workflow_id or "", run_id, task.counted)
        cost = Decimal(lost.get("lost_cost", "0")) + thrown.cost
        usage = lost.get("lost", Usage()) + thrown.usage
        return {"lost": usage, "lost_cost": plain(cost), "counted": run_id}

    async def _prepare(
        self, spec: AgentSpec, chain: Chain, messages: Sequence[Message], task: ModelInput, before: Usage
    ) -> tuple[ModelRequest | Over, int]:
        """The request, or the limit that it would cross, and about how many tokens it is.

        What earlier attempts have used is gone.
        """
        model, max_tokens = chain.model, None
        whole = [await self._whole(message) if _refers(message) else message for message in chain.shown(messages)]
        request = ModelRequest(
            model=model.name,
            instructions=spec.instructions,
            messages=tuple(whole),
            tools=tuple(ToolDefinition(t.name, t.description, t.parameters) for t in spec.tools),
            tool_choice=task.tool_choice,
            parallel_tools=spec.parallel_tools,
            output_schema=spec.output_schema,
            params=model.params,
        )
        estimate = self._calibration.estimate(model, request)
        if task.tokens_left is not None:
            max_tokens = task.tokens_left - before.total - estimate
            if max_tokens < 1:
                return Over("max_tokens", Decimal(USEFUL_OUTPUT - max_tokens)), estimate
        if task.cost_left is not None:
            bought = _bought(model, estimate, Decimal(task.cost_left) - chain.cost(before))
            if isinstance(bought, Over):
                return bought, estimate
            if bought < MOST_OUTPUT:  # more than any model says would be refused by those that say less
                max_tokens = min(bought, max_tokens if max_tokens is not None else bought)
        return replace(request, max_tokens=max_tokens), estimate

    async def _whole(self, message: Message) -> Message:
        return message.model_copy(update={"parts": await resolve_parts(message.parts, self._store)})


def _bought(model: Model, estimate: int, cost_left: Decimal) -> int | Over:
    """Tokens of output that the money buys; raises UnknownPrice."""
    bought = affordable_output(model, estimate, cost_left)
    if bought is None:
        raise UnknownPrice(
            f"no price is known for {model.label!r}, and a limit on cost is set: "
            "give Model(price=Price(input=..., output=...)), say unknown_price='worst_case', or remove cost_usd"
        )
    if bought >= LEAST_OUTPUT:
        return bought
    useful = cost_of(model, Usage(input_tokens=estimate, output_tokens=USEFUL_OUTPUT)) or Decimal(0)
    return Over("max_cost", useful - cost_left)


def _lost(chain: Chain, usage: Usage) -> dict[str, Any]:
    """Fields of a ModelOutput about what came to nothing."""
    return {"lost": usage, "lost_cost": plain(chain.cost(usage))} if usage.total else {}


def _refers(message: Message) -> bool:
    """Whether a part of it lies in the store."""
    return any(isinstance(p, BlobPart) or (isinstance(p, CallPart) and p.whole is not None) for p in message.parts)


def _is_last() -> bool:
    """Whether the call has failed for good if this attempt does."""
    info = activity.info()
    return info.retry_policy is not None and info.attempt == info.retry_policy.maximum_attempts


def _is_given_up() -> bool:
    """Whether the run has cancelled this call, and not its worker."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested
