"""The OpenAI Responses format, which keeps a model's reasoning from turn to turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

from perdure.errors import ProviderError
from perdure.model_call import ModelReply, ModelRequest
from providers.base import WireRequest, WireResponse
from providers.failures import failure, not_a_reply, reported
from providers.responses.adaptation import adaptation
from providers.responses.reply import mappings, reply_of
from providers.responses.request import PATH, build
from providers.responses.stream import ResponseFold


class Responses:
    """One server of this format under its own name."""

    def __init__(self, name: str) -> None:
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
        if not isinstance(body, Mapping):
            raise not_a_reply(self.name, response, "a response with output")
        if body.get("error") and body.get("status") != "failed":
            raise reported(self.name, body["error"], response=response)
        if not isinstance(body.get("output"), list) and body.get("status") in (None, "completed", "incomplete"):
            raise not_a_reply(self.name, response, "a response with output")
        return reply_of(self.name, body, mappings(body.get("output")))

    def fold(self) -> ResponseFold:
        """A fresh accumulator for a streamed reply."""
        return ResponseFold(self.name)

    def resumed(self, ticket: Mapping[str, str], after: int | None) -> WireRequest:
        """The rest of a reply in the background, from the event behind `after` on; with None all of its events."""
        following = "" if after is None else f"&starting_after={after}"
        return WireRequest(path=f"{_path(ticket)}?stream=true{following}", method="GET")

    def cancelled(self, ticket: Mapping[str, str]) -> WireRequest:
        """The end of a reply in the background."""
        return WireRequest(path=f"{_path(ticket)}/cancel", stream=False)

    def adaptation(self, request: WireRequest, response: WireResponse) -> Mapping[str, str | None]:
        """What to leave out of a request whose parameter this response refuses; empty where nothing helps."""
        return adaptation(request, response)

    def failure(self, response: WireResponse, now: float) -> ProviderError:
        """The ProviderError of a response with another status; `now` in epoch seconds is for Retry-After dates."""
        return failure(self.name, response, now)


def _path(ticket: Mapping[str, str]) -> str:
    return f"{PATH}/{quote(ticket['id'], safe='')}"
