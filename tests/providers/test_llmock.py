"""A fault injector that nobody here wrote judges us as a client: in every format, whatever it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Model, tool
from tests.conftest import Serve
from tests.lab import Lab
from tests.providers.mocks import MockServer, python_environment, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the first one installs the server

PACKAGE = "llmock==0.2.2"
KEY = "PERDURE_TEST_MOCK_KEY"
FORMATS: dict[str, tuple[str, str, str]] = {
    "responses": ("openai", "/v1", "/v1/responses"),
    "chat": ("openai-chat", "/v1", "/v1/chat/completions"),
    "anthropic": ("anthropic", "/anthropic", "/anthropic/*"),
    "gemini": ("gemini", "/gemini/v1beta", "/gemini/*"),
    "groq": ("groq", "/groq/openai/v1", "/groq/*"),
    "mistral": ("compatible", "/mistral/v1", "/mistral/*"),
    "together": ("compatible", "/together/v1", "/together/*"),
    "perplexity": ("compatible", "/perplexity/v1", "/perplexity/*"),
    "ai21": ("compatible", "/ai21/v1", "/ai21/*"),
    "xai": ("compatible", "/xai/v1", "/xai/*"),
}
"""Provider, base path and the paths of its requests; of the mock's formats only Cohere's own is none of ours."""

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WORDS = {
    "type": "reply",
    "text": "This answer has a good many words and comes in more than one or two chunks.",
    "times": 2,
}

PASSING: dict[str, list[dict[str, Any]]] = {
    **{f"status {status}": [{"type": "fail", "status": status}] for status in (408, 409, 500, 502, 503, 504, 529)},
    "rate limit": [{"type": "fail", "status": 429, "retry_after": 2}],
    "rate limit in milliseconds": [{"type": "fail", "status": 429, "retry_after": 0.3, "times": 3}],
    "overload twice": [{"type": "fail", "status": 529, "retry_after": 1.5, "times": 2}],
    "broken before the first chunk": [{"type": "stream_fault", "kind": "disconnect", "after_chunks": 0}],
    "broken again and again": [{"type": "stream_fault", "kind": "disconnect", "after_chunks": 1, "times": 3}],
    "cut before the first chunk": [{"type": "stream_fault", "kind": "truncate", "after_chunks": 0}],
    "cut": [{"type": "stream_fault", "kind": "truncate", "after_chunks": 2, "times": 2}],
    # Of a reply in one chunk it cannot see that we stopped reading there.
    "malformed": [WORDS, {"type": "stream_fault", "kind": "malformed", "after_chunks": 1}],
    "malformed first": [WORDS, {"type": "stream_fault", "kind": "malformed", "after_chunks": 0}],
    "stalled": [{"type": "stream_fault", "kind": "stall", "after_chunks": 1, "stall_seconds": 8}],
    "slow": [{"type": "slow_first_token", "seconds": 8}],
    "late": [{"type": "delay", "seconds": 8}],
    "unknown tool": [{"type": "tool_fault", "kind": "unknown_tool"}],
    "malformed arguments": [{"type": "tool_fault", "kind": "malformed_arguments"}],
    "everything at once": [
        {"type": "fail", "status": 429, "retry_after": 1},
        {"type": "stream_fault", "kind": "truncate", "after_chunks": 1},
        {"type": "fail", "status": 503, "retry_after": 0.5},
    ],
}
"""What it does to the first requests of each format, by a name."""

WHOLE = ["rate limit", "overload twice", "late", "unknown tool", "malformed arguments"]
"""Those that are met without a stream too."""

STAYING: dict[str, tuple[dict[str, Any], str]] = {
    **{f"status {status}": ({"status": status}, "provider_error") for status in (400, 401, 403, 404, 422)},
    "context": (
        {
            "status": 400,
            "code": "context_length_exceeded",
            "message": "This model's maximum context length was exceeded.",
        },
        "context_length",
    ),
}
"""What no attempt can mend, and the reason of the run's end."""


@tool(effect="read")
def lookup(city: str = "Oslo") -> str:
    """The weather of a city."""
    return "12 degrees"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its command."""
    return str(python_environment(tmp_path_factory.mktemp("llmock"), PACKAGE) / "llmock")


@pytest.fixture(scope="module")
def llmock(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockServer]:
    """The server."""
    # At this pace it sees that a client stops reading; a reply that is sent at once counts as read to its end.
    command = [program, "serve", "--port", "0", "--stream-chunk-delay-ms", "30"]
    with running(command, tmp_path_factory.mktemp("log") / "log") as server:
        yield server


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key in the worker's environment."""
    monkeypatch.setenv(KEY, "mock-key")


def agents(server: MockServer, *names: str, **params: Any) -> list[Agent]:
    """An agent with a tool for each format."""
    return [
        Agent(
            name,
            Model(
                provider=FORMATS[name][0],
                name="mock-1",
                base_url=f"{server.url}{FORMATS[name][1]}",
                api_key_env=KEY,
                params=params,
            ),
            tools=[lookup],
        )
        for name in names
    ]


