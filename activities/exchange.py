"""One exchange with a model: send what a provider builds, fold what comes back, wait on data and not on bytes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from temporalio import activity

from activities.breakers import Breakers
from activities.claims import Claims
from activities.endpoints import Endpoint, endpoint_of, entry_of
from activities.http import HttpClient, Received, get, host_of, post
from activities.own_provider import answered
from activities.recordings import Recordings
from activities.sender import Sender
from activities.tool_threads import ToolThreads
from perdure.catalog import facts_of
from perdure.errors import ErrorKind, ProviderError
from perdure.model import Model
from perdure.model_call import ModelReply, ModelRequest, RawText
from perdure.own_providers import own_providers
from perdure.redact import Redactor, secrets_of
from providers.base import BackgroundFold, BackgroundProvider, Fold, Provider, WireRequest, WireResponse, adapted
from providers.scripted import Scripted
from providers.sse import Decoder

T = TypeVar("T")

Show = Callable[[str], None]
"""Takes text as the model says it."""

MOST_ADAPTATIONS = 4
"""Refused parameters that one call may learn of."""
RETURNS = (0.0, 1.0, 4.0)
"""Seconds before each time that a reply in the background is asked for again, until something of it comes."""
GONE = 404
"""The status where there is no such reply any more."""
ABANDONING = 5.0
"""Seconds for telling a provider that nobody wants its reply any more."""
CUT = frozenset([ErrorKind.CONNECTION, ErrorKind.TIMEOUT, ErrorKind.STALLED, ErrorKind.TRUNCATED_STREAM])
"""Failures that say nothing of a reply in the background."""


@dataclass(frozen=True)
class Idle:
    """Seconds of silence after which a call is given up: before the first data and between data."""

    first: float = 300.0
    between: float = 60.0


@dataclass(frozen=True)
class Listener:
    """Who listens to a reply: takes its text, and holds what it can be asked for by."""

    model: Model
    address: str
    show: Show
    claims: Claims | None

    @property
    def ticket(self) -> Mapping[str, str] | None:
        """The ticket that an earlier attempt has left at this address."""
        held = self.claims.held if self.claims else None
        return held.ticket if held is not None and held.address == self.address else None

    def notes(self, fold: Fold) -> None:
        """Hand on what the reply is known by."""
        if self.claims is not None and isinstance(fold, BackgroundFold) and fold.ticket is not None:
            self.claims.takes(self.model.label, self.address, fold.ticket)

    def lets_go(self) -> None:
        """Nothing more will come of it."""
        if self.claims is not None:
            self.claims.lets_go()


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
        self._redactor = Redactor(secrets_of(environment))
        self._breakers = Breakers()
        self.sender = Sender(http, environment, self._breakers)
        """For what is no call of a model: over the same client, behind the same breakers."""
        self._refused: dict[tuple[str, str], dict[str, str | None]] = {}

    async def complete(
        self, model: Model, request: ModelRequest, show: Show, claims: Claims | None = None, *, whatever: bool = False
    ) -> ModelReply:
        """The complete reply of a model; raises ProviderError. With `whatever` an address that fails is tried too.

        `claims` holds what an earlier attempt has left of a reply, and is told of this one's.
        """
        try:
            reply = await self._answer(model, request, show, claims, whatever)
        except ProviderError as error:
            error.args = (self._redactor.text(str(error)),)  # a server may repeat the key that it was sent
            raise
        if self._recordings is not None:
            await self._recordings.keep(model, request, reply)
        return reply

    async def abandon(self, model: Model, claims: Claims) -> None:
        """Tell the provider that nobody wants the reply that it goes on with: it would be paid to its end."""
        claim = claims.held
        if claim is None:
            return
        with contextlib.suppress(ProviderError, TimeoutError):
            provider = entry_of(model).provider
            if isinstance(provider, BackgroundProvider):
                wire = provider.cancelled(claim.ticket)
                endpoint = self._background(model, wire)
                async with (
                    asyncio.timeout(ABANDONING),
                    post(self._http, endpoint.url, endpoint.headers, wire.body, ABANDONING) as received,
                ):
                    await received.whole()

    async def _answer(
        self, model: Model, request: ModelRequest, show: Show, claims: Claims | None, whatever: bool
    ) -> ModelReply:
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
        listener = Listener(model, endpoint.url, show, claims)
        if not whatever:
            self._breakers.check(address)
        try:
            reply = await self._resumed(provider, listener)
            if reply is None:
                reply = await self._adapted(provider, model, wire, endpoint, listener)
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
        self, provider: Provider, model: Model, wire: WireRequest, endpoint: Endpoint, listener: Listener
    ) -> ModelReply:
        """Send it, without what the model has refused before, and learn what it refuses now."""
        known: dict[str, str | None] = dict.fromkeys(facts_of(model).refuses)
        learned = self._refused.setdefault((endpoint.url, model.name), known)
        # What is wrong with this conversation says nothing of others.
        here: dict[str, str | None] = {}
        for left in reversed(range(MOST_ADAPTATIONS)):
            sent = adapted(wire, {**learned, **here})
            fold = provider.fold()
            try:
                answer = await self._send(provider, endpoint, sent, fold, listener)
            except ProviderError as error:
                return await self._go_on(provider, fold, listener, error)
            if isinstance(answer, ModelReply):
                return answer
            changes = provider.adaptation(sent, answer) if left else {}
            if not changes:
                raise provider.failure(answer, time.time())
            for field, change in changes.items():
                (here if "[" in field else learned)[field] = change
        raise AssertionError("the last round returns or raises")

    async def _resumed(self, provider: Provider, listener: Listener) -> ModelReply | None:
        """The reply that an earlier attempt has asked for, from its beginning; None where there is none any more."""
        ticket = listener.ticket
        if ticket is None or not isinstance(provider, BackgroundProvider):
            listener.lets_go()
            return None
        fold = provider.fold()
        wire = provider.resumed(ticket, None)
        try:
            answer = await self._send(provider, self._background(listener.model, wire), wire, fold, listener)
        except ProviderError as error:
            return await self._go_on(provider, fold, listener, error)
        if isinstance(answer, ModelReply):
            return answer
        if answer.status != GONE:
            raise provider.failure(answer, time.time())
        listener.lets_go()
        return None

    async def _go_on(self, provider: Provider, fold: Fold, listener: Listener, error: ProviderError) -> ModelReply:
        """The reply whose stream has failed, where its provider goes on with it; else raises the error."""
        pauses = list(RETURNS)
        while True:
            if not isinstance(provider, BackgroundProvider) or not isinstance(fold, BackgroundFold):
                raise error
            if fold.ticket is None or not pauses:
                raise error
            if error.kind not in CUT:
                listener.lets_go()
                raise error
            await asyncio.sleep(pauses.pop(0))
            seen = fold.after
            wire = provider.resumed(fold.ticket, seen)
            try:
                answer = await self._send(provider, self._background(listener.model, wire), wire, fold, listener)
            except ProviderError as again:
                error = again
            else:
                if isinstance(answer, ModelReply):
                    return answer
                if answer.status == GONE:
                    listener.lets_go()
                    raise error
            if fold.after != seen:
                pauses = list(RETURNS)

    def _background(self, model: Model, wire: WireRequest) -> Endpoint:
        # An own path of the model's is that of new calls.
        return endpoint_of(model.model_copy(update={"path": None}), wire.path, self._environment)

    async def _send(
        self, provider: Provider, endpoint: Endpoint, wire: WireRequest, fold: Fold, listener: Listener
    ) -> ModelReply | WireResponse:
        """The reply, or the response with another status."""
        headers = {**wire.headers, **endpoint.headers}
        limit = self._idle.first
        if wire.method == "GET":
            sent = get(self._http, endpoint.url, headers, limit)
        else:
            sent = post(self._http, endpoint.url, headers, wire.body, limit)
        async with sent as received:
            if not 200 <= received.status < 300:
                return await _timed(received.whole(), limit, endpoint)
            if not received.is_stream:
                return provider.parse(await _timed(received.whole(), limit, endpoint))
            return await self._fold(fold, received, endpoint, listener)

    async def _fold(self, fold: Fold, received: Received, endpoint: Endpoint, listener: Listener) -> ModelReply:
        """Fold a stream; only data counts as a sign of life, comments and pings do not."""
        decoder, limit = Decoder(), self._idle.first
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
                    listener.show(fold.feed(event))
                    listener.notes(fold)


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
