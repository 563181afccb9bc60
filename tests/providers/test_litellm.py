"""Through a LiteLLM proxy, which translates between formats, to the mock of the vendors; only where it is asked for."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from perdure import Agent, Model, tool
from tests.conftest import Serve
from tests.providers.mocks import MockServer, python_environment, running, running_aimock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),  # the first one installs the servers
    pytest.mark.skipif(not os.environ.get("PERDURE_TEST_LITELLM"), reason="PERDURE_TEST_LITELLM=1 installs the proxy"),
]

PACKAGE = "litellm[proxy]==1.108.7"
KEY, SECRET = "PERDURE_TEST_MOCK_KEY", "sk-4f1c9a7be2d85036"
# Provider and base path: the proxy's three doors.
DOORS = {"chat": ("litellm", "/v1"), "responses": ("openai", "/v1"), "messages": ("anthropic", "")}
UPSTREAMS = {
    "openai": ("openai/gpt-4o", "/v1"),
    "anthropic": ("anthropic/claude-sonnet-4-5", ""),
    "gemini": ("gemini/gemini-2.5-flash", "/v1beta"),
}


@tool(effect="read")
def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: rain, 12 degrees"


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockServer]:
    """The vendors."""
    with running_aimock(tmp_path_factory.mktemp("aimock"), SECRET) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(aimock: MockServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockServer]:
    """The proxy in front of them."""
    folder = tmp_path_factory.mktemp("litellm")
    commands = python_environment(folder, PACKAGE)
    models = [
        {"model_name": name, "litellm_params": {"model": model, "api_base": f"{aimock.url}{path}", "api_key": SECRET}}
        for name, (model, path) in UPSTREAMS.items()
    ]
    config = folder / "config.yaml"  # JSON is YAML
    config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": SECRET}}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(commands / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with running(command, folder / "log", within=120, LITELLM_LOCAL_MODEL_COST_MAP="True") as server:
        yield server


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_agent_with_tools(
    serve: Serve,
    proxy: MockServer,
    aimock: MockServer,
    monkeypatch: pytest.MonkeyPatch,
    upstream: str,
    door: str,
    stream: bool,
) -> None:
    """By every door and to every vendor a run with parallel calls ends well, and the results arrive paired."""
    monkeypatch.setenv(KEY, SECRET)
    stop = {"finishReason": "stop"} if upstream == "gemini" else {}
    cities = [{"name": "weather", "arguments": {"city": city}} for city in ("Oslo", "Bergen")]
    aimock.post("/__aimock/reset")
    aimock.post(
        "/__aimock/fixtures",
        {
            "fixtures": [
                {"match": {"sequenceIndex": 0}, "response": {"toolCalls": cities, **stop}},
                {"match": {}, "response": {"content": "Rain in both."}},
            ]
        },
    )
    provider, path = DOORS[door]
    model = Model(
        provider=provider, name=upstream, base_url=f"{proxy.url}{path}", api_key_env=KEY, params={"stream": stream}
    )
    agent = Agent("through", model, instructions="You are a forecaster.", tools=[weather])
    lab = await serve(agent)
    result = await lab.run(agent, "Where does it rain?")
    assert (result["outcome"], result["output"], result["tool_calls"]) == ("success", "Rain in both.", 2)
    if upstream == "gemini":
        return  # the proxy writes function_call, as the API allows, where the mock reads only functionCall
    messages = aimock.get("/__aimock/journal")[-1]["body"]["messages"]
    calls = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == calls
    assert len(calls) == 2
