"""One exchange with a model: send what a provider builds, fold what comes back, wait on data and not on bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from temporalio import activity

from activities.endpoints import Endpoint, endpoint_of, entry_of
from activities.http import HttpClient, Received, host_of, post
from perdure.errors import ErrorKind, ProviderError
from perdure.model import Model
from providers.base import ModelReply, ModelRequest, Provider, WireRequest, WireResponse, adapted
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

    def __init__(self, http: HttpClient, environment: Mapping[str, str], idle: Idle | None = None) -> None:
        self._http = http
        self._environment = environment
        self._idle = idle or Idle()
        self._refused: dict[tuple[str, str], dict[str, str | None]] = {}

    async def complete(self, model: Model, request: ModelRequest, show: Show) -> ModelReply:
        """The complete reply of a model; raises ProviderError."""
        provider = entry_of(model).provider
        if isinstance(provider, Scripted):
            return await _perform(provider, request, show)
        wire = provider.build(request)
        endpoint = endpoint_of(model, wire.path, self._environment)
        learned = self._refused.setdefault((endpoint.url, model.name), {})
        for left in reversed(range(MOST_ADAPTATIONS)):
            sent = adapted(wire, learned)
            answer = await self._send(provider, endpoint, sent, show)
            if isinstance(answer, ModelReply):
                return answer
            changes = provider.adaptation(sent, answer) if left else {}
            if not changes:
                raise provider.failure(answer, time.time())
            learned |= changes
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
