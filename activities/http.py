"""The one place that knows the HTTP client: requests out, bytes in, its exceptions mapped to ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from perdure.errors import ErrorKind, ProviderError
from providers.base import WireResponse

HttpClient = httpx2.AsyncClient
"""What others hold and never look into."""

BODY_CAP = 32 * 1024 * 1024
"""Bytes of a whole reply."""
ERROR_CAP = 64 * 1024
"""Bytes read of a failed response's body."""

KINDS: tuple[tuple[type[Exception], ErrorKind], ...] = (
    (httpx2.ConnectTimeout, ErrorKind.CONNECTION),
    (httpx2.TimeoutException, ErrorKind.TIMEOUT),
    (httpx2.UnsupportedProtocol, ErrorKind.CONFIGURATION),
    (httpx2.InvalidURL, ErrorKind.CONFIGURATION),
    (httpx2.LocalProtocolError, ErrorKind.CONFIGURATION),
    (httpx2.TooManyRedirects, ErrorKind.CONFIGURATION),
    (httpx2.DecodingError, ErrorKind.MALFORMED),
    (httpx2.HTTPError, ErrorKind.CONNECTION),
    (httpx2.StreamError, ErrorKind.CONNECTION),
    (OSError, ErrorKind.CONNECTION),
)
"""Exceptions of the client, first match wins."""


@dataclass(frozen=True)
class Received:
    """A response whose status and headers have arrived; `chunks` yields its body as it comes."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncGenerator[bytes]

    @property
    def is_stream(self) -> bool:
        """The server answers with server-sent events."""
        return self.headers.get("content-type", "").split(";")[0].strip().lower() == "text/event-stream"

    async def whole(self) -> WireResponse:
        """The whole body; a failed response's is cut, a larger one of a good response is refused."""
        body = bytearray()
        cap = BODY_CAP if 200 <= self.status < 300 else ERROR_CAP
        async for chunk in self.chunks:
            body += chunk
            if len(body) > cap:
                if cap == BODY_CAP:
                    raise ProviderError(ErrorKind.INVALID_REQUEST, f"the reply is larger than {BODY_CAP} bytes")
                break
        return WireResponse(self.status, self.headers, bytes(body[:cap]))


def make_client() -> HttpClient:
    """The worker's HTTP client. Limits on silence are kept by the caller, on data instead of bytes."""
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=15.0, write=60.0, pool=60.0),
        limits=httpx2.Limits(max_connections=200, max_keepalive_connections=50),
        follow_redirects=False,
    )


def post(
    client: HttpClient, url: str, headers: Mapping[str, str], body: Mapping[str, Any], first_byte: float
) -> AbstractAsyncContextManager[Received]:
    """Send a JSON body; the headers of the answer must come within `first_byte` seconds. Raises ProviderError."""
    return _answered(client, "POST", url, headers, dict(body), first_byte)


def get(
    client: HttpClient, url: str, headers: Mapping[str, str], first_byte: float
) -> AbstractAsyncContextManager[Received]:
    """Ask without a body; the headers of the answer must come within `first_byte` seconds. Raises ProviderError."""
    return _answered(client, "GET", url, headers, None, first_byte)


@asynccontextmanager
async def _answered(
    client: HttpClient, method: str, url: str, headers: Mapping[str, str], body: object, first_byte: float
) -> AsyncIterator[Received]:
    try:
        request = client.build_request(method, url, headers=dict(headers), json=body)
        try:
            async with asyncio.timeout(first_byte):
                response = await client.send(request, stream=True)
        except TimeoutError:
            raise ProviderError(ErrorKind.STALLED, f"{host_of(url)} sent nothing for {first_byte:g} s") from None
        try:
            yield Received(response.status_code, response.headers, _chunks(response, url))
        finally:
            await response.aclose()
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
        raise mapped(error, url) from error


async def deliver(
    client: HttpClient, url: str, body: Mapping[str, Any], headers: Mapping[str, str], seconds: float
) -> int:
    """Send a JSON body and return the status of the answer, all within `seconds`. Raises ProviderError."""
    try:
        async with asyncio.timeout(seconds):
            response = await client.post(url, headers=dict(headers), json=dict(body))
    except TimeoutError:
        raise ProviderError(ErrorKind.STALLED, f"{host_of(url)} did not answer within {seconds:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
        raise mapped(error, url) from error
    return response.status_code


async def _chunks(response: httpx2.Response, url: str) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.aiter_bytes():
            yield chunk
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        raise mapped(error, url) from error


def mapped(error: Exception, url: str) -> ProviderError:
    """The ProviderError for an exception of the client; names the host, never credentials in the address."""
    kind = next(kind for cls, kind in KINDS if isinstance(error, cls))
    detail = str(error).replace(url, host_of(url))[:200]
    return ProviderError(kind, f"{host_of(url)}: {type(error).__name__}{f': {detail}' if detail else ''}")


def host_of(url: str) -> str:
    """Host and port of an address."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname or "the address")
    except ValueError:
        return "the address"
