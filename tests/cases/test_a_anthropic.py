"""Cases A, B, C and H as they look for Anthropic: what goes out, and what its answers and failures mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, RawCall, RawText, ToolDefinition
from providers.base import WireResponse, adapted
from providers.sse import Decoder
from tests.providers.anthropic_oracle import (
    ADD,
    GOLDEN,
    OWN,
    PROVIDER,
    assistant,
    body_of,
    call,
    folded,
    judge,
    parsed,
    request,
    result,
    sent,
    thought,
    user,
)
from tests.providers.conversations import stored

NOW = 1_788_264_000.0
"""Tue, 01 Sep 2026 12:00:00 GMT."""


# 2 and 3


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"Retry-After": "Tue, 01 Sep 2026 12:00:09 GMT"}, 9),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "4294967"}, 3600),
        ({}, None),
    ],
)
def test_2_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """The vendor's wait is read, refused or capped."""
    error = PROVIDER.failure(WireResponse(429, headers, b'{"type":"error","error":{"type":"rate_limit_error"}}'), NOW)
    assert (error.kind, error.retry_after) == (ErrorKind.RATE_LIMIT, seconds)


# 5, 7 and 8: opaque parts


def test_5_seals_go_back_to_their_maker_and_to_nobody_else() -> None:
    """Thinking of a stored reply returns byte for byte; another vendor's is left out with its ids."""
    message = stored(folded((GOLDEN / "thinking_and_calls.sse").read_bytes())[0]).model_dump(mode="json")
    answers = [result(part["id"], "3") for part in message["parts"] if part["type"] == "call"]
    blocks = sent(user(), message, *answers)[1][1]
    assert blocks[0] == {"type": "thinking", "thinking": "Two sums.", "signature": "RXFzaWc="}
    assert blocks[1] == {"type": "redacted_thinking", "data": "RW5jcnlwdGVk"}
    for part in message["parts"]:
        part["details"] = {**(part["details"] or {}), "provider": "elsewhere"}
    foreign = sent(user(), message, *answers)[1][1]
    assert [block["type"] for block in foreign] == ["text", "tool_use", "tool_use"]
    assert "toolu_01" not in json.dumps(foreign)


def test_8_a_trimmed_reply_leaves_no_seal_alone() -> None:
    """Thinking whose answer is gone goes with it."""
    assert [role for role, _ in sent(user("a"), assistant(thought(signature="s")), user("b"))] == ["user"]


# 10


def test_10_a_call_without_a_result() -> None:
    """(a) An error result is put in, in call order, and the user's text follows in the same message."""
    content = sent(user(), assistant(call("t1"), call("t2")), result("t2", "none"), user("go on"))[2][1]
    assert content == [
        {
            "type": "tool_result",
            "tool_use_id": "t1",
            "is_error": True,
            "content": [{"type": "text", "text": "interrupted, not executed"}],
        },
        {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "none"}]},
        {"type": "text", "text": "go on"},
    ]


def test_10_a_result_without_a_call() -> None:
    """(b) It is left out of the request."""
    assert sent(user("U"), result("t9", "none")) == [("user", [{"type": "text", "text": "U"}])]


def test_10_a_call_without_an_id() -> None:
    """(c) Both halves get the same minted id, and the real output is kept."""
    body = {"content": [{"type": "tool_use", "id": "", "name": "list_tasks", "input": {}}], "stop_reason": "tool_use"}
    message = stored(parsed(json.dumps(body).encode()))
    turns = sent(user(), message.model_dump(mode="json"), result(message.calls[0].id, "none"))
    assert turns[1][1][0]["id"] == turns[2][1][0]["tool_use_id"] != ""
    assert turns[2][1][0]["content"] == [{"type": "text", "text": "none"}]


# 12


def test_12_where_the_system_prompt_may_stand() -> None:
    """System texts go to the top-level field, users are joined, nothing is invented but what has to come last."""
    items = [("system", "S1"), ("user", "U1"), ("user", "U2"), ("assistant", "A1"), ("system", "S2"), ("user", "U3")]
    body = body_of(request(*({"role": role, "parts": [words]} for role, words in items)))
    assert [block["text"] for block in body["system"]] == ["S1\n\nS2"]
    said = [(turn["role"], [block["text"] for block in turn["content"]]) for turn in body["messages"]]
    assert said == [("user", ["U1", "U2"]), ("assistant", ["A1"]), ("user", ["U3"])]


