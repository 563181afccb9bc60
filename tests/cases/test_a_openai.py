"""Cases A, the OpenAI Responses format: what goes out, and what its answers and failures mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import MESSAGES, AssistantMessage, Message, ToolMessage, UserMessage, text
from perdure.model_call import Finish, ModelReply, ModelRequest, RawCall, RawText, ToolDefinition
from providers.base import WireRequest, WireResponse, adapted
from providers.chat.provider import ChatCompletions
from providers.responses.provider import Responses
from providers.sse import Decoder
from tests.providers.conversations import stored
from tests.providers.oracle import strict

GOLDEN = Path(__file__).parents[1] / "providers" / "golden" / "responses"
NOW = 1_788_264_000.0
"""Tue, 01 Sep 2026 12:00:00 GMT."""
OPENAI = Responses("openai")
CASE_8 = {
    "id": "resp_1",
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add", "arguments": '{"a":1,"b":1}'},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12},
}


def parse(body: Any) -> ModelReply:
    """The reply of a whole body."""
    return OPENAI.parse(WireResponse(200, {"content-type": "application/json"}, json.dumps(body).encode()))


def sent(*messages: Message, **fields: Any) -> dict[str, Any]:
    """The body of a request, which the vendor's types accept."""
    body = dict(OPENAI.build(ModelRequest(**{"model": "m", "instructions": "", "messages": messages, **fields})).body)
    strict(ResponseCreateParamsStreaming).validate_python(body)
    return body


def user(words: str) -> UserMessage:
    """A user message."""
    return UserMessage(role="user", parts=text(words))


def history(*items: dict[str, Any]) -> tuple[Message, ...]:
    """Messages from their JSON."""
    return tuple(MESSAGES.validate_python(items))


# 3


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"error":{"type":"invalid_request_error","message":"tools.0: bad schema"}}', "invalid_request"),
        (401, '{"error":{"code":"invalid_api_key"}}', "authentication"),
        (403, "{}", "authentication"),
        (404, '{"error":{"message":"no such model","code":"model_not_found"}}', "not_found"),
        (400, '{"error":{"code":"context_length_exceeded","message":"too long"}}', "context_length"),
        (429, '{"error":{"type":"rate_limit_error"}}', "rate_limit"),
        (429, '{"error":{"code":"insufficient_quota","message":"You exceeded your quota"}}', "quota"),
        (500, '{"error":{"type":"server_error"}}', "server"),
        (503, "", "overloaded"),
        (504, "", "timeout"),
    ],
)
def test_3_which_failures_are_worth_another_try(status: int, body: str, kind: str) -> None:
    """The one table serves this format too."""
    error = OPENAI.failure(WireResponse(status, {"x-request-id": "req_1"}, body.encode()), NOW)
    assert (error.kind, error.status, error.request_id) == (ErrorKind(kind), status, "req_1")


# 8


def test_8_encrypted_reasoning_is_asked_for_and_nothing_is_stored() -> None:
    """The vendor keeps nothing, so it must hand out what it needs again."""
    body = sent(user("U"))
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]


def test_8_both_items_go_back_and_results_are_keyed_by_call_id() -> None:
    """The reasoning as it came, right before its call; nothing names `fc_1`."""
    message = stored(parse(CASE_8))
    body = sent(user("U"), message, ToolMessage(role="tool", call=message.calls[0].id, parts=text("2")))
    assert body["input"][1:] == [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a":1,"b":1}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "2"},
    ]


def test_8_trimming_drops_them_together() -> None:
    """Without its call the reasoning stays behind; without the reasoning the call stands alone; a result never does."""
    message = stored(parse(CASE_8))
    result = ToolMessage(role="tool", call=message.calls[0].id, parts=text("2"))
    thinking, called = message.parts
    without_call = message.model_copy(update={"parts": (thinking,)})
    without_reasoning = message.model_copy(update={"parts": (called,)})
    assert [item.get("type") for item in sent(user("U"), without_call, result)["input"]] == [None]
    assert [item.get("type") for item in sent(user("U"), without_reasoning, result)["input"][1:]] == [
        "function_call",
        "function_call_output",
    ]
    assert [item.get("type") for item in sent(user("U"), result)["input"]] == [None]


