"""The Anthropic Messages format, which some other vendors and gateways speak too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.model_call import ModelReply, ModelRequest
from providers.anthropic.adaptation import adaptation
from providers.anthropic.reply import MessageReply
from providers.anthropic.request import build
from providers.base import ServerSentEvent, WireRequest, WireResponse
from providers.failures import failure, not_a_reply, reported, shorten


class Anthropic:
    """One server of this format under its own name."""

    def __init__(self, name: str = "anthropic") -> None:
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
        if isinstance(body, Mapping) and (body.get("type") == "error" or body.get("error")):
            raise reported(self.name, body.get("error") or body, response=response)
        if not isinstance(body, Mapping) or not isinstance(body.get("content"), list):
            raise not_a_reply(self.name, response, "a message with content")
        reply = MessageReply(self.name)
        reply.begin(body)
        reply.end(body)
        return reply.reply()

    def fold(self) -> AnthropicFold:
        """A fresh accumulator for a streamed reply."""
        return AnthropicFold(self.name)

    def adaptation(self, request: WireRequest, response: WireResponse) -> Mapping[str, str | None]:
        """What to leave out of a request whose parameter this response refuses; empty where nothing helps."""
        return adaptation(request, response)

    def failure(self, response: WireResponse, now: float) -> ProviderError:
        """The ProviderError of a response with another status; `now` in epoch seconds is for Retry-After dates."""
        return failure(self.name, response, now)


class AnthropicFold:
    """Accumulates a streamed reply; raises ProviderError for an error in the stream."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reply = MessageReply(name)
        self._stopped = False

    def feed(self, event: ServerSentEvent) -> str:
        """Take one event and return the text that it adds to the answer."""
        if self._stopped or not event.data.strip():
            return ""
        data = self._decode(event)
        if not isinstance(data, Mapping):
            return ""
        match data.get("type", event.event):
            case "error":
                raise reported(self._name, data.get("error") or data)
            case "message_start":
                return self._reply.begin(data.get("message"))
            case "content_block_start":
                return self._reply.open(data.get("index"), data.get("content_block"))
            case "content_block_delta":
                return self._reply.extend(data.get("index"), data.get("delta"))
            case "message_delta":
                self._reply.end({"usage": data.get("usage"), **_mapping(data.get("delta"))})
            case "message_stop":
                self._stopped = True
        return ""

    def finish(self) -> ModelReply:
        """The complete reply; raises ProviderError (TRUNCATED_STREAM) where no message_stop came."""
        if not self._stopped:
            raise ProviderError(ErrorKind.TRUNCATED_STREAM, f"{self._name}: the stream ended without message_stop")
        return self._reply.reply()

    def _decode(self, event: ServerSentEvent) -> Any:
        try:
            return json.loads(event.data, strict=False)
        except (ValueError, RecursionError) as error:
            if event.event == "error":
                raise reported(self._name, event.data) from error
            raise ProviderError(
                ErrorKind.MALFORMED, f"{self._name}: an event of the stream is not JSON: {shorten(event.data)}"
            ) from error


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
