"""Cases A, B and C as far as they speak of Gemini: what goes out to it, and what its answers mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from genai_prices import extract_usage

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, ModelReply, RawCall, ToolDefinition
from providers.base import WireResponse, adapted
from providers.chat.provider import ChatCompletions
from providers.pairing import INTERRUPTED
from tests.providers.gemini_oracle import (
    MODEL,
    PROVIDER,
    answers,
    assistant,
    body,
    call,
    dumped,
    folded,
    request,
    result,
    stored,
    user,
)

NOW = 1_788_264_000.0
"""Tue, 01 Sep 2026 12:00:00 GMT."""


def parse(reply: Any) -> ModelReply:
    """The reply of a whole body."""
    return PROVIDER.parse(WireResponse(200, {"content-type": "application/json"}, json.dumps(reply).encode()))


def tool(schema: Any, name: str = "query") -> dict[str, Any]:
    """How a tool with this schema is declared, once the whole request is accepted."""
    asked = request(user(), tools=(ToolDefinition(name, "Q", schema),))
    declared: dict[str, Any] = body(asked)["tools"][0]["functionDeclarations"][0]
    return declared


# 2 and 3


def google(status: int, name: str, message: str, *details: Mapping[str, Any]) -> WireResponse:
    """An error as the API sends it."""
    error = {"code": status, "message": message, "status": name, "details": list(details)}
    return WireResponse(status, {"content-type": "application/json"}, json.dumps({"error": error}).encode())


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
QUOTA = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerMinute", "quotaValue": "5"}],
}
BAD_KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}


@pytest.mark.parametrize(
    ("response", "kind", "seconds"),
    [
        (
            google(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota", QUOTA, RETRY),
            ErrorKind.RATE_LIMIT,
            34.07,
        ),
        (google(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted"), ErrorKind.RATE_LIMIT, None),
        (google(503, "UNAVAILABLE", "The model is overloaded."), ErrorKind.OVERLOADED, None),
        (google(500, "INTERNAL", "An internal error has occurred."), ErrorKind.SERVER, None),
        (google(504, "DEADLINE_EXCEEDED", "Deadline expired"), ErrorKind.TIMEOUT, None),
        (google(400, "INVALID_ARGUMENT", "API key not valid.", BAD_KEY), ErrorKind.AUTHENTICATION, None),
        (
            google(400, "INVALID_ARGUMENT", "Function call is missing a thought_signature"),
            ErrorKind.INVALID_REQUEST,
            None,
        ),
        (google(400, "FAILED_PRECONDITION", "User location is not supported"), ErrorKind.INVALID_REQUEST, None),
        (
            google(
                400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8)."
            ),
            ErrorKind.CONTEXT_LENGTH,
            None,
        ),
        (google(401, "UNAUTHENTICATED", "no"), ErrorKind.AUTHENTICATION, None),
        (google(403, "PERMISSION_DENIED", "no"), ErrorKind.AUTHENTICATION, None),
        (google(404, "NOT_FOUND", "models/x is not found for API version v1"), ErrorKind.NOT_FOUND, None),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_3_which_failures_are_worth_another_try(
    response: WireResponse, kind: ErrorKind, seconds: float | None, listed: bool
) -> None:
    """Every error of the API has its kind and its delay, bare and as a list of one."""
    raw = b"[" + response.body + b"]" if listed else response.body
    error = PROVIDER.failure(WireResponse(response.status, response.headers, raw), NOW)
    assert (error.kind, error.retry_after, error.status) == (kind, seconds, response.status)
    assert json.loads(response.body)["error"]["message"] in str(error)


# 5

SIGNED = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "checking", "thought": True},
                    {"functionCall": {"name": "get_weather", "args": {"city": "Oslo"}}, "thoughtSignature": "c2lnLUE="},
                    {"functionCall": {"name": "add", "args": {"a": 1, "b": 2}}},
                ],
            },
            "finishReason": "STOP",
        }
    ]
}


def refuses(sent: Mapping[str, Any]) -> str | None:
    """A server that wants the signature on that part and on no other."""
    parts = [part for turn in sent["contents"] if turn["role"] == "model" for part in turn["parts"]]
    signatures = {
        json.dumps(part.get("functionCall")): part["thoughtSignature"]
        for part in parts
        if "functionCall" in part and "thoughtSignature" in part
    }
    wanted = {json.dumps({"name": "get_weather", "args": {"city": "Oslo"}}): "c2lnLUE="}
    return None if signatures == wanted else "Function call is missing a thought_signature in functionCall parts."


EARLIER: list[dict[str, Any]] = [user("Hi"), assistant("Hello"), user("Oslo? 1+2?")]


@pytest.mark.parametrize("kept", range(len(EARLIER) + 1))
@pytest.mark.parametrize("streamed", [False, True])
def test_5_a_signature_survives_storing_and_the_removal_of_old_messages(kept: int, streamed: bool) -> None:
    """It comes back byte for byte on its call and on no other, whatever was cut off before it."""
    reply = folded([json.dumps(SIGNED)])[0] if streamed else parse(SIGNED)
    message = stored(reply)
    history = [*EARLIER[len(EARLIER) - kept :], *dumped(message), *answers(message)]
    assert refuses(body(request(*history))) is None


def test_5_a_signature_survives_a_summary() -> None:
    """Old messages may be replaced by what they came to."""
    message = stored(parse(SIGNED))
    summary = {"role": "system", "parts": "The user greeted."}
    history = [summary, user("Oslo? 1+2?"), *dumped(message), *answers(message), assistant("9C, 3"), user("Thanks")]
    assert refuses(body(request(*history))) is None


def test_5_another_provider_or_model_does_not_get_it() -> None:
    """It is left out, not sent as text; and neither does this one get what another gave."""
    message = stored(parse(SIGNED))
    history = [*EARLIER, *dumped(message), *answers(message)]
    other = ChatCompletions("openai-chat").build(request(*history)).body
    newer = body(request(*history, model="gemini-4-argon"))
    assert "c2lnLUE=" not in json.dumps([other, newer])
    assert "checking" not in json.dumps([other, newer])
    assert refuses(newer)


# 10


def test_10_a_call_without_a_result() -> None:
    """(a) An error result is put in, in call order, right after the calls."""
    history = [user(), assistant(call("t1", "list_tasks"), call("t2", "list_tasks")), result("t2", "none"), user("go")]
    sent = body(request(*history))["contents"][2]["parts"]
    assert [part.get("functionResponse", {}).get("response") for part in sent] == [
        {"error": INTERRUPTED},
        {"result": "none"},
        None,
    ]


def test_10_a_result_without_a_call() -> None:
    """(b) It is left out of the request."""
    assert body(request(user(), result("t9", "none")))["contents"] == [{"role": "user", "parts": [{"text": "U"}]}]


@pytest.mark.parametrize("given", [{"id": ""}, {}])
def test_10_a_call_without_an_id(given: dict[str, Any]) -> None:
    """(c) Neither half has one, the API pairs them by name and order; the real output is kept."""
    part = {"functionCall": {"name": "list_tasks", "args": {}, **given}}
    message = stored(parse({"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}))
    sent = body(request(user(), *dumped(message), result(message.calls[0].id, "none")))["contents"]
    assert sent[1]["parts"] == [{"functionCall": {"name": "list_tasks", "args": {}}}]
    assert sent[2]["parts"] == [{"functionResponse": {"name": "list_tasks", "response": {"result": "none"}}}]


# 12


def test_12_where_the_system_prompt_may_stand() -> None:
    """Both system texts arrive in systemInstruction, the order of the rest stays, turns alternate."""
    order = [("system", "S1"), ("user", "U1"), ("user", "U2"), ("assistant", "A1"), ("system", "S2"), ("user", "U3")]
    sent = body(request(*({"role": role, "parts": words} for role, words in order)))
    assert sent["systemInstruction"] == {"parts": [{"text": "S1\n\nS2"}]}
    assert [(turn["role"], [part["text"] for part in turn["parts"]]) for turn in sent["contents"]] == [
        ("user", ["U1", "U2"]),
        ("model", ["A1"]),
        ("user", ["U3"]),
    ]


# 13 and 15


def test_13_calls_end_with_stop() -> None:
    """Calls are found by their parts; the API never announces them."""
    reply = parse(SIGNED)
    assert [part.tool for part in reply.parts if isinstance(part, RawCall)] == ["get_weather", "add"]
    assert (reply.finish, reply.announced_calls) == (Finish.STOP, False)


PAY = {"functionCall": {"name": "pay", "args": {"to": "x", "amount_cents": 1}}}


@pytest.mark.parametrize(
    ("reply", "kind", "named"),
    [
        (
            {
                "candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}],
                "usageMetadata": {"promptTokenCount": 40, "totalTokenCount": 40},
            },
            ErrorKind.MALFORMED,
            "MALFORMED_FUNCTION_CALL",
        ),
        (
            {"candidates": [{"content": {"parts": [PAY]}, "finishReason": "MALFORMED_FUNCTION_CALL"}]},
            ErrorKind.MALFORMED,
            "MALFORMED_FUNCTION_CALL",
        ),
        ({"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}, ErrorKind.MALFORMED, "STOP"),
        (
            {"candidates": [{"content": {}, "finishReason": "UNEXPECTED_TOOL_CALL"}]},
            ErrorKind.MALFORMED,
            "UNEXPECTED_TOOL_CALL",
        ),
        (
            {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}},
            ErrorKind.INVALID_REQUEST,
            "PROHIBITED_CONTENT",
        ),
        ({"candidates": []}, ErrorKind.MALFORMED, "candidates"),
        *(
            (
                {"candidates": [{"content": {"parts": [{"text": "x"}, PAY]}, "finishReason": reason}]},
                ErrorKind.MALFORMED,
                reason,
            )
            for reason in [
                "MALFORMED_RESPONSE",
                "MISSING_THOUGHT_SIGNATURE",
                "TOO_MANY_TOOL_CALLS",
                "OTHER",
                "NO_IMAGE",
                "IMAGE_OTHER",
                "SOMETHING_NEW",
            ]
        ),
    ],
)
def test_15_an_answer_with_nothing(reply: dict[str, Any], kind: ErrorKind, named: str) -> None:
    """Each is an error that names the reason, whole and as a stream; a call of such a reply does not exist."""
    with pytest.raises(ProviderError, match=named) as caught:
        parse(reply)
    assert caught.value.kind is kind
    with pytest.raises(ProviderError) as streamed:
        folded([json.dumps(reply)])
    assert streamed.value.kind is (kind if reply.get("candidates") != [] else ErrorKind.TRUNCATED_STREAM)


# 17


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "models/gemini-3-pro", "tunedModels/mine", "vendor/gemini-x"])
def test_17_parameters_that_some_models_refuse(model: str) -> None:
    """One changed repeat is enough, for any name of a model, and the limit on output stays."""
    wire = PROVIDER.build(request(user(), model=model, max_tokens=50, params={"reasoning_effort": "none", "seed": 1}))
    message = (
        "Invalid JSON payload received. Unknown name \"seed\" at 'generation_config': Cannot find field.\n"
        "Thinking level MINIMAL is not supported for this model."
    )
    changes = PROVIDER.adaptation(wire, google(400, "INVALID_ARGUMENT", message))
    assert adapted(wire, changes).body["generationConfig"] == {"maxOutputTokens": 50, "thinkingConfig": {}}


# 23 and 27


def calls_of(*given: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Id and arguments of the calls that are read in a stream of one event each."""
    events = [{"candidates": [{"content": {"parts": [{"functionCall": call}]}}]} for call in given]
    end = {"candidates": [{"finishReason": "STOP"}]}
    reply = folded([json.dumps(event) for event in (*events, end)])[0]
    return [((part.details or {}).get("id"), part.arguments) for part in reply.parts if isinstance(part, RawCall)]


