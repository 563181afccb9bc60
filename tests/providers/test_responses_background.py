"""Replies of the Responses format that the server goes on with: what they are known by, and how they are asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import ResponseCreatedEvent
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from openai.types.responses.response_retrieve_params import ResponseRetrieveParamsStreaming

from perdure.messages import UserMessage, text
from perdure.model_call import ModelRequest
from providers.base import BackgroundFold, BackgroundProvider, ServerSentEvent, WireRequest
from providers.responses.provider import Responses
from tests.providers.oracle import strict

PROVIDER = Responses("openai")


def created(**fields: Any) -> ServerSentEvent:
    """The event with which a stream begins, as the SDK takes it too."""
    response = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], **fields,
    }  # fmt: skip
    event = {"type": "response.created", "sequence_number": 0, "response": response}
    ResponseCreatedEvent.model_validate(event)
    return ServerSentEvent(json.dumps(event))


@pytest.mark.parametrize(
    ("fields", "ticket"),
    [
        ({"background": True}, {"id": "resp_1"}),
        ({"background": True, "status": "queued"}, {"id": "resp_1"}),
        ({"background": False}, None),
        ({"background": None}, None),
        ({}, None),
        ({"background": True, "id": ""}, None),
    ],
)
def test_what_a_reply_is_known_by(fields: dict[str, Any], ticket: dict[str, str] | None) -> None:
    """Its id, once the server has said that it goes on by itself."""
    fold = PROVIDER.fold()
    assert fold.ticket is None
    fold.feed(created(**fields))
    assert fold.ticket == ticket


def test_the_number_of_the_last_event() -> None:
    """It is that of whatever came last, also of events that nobody knows; one without a number changes nothing."""
    fold = PROVIDER.fold()
    assert fold.after is None
    fold.feed(created(background=True))
    assert fold.after == 0
    fold.feed(ServerSentEvent('{"type":"response.news","sequence_number":7}'))
    fold.feed(ServerSentEvent('{"type":"response.news"}'))
    assert fold.after == 7


def test_where_it_is_asked_for_again() -> None:
    """By its id, whatever that is made of; the query is what the SDK sends."""
    assert isinstance(PROVIDER, BackgroundProvider)
    assert isinstance(PROVIDER.fold(), BackgroundFold)
    known = {"id": "resp_1/?"}
    path = "/responses/resp_1%2F%3F"
    assert PROVIDER.resumed(known, None) == WireRequest(f"{path}?stream=true", method="GET")
    assert PROVIDER.resumed(known, 0) == WireRequest(f"{path}?stream=true&starting_after=0", method="GET")
    assert PROVIDER.cancelled(known) == WireRequest(f"{path}/cancel", stream=False)
    strict(ResponseRetrieveParamsStreaming).validate_python({"stream": True, "starting_after": 0})


@pytest.mark.parametrize(
    ("params", "stored"),
    [({"background": True}, True), ({"background": True, "store": False}, False), ({"background": False}, False)],
)
def test_it_is_stored_where_it_is_made_in_the_background(params: dict[str, Any], stored: bool) -> None:
    """The server demands it, unless the author knows better."""
    body = PROVIDER.build(ModelRequest("m", "", (UserMessage(role="user", parts=text("U")),), params=params)).body
    strict(ResponseCreateParamsStreaming).validate_python(body)
    assert body["store"] is stored
