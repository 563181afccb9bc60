"""Requests in the Responses format: against recorded bodies, by rule, and judged by the vendor's own types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import response_create_params

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import MESSAGES, Message
from perdure.model_call import ModelRequest, ToolDefinition
from providers.responses.provider import Responses
from tests.providers.conversations import SECRET, Details, conversations
from tests.providers.oracle import strict

GOLDEN = Path(__file__).parent / "golden" / "responses"
OPENAI = Responses("openai")
OWN = {"provider": "openai"}

CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FREE = {"type": "object", "properties": {"fields": {"type": "object", "additionalProperties": {"type": "string"}}}}
ADD = ToolDefinition("add", "Sum of two numbers.", CLOSED)
FILL = ToolDefinition("fill", "Fills a form.", FREE)
IMAGE = {"type": "image", "base64": "aGk=", "media_type": "image/png"}
LINKED = {"type": "image", "url": "https://example.org/a.png"}
PDF = {"type": "document", "base64": "aGk=", "media_type": "application/pdf"}
NAMED = {"type": "document", "base64": "aGk=", "media_type": "text/csv", "name": "a.csv"}
LINKED_PDF = {"type": "document", "url": "https://example.org/a.pdf"}


def messages(*items: dict[str, Any]) -> tuple[Message, ...]:
    """Messages from their JSON, where a string stands for one text part."""
    read = [{**item, "parts": [_part(p) for p in item["parts"]]} for item in items]
    return tuple(MESSAGES.validate_python(read))


def _part(part: Any) -> Any:
    return {"type": "text", "text": part} if isinstance(part, str) else part


def user(*parts: Any) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "parts": parts}


def system(*parts: Any) -> dict[str, Any]:
    """A system message."""
    return {"role": "system", "parts": parts}


def assistant(*parts: Any) -> dict[str, Any]:
    """A reply."""
    return {"role": "assistant", "parts": parts}


def call(call_id: str, wire_id: str | None = None, **details: Any) -> dict[str, Any]:
    """A call of `add` as a part; with `wire_id` it came from the server under this id."""
    own = {"details": {**OWN, "id": wire_id, **details}} if wire_id is not None else {}
    return {"type": "call", "id": call_id, "tool": "add", "arguments": {"a": 1}, **own}


def result(call_id: str, *parts: Any) -> dict[str, Any]:
    """A tool result."""
    return {"role": "tool", "call": call_id, "parts": parts}


def thought(number: int, following: str, **item: Any) -> dict[str, Any]:
    """A reasoning item as a part, and before what it came."""
    wire = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "ZW5j", **item}
    return {"type": "thinking", "text": "", "details": {**OWN, "item": wire, "next": following}}


def searched(number: int, *, after_reasoning: bool = True) -> dict[str, Any]:
    """A web search of the server as a part."""
    item = {"type": "web_search_call", "id": f"ws_{number}", "status": "completed"}
    item["action"] = {"type": "search", "query": "q"}  # type: ignore[assignment]
    more = {"after_reasoning": True} if after_reasoning else {}
    return {"type": "thinking", "text": "", "details": {**OWN, "item": item, **more}}


def request(*items: dict[str, Any], **fields: Any) -> ModelRequest:
    """A request with these messages."""
    return ModelRequest(**{"model": "gpt-5-mini", "instructions": "", "messages": messages(*items), **fields})


def body(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The body of a request with these messages, which the vendor's types accept."""
    sent = dict(OPENAI.build(request(*items, **fields)).body)
    judge(sent)
    return sent


def judge(sent: Any) -> None:
    """Raise where the vendor's types refuse a body."""
    streaming = sent.get("stream") is True
    params = "ResponseCreateParamsStreaming" if streaming else "ResponseCreateParamsNonStreaming"
    strict(getattr(response_create_params, params)).validate_python(sent)


def kinds(sent: dict[str, Any]) -> list[Any]:
    """What stands in the input: type, or role of a message."""
    return [item.get("type") or item["role"] for item in sent["input"]]