# 13 and 27


@pytest.mark.parametrize(
    ("content", "reason", "calls", "announced"),
    [
        ([{"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}], "end_turn", 1, False),
        ([{"type": "text", "text": "I will read the file first."}], "tool_use", 0, True),
        ([], "tool_use", 0, True),
        ([{"type": "text", "text": "done"}], None, 0, False),
    ],
)
def test_13_a_reason_that_contradicts_the_message(content: Any, reason: Any, calls: int, announced: bool) -> None:
    """Calls are kept whatever the reason; a reason without calls is told to the loop; a missing one is fine."""
    reply = parsed(json.dumps({"content": content, "stop_reason": reason}).encode())
    assert sum(isinstance(part, RawCall) for part in reply.parts) == calls
    assert (reply.finish, reply.announced_calls) == (Finish.STOP, announced)


@pytest.mark.parametrize("case", ["cut_by_limit.response.json", "cut_by_limit.sse"])
def test_27_a_call_cut_by_the_output_limit(case: str) -> None:
    """It is told apart from a whole one, though its input is empty or half."""
    data = (GOLDEN / case).read_bytes()
    reply = folded(data)[0] if case.endswith(".sse") else parsed(data)
    assert reply.finish is Finish.LENGTH


# 17


REFUSED = {
    "old": [
        "thinking: adaptive thinking is not supported on this model",
        "This model does not support the effort parameter.",
    ],
    "new": ["temperature: Extra inputs are not permitted", "top_p: Extra inputs are not permitted"],
    "any": [],
}


@pytest.mark.parametrize("model", REFUSED)
def test_17_parameters_that_some_models_refuse(model: str) -> None:
    """Every model answers after one change for each refused parameter, and keeps what it takes."""
    params = {"temperature": 0, "top_p": 1, "reasoning_effort": "low", "max_tokens": 50}
    wire = PROVIDER.build(request(user(), params=params))
    for words in REFUSED[model]:
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
        refusal = WireResponse(400, {}, json.dumps(error).encode())
        assert PROVIDER.failure(refusal, NOW).kind is ErrorKind.INVALID_REQUEST
        changes = PROVIDER.adaptation(wire, refusal)
        assert len(changes) == 1
        wire = adapted(wire, changes)
    assert wire.body["max_tokens"] == 50
    assert ("temperature" in wire.body) is (model != "new")
    assert ("thinking" in wire.body) is (model != "old")


# 18 and 35


def test_18_a_gateways_page() -> None:
    """Two megabytes of HTML become one short line without credentials."""
    page = b"<html>error code: 502 at http://user:hunter2@127.0.0.1:9/v1</html>" + b" " * 2_000_000
    error = PROVIDER.failure(WireResponse(502, {"content-type": "text/html"}, page), NOW)
    assert error.kind is ErrorKind.SERVER
    assert len(str(error)) <= 540
    assert "error code: 502" in str(error)
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    ("body", "kind"), [(b"<html>login</html>", ErrorKind.MALFORMED), (b"", ErrorKind.TRUNCATED_STREAM)]
)
def test_35_a_page_or_nothing_instead_of_a_reply(body: bytes, kind: ErrorKind) -> None:
    """Neither is an empty success, as a body or as a stream; a whole message in place of a stream is read."""
    with pytest.raises(ProviderError) as caught:
        PROVIDER.parse(WireResponse(200, {"content-type": "text/html"}, body))
    assert caught.value.kind is kind
    with pytest.raises(ProviderError, match="without message_stop"):
        folded(body)
    assert parsed((GOLDEN / "plain.response.json").read_bytes()).parts == (RawText("Hello there."),)


# 28 and 30


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_30_bytes_cut_anywhere(size: int, end: str) -> None:
    """Comments, odd fields, other line ends and cuts inside characters change nothing."""
    text = (GOLDEN / "text.sse").read_text()
    stream = ("\ufeff: hello\n\nretry: 3000\nid: 7\n\n" + text.replace("\n\n", "\n: keep-alive\n\n")).replace("\n", end)
    decoder, fold, data = Decoder(), PROVIDER.fold(), stream.encode()
    for at in range(0, len(data), size):
        for event in decoder.feed(data[at : at + size]):
            fold.feed(event)
    decoder.close()
    assert fold.finish().parts == (RawText("Hello 🌍"),)


# 40, 43, 52 and 53: schemas and characters

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
ODD = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "T",
    "default": {},
    "examples": [{}],
    "additionalProperties": False,
    "patternProperties": {"^x-": {"type": "string"}},
    "x-internal": 1,
    "type": "object",
    "properties": {
        "title": {"type": "string", "format": "uri", "pattern": "^\\w+$", "x-internal": 1},
        "default": {"type": "string"},
    },
}


@pytest.mark.parametrize(("schema", "kept"), [(UNIONS, UNIONS["properties"]), (ODD, ODD["properties"])])
def test_40_43_schemas_that_other_vendors_refuse(schema: Any, kept: Any) -> None:
    """One accepted request in which every property, whatever its name, is as it was."""
    body = body_of(request(user(), tools=(ToolDefinition("query", "Q", schema), ADD), output_schema=schema))
    assert body["tools"][0]["input_schema"]["properties"] == kept
    assert body["tools"][1]["input_schema"] == ADD.parameters


@pytest.mark.parametrize("schema", [{}, {"properties": {"x": {"type": "string"}}}])
def test_53_a_schema_without_a_type(schema: Any) -> None:
    """It is an object."""
    tool = body_of(request(user(), tools=(ToolDefinition("t", "", schema),)))["tools"][0]
    assert tool["input_schema"] == {"type": "object", "properties": schema.get("properties", {})}
    assert "description" not in tool


def test_52_lone_surrogates_and_nul() -> None:
    """The request can be encoded, and nothing is dropped in silence."""
    asked = request(user("ok \ud83d end\x00"), assistant(call("c1", arguments={"a": "\x00"})), result("c1", "\udc97"))
    blocks = [block for turn in judge(PROVIDER.build(asked))["messages"] for block in turn["content"]]
    assert blocks[0]["text"] == "ok \ufffd end\x00"
    assert blocks[1]["input"] == {"a": "\x00"}
    assert blocks[2]["content"][0]["text"] == "\ufffd"


# 127


def stream(*events: dict[str, Any]) -> bytes:
    """A minimal stream."""
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()


TEXT = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    {"type": "content_block_stop", "index": 0},
]
FRESH = {"input_tokens": 27, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 1000}


