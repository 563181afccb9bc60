"""Runs against a mock of all vendors that nobody here wrote: what we send it understands, what it answers we do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Agent, Model, tool
from tests.conftest import Serve
from tests.providers.mocks import MockServer, running_aimock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the first one installs the server

KEY, SECRET = "PERDURE_TEST_MOCK_KEY", "mock-key"
MODELS = {
    "openai": "gpt-5-mini",
    "openai-chat": "gpt-5-mini",
    "anthropic": "claude-sonnet-5",
    "gemini": "gemini-3-pro",
}
# The mock serves no v1 of Gemini.
VERSIONS = {"openai": "/v1", "openai-chat": "/v1", "anthropic": "", "gemini": "/v1beta"}
PATHS = {
    "openai": "/v1/responses",
    "openai-chat": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/gemini-3-pro:",
}
USAGE = {
    "openai": {"input_tokens": 100, "output_tokens": 20},
    "openai-chat": {"prompt_tokens": 100, "completion_tokens": 20},
    "anthropic": {"input_tokens": 100, "output_tokens": 20},
    "gemini": {"promptTokenCount": 100, "candidatesTokenCount": 20},
}
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

every_format = pytest.mark.parametrize("provider", MODELS)
both_ways = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@tool(effect="read")
def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: rain, 12 degrees"


@dataclass(frozen=True)
class Mock:
    """The mock, with the answers of one test and the journal of what came."""

    server: MockServer
    provider: str

    def expect(self, *fixtures: tuple[Mapping[str, Any], Mapping[str, Any]], **options: Any) -> None:
        """Forget everything; each answer is for the requests that match, the first match counts."""
        self.server.post("/__aimock/reset")
        more: dict[str, Any] = {"usage": USAGE[self.provider]}
        if self.provider == "gemini":
            more["finishReason"] = "stop"  # it would say FUNCTION_CALL of calls, which the API does not have
        entries = [{"match": m, "response": a if "error" in a else {**a, **more}} for m, a in fixtures]
        entries[0].update(options)
        self.server.post("/__aimock/fixtures", {"fixtures": entries})

    def model(self, **params: Any) -> Model:
        """The vendor's model, at the mock."""
        return Model(
            provider=self.provider,
            name=MODELS[self.provider],
            base_url=f"{self.server.url}{VERSIONS[self.provider]}",
            api_key_env=KEY,
            params=params,
        )

    def requests(self) -> list[dict[str, Any]]:
        """What came, in order."""
        entries: list[dict[str, Any]] = self.server.get("/__aimock/journal")
        assert all(entry["path"].startswith(PATHS[self.provider]) for entry in entries)
        return entries

    def statuses(self) -> list[int]:
        """What was answered, in order."""
        return [entry["response"]["status"] for entry in self.requests()]

    def conversation(self) -> list[dict[str, Any]]:
        """The last request as the mock understood it: in all formats as messages of Chat Completions."""
        messages: list[dict[str, Any]] = self.requests()[-1]["body"]["messages"]
        return messages


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockServer]:
    """The server without answers, which demands the key as each vendor wants it."""
    with running_aimock(tmp_path_factory.mktemp("aimock"), SECRET) as server:
        yield server