def add(number: int, **fields: Any) -> dict[str, Any]:
    """A call of `add`."""
    return {"name": "add", "args": {"a": number, "b": number}, **fields}


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ([add(1, id="c1"), add(2, id="c2"), add(1, id="c1")], [("c1", 1), ("c2", 2)]),
        ([add(1), add(2), add(2)], [(None, 1), (None, 2)]),
        ([add(1, id="c1"), add(1, id="c2")], [("c1", 1), ("c2", 1)]),
        ([add(1, id="c1"), add(2, id="c1")], [("c1", 1), ("c1", 2)]),
    ],
    ids=["sent twice", "sent twice without ids", "the same under two ids", "one id for two"],
)
def test_23_a_call_that_is_sent_twice(given: list[dict[str, Any]], right: list[tuple[Any, int]]) -> None:
    """Calls equal in id, tool and arguments are one; without ids, two equal ones are one."""
    assert calls_of(*given) == [(call_id, {"a": number, "b": number}) for call_id, number in right]


def test_27_a_call_cut_by_the_output_limit() -> None:
    """The reply says so, by which none of its calls runs."""
    cut = {"candidates": [{"content": {"parts": [PAY]}, "finishReason": "MAX_TOKENS"}]}
    assert parse(cut).finish is Finish.LENGTH
    assert folded([json.dumps(cut)])[0].finish is Finish.LENGTH


