"""What is left out of a request that the Anthropic API refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from providers.base import WireRequest, WireResponse, adapted
from tests.providers.anthropic_oracle import ADD, PROVIDER, request, user

PARAMS = {
    "temperature": 0,
    "top_p": 0.5,
    "stop": "END",
    "reasoning_effort": "high",
    "metadata": {"user_id": "u"},
    "vendor_field": 1,
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def wire() -> WireRequest:
    """A request with everything that may be refused."""
    return PROVIDER.build(request(user(), tools=(ADD,), output_schema=SCHEMA, params=PARAMS))


def refusal(words: str, status: int = 400) -> WireResponse:
    """A refusal in these words."""
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
    return WireResponse(status, {}, json.dumps(error).encode())


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("temperature: Extra inputs are not permitted", "temperature"),
        ("`temperature` is not supported", "temperature"),
        ("`temperature` is deprecated for this model.", "temperature"),
        ("temperature: range: -1..1", "temperature"),
        ("`temperature` may only be set to 1 when thinking is enabled or in adaptive mode.", "temperature"),
        ("`top_p` and `temperature` cannot both be specified for this model. Please use only one.", "top_p"),
        ("thinking.type: Input should be 'disabled' or 'enabled'", "thinking"),
        ("thinking: adaptive thinking is not supported", "thinking"),
        ("adaptive thinking is not supported on this model", "thinking"),
        (
            '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.',
            "thinking",
        ),
        ("This model does not support the effort parameter.", "output_config.effort"),
        ("output_config.effort: Input should be 'low', 'medium' or 'high'", "output_config.effort"),
        ("stop_sequences: Extra inputs are not permitted", "stop_sequences"),
        ("metadata.user_id: Extra inputs are not permitted", "metadata"),
        ("vendor_field: Extra inputs are not permitted", "vendor_field"),
    ],
)
@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_parameter_is_left_out(words: str, field: str, status: int) -> None:
    """Exactly the field that the refusal names goes, and everything else stays."""
    asked = wire()
    changes = PROVIDER.adaptation(asked, refusal(words, status))
    assert changes == {field: None}
    left: dict[str, Any] = json.loads(json.dumps(adapted(asked, changes).body))
    outer, _, inner = field.partition(".")
    assert inner not in left[outer] if inner else outer not in left
    assert left["output_config"]["format"] == asked.body["output_config"]["format"]
    assert field not in PROVIDER.adaptation(adapted(asked, changes), refusal(words, status))


@pytest.mark.parametrize(
    "words",
    [
        "messages.0.content.0.text: Extra inputs are not permitted",
        "messages: text content blocks must be non-empty",
        "messages.1.content.0: `thinking` blocks are not supported here",
        "max_tokens: 500000 > 64000, which is the maximum allowed number of output tokens",
        "model: claude-x is not supported",
        "system: Extra inputs are not permitted",
        "tools.0.custom.input_schema: JSON schema is not supported",
        "tool_choice.type: not supported",
        "output_config.format.schema: recursion is not supported",
        "metadata.user_id: should be shorter",
        "seed: Extra inputs are not permitted",
        "This feature is not supported",
        "prompt is too long: 9 tokens > 8 maximum",
        "",
    ],
)
def test_no_other_refusal_changes_a_request(words: str) -> None:
    """What a request means is not left out, nor what the refusal does not name."""
    assert PROVIDER.adaptation(wire(), refusal(words)) == {}


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"error":"temperature is not supported"}', b"[" * 100_000])
def test_bodies_that_name_nothing(body: bytes) -> None:
    """A refusal in no known shape changes nothing."""
    assert PROVIDER.adaptation(wire(), WireResponse(400, {}, body)) == {}


@pytest.mark.parametrize("status", [401, 404, 429, 500, 529])
def test_only_a_bad_request_is_a_refusal(status: int) -> None:
    """Other failures say nothing of parameters."""
    assert PROVIDER.adaptation(wire(), refusal("temperature: Extra inputs are not permitted", status)) == {}
