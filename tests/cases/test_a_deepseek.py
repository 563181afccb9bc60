"""Case 7: servers that demand a model's reasoning back in tool turns, and servers that refuse it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from activities.exchange import Exchange
from activities.http import make_client
from perdure.errors import ErrorKind, ProviderError
from perdure.messages import AssistantMessage, CallPart, Message, ThinkingPart, ToolMessage, UserMessage, text
from perdure.model import Model
from perdure.model_call import ModelReply, ModelRequest, RawCall, RawText, RawThinking
from tests.fake_chat import Answer, FakeChat, fake_chat

Rule = Callable[[Mapping[str, Any]], bool]

CALLS = {
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "",
                "reasoning_content": "need the sum",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":3}'}}
                ],
            },
            "finish_reason": "tool_calls",
        }
    ]
}
DONE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "5"}, "finish_reason": "stop"}]}
OMIT = {"quirks": {"reasoning": "omit"}}
REQUIRE = {"quirks": {"reasoning": "require"}}


def demands(turn: Mapping[str, Any]) -> bool:
    """Server A: reasoning must stand beside calls."""
    return "tool_calls" not in turn or "reasoning_content" in turn


def forbids(turn: Mapping[str, Any]) -> bool:
    """Server B: no turn may hold reasoning."""
    return "reasoning_content" not in turn


def server(accepts: Rule) -> Callable[[dict[str, Any]], Answer]:
    """A server that asks for a tool first, answers its result, and refuses conversations that break its rule."""

    def answer(body: dict[str, Any]) -> Answer:
        for number, turn in enumerate(body["messages"]):
            if turn["role"] == "assistant" and not accepts(turn):
                error = f"reasoning_content is missing from or forbidden in assistant message {number}"
                return {"status": 400, "body": {"error": {"message": error, "type": "invalid_request_error"}}}
        return {"status": 200, "body": DONE if any(turn["role"] == "tool" for turn in body["messages"]) else CALLS}

    return answer


def user(words: str) -> UserMessage:
    """A user message."""
    return UserMessage(role="user", parts=text(words))


def stored(reply: ModelReply) -> AssistantMessage:
    """A reply as a run stores it."""
    parts: list[Any] = []
    for part in reply.parts:
        details = dict(part.details) if part.details else None
        if isinstance(part, RawThinking):
            parts.append(ThinkingPart(type="thinking", text=part.text, details=details))
        elif isinstance(part, RawText):
            parts += text(part.text)
        else:
            arguments = json.loads(str(part.arguments))
            parts.append(CallPart(type="call", id="r1", tool=part.tool, arguments=arguments, details=details))
    return AssistantMessage.model_validate_json(
        AssistantMessage(role="assistant", parts=tuple(parts)).model_dump_json()
    )


async def ask(fake: FakeChat, provider: str, params: dict[str, Any], *messages: Message) -> ModelReply:
    """One call, as a worker makes it."""
    model = Model(provider=provider, name="deepseek-reasoner", base_url=fake.base_url, params=params)
    request = ModelRequest(model.name, "", messages, params=params)
    async with make_client() as http:
        return await Exchange(http, {"DEEPSEEK_API_KEY": "k"}).complete(model, request, lambda _: None)


async def tool_turn(fake: FakeChat, provider: str, params: dict[str, Any]) -> list[Message]:
    """A conversation up to the result of the call that the server asks for."""
    reply = await ask(fake, provider, params, user("2+3?"))
    assert [part.tool for part in reply.parts if isinstance(part, RawCall)] == ["add"]
    return [user("2+3?"), stored(reply), ToolMessage(role="tool", call="r1", parts=text("5"))]


@pytest.mark.parametrize(
    ("provider", "params", "accepts"),
    [
        ("deepseek", {}, demands),
        ("deepseek", OMIT, forbids),
        ("compatible", REQUIRE, demands),
        ("compatible", OMIT, forbids),
    ],
    ids=["A, as DeepSeek is set", "B, set at the model", "A, set at a compatible server", "B, set there too"],
)
async def test_7_reasoning_in_tool_turns(provider: str, params: dict[str, Any], accepts: Rule) -> None:
    """The second turn is accepted, and so is each later one."""
    async with fake_chat(server(accepts)) as fake:
        history = await tool_turn(fake, provider, params)
        for number in range(3):
            reply = await ask(fake, provider, params, *history)
            assert [part.text for part in reply.parts if isinstance(part, RawText)] == ["5"]
            history += [stored(reply), user(f"again {number}")]
        sent = [turn.get("reasoning_content") for turn in fake.requests[-1]["messages"] if "tool_calls" in turn]
        assert sent == [None if accepts is forbids else "need the sum"]


async def test_7_a_conversation_that_began_elsewhere() -> None:
    """Calls that came without reasoning get an empty one where it is demanded."""
    call = CallPart(type="call", id="r1", tool="add", arguments={"a": 2, "b": 3}, details={"provider": "openai"})
    answered = ToolMessage(role="tool", call="r1", parts=text("5"))
    async with fake_chat(server(demands)) as fake:
        history = (user("2+3?"), AssistantMessage(role="assistant", parts=(call,)), answered)
        assert (await ask(fake, "deepseek", {}, *history)).parts == (RawText("5"),)


async def test_7_a_refused_conversation_is_not_poisoned() -> None:
    """The refusal is final and tells why; once the model is set right, the same stored conversation goes on."""
    async with fake_chat(server(forbids)) as fake:
        history = await tool_turn(fake, "deepseek", {})
        with pytest.raises(ProviderError, match="forbidden in assistant message 1") as caught:
            await ask(fake, "deepseek", {}, *history)
        assert caught.value.kind is ErrorKind.INVALID_REQUEST
        assert (await ask(fake, "deepseek", OMIT, *history)).parts == (RawText("5"),)


async def test_deepseek_gets_what_it_understands() -> None:
    """The limit is `max_tokens`, and an answer's schema is told in words beside `json_object`."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    async with fake_chat(server(demands)) as fake:
        model = Model(provider="deepseek", name="deepseek-chat", base_url=fake.base_url)
        request = ModelRequest(model.name, "I", (user("U"),), output_schema=schema, max_tokens=9)
        async with make_client() as http:
            await Exchange(http, {"DEEPSEEK_API_KEY": "k"}).complete(model, request, lambda _: None)
        assert fake.headers[0]["authorization"] == "bearer k"
        (sent,) = fake.requests
    assert (sent["max_tokens"], sent["response_format"]) == (9, {"type": "json_object"})
    assert json.dumps(schema) in sent["messages"][0]["content"]