def test_8_another_vendor_gets_neither_the_reasoning_nor_the_id() -> None:
    """And what another vendor's model thought does not come here."""
    message = stored(parse(CASE_8))
    elsewhere = ChatCompletions("compatible").build(ModelRequest("m", "", (user("U"), message))).body
    assert not any(secret in json.dumps(elsewhere) for secret in ("ZW5j", "rs_1", "call_1"))
    assert "ZW5j" not in json.dumps(Responses("azure").build(ModelRequest("m", "", (user("U"), message))).body)


@pytest.mark.parametrize("case", ["reasoning_call", "web_search", "commentary", "parallel_calls"])
def test_8_a_stream_goes_back_like_a_body(case: str) -> None:
    """What was streamed is sent again item by item as the whole body is, with the complete encrypted content."""
    fold = OPENAI.fold()
    for event in Decoder().feed((GOLDEN / f"{case}.sse").read_bytes()):
        fold.feed(event)
    whole = json.loads((GOLDEN / f"{case}.response.json").read_text())
    streamed, parsed = stored(fold.finish()), stored(parse(whole))
    assert sent(streamed) == sent(parsed)
    kept = [item for item in sent(streamed)["input"] if item.get("type") in ("reasoning", "web_search_call")]
    assert kept == [item for item in whole["output"] if item["type"] in ("reasoning", "web_search_call")]


# 10


def test_10_a_call_without_a_result() -> None:
    """(a) An error result is put in, directly after the calls and in their order."""
    calls = {"role": "assistant", "parts": [{"type": "call", "id": i, "tool": "list_tasks"} for i in ("t1", "t2")]}
    result = {"role": "tool", "call": "t2", "parts": [{"type": "text", "text": "none"}]}
    body = sent(user("U"), *history(calls, result), user("go on"))
    assert [(i.get("type"), i.get("call_id"), i.get("output")) for i in body["input"][1:]] == [
        ("function_call", "t1", None),
        ("function_call", "t2", None),
        ("function_call_output", "t1", "interrupted, not executed"),
        ("function_call_output", "t2", "none"),
        (None, None, None),
    ]


def test_10_a_result_without_a_call() -> None:
    """(b) It is left out of the request."""
    assert sent(user("U"), ToolMessage(role="tool", call="t9", parts=text("none")))["input"] == [
        {"role": "user", "content": "U"}
    ]


@pytest.mark.parametrize("call_id", ["", None, 7])
def test_10_a_call_without_an_id(call_id: Any) -> None:
    """(c) Both halves get the same minted id, and the real output is kept."""
    called = {"type": "function_call", "call_id": call_id, "name": "list_tasks", "arguments": "{}"}
    message = stored(parse({"status": "completed", "output": [called]}))
    _, call, result = sent(user("U"), message, ToolMessage(role="tool", call=message.calls[0].id, parts=text("none")))[
        "input"
    ]
    assert call["call_id"] == result["call_id"] == message.calls[0].id
    assert result["output"] == "none"


# 12


def test_12_where_the_system_prompt_may_stand() -> None:
    """Instructions stand at the top, system messages where they were said, and the order of the rest stays."""
    said = [("system", "S1"), ("user", "U1"), ("user", "U2"), ("assistant", "A1"), ("system", "S2"), ("user", "U3")]
    told = history(*({"role": role, "parts": [{"type": "text", "text": words}]} for role, words in said))
    body = sent(*told, instructions="I")
    assert body["instructions"] == "I"
    assert [(item["role"], item["content"]) for item in body["input"]] == [
        ("developer" if role == "system" else role, words) for role, words in said
    ]


# 13


