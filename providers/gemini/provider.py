"""The Gemini API: generateContent, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.model_call import ModelReply, ModelRequest
from providers.base import ServerSentEvent, WireRequest, WireResponse
from providers.failures import failure, not_a_reply, reported, shorten
from providers.gemini.adaptation import adaptation
from providers.gemini.reply import GeminiReply
from providers.gemini.request import build


class Gemini:
    """The API under a name; its base URL ends in the version, such as `/v1`."""

    def __init__(self, name: str = "gemini") -> None:
        self.name = name

    def build(self, request: ModelRequest) -> WireRequest:
        """Translate a request; raises ProviderError (INVALID_REQUEST) for what the format cannot say."""
        return build(self.name, request)

    def parse(self, response: WireResponse) -> ModelReply:
        """Translate one whole body with status 2xx; raises ProviderError where it is an error or no reply."""
        try:
            body = json.loads(response.body, strict=False)
        except (ValueError, RecursionError) as error:
            raise not_a_reply(self.name, response) from error
        # Without `alt=sse`, which a proxy may lose, the chunks of a stream come as one array.
        chunks = [chunk for chunk in (body if isinstance(body, list) else [body]) if isinstance(chunk, Mapping)]
        reply, candidates = GeminiReply(self.name), False
        for chunk in chunks:
            if error_body := chunk.get("error"):
                raise reported(self.name, error_body, response=response)
            reply.add(chunk)
            candidates = candidates or bool(chunk.get("candidates"))
        if not candidates:
            raise not_a_reply(self.name, response, "a reply with candidates")
        return reply.reply()

    def fold(self) -> GeminiFold:
        """A fresh accumulator for a streamed reply."""
        return GeminiFold(self.name)

    def adaptation(self, request: WireRequest, response: WireResponse) -> Mapping[str, str | None]:
        """What to leave out of a request whose parameter this response refuses; empty where nothing helps."""
        return adaptation(request, response)

    def failure(self, response: WireResponse, now: float) -> ProviderError:
        """The ProviderError of a response with another status; `now` in epoch seconds is for Retry-After dates."""
        return failure(self.name, response, now)


class GeminiFold:
    """Accumulates a streamed reply; raises ProviderError for an error in the stream."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reply = GeminiReply(name)

    def feed(self, event: ServerSentEvent) -> str:
        """Take one event and return the text that it adds to the answer."""
        data = event.data.strip()
        if not data or data == "[DONE]":
            return ""
        chunk = self._decode(data)
        if isinstance(chunk, list) and len(chunk) == 1:
            chunk = chunk[0]
        if not isinstance(chunk, Mapping):
            return ""
        if error := (chunk.get("error") or (event.event == "error" and chunk)):
            raise reported(self._name, error)
        return self._reply.add(chunk)

    def finish(self) -> ModelReply:
        """The complete reply; raises ProviderError (TRUNCATED_STREAM) where no finishReason came."""
        return self._reply.reply()

    def _decode(self, data: str) -> Any:
        try:
            return json.loads(data, strict=False)
        except (ValueError, RecursionError) as error:
            raise ProviderError(
                ErrorKind.MALFORMED, f"{self._name}: an event of the stream is not JSON: {shorten(data)}"
            ) from error
