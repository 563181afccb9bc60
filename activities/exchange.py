"""One exchange with a model: send what a provider builds, fold what comes back, wait on data and not on bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from temporalio import activity

from activities.breakers import Breakers
from activities.endpoints import Endpoint, endpoint_of, entry_of
from activities.http import HttpClient, Received, host_of, post
from activities.own_provider import answered
from activities.recordings import Recordings
from activities.tool_threads import ToolThreads
from perdure.catalog import facts_of
from perdure.errors import ErrorKind, ProviderError
from perdure.model import Model
from perdure.model_call import ModelReply, ModelRequest, RawText
from perdure.own_providers import own_providers
from providers.base import Provider, WireRequest, WireResponse, adapted
from providers.scripted import Scripted
from providers.sse import Decoder

T = TypeVar("T")

Show = Callable[[str], None]
"""Takes text as the model says it."""

MOST_ADAPTATIONS = 4
"""Refused parameters that one call may learn of."""


@dataclass(frozen=True)
class Idle:
    """Seconds of silence after which a call is given up: before the first data and between data."""

    first: float = 300.0
    between: float = 60.0


class Exchange:
    """Sends requests over one HTTP client; remembers which parameters a model has refused."""

    def __init__(
        self,
        http: HttpClient,
        environment: Mapping[str, str],
        idle: Idle | None = None,
        threads: ToolThreads | None = None,
        recordings: Recordings | None = None,
    ) -> None:
        """`threads` are where an author's own providers run; without any they run on the caller's loop."""
        self._http = http
        self._recordings = recordings
        self._threads = threads
        self._environment = environment
        self._idle = idle or Idle()
        self._breakers = Breakers()
        self._refused: dict[tuple[str, str], dict[str, str | None]] = {}

    async def complete(self, model: Model, request: ModelRequest, show: Show, *, whatever: bool = False) -> ModelReply:
        """The complete reply of a model; raises ProviderError. With `whatever` an address that fails is tried too."""
        reply = await self._answer(model, request, show, whatever)
        if self._recordings is not None:
            await self._recordings.keep(model, request, reply)
        return reply

    async def _answer(self, model: Model, request: ModelRequest, show: Show, whatever: bool) -> ModelReply:
        if own := own_providers.get(model.provider):
            return await answered(own, request, show, self._threads)
        provider = entry_of(model).provider
        if isinstance(provider, Scripted):
            return await _perform(provider, request, show)
        if provider is None:
            return await self._played(model, request, show)
        wire = provider.build(request)
        endpoint = endpoint_of(model, wire.path, self._environment)
        address = host_of(endpoint.url)
        if not whatever:
            self._breakers.check(address)
        try:
            reply = await self._adapted(provider, model, wire, endpoint, show)
        except ProviderError as error:
            self._breakers.failed(address, error)
            raise
        self._breakers.succeeded(address)
        return reply

    async def _played(self, model: Model, request: ModelRequest, show: Show) -> ModelReply:
        if self._recordings is None:
            raise ProviderError(ErrorKind.CONFIGURATION, f"model {model.label!r}: only a worker plays recordings")
        reply = await self._recordings.play(model, request)
        show("".join(part.text for part in reply.parts if isinstance(part, RawText)))
        return reply

    async def _adapted(
        self, provider: Provider, model: Model, wire: WireRequest, endpoint: Endpoint, show: Show
    ) -> ModelReply:
        """Send it, without what the model has refused before, and learn what it refuses now."""
        known: dict[str, str | None] = dict.fromkeys(facts_of(model).refuses)
        learned = self._refused.setdefault((endpoint.url, model.name), known)
        # What is wrong with this conversation says nothing of others.
        here: dict[str, str | None] = {}
        for left in reversed(range(MOST_ADAPTATIONS)):
            sent = adapted(wire, {**learned, **here})
            answer = await self._send(provider, endpoint, sent, show)
            if isinstance(answer, ModelReply):
                return answer
            changes = provider.adaptation(sent, answer) if left else {}
            if not changes:
                raise provider.failure(answer, time.time())
            for field, change in changes.items():
                (here if "[" in field else learned)[field] = change
        raise AssertionError("the last round returns or raises")

    async def _send(
        self, provider: Provider, endpoint: Endpoint, wire: WireRequest, show: Show
    ) -> ModelReply | WireResponse:
        """The reply, or the response with another status."""
        headers = {**wire.headers, **endpoint.headers}
        limit = self._idle.first
        async with post(self._http, endpoint.url, headers, wire.body, limit) as received:
            if not 200 <= received.status < 300:
                return await _timed(received.whole(), limit, endpoint)
            if not received.is_stream:
                return provider.parse(await _timed(received.whole(), limit, endpoint))
            return await self._fold(provider, received, endpoint, show)

    async def _fold(self, provider: Provider, received: Received, endpoint: Endpoint, show: Show) -> ModelReply:
        """Fold a stream; only data counts as a sign of life, comments and pings do not."""
        decoder, fold, limit = Decoder(), provider.fold(), self._idle.first
        async with aclosing(received.chunks) as chunks:
            deadline = time.monotonic() + limit
            while True:
                try:
                    async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                        chunk = await anext(chunks, None)
                except TimeoutError:
                    raise ProviderError(
                        ErrorKind.STALLED, f"{host_of(endpoint.url)}: the stream sent no data for {limit:g} s"
                    ) from None
                if chunk is None:
                    decoder.close()
                    return fold.finish()
                for event in decoder.feed(chunk):
                    if event.data == "[DONE]":
                        return fold.finish()
                    if event.event == "ping":
                        continue
                    limit = self._idle.between
                    deadline = time.monotonic() + limit
                    show(fold.feed(event))


async def _perform(provider: Scripted, request: ModelRequest, show: Show) -> ModelReply:
    turn = provider.play(request, activity.info().attempt)
    for chunk in turn.chunks or ("",):
        if turn.delay_ms:
            await asyncio.sleep(turn.delay_ms / 1000 / max(1, len(turn.chunks)))
        show(chunk)
    return turn.reply


async def _timed(work: Awaitable[T], limit: float, endpoint: Endpoint) -> T:
    try:
        async with asyncio.timeout(limit):
            return await work
    except TimeoutError:
        raise ProviderError(
            ErrorKind.STALLED, f"{host_of(endpoint.url)} did not end its reply in {limit:g} s"
        ) from None