# 40, 43 and 53


def test_40_unions_nullables_and_boolean_schemas() -> None:
    """One accepted request: no type lists, no boolean schemas, enums of strings only."""
    schema = {
        "type": "object",
        "properties": {
            "q": {"type": ["string", "null"]},
            "rows": {
                "type": ["array", "null"],
                "items": {"type": ["object", "null"], "properties": {"value": True}},
            },
            "lim": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "mode": {"const": "fast"},
            "n": {"type": "integer", "exclusiveMinimum": 0, "enum": [1, 2]},
            "any": {},
        },
    }
    null = {"type": "null"}
    rows = {"anyOf": [{"type": "object", "properties": {"value": {}}}, null]}
    assert tool(schema)["parametersJsonSchema"]["properties"] == {
        "q": {"anyOf": [{"type": "string"}, null]},
        "rows": {"anyOf": [{"type": "array", "items": rows}, null]},
        "lim": {"anyOf": [{"type": "integer"}, null], "description": "(default: null)"},
        "mode": {"type": "string", "enum": ["fast"]},
        "n": {"type": "integer", "minimum": 1, "description": "(enum: [1, 2])"},
        "any": {},
    }


def test_43_keywords_that_are_refused() -> None:
    """They are told or left out, at the root and inside; properties named like them survive."""
    keywords: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        "default": "d",
        "examples": ["e"],
        "format": "uri",
        "pattern": "^\\w+$",
        "additionalProperties": False,
        "patternProperties": {"^x": {}},
        "x-internal": 1,
    }
    inner = {**keywords, "type": "object", "properties": {"title": {"type": "string"}, "default": {"type": "string"}}}
    sent = tool({**inner, "properties": {**inner["properties"], "inner": inner}})["parametersJsonSchema"]
    for node in (sent, sent["properties"]["inner"]):
        assert node.keys() == {"type", "title", "description", "properties", "additionalProperties"}
        assert node["properties"]["title"] == node["properties"]["default"] == {"type": "string"}
        assert 'pattern: "^\\\\w+$"' in node["description"]


