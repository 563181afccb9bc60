"""What is left out of a request when a Gemini model refuses a parameter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from providers.base import WireResponse, adapted
from tests.providers.gemini_oracle import PROVIDER, body, judge, request, user

ASKED = request(
    user(),
    max_tokens=50,
    output_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
    params={
        "reasoning_effort": "low",
        "seed": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": "END",
        "generationConfig": {"presencePenalty": 1.0, "thinkingConfig": {"includeThoughts": True}},
    },
)


def refusal(message: str, status: int = 400, *, listed: bool = False) -> WireResponse:
    """An answer of the API to a request that it does not take."""
    error: Any = {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}
    return WireResponse(status, {}, json.dumps([error] if listed else error).encode())


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (
            "Invalid JSON payload received. Unknown name \"seed\" at 'generation_config': Cannot find field.",
            ["seed"],
        ),
        (
            "Invalid JSON payload received. Unknown name \"seed\" at 'generation_config': Cannot find field.\n"
            "Invalid JSON payload received. Unknown name \"topP\" at 'generation_config': Cannot find field.",
            ["topP", "seed"],
        ),
        (
            "Unknown name \"thinkingLevel\" at 'generation_config.thinking_config': Cannot find field.",
            ["thinkingConfig.thinkingLevel"],
        ),
        ("Unknown name \"thinkingConfig\" at 'generation_config': Cannot find field.", ["thinkingConfig"]),
        ("Thinking level is not supported for this model.", ["thinkingConfig.thinkingLevel"]),
        ("Thinking level LOW is not supported for this model.", ["thinkingConfig.thinkingLevel"]),
        ("Thinking is not enabled for models/gemini-x", ["thinkingConfig"]),
        ("This model does not support thinking.", ["thinkingConfig"]),
        ("Penalty is not enabled for models/gemini-x", ["presencePenalty"]),
        ("The temperature parameter is not supported by this model.", ["temperature"]),
        ("stop_sequences is not supported", ["stopSequences"]),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_a_refused_parameter_is_left_out(message: str, fields: list[str], listed: bool) -> None:
    """The refused fields and no others go, and what is left is still a request."""
    wire = PROVIDER.build(ASKED)
    changes = PROVIDER.adaptation(wire, refusal(message, listed=listed))
    assert changes == {f"generationConfig.{field}": None for field in fields}
    smaller = adapted(wire, changes)
    judge(smaller)
    kept = dict(wire.body["generationConfig"])
    for field in fields:
        outer, _, inner = field.partition(".")
        if inner:
            kept[outer] = {name: value for name, value in kept[outer].items() if name != inner}
        else:
            del kept[outer]
    assert smaller.body == {**wire.body, "generationConfig": kept}


@pytest.mark.parametrize(
    "response",
    [
        refusal("Unknown name \"topK\" at 'generation_config': Cannot find field."),
        refusal("Unknown name \"maxOutputTokens\" at 'generation_config': Cannot find field."),
        refusal("Unknown name \"responseJsonSchema\" at 'generation_config': Cannot find field."),
        refusal(
            "Unknown name \"foo\" at 'tools[0].function_declarations[0].parameters_json_schema': Cannot find field."
        ),
        refusal("temperature must be at most 2"),
        refusal("Function call is missing a thought_signature in functionCall parts."),
        refusal("Thinking level is not supported for this model.", 429),
        WireResponse(400, {}, b"<html>"),
        WireResponse(400, {}, b"[]"),
        WireResponse(400, {}, b'{"error":"x"}'),
        WireResponse(400, {}, b'{"error":{"message":7}}'),
    ],
)
def test_other_refusals_are_failures(response: WireResponse) -> None:
    """What is not a refusal of a parameter that can be left out changes nothing."""
    assert PROVIDER.adaptation(PROVIDER.build(ASKED), response) == {}


def test_a_request_without_parameters_is_not_changed() -> None:
    """Nothing is left out of what says nothing."""
    wire = PROVIDER.build(request(user()))
    assert PROVIDER.adaptation(wire, refusal("Thinking level is not supported for this model.")) == {}
    assert body(request(user())) == wire.body