def script(server: MockServer, *behaviours: dict[str, Any]) -> None:
    """Forget everything, then do this to each format."""
    server.post("/_llmock/reset")
    made = []
    for _, _, path in FORMATS.values():
        for behaviour in behaviours:
            limits = {"tools": True} if behaviour["type"] == "tool_fault" else {}
            made.append({**behaviour, "match": {"path": path, **limits}})
    server.post("/_llmock/scenario", {"behaviors": made})


async def workers(serve: Serve, agents: list[Agent], **settings: Any) -> list[Lab]:
    """A worker for each agent: one alone would leave an address in peace that fails in so many formats at once."""
    return [await serve(agent, **settings) for agent in agents]


async def results_of(labs: list[Lab], prompt: Any = "How warm is Oslo?") -> dict[str, dict[str, Any]]:
    """How one run at each worker ended, all at the same time."""
    ended = await asyncio.gather(*(lab.run(lab.agents[0], prompt) for lab in labs))
    return {lab.agents[0].name: result for lab, result in zip(labs, ended, strict=True)}


def requests(server: MockServer) -> list[dict[str, Any]]:
    """What came, in order."""
    found: list[dict[str, Any]] = server.get("/_llmock/requests")["requests"]
    return found


def findings(server: MockServer) -> list[str]:
    """What it has against us, warnings too."""
    verdict = server.get("/_llmock/verdict")
    return [f"{finding['path']} {finding['code']}: {finding['title']}" for finding in verdict["findings"]]


@pytest.mark.parametrize(
    ("fault", "stream"),
    [*((fault, True) for fault in PASSING), *((fault, False) for fault in WHOLE)],
    ids=[*PASSING, *(f"{fault}, no stream" for fault in WHOLE)],
)
async def test_what_passes(serve: Serve, llmock: MockServer, fault: str, stream: bool) -> None:
    """The run of every format ends well, and nothing is to be said against its requests."""
    script(llmock, *PASSING[fault])
    labs = await workers(serve, agents(llmock, *FORMATS, stream=stream), idle_first=3.0, idle_between=3.0)
    results = await results_of(labs)
    assert {name: result["outcome"] for name, result in results.items()} == dict.fromkeys(FORMATS, "success")
    assert all(result["output"] for result in results.values())
    assert findings(llmock) == []
    assert llmock.get("/_llmock/scenario")["pending"] == []


@pytest.mark.parametrize("fault", STAYING)
async def test_what_stays(serve: Serve, llmock: MockServer, fault: str) -> None:
    """No attempt is wasted, the reason is told, and nothing is to be said against it."""
    behaviour, reason = STAYING[fault]
    script(llmock, {"type": "fail", "times": None, **behaviour})
    labs = await workers(serve, agents(llmock, *FORMATS))
    results = await results_of(labs)
    assert {name: result["reason"] for name, result in results.items()} == dict.fromkeys(FORMATS, reason)
    assert len(requests(llmock)) == len(FORMATS)
    assert findings(llmock) == []


async def test_an_outage(serve: Serve, llmock: MockServer) -> None:
    """Where every request fails each run gives up after six, and that is no storm."""
    script(llmock, {"type": "fail", "status": 503, "times": None})
    labs = await workers(serve, agents(llmock, *FORMATS))
    results = await results_of(labs)
    assert {name: result["reason"] for name, result in results.items()} == dict.fromkeys(FORMATS, "provider_error")
    assert len(requests(llmock)) == 6 * len(FORMATS)
    assert findings(llmock) == []


async def test_real_quotas(serve: Serve, program: str, tmp_path: Path) -> None:
    """More runs than a quota of requests allows all end well: each refusal says how long, and that is waited for."""
    command = [program, "serve", "--port", "0", "--rpm", "10", "--tool-mode", "off"]
    with running(command, tmp_path / "log") as server:
        labs = await workers(serve, agents(server, "responses", "anthropic", "gemini"))
        prompts = [f"How warm is city {number}?" for number in range(13)]
        ended = await asyncio.gather(*(results_of(labs, prompt) for prompt in prompts))
        assert {result["outcome"] for results in ended for result in results.values()} == {"success"}
        assert any(request["status"] == 429 for request in requests(server))
        assert findings(server) == []


async def test_a_picture_goes_out_in_every_format(serve: Serve, llmock: MockServer) -> None:
    """The data of a picture is in the body of the request."""
    script(llmock, {"type": "reply", "text": "A pixel."})
    labs = await workers(serve, agents(llmock, *FORMATS))
    picture = {"type": "image", "base64": PICTURE, "media_type": "image/png"}
    results = await results_of(labs, [{"type": "text", "text": "What is this?"}, picture])
    assert {name: result["output"] for name, result in results.items()} == dict.fromkeys(FORMATS, "A pixel.")
    assert [request["path"] for request in requests(llmock) if PICTURE not in str(request["body"])] == []