REQUESTS: dict[str, ModelRequest] = {
    "plain": request(user("Hi"), instructions="Be kind.", max_tokens=100),
    "tools": request(user("1+2?"), tools=(ADD, FILL), tool_choice="add", parallel_tools=False, output_schema=CLOSED),
    "tool_turn": request(
        user("1+2?"),
        assistant(thought(1, "call_a"), call("c1", "call_a"), call("c2")),
        result("c2", "three"),
        result("c1", "3"),
        assistant("It is 3."),
        user("Thanks"),
        tools=(ADD,),
    ),
    "system_in_between": request(system("S1"), user("U1"), user("U2"), assistant("A1"), system("S2"), user("U3")),
    "attachments": request(
        user("Look:", IMAGE, LINKED, PDF, NAMED, LINKED_PDF),
        assistant(call("c1"), call("c2"), call("c3")),
        result("c1", "Seen:", IMAGE),
        result("c2", PDF),
        result("c3"),
    ),
    "web_search": request(
        user("Oslo?"),
        assistant(thought(1, "web_search_call"), searched(1), thought(2, "message"), "9 C."),
        user("Rome?"),
        params={"tools": [{"type": "web_search"}]},
        tools=(ADD,),
    ),
    "params": request(
        user("Hi"),
        output_schema=FREE,
        params={
            "reasoning_effort": "low",
            "reasoning": {"summary": "auto"},
            "text": {"verbosity": "low"},
            "include": ["message.output_text.logprobs"],
            "max_completion_tokens": 7,
            "temperature": 0,
            "top_p": 0.5,
            "stream": False,
        },
        max_tokens=500,
    ),
    "stored": request(user("Hi"), params={"store": True, "previous_response_id": "resp_0", "include": None}),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_golden_requests(case: str) -> None:
    """Each request gives the recorded body, which the vendor's types accept."""
    wire = OPENAI.build(REQUESTS[case])
    assert wire.path == "/responses"
    assert wire.stream is wire.body["stream"]
    judge(wire.body)
    assert wire.body == json.loads((GOLDEN / f"{case}.request.json").read_text())


REASONING = st.fixed_dictionaries(
    {"type": st.just("reasoning"), "id": st.sampled_from(["rs_1", "rs_2"]), "summary": st.just([])},
    optional={"encrypted_content": st.sampled_from(["ZW5j", "ZW5jMg=="])},
)
SEARCH = st.just(
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
)
FOLLOWERS = st.sampled_from(["message", "reasoning", "web_search_call", "call_1", "call_2"])
OPAQUE = st.builds(lambda item, following: {**OWN, "item": item, "next": following}, REASONING, FOLLOWERS) | st.builds(
    lambda item, after: {**OWN, "item": item} | ({"after_reasoning": True} if after else {}), SEARCH, st.booleans()
)
CALLS: Details = st.sampled_from(
    [{**OWN, "id": "call_1"}, {**OWN, "id": "call_2", "caller": {"type": "direct"}}, {**OWN, "id": ""}, {"id": "c1"}]
)
PHASES = st.sampled_from([{**OWN, "phase": "commentary"}, {**OWN, "phase": "final_answer"}])


@given(conversations(thinking=OPAQUE, call=CALLS, text=PHASES))
def test_any_conversation_is_accepted(history: tuple[Message, ...]) -> None:
    """Whatever a run has stored, the types accept it, calls and results are paired, and nothing foreign is sent."""
    asked = ModelRequest("m", "I", history, tools=(ADD, FILL), output_schema=FREE)
    sent = OPENAI.build(asked).body
    judge(sent)
    assert SECRET not in json.dumps(sent)
    wire = sent["input"]
    called = [item["call_id"] for item in wire if item.get("type") == "function_call"]
    answered = [item["call_id"] for item in wire if item.get("type") == "function_call_output"]
    assert called == answered
    assert len(called) == len(set(called)) == sum(len(m.calls) for m in history if m.role == "assistant")
    thoughts = [part.details or {} for message in history for part in message.parts if part.type == "thinking"]
    own = [details["item"] for details in thoughts if "item" in details]
    opaque = [item for item in wire if item.get("type") in ("reasoning", "web_search_call")]
    assert all(item in own for item in opaque)
    for item, following in zip(wire, [*wire, {"role": "end"}][1:], strict=True):
        if item.get("type") == "reasoning":
            assert "encrypted_content" in item
            assert following.get("role") == "assistant" or following.get("type") not in (None, "function_call_output")


@pytest.mark.parametrize(
    ("parts", "sent"),
    [
        ((thought(1, "call_a"), call("c1", "call_a")), ["reasoning", "function_call"]),
        ((thought(1, "message"), "Hi"), ["reasoning", "assistant"]),
        ((thought(1, "reasoning"), thought(2, "message"), "Hi"), ["reasoning", "reasoning", "assistant"]),
        ((thought(1, "web_search_call"), searched(1), "Hi"), ["reasoning", "web_search_call", "assistant"]),
        ((searched(1, after_reasoning=False), "Hi"), ["web_search_call", "assistant"]),
        ((thought(1, "call_a"), call("c1", "call_b")), ["function_call"]),
        ((thought(1, "message"), call("c1", "call_b")), ["function_call"]),
        ((thought(1, "call_a"), "Hi"), ["assistant"]),
        ((thought(1, "message"), ""), []),
        ((thought(1, "message"),), []),
        ((thought(1, "web_search_call"), "Hi"), ["assistant"]),
        ((searched(1), "Hi"), ["assistant"]),
        ((thought(1, "message", encrypted_content=None), "Hi"), ["assistant"]),
        ((thought(1, "web_search_call", encrypted_content=""), searched(1), "Hi"), ["assistant"]),
    ],
)
def test_reasoning_goes_back_with_what_followed_it_or_not_at_all(parts: tuple[Any, ...], sent: list[str]) -> None:
    """Both of a pair are sent or neither, and an item of our own stands alone."""
    wire = body(user("U"), assistant(*parts))
    assert [kind for kind in kinds(wire)[1:] if kind != "function_call_output"] == sent


def test_reasoning_that_the_server_stores_goes_back_by_its_id() -> None:
    """Without encrypted content it is known there, where the author had it stored."""
    asked = (user("U"), assistant(thought(1, "message", encrypted_content=None), "Hi"))
    reasoning = OPENAI.build(request(*asked, params={"store": True})).body["input"][1]
    assert (reasoning["type"], reasoning["id"]) == ("reasoning", "rs_1")
    assert kinds(body(*asked, params={"store": False})) == ["user", "assistant"]


def test_ids_on_the_wire_are_unique() -> None:
    """A server that uses an id twice, or one of ours, does not make two calls look like one."""
    turn = assistant(call("c1", "x"), call("c2", "x"), call("c3", "c4"))
    wire = body(user("U"), turn, assistant(call("c4", "")), result("c4", "4"))["input"]
    ids = [item["call_id"] for item in wire if item.get("type") == "function_call"]
    assert ids == ["x", "c2", "c4", "c4_2"]
    assert [item["call_id"] for item in wire if item.get("type") == "function_call_output"] == ids


def test_a_caller_and_a_namespace_go_back_with_their_call() -> None:
    """Both halves name the caller; the output has no namespace of its own to tell."""
    turn = assistant(call("c1", "x", namespace="crm", caller={"type": "program", "caller_id": "p1"}))
    _, called, answered = body(user("U"), turn, result("c1", "3"))["input"]
    assert called["namespace"] == "crm"
    assert called["caller"] == answered["caller"] == {"type": "program", "caller_id": "p1"}


def test_a_made_up_tool_name_is_sent_in_a_form_that_is_accepted() -> None:
    """A call of a name that the format forbids does not poison the conversation."""
    turn = assistant(*({**call(f"c{n}"), "tool": tool} for n, tool in enumerate(["get weather!", "", "x" * 99])))
    names = [item["name"] for item in body(user("U"), turn)["input"] if item.get("type") == "function_call"]
    assert names == ["get_weather_", "unnamed", "x" * 64]


@pytest.mark.parametrize(
    ("choice", "wire"),
    [("auto", None), ("required", "required"), ("none", "none"), ("add", {"type": "function", "name": "add"})],
)
def test_tool_choice(choice: str, wire: Any) -> None:
    """`auto` is left out, a name becomes a function."""
    assert body(user("U"), tools=(ADD,), tool_choice=choice).get("tool_choice") == wire


def test_nothing_of_tools_without_tools() -> None:
    """A request without tools says nothing of choice or parallel calls."""
    sent = body(user("U"), tool_choice="required", parallel_tools=False)
    assert not sent.keys() & {"tools", "tool_choice", "parallel_tool_calls"}


@pytest.mark.parametrize(
    ("schema", "parameters"),
    [
        (CLOSED, CLOSED),
        ({}, {"type": "object", "properties": {}}),
        (None, {"type": "object", "properties": {}}),
        (True, {"type": "object", "properties": {}}),
        ({"type": "array", "items": {"type": "string"}}, {"type": "object", "properties": {}}),
        ({"type": "object", "properties": {"x": {"type": "odd"}}}, {"type": "object", "properties": {}}),
        ({"properties": {"x": {"$ref": "#/$defs/none"}}}, {"type": "object", "properties": {}}),
        ({"properties": {"x": True}}, {"type": "object", "properties": {"x": True}}),
        (
            {"type": "object", "properties": {"x": {"type": ["array", "null"]}}, "anyOf": [{"required": ["x"]}]},
            {"type": "object", "properties": {"x": {"type": ["array", "null"], "items": {}}}},
        ),
    ],
)
def test_a_schema_that_the_api_refuses_is_reduced(schema: Any, parameters: Any) -> None:
    """One bad schema does not have all requests of the agent refused, and the other tools keep theirs."""
    odd, add = body(user("U"), tools=(ToolDefinition("odd", "", schema), ADD))["tools"]
    assert odd["parameters"] == parameters
    assert odd["strict"] is (schema == CLOSED)
    assert add["parameters"] == CLOSED


def test_strict_is_claimed_only_where_it_can_be_honoured() -> None:
    """For tools and for the answer alike."""
    sent = body(user("U"), tools=(ADD, FILL), output_schema=FREE)
    assert [tool["strict"] for tool in sent["tools"]] == [True, False]
    assert sent["text"]["format"]["strict"] is False
    assert body(user("U"), output_schema=CLOSED)["text"]["format"]["strict"] is True


@pytest.mark.parametrize(
    ("params", "limit"),
    [
        ({}, 16),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 8}, 8),
        ({"max_completion_tokens": 8, "max_output_tokens": 9}, 9),
        ({"max_tokens": None}, None),
    ],
)
def test_the_limit_of_the_answer(params: dict[str, Any], limit: int | None) -> None:
    """The author's own limit wins under each of its names; ours is never below what the API takes."""
    sent = body(user("U"), max_tokens=3, params=params)
    assert sent.get("max_output_tokens") == limit
    assert not sent.keys() & {"max_tokens", "max_completion_tokens"}


