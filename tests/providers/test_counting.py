"""Requests that ask how many tokens another request is: as the SDKs send them, with nothing lost that counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from anthropic.types import MessageTokensCount
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from google import genai
from google.genai import types
from hypothesis import given
from openai import AsyncOpenAI
from openai.types.responses import InputTokenCountParams, InputTokenCountResponse

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Message
from perdure.model_call import ModelRequest, ToolDefinition
from providers.anthropic.provider import Anthropic
from providers.base import WireRequest, WireResponse
from providers.counting import ANTHROPIC, GEMINI, RESPONSES, Counting
from providers.gemini.provider import Gemini
from providers.responses.provider import Responses
from tests.fake_chat import fake_chat
from tests.providers.conversations import NOTHING, conversations, images, texts
from tests.providers.oracle import strict

GOLDEN = Path(__file__).parent / "golden"
COUNTERS = [pytest.param(counter, id=counter.field) for counter in (ANTHROPIC, GEMINI)]
ADD = ToolDefinition("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": False}
CONVERSATIONS = conversations(
    thinking=NOTHING, call=NOTHING, system=texts(), user=texts() | images(), result=texts()
).filter(bool)


def goldens(vendor: str) -> list[Any]:
    """All recorded requests of a vendor."""
    found = sorted((GOLDEN / vendor).glob("*.request.json"))
    assert found
    return [pytest.param(json.loads(path.read_text()), id=path.name) for path in found]


@pytest.mark.parametrize("body", goldens("anthropic"))
def test_anthropic_takes_every_request(body: dict[str, Any]) -> None:
    """The SDK's type takes it, and only what is not counted is left out; the version header goes with it."""
    wire = ANTHROPIC.build(WireRequest("/v1/messages", body, {"anthropic-version": "v"}))
    assert (wire.path, wire.headers, wire.stream) == ("/v1/messages/count_tokens", {"anthropic-version": "v"}, False)
    strict(MessageCountTokensParams).validate_python(json.loads(json.dumps(wire.body)))
    assert body.keys() - wire.body.keys() <= {"max_tokens", "stream", "stop_sequences", "temperature", "top_p"}


@pytest.mark.parametrize("body", goldens("responses"))
def test_responses_takes_every_request(body: dict[str, Any]) -> None:
    """The SDK's type takes it, and only what is not counted is left out."""
    wire = RESPONSES.build(WireRequest("/responses", body))
    assert (wire.path, wire.stream) == ("/responses/input_tokens", False)
    strict(InputTokenCountParams).validate_python(json.loads(json.dumps(wire.body)))
    settings = {"background", "temperature", "top_p", "metadata", "prompt_cache_key", "service_tier", "user", "stop"}
    assert body.keys() - wire.body.keys() <= {"store", "include", "stream", "max_output_tokens", *settings}


@pytest.mark.parametrize("body", goldens("gemini"))
@pytest.mark.parametrize("method", ["streamGenerateContent?alt=sse", "generateContent"])
def test_gemini_is_given_the_whole_request(body: dict[str, Any], method: str) -> None:
    """Instructions and tools are counted only inside of a whole request, which names its model."""
    wire = GEMINI.build(WireRequest(f"/models/a%20b:{method}", body))
    assert (wire.path, wire.stream) == ("/models/a%20b:countTokens", False)
    assert wire.body == {"generateContentRequest": {"model": "models/a b", **body}}


@given(CONVERSATIONS)
def test_any_conversation_can_be_counted(history: tuple[Message, ...]) -> None:
    """What a provider builds of any conversation, with tools, a schema and parameters, the endpoint's type takes."""
    asked = ModelRequest("m", "I", history, tools=(ADD,), output_schema=SCHEMA, max_tokens=99)
    asked_softly = ModelRequest("m", "I", history, params={"reasoning_effort": "low", "temperature": 0.5})
    for request in (asked, asked_softly):
        body = RESPONSES.build(Responses("openai").build(request)).body
        strict(InputTokenCountParams).validate_python(json.loads(json.dumps(body)))
        body = ANTHROPIC.build(Anthropic().build(request)).body
        strict(MessageCountTokensParams).validate_python(json.loads(json.dumps(body)))
        wire = Gemini().build(request)
        assert GEMINI.build(wire).body["generateContentRequest"] == {"model": "models/m", **wire.body}


async def test_the_paths_are_those_of_the_sdks() -> None:
    """Where the SDKs ask, we ask."""
    body = {"input_tokens": 7, "object": "response.input_tokens", "totalTokens": 7}
    async with fake_chat({"status": 200, "body": body}) as fake:
        root = fake.base_url.removesuffix("/v1")
        async with AsyncAnthropic(api_key="k", base_url=root) as sdk:
            await sdk.messages.count_tokens(model="m", messages=[{"role": "user", "content": "x"}])
        async with AsyncOpenAI(api_key="k", base_url=fake.base_url) as other:
            await other.responses.input_tokens.count(model="m", input="x")
        options = types.HttpOptions(base_url=root, api_version="v1")
        async with genai.Client(api_key="k", http_options=options).aio as third:
            await third.models.count_tokens(model="m", contents="x")
    ours = [
        ANTHROPIC.build(WireRequest("/v1/messages", {})).path,
        "/v1" + RESPONSES.build(WireRequest("/responses", {})).path,
        "/v1" + GEMINI.build(WireRequest("/models/m:generateContent", {})).path,
    ]
    assert ours == fake.paths


def parsed(counter: Counting, body: bytes) -> int:
    """The count of a body."""
    return counter.parse("here", WireResponse(200, {}, body))


def test_counts_are_read_as_the_sdks_read_them() -> None:
    """Each vendor's number."""
    anthropic = b'{"input_tokens": 14}'
    openai = b'{"object": "response.input_tokens", "input_tokens": 14}'
    gemini = b'{"totalTokens": 14, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 14}]}'
    assert parsed(ANTHROPIC, anthropic) == MessageTokensCount.model_validate_json(anthropic).input_tokens
    assert parsed(RESPONSES, openai) == InputTokenCountResponse.model_validate_json(openai).input_tokens
    read = types.CountTokensResponse.model_validate({"totalTokens": json.loads(gemini)["totalTokens"]})
    assert parsed(GEMINI, gemini) == read.total_tokens


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", ErrorKind.TRUNCATED_STREAM),
        (b"<html>", ErrorKind.MALFORMED),
        (b"7", ErrorKind.MALFORMED),
        (b"{}", ErrorKind.MALFORMED),
        (b'{"input_tokens": -1, "totalTokens": -1}', ErrorKind.MALFORMED),
        (b'{"input_tokens": "7", "totalTokens": "7"}', ErrorKind.MALFORMED),
        (b'{"input_tokens": true, "totalTokens": true}', ErrorKind.MALFORMED),
        (b'{"input_tokens": 7.5, "totalTokens": null}', ErrorKind.MALFORMED),
        (b'{"error": {"type": "overloaded_error", "message": "busy"}}', ErrorKind.OVERLOADED),
    ],
)
def test_what_is_no_count_is_an_error(counter: Counting, body: bytes, kind: ErrorKind) -> None:
    """A body with status 200 that holds no number of tokens."""
    with pytest.raises(ProviderError) as told:
        parsed(counter, body)
    assert told.value.kind is kind