@pytest.mark.parametrize(
    ("output", "parts"),
    [
        (
            [
                {"type": "message", "content": [{"type": "output_text", "text": "ok"}]},
                {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
            ],
            (RawText("ok"), RawCall("add", "{}", {"provider": "openai", "id": "c1"})),
        ),
        ([{"type": "message", "content": [{"type": "output_text", "text": "done"}]}], (RawText("done"),)),
    ],
)
@pytest.mark.parametrize("status", ["completed", None])
def test_13_calls_count_and_not_the_status(status: str | None, output: list[Any], parts: tuple[Any, ...]) -> None:
    """This format announces no calls: the items are the calls, also where a server names no status."""
    reply = parse({"status": status, "output": output})
    assert (reply.parts, reply.finish, reply.announced_calls) == (parts, Finish.STOP, False)


def test_13_an_answer_with_nothing_in_it() -> None:
    """It is an error that may be tried again, never an empty success."""
    with pytest.raises(ProviderError, match=r"neither text nor calls \(no items\)") as caught:
        parse({"status": "completed", "output": []})
    assert caught.value.kind is ErrorKind.MALFORMED


# 17


def refuses(body: Any) -> WireResponse | None:
    """A reasoning model: no temperature, and no fields that the format does not have."""
    for field in ("temperature", "stop", "seed"):
        if field in body:
            code = "unsupported_parameter" if field == "temperature" else "unknown_parameter"
            error = {"message": f"no {field}", "param": field, "code": code, "type": "invalid_request_error"}
            return WireResponse(400, {}, json.dumps({"error": error}).encode())
    return None


@pytest.mark.parametrize("model", ["gpt-5-mini", "openai/gpt-5-mini", "cf/openai/o4-mini", "my-proxy-model"])
def test_17_parameters_that_some_models_refuse(model: str) -> None:
    """Every model answers without guessing from its name, after one change for each refused parameter."""
    params = {"temperature": 0.2, "stop": ["x"], "seed": 7, "max_tokens": 50}
    wire: WireRequest = OPENAI.build(ModelRequest(model, "", (user("U"),), params=params))
    changes: dict[str, str | None] = {}
    for _ in range(3):
        refusal = refuses(adapted(wire, changes).body)
        assert refusal is not None
        assert OPENAI.failure(refusal, NOW).kind is ErrorKind.INVALID_REQUEST
        changes |= OPENAI.adaptation(adapted(wire, changes), refusal)
    remembered = adapted(wire, changes).body
    assert refuses(remembered) is None
    assert remembered["max_output_tokens"] == 50
    strict(ResponseCreateParamsStreaming).validate_python(remembered)


# 27


@pytest.mark.parametrize("case", ["cut_call"])
def test_27_a_call_cut_by_the_output_limit(case: str) -> None:
    """The cut is told, as a body and as a stream, and what arrived of the arguments stays as it is."""
    fold = OPENAI.fold()
    for event in Decoder().feed((GOLDEN / f"{case}.sse").read_bytes()):
        fold.feed(event)
    for reply in (fold.finish(), parse(json.loads((GOLDEN / f"{case}.response.json").read_text()))):
        assert reply.finish is Finish.LENGTH
        call = reply.parts[-1]
        assert isinstance(call, RawCall)
        assert call.arguments == '{"path":"a.py","content":"line1\\nli'


# 40, 42, 43, 53

ROOTS: list[Any] = [
    {"type": "array", "items": {"type": "string"}},
    {},
    None,
    {"properties": {"x": {"type": "string"}}},
    True,
    {"type": ["object", "null"], "properties": {}},
    {"anyOf": [{"type": "object"}, {"type": "null"}]},
]
UNIONS = {
    "type": "object",
    "properties": {
        "q": {"type": ["string", "null"]},
        "rows": {"type": ["array", "null"], "items": {"type": ["object", "null"], "properties": {"value": True}}},
        "lim": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "mode": {"const": "fast"},
        "n": {"type": "integer", "exclusiveMinimum": 0, "enum": [1, 2]},
        "any": {},
    },
}
KEYWORDS = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"title": {"type": "string", "format": "uri"}, "default": {"type": "string", "default": "x"}},
    "patternProperties": {"^x-": {}},
    "additionalProperties": False,
    "x-internal": 1,
}
DICTIONARY = {
    "type": "object",
    "properties": {
        "fields": {"type": "object", "additionalProperties": {"type": "string"}},
        "note": {"type": "string"},
    },
    "required": ["fields"],
}


@pytest.mark.parametrize("schema", [*ROOTS, UNIONS, KEYWORDS, DICTIONARY])
def test_schemas_of_strangers_become_one_accepted_request(schema: Any) -> None:
    """The root is an object with properties, names of properties survive, and strict is not claimed for them."""
    tool = sent(user("U"), tools=(ToolDefinition("t", "", schema),))["tools"][0]
    assert tool["parameters"]["type"] == "object"
    given = schema.get("properties") if isinstance(schema, dict) else None
    assert tool["parameters"]["properties"] == (given or {})
    assert tool["strict"] is False


# I4


def test_every_recorded_reply_gives_an_accepted_next_request() -> None:
    """Whatever the model said, and whether its calls were answered or not."""
    bodies = [json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.response.json"))]
    replies: list[AssistantMessage] = [stored(parse(body), f"r{number}_") for number, body in enumerate(bodies)]
    body = sent(user("U"), *replies, user("go on"))
    called = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    answered = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
    assert len(called) == len(set(called)) == sum(len(reply.calls) for reply in replies)
    assert called == answered