@pytest.fixture
def mock(aimock: MockServer, provider: str, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The server for the tests of one format."""
    monkeypatch.setenv(KEY, SECRET)
    return Mock(aimock, provider)


def calls_in(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Every call of a conversation: its id and its arguments."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return [(call["id"], json.loads(call["function"]["arguments"])) for call in calls]


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, in one piece or in parts."""
    content = message["content"]
    return content if isinstance(content, str) else json.dumps(content)


@every_format
@both_ways
async def test_an_agent_with_tools(serve: Serve, mock: Mock, stream: bool) -> None:
    """Parallel calls, another turn with one, then the answer: instructions, tools and paired results all arrive."""
    mock.expect(
        (
            {"userMessage": "Where does it rain?", "hasToolResult": False},
            {
                "content": "I look at two cities.",
                "toolCalls": [
                    {"name": "weather", "arguments": {"city": "Oslo"}},
                    {"name": "weather", "arguments": {"city": "Bergen ☔"}},
                ],
            },
        ),
        (
            {"toolResultContains": "Bergen"},
            {"content": "And one more.", "toolCalls": [{"name": "weather", "arguments": {"city": "Turku"}}]},
        ),
        ({"toolResultContains": "Turku"}, {"content": "It rains in Oslo, Bergen and Turku. ☔"}),
        chunkSize=3,
    )
    agent = Agent("forecast", mock.model(stream=stream), instructions="You are a forecaster.", tools=[weather])
    lab = await serve(agent)
    run = await lab.start(agent, "Where does it rain?")
    result = await run.result()
    assert (result["outcome"], result["output"]) == ("success", "It rains in Oslo, Bergen and Turku. ☔")
    assert (result["steps"], result["tool_calls"]) == (3, 3)
    assert (result["usage"]["input_tokens"], result["usage"]["output_tokens"]) == (300, 60)
    assert mock.statuses() == [200, 200, 200]
    for request in mock.requests():
        offered = request["body"]["tools"]
        assert [item["function"]["name"] for item in offered] == ["weather"]
        # Of Gemini's tools the mock reads only the older field for parameters.
        if mock.provider != "gemini":
            assert offered[0]["function"]["parameters"]["properties"]["city"]["type"] == "string"
    messages = mock.conversation()
    assert messages[0]["role"] in {"system", "developer"}
    assert "You are a forecaster." in text_of(messages[0])
    assert [text_of(m) for m in messages if m["role"] == "user"] == ["Where does it rain?"]
    calls = calls_in(messages)
    assert [arguments["city"] for _, arguments in calls] == ["Oslo", "Bergen ☔", "Turku"]
    results = [message for message in messages if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in results] == [call_id for call_id, _ in calls]
    assert ["Oslo" in text_of(results[0]), "Bergen" in text_of(results[1]), "Turku" in text_of(results[2])] == [
        True
    ] * 3
    said = " ".join(text_of(m) for m in messages if m["role"] == "assistant" and m["content"])
    assert "I look at two cities." in said
    assert "And one more." in said


@every_format
@both_ways
async def test_a_picture_in_the_prompt(serve: Serve, mock: Mock, stream: bool) -> None:
    """A prompt with a picture is accepted, and its text stands where the mock looks for it."""
    mock.expect(({"userMessage": "What is this?"}, {"content": "A pixel."}))
    agent = Agent("viewer", mock.model(stream=stream))
    lab = await serve(agent)
    prompt = [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "base64": PICTURE, "media_type": "image/png"},
    ]
    result = await lab.run(agent, prompt)
    assert (result["outcome"], result["output"]) == ("success", "A pixel.")
    # The journal keeps what a format has no place for in Chat Completions only as its text.
    if mock.provider == "openai-chat":
        assert PICTURE in text_of(mock.conversation()[-1])


