"""Parameters that a model refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.messages import UserMessage, text
from perdure.model_call import ModelRequest
from providers.base import WireRequest, WireResponse, adapted
from providers.chat.adaptation import adaptation
from providers.chat.request import Quirks, build

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


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def asking(**quirks: Any) -> WireRequest:
    """A request for an answer that fits a schema."""
    history = (UserMessage(role="user", parts=text("How many?")),)
    return build("srv", ModelRequest("m", "Count.", history, output_schema=SCHEMA), Quirks(**quirks))


def said(message: str, status: int = 400, **error: Any) -> tuple[int, Any]:
    """A refusal in the usual form."""
    return status, {"error": {"message": message, **error}}


REFUSALS = {
    "OpenAI, an older model": said(
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        type="invalid_request_error",
        param="response_format",
        code=None,
    ),
    "OpenAI, the schema": said(
        "Invalid schema for response_format 'output': In context=(), 'additionalProperties' is required to be supplied",
        param="response_format",
        code=None,
    ),
    "OpenAI, unknown": said(
        "Unknown parameter: 'response_format.json_schema.strict'.",
        param="response_format.json_schema.strict",
        code="unknown_parameter",
    ),
    "Azure": said("response_format value as json_schema is enabled only for api versions 2024-08-01-preview and later"),
    "DeepSeek": said("This response_format type is unavailable now", param=None, code="invalid_request_error"),
    "DeepSeek, deserializer": said(
        "Failed to deserialize the JSON body into the target type: response_format: response_format.type "
        "`json_schema` is unavailable now at line 1 column 1193",
        422,
    ),
    "Groq, the model": said(
        "This model does not support response format `json_schema`. See supported models", param="response_format"
    ),
    "Groq, the schema": said(
        "invalid schema for response format: response_format/json_schema/next_step: minItems is not supported",
        type="invalid_request_error",
    ),
    "Groq, beside tools": said("json mode cannot be combined with tool/function calling", type="invalid_request_error"),
    "Cerebras": (
        400,
        {
            "message": "Unsupported JSON schema fields: {'minItems'}",
            "param": "response_format",
            "code": "wrong_api_format",
        },
    ),
    "xAI": (400, {"code": "invalid argument", "error": "The response_format parameter is unsupported at the moment."}),
    "LM Studio": (400, {"error": "'response_format.type' must be 'json_schema' or 'text'"}),
    "llama.cpp": said('Either "json_schema" or "grammar" can be specified, but not both', code=400),
    "llama.cpp, tools": said("Cannot use custom grammar constraints with tools.", code=400),
    "llama.cpp, the schema": said("JSON schema conversion failed:\nUnrecognized schema: {}", code=400),
    "llama.cpp, older": said(
        'response_format type must be one of "text" or "json_object", but got: json_schema', 500, type="server_error"
    ),
    "vLLM": said("The provided JSON schema contains features not supported by xgrammar.", type="BadRequestError"),
    "vLLM, older": (
        400,
        {"object": "error", "message": "Grammar error: invalid json_schema", "type": "BadRequestError", "code": 400},
    ),
    "Ollama": said("invalid JSON schema in format", 500, type="api_error"),
    "LiteLLM": said(
        "litellm.UnsupportedParamsError: together_ai does not support parameters: ['response_format'], for model=m",
        code="400",
    ),
    "Gemini's": said("Function calling with a response mime type: 'application/json' is unsupported"),
    "Fireworks": said("You cannot specify response format and function call at the same time"),
    "pydantic": (
        422,
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "response_format"], "msg": "Extra inputs"}]},
    ),
    "nested": said('Error from provider: {"error":{"message":"Unsupported JSON schema fields: [\\"items\\"]"}}'),
}


@pytest.mark.parametrize("refused", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refused_form_of_the_answer_is_left_out_and_the_words_stay(refused: tuple[int, Any]) -> None:
    """The schema is in the instructions already; the same refusal changes nothing a second time."""
    status, error = refused
    request, response = asking(), WireResponse(status, {}, json.dumps(error).encode())
    again = adapted(request, adaptation(request, response))
    assert again.body == {field: value for field, value in request.body.items() if field != "response_format"}
    assert json.dumps(SCHEMA) in again.body["messages"][0]["content"]
    assert adaptation(again, response) == {}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        said("Failed to validate JSON. Please adjust your prompt.", code="json_validate_failed"),
        said("Failed to generate JSON. See 'failed_generation'", param="response_format"),
        said(
            "Invalid schema for function 'add': the JSON schema is not supported", param="tools[0].function.parameters"
        ),
        said("Invalid 'tools[0].function.parameters': unsupported JSON schema"),
        said("messages is invalid, whatever response_format is", param="messages"),
        said("maximum context length is 8192 tokens"),
        said("The server had an error", 500),
        said("An internal error; response_format json_schema was set", 500),
        said("rate limit for json_schema requests: you cannot send more", 429),
        said("response_format is not supported", 401),
    ],
)
def test_other_refusals_leave_the_form_of_the_answer(status: int, error: Any) -> None:
    """An answer that went wrong, a tool's schema, a fault of another kind."""
    assert adaptation(asking(), WireResponse(status, {}, json.dumps(error).encode())) == {}


def test_a_form_that_only_the_author_has_set_stays() -> None:
    """Without the schema in words a request without its format would be another one."""
    request = WireRequest("/x", {"model": "m", "messages": [], "response_format": {"type": "json_object"}})
    status, error = said("response_format is not supported")
    assert adaptation(request, WireResponse(status, {}, json.dumps(error).encode())) == {}


@pytest.mark.parametrize("quirks", [{}, {"output": "json_object"}, {"system": "user"}, {"system": "developer"}])
def test_the_words_are_found_wherever_the_instructions_stand(quirks: dict[str, Any]) -> None:
    """In a message of any role."""
    request = asking(**quirks)
    status, error = said("response_format is not supported")
    assert adaptation(request, WireResponse(status, {}, json.dumps(error).encode())) == {"response_format": None}
