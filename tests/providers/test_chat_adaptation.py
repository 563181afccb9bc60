"""Parameters that a model refuses."""

from __future__ import annotations

import json

import pytest

from providers.base import WireRequest, WireResponse, adapted
from providers.chat.adaptation import adaptation

REQUEST = WireRequest(path="/x", body={"model": "m", "max_tokens": 5, "temperature": 0.2})


def refusal(status: int = 400, **error: object) -> WireResponse:
    """A refusal of a parameter."""
    return WireResponse(status, {}, json.dumps({"error": error}).encode())


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (
            refusal(param="max_tokens", code="unsupported_parameter"),
            {"model": "m", "max_completion_tokens": 5, "temperature": 0.2},
        ),
        (refusal(param="temperature", code="unsupported_value"), {"model": "m", "max_tokens": 5}),
    ],
)
def test_a_refused_parameter_is_renamed_or_left_out(response: WireResponse, body: dict[str, object]) -> None:
    """The request after the changes holds the rest as it was, and is not changed by the same refusal again."""
    again = adapted(REQUEST, adaptation(REQUEST, response))
    assert again.body == body
    assert adaptation(again, response) == {}


@pytest.mark.parametrize(
    "response",
    [
        refusal(param="messages", code="invalid_value"),
        refusal(param="model", code="unsupported_value"),
        refusal(param="max_tokens", code="unsupported_value"),
        refusal(param="top_p", code="unsupported_parameter"),
        refusal(status=500, param="max_tokens", code="unsupported_parameter"),
        WireResponse(400, {}, b"<html>"),
        WireResponse(400, {}, b'{"error": "text"}'),
        WireResponse(400, {}, b"[]"),
    ],
)
def test_all_else_stays_refused(response: WireResponse) -> None:
    """Nothing is dropped that carries meaning, that was not sent, or that was not named."""
    assert adaptation(REQUEST, response) == {}