@pytest.mark.parametrize(
    ("params", "reasoning"),
    [
        ({"reasoning_effort": "low"}, {"effort": "low"}),
        (
            {"reasoning_effort": "low", "reasoning": {"effort": "high", "summary": "auto"}},
            {"effort": "high", "summary": "auto"},
        ),
        ({"reasoning": {"summary": "auto"}}, {"summary": "auto"}),
        ({}, None),
    ],
)
def test_effort_of_reasoning(params: dict[str, Any], reasoning: Any) -> None:
    """The name of Chat Completions is understood; the format's own name wins."""
    assert body(user("U"), params=params).get("reasoning") == reasoning


def test_params_win_and_none_removes() -> None:
    """What an author sets replaces what we set, objects deeply; what this format does not have is sent all the same."""
    sent = OPENAI.build(
        request(
            user("U"),
            output_schema=CLOSED,
            params={"text": {"format": {"name": "mine", "strict": None}}, "seed": 7, "stop": ["x"], "store": None},
        )
    ).body
    assert sent["text"]["format"] == {"type": "json_schema", "name": "mine", "schema": CLOSED}
    assert (sent["seed"], sent["stop"]) == (7, ["x"])
    assert "store" not in sent


def test_lone_surrogates_are_replaced() -> None:
    """A body can be encoded whatever the conversation holds."""
    turn = assistant({**call("c1"), "arguments": {"a\udc97": "\ud83d"}})
    sent = json.dumps(body(user("a \ud83d b"), turn, result("c1", "\udc97")), ensure_ascii=False).encode()
    assert sent.count("\ufffd".encode()) == 4


