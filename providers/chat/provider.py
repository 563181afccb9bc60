"""The OpenAI Chat Completions format, which most servers and gateways speak."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.model_call import ModelReply, ModelRequest
from providers.base import ServerSentEvent, WireRequest, WireResponse
from providers.chat.adaptation import adaptation
from providers.chat.reply import ChatReply
from providers.chat.request import Quirks, build
from providers.failures import failure, not_a_reply, reported, shorten


class ChatCompletions:
    """One server of this format under its own name; `quirks` say in what it differs."""

    def __init__(self, name: str, quirks: Quirks | None = None) -> None:
        self.name = name
        self.quirks = quirks or Quirks()

    def build(self, request: ModelRequest) -> WireRequest:
        """Translate a request; raises ProviderError (INVALID_REQUEST, CONFIGURATION) for what the format cannot say."""
        return build(self.name, request, self.quirks)

    def parse(self, response: WireResponse) -> ModelReply:
        """Translate one whole body with status 2xx; raises ProviderError where it is an error or no reply."""
        try:
            body = json.loads(response.body, strict=False)
        except (ValueError, RecursionError) as error:
            raise not_a_reply(self.name, response) from error
        if isinstance(body, Mapping) and (error_body := _error_in(body)):
            raise reported(self.name, error_body, response=response)
        choices = body.get("choices") if isinstance(body, Mapping) else None
        if not (isinstance(choices, list) and choices and isinstance(choices[0], Mapping) and "message" in choices[0]):
            raise not_a_reply(self.name, response, "a chat completion with choices")
        reply = ChatReply(self.name)
        reply.add(body, whole=True)
        return reply.reply()

    def fold(self) -> ChatFold:
        """A fresh accumulator for a streamed reply."""
        return ChatFold(self.name)

    def adaptation(self, request: WireRequest, response: WireResponse) -> Mapping[str, str | None]:
        """What to change in a request whose parameter this response refuses; empty where nothing helps."""
        return adaptation(request, response)

    def failure(self, response: WireResponse, now: float) -> ProviderError:
        """The ProviderError of a response with another status; `now` in epoch seconds is for Retry-After dates."""
        return failure(self.name, response, now)


class ChatFold:
    """Accumulates a streamed reply; raises ProviderError for an error in the stream."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reply = ChatReply(name)
        self._done = False

    def feed(self, event: ServerSentEvent) -> str:
        """Take one event and return the text that it adds to the answer."""
        data = event.data.strip()
        if not data or self._done:
            return ""
        if data == "[DONE]":
            self._done = True
            return ""
        chunk = self._decode(data, event.event)
        if not isinstance(chunk, Mapping):
            return ""
        if error := (_error_in(chunk) or (event.event == "error" and chunk)):
            raise reported(self._name, error)
        return self._reply.add(chunk)

    def finish(self) -> ModelReply:
        """The complete reply; raises ProviderError (TRUNCATED_STREAM) where no finish_reason came."""
        if not self._reply.finish_reason:
            raise ProviderError(ErrorKind.TRUNCATED_STREAM, f"{self._name}: the stream ended without a finish_reason")
        return self._reply.reply()

    def _decode(self, data: str, event: str) -> Any:
        try:
            return json.loads(data, strict=False)
        except (ValueError, RecursionError) as error:
            if event == "error":
                raise reported(self._name, data) from error
            raise ProviderError(
                ErrorKind.MALFORMED, f"{self._name}: an event of the stream is not JSON: {shorten(data)}"
            ) from error


def _error_in(body: Mapping[str, Any]) -> Any:
    """The error that a body tells of, if any; some servers send the bare error marked as `object: error`."""
    return body.get("error") or (body if body.get("object") == "error" else None)
