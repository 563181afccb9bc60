"""One request to a provider and its whole answer, for what is no reply of a model: embeddings, counts of tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from activities.breakers import Breakers
from activities.endpoints import endpoint_of
from activities.http import HttpClient, host_of, post
from perdure.errors import ErrorKind, ProviderError
from perdure.model import Model
from providers.base import WireRequest, WireResponse
from providers.failures import failure

SECONDS = 60.0
"""For one answer."""


class Sender:
    """Sends over the client, to the endpoints and behind the breakers that calls of models use."""

    def __init__(
        self, http: HttpClient, environment: Mapping[str, str], breakers: Breakers, seconds: float = SECONDS
    ) -> None:
        self._http = http
        self._environment = environment
        self._breakers = breakers
        self._seconds = seconds

    async def send_whole(self, model: Model, wire: WireRequest) -> WireResponse:
        """The answer, if its status is 2xx; raises ProviderError for everything else."""
        endpoint = endpoint_of(model, wire.path, self._environment)
        address = host_of(endpoint.url)
        self._breakers.check(address)
        try:
            response = await self._answer(endpoint.url, {**wire.headers, **endpoint.headers}, wire)
            if not 200 <= response.status < 300:
                raise failure(model.provider, response, time.time())
        except ProviderError as error:
            self._breakers.failed(address, error)
            raise
        self._breakers.succeeded(address)
        return response

    async def _answer(self, url: str, headers: Mapping[str, str], wire: WireRequest) -> WireResponse:
        try:
            async with (
                asyncio.timeout(self._seconds),
                post(self._http, url, headers, wire.body, self._seconds) as received,
            ):
                return await received.whole()
        except TimeoutError:
            raise ProviderError(
                ErrorKind.STALLED, f"{host_of(url)} did not end its answer in {self._seconds:g} s"
            ) from None