@pytest.mark.parametrize(
    ("start", "ends", "right"),
    [
        (
            {**FRESH, "output_tokens": 1},
            [{**FRESH, "output_tokens": 20}, {"output_tokens": 47}],
            Usage(input_tokens=1127, cached_tokens=1000, output_tokens=47),
        ),
        (
            {"input_tokens": 1127},
            [{"input_tokens": 27, "cache_read_input_tokens": 1100, "output_tokens": 5}],
            Usage(input_tokens=1127, cached_tokens=1100, output_tokens=5),
        ),
    ],
)
def test_127_counting_what_is_already_counted(start: Any, ends: list[Any], right: Usage) -> None:
    """Reports are cumulative: the last value of each field counts, and what is left out stays."""
    deltas = [{"type": "message_delta", "delta": {}, "usage": usage} for usage in ends]
    begin = {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": start}}
    reply, _ = folded(stream(begin, *TEXT, *deltas, {"type": "message_stop"}))
    assert (reply.usage, reply.parts) == (right, (RawText("hi"),))


def test_foreign_and_own_calls_in_one_conversation() -> None:
    """A conversation that went through several vendors is one that this one takes."""
    turns = sent(
        user(),
        assistant(call("c1", details={"provider": "openai-chat", "id": "call_1"})),
        result("c1", "3"),
        assistant(call("c2", details={**OWN, "id": "toolu_2"}), call("c3", details={"provider": "gemini", "id": "g"})),
        result("c3", "5"),
        result("c2", "4"),
    )
    ids = [block["id"] for _, content in turns for block in content if block["type"] == "tool_use"]
    assert ids == ["c1", "toolu_2", "c3"]
