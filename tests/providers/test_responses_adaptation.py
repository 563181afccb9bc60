"""Parameters that a model refuses in the Responses format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.messages import AssistantMessage, TextPart, ThinkingPart, UserMessage, text
from perdure.model_call import ModelRequest
from providers.base import WireResponse, adapted
from providers.responses.provider import Responses

OPENAI = Responses("openai")
PARAMS = {
    "temperature": 0.2,
    "stop": ["x"],
    "seed": 7,
    "reasoning_effort": "low",
    "reasoning": {"summary": "auto"},
    "text": {"verbosity": "low"},
    "max_tokens": 50,
}
REQUEST = OPENAI.build(ModelRequest("m", "I", (UserMessage(role="user", parts=text("U")),), params=PARAMS))


def refusal(message: str = "", status: int = 400, **error: Any) -> WireResponse:
    """A refusal as the vendor words it."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **error}}
    return WireResponse(status, {}, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("response", "field"),
    [
        (refusal(param="temperature", code="unsupported_parameter"), "temperature"),
        (refusal(param="temperature", code="unsupported_value"), "temperature"),
        (refusal("Unsupported parameter: 'temperature' is not supported with this model."), "temperature"),
        (refusal("Unknown parameter: 'stop'.", param="stop", code="unknown_parameter"), "stop"),
        (refusal("Unknown parameter: 'seed'."), "seed"),
        (refusal("Unrecognized request argument supplied: seed"), "seed"),
        (refusal(param="reasoning.effort", code="unsupported_parameter"), "reasoning.effort"),
        (refusal(param="reasoning.summary", code="unsupported_value"), "reasoning.summary"),
        (refusal(param="text.verbosity", code="unsupported_parameter"), "text.verbosity"),
        (refusal("Encrypted content is not supported with this model.", param="include"), "include"),
        (refusal("Encrypted content is not supported with this model."), "include"),
        (refusal("Invalid value.", param="include[0]", code="invalid_value"), "include"),
        (refusal(status=422, param="seed", code="unknown_parameter"), "seed"),
    ],
)
def test_a_refused_parameter_is_left_out(response: WireResponse, field: str) -> None:
    """The request holds the rest as it was, and the same refusal again changes nothing more."""
    assert OPENAI.adaptation(REQUEST, response) == {field: None}
    again = adapted(REQUEST, {field: None})
    sent, left = json.loads(json.dumps(REQUEST.body)), again.body
    name, _, inner = field.partition(".")
    (sent[name] if inner else sent).pop(inner or name)
    assert left == sent
    assert OPENAI.adaptation(again, response) == {}


@pytest.mark.parametrize(
    "response",
    [
        refusal(param="store", code="unsupported_parameter"),
        refusal(param="input", code="unsupported_parameter"),
        refusal(param="model", code="unsupported_value"),
        refusal(param="max_output_tokens", code="unsupported_parameter"),
        refusal(param="reasoning.effort", code="unsupported_value"),
        refusal(param="temperature", code="invalid_type"),
        refusal(param="top_p", code="unsupported_parameter"),
        refusal(param="reasoning.mode", code="unsupported_parameter"),
        refusal(status=500, param="temperature", code="unsupported_parameter"),
        refusal(param=7, code=["unsupported_parameter"], message="odd"),
        WireResponse(400, {}, b"<html>"),
        WireResponse(400, {}, b'{"error": "text"}'),
        WireResponse(400, {}, b'{"error": null}'),
        WireResponse(400, {}, b"[]"),
    ],
)
def test_all_else_stays_refused(response: WireResponse) -> None:
    """Nothing is dropped that carries meaning or keeps a conversation private, that was not sent or not named."""
    assert OPENAI.adaptation(REQUEST, response) == {}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}
THOUGHT = ThinkingPart(type="thinking", details={"provider": "openai", "item": REASONING, "next": "message"})
SAID = AssistantMessage(role="assistant", parts=(THOUGHT, TextPart(type="text", text="A")))
USER = UserMessage(role="user", parts=text("U"))


@pytest.mark.parametrize(
    "response",
    [
        refusal("The encrypted content gAAA...c90= could not be verified.", code="invalid_encrypted_content"),
        refusal("The encrypted content ZW5j could not be decrypted or parsed."),
        refusal("Item 'rs_1' of type 'reasoning' was provided without its required following item."),
        refusal("Item 'ws_1' of type 'web_search_call' was provided without its required 'reasoning' item: 'rs_1'."),
        refusal("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.", status=404),
        refusal("Duplicate item found with id rs_1. Remove duplicate items from your input and try again."),
    ],
)
def test_reasoning_that_the_server_no_longer_takes_is_left_out(response: WireResponse) -> None:
    """The conversation goes on without it, and what was said stays; where there is none, nothing helps."""
    asked = OPENAI.build(ModelRequest("m", "I", (USER, SAID, USER)))
    again = adapted(asked, OPENAI.adaptation(asked, response))
    assert again.body == {**asked.body, "input": [item for item in asked.body["input"] if item != REASONING]}
    assert len(again.body["input"]) == 3
    assert OPENAI.adaptation(again, response) == {}