BLOB = {"type": "blob", "digest": "sha256:1", "size": 9, "preview": "p"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request(user(BLOB)), "blob sha256:1"),
        (request(user(IMAGE, BLOB)), "blob sha256:1"),
        (request(user("U"), assistant(BLOB)), "blob sha256:1"),
        (request(user("U"), assistant(call("c1")), result("c1", BLOB)), "blob sha256:1"),
        (request(user({"type": "image", "base64": "aGk="})), "an image needs a url, or base64 data"),
        (request(user({"type": "document", "base64": "aGk="})), "a document needs a url, or base64 data"),
        (request(user("U"), tools=(ADD,), tool_choice="sub"), "tool_choice 'sub' is none of the tools add"),
        (request(user("U"), tools=(ToolDefinition("a.b", "", {}),)), "tool 'a.b' cannot be offered"),
    ],
)
def test_what_the_format_cannot_say(asked: ModelRequest, words: str) -> None:
    """Each is refused before anything is sent, with its name."""
    with pytest.raises(ProviderError, match=words) as caught:
        OPENAI.build(asked)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


def test_building_changes_nothing() -> None:
    """The same request gives the same body again, and stays as it was."""
    asked = REQUESTS["web_search"]
    before = MESSAGES.dump_json(list(asked.messages))
    assert OPENAI.build(asked) == OPENAI.build(asked)
    assert MESSAGES.dump_json(list(asked.messages)) == before