@pytest.mark.parametrize(
    ("schema", "declared"),
    [
        ({"type": "array", "items": {"type": "string"}}, {"type": "object"}),
        ({}, None),
        ({"properties": {"x": {"type": "string"}}}, {"type": "object", "properties": {"x": {"type": "string"}}}),
    ],
)
def test_53_a_schema_whose_root_is_not_an_object(schema: Any, declared: Any) -> None:
    """The root that goes out is an object or nothing."""
    assert tool(schema).get("parametersJsonSchema") == declared


# 52 and 126


def test_52_lone_surrogates_and_nul() -> None:
    """Everything that a conversation can hold can be encoded, with U+FFFD in its place."""
    bad = "a \ud83d \x00 \udc97"
    history = [user(bad), assistant(bad, call("c1", bad, arguments={bad: [bad]})), result("c1", bad)]
    asked = request(*history, instructions=bad, tools=(ToolDefinition("t", bad, {"description": bad}),))
    assert json.dumps(body(asked), ensure_ascii=False).encode().count("\ufffd".encode()) >= 14


def test_usage_agrees_with_what_is_priced() -> None:
    """Thoughts are output, and what came from a cache is input."""
    usage = {"promptTokenCount": 50, "candidatesTokenCount": 5, "thoughtsTokenCount": 7, "totalTokenCount": 62}
    reply = parse({**SIGNED, "usageMetadata": usage, "modelVersion": MODEL})
    priced = extract_usage({"usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}, provider_id="google").usage
    assert reply.usage == Usage(input_tokens=50, output_tokens=12, reasoning_tokens=7)
    assert (priced.input_tokens, priced.output_tokens) == (50, 12)


def test_i4_a_conversation_with_another_provider_goes_on_here() -> None:
    """What Chat Completions gave is a valid conversation for Gemini, call by call."""
    other = ChatCompletions("openai-chat")
    message = {
        "content": "ok",
        "reasoning_content": "r",
        "tool_calls": [{"id": "call_1", "function": {"name": "add", "arguments": "{}"}}],
    }
    reply = other.parse(
        WireResponse(200, {}, json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode())
    )
    details = next(part.details for part in reply.parts if isinstance(part, RawCall))
    assert details == {"provider": "openai-chat", "id": "call_1"}
    sent = body(request(user(), assistant("ok", call("c1", details=details)), result("c1"), user("go on")))
    assert "call_1" not in json.dumps(sent)