@every_format
@both_ways
async def test_structured_output(serve: Serve, mock: Mock, stream: bool) -> None:
    """An answer with a schema comes back as an object."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
        "required": ["city", "degrees"],
        "additionalProperties": False,
    }
    answer = {"city": "Oslo", "degrees": 12}
    # Only here the mock looks at what was asked for.
    asked = {"responseFormat": "json_schema"} if mock.provider == "openai-chat" else {}
    mock.expect(({"userMessage": "How warm is Oslo?", **asked}, {"content": answer}), chunkSize=4)
    agent = Agent("thermometer", mock.model(stream=stream), output=schema)
    lab = await serve(agent)
    result = await lab.run(agent, "How warm is Oslo?")
    assert (result["outcome"], result["structured"], mock.statuses()) == ("success", answer, [200])


@every_format
@both_ways
async def test_errors_that_pass(serve: Serve, mock: Mock, stream: bool) -> None:
    """A rate limit is waited for as long as it says, an overload is tried again, and then the run goes on."""
    wait = 3
    mock.expect(
        (
            {"userMessage": "Go.", "sequenceIndex": 0},
            {"error": {"message": "slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": wait},
        ),
        (
            {"userMessage": "Go.", "sequenceIndex": 1},
            {"error": {"message": "overloaded", "type": "overloaded_error"}, "status": 529},
        ),
        ({"userMessage": "Go."}, {"content": "Done."}),
    )
    agent = Agent("patient", mock.model(stream=stream))
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["outcome"], result["output"], mock.statuses()) == ("success", "Done.", [429, 529, 200])
    refused, next_one = [request["timestamp"] for request in mock.requests()][:2]
    assert next_one - refused >= wait * 1_000


@every_format
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_errors_that_stay(serve: Serve, mock: Mock, status: int) -> None:
    """What the next attempt will meet again ends the run after one request, with the vendor's words."""
    mock.expect(({"userMessage": "Go."}, {"error": {"message": "this will not do", "type": "x"}, "status": status}))
    agent = Agent("refused", mock.model())
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["outcome"], result["reason"], mock.statuses()) == ("failed", "provider_error", [status])
    assert "this will not do" in result["message"]


@every_format
@pytest.mark.parametrize(
    "fault", [{"truncateAfterChunks": 2}, {"disconnectAfterMs": 1, "latency": 20}], ids=["truncated", "disconnected"]
)
async def test_a_stream_that_ends_early(serve: Serve, mock: Mock, fault: dict[str, Any]) -> None:
    """Half an answer is none: the call is made again and the whole answer counts."""
    whole = "A long answer that takes many chunks."
    again = {"userMessage": "Go."}
    mock.expect(({**again, "sequenceIndex": 0}, {"content": whole}), (again, {"content": whole}), chunkSize=4, **fault)
    agent = Agent("listener", mock.model())
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["outcome"], result["output"], len(mock.requests())) == ("success", whole, 2)


@pytest.mark.parametrize("provider", ["anthropic"])
@both_ways
@pytest.mark.parametrize("redacted", [[], ["RW5jcnlwdGVk+/=="]], ids=["signed", "redacted"])
async def test_thinking_goes_back(serve: Serve, mock: Mock, stream: bool, redacted: list[str]) -> None:
    """The mock refuses results whose calls come without the thinking before them, and ours do not."""
    thought = {"reasoning": "Two cities. \n", "reasoningSignature": "RXFzaWc+/=="}
    mock.expect(
        (
            {"userMessage": "Go.", "hasToolResult": False},
            {
                **thought,
                **({"redactedThinking": redacted} if redacted else {}),
                "toolCalls": [{"name": "weather", "arguments": {"city": "Oslo"}}],
            },
        ),
        ({"toolResultContains": "Oslo"}, {**thought, "content": "Rain."}),
        chunkSize=3,
    )
    params = {"stream": stream, "thinking": {"type": "enabled", "budget_tokens": 2_000}}
    agent = Agent("thinker", mock.model(**params), tools=[weather])
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["outcome"], result["output"], mock.statuses()) == ("success", "Rain.", [200, 200])


@pytest.mark.parametrize("provider", ["openai"])
@both_ways
async def test_encrypted_reasoning_of_responses(serve: Serve, mock: Mock, stream: bool) -> None:
    """Reasoning items of the mock, with encrypted content because we asked for it, are no obstacle to the next turn."""
    mock.expect(
        (
            {"userMessage": "Go.", "hasToolResult": False},
            {"reasoning": "One city.", "toolCalls": [{"name": "weather", "arguments": {"city": "Oslo"}}]},
        ),
        ({"toolResultContains": "Oslo"}, {"reasoning": "Enough.", "content": "Rain."}),
        chunkSize=3,
    )
    agent = Agent("thinker", mock.model(stream=stream), tools=[weather])
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["output"] == "Rain."
    [thought] = [p for m in await run.messages() if m["role"] == "assistant" for p in m["parts"]
                 if p["type"] == "thinking"][:1]  # fmt: skip
    assert thought["text"] == "One city."
