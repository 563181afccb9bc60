"""Replies in the Anthropic Messages format, from recorded bodies and streams; the SDK's own reading is the judge."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import Message as SdkMessage
from genai_prices import extract_usage

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, ModelReply, RawCall, RawText, RawThinking
from providers.anthropic.reply import normal_usage
from providers.base import ServerSentEvent, WireResponse
from tests.providers.anthropic_oracle import (
    GOLDEN,
    OWN,
    PROVIDER,
    events,
    folded,
    parsed,
    request,
    result,
    sdk_message,
    sent,
    user,
)
from tests.providers.conversations import stored

THOUGHT = RawThinking("Two sums.", {**OWN, "signature": "RXFzaWc="})
FOUND = {"title": "Oslo", "url": "https://example.org/oslo", "encrypted_content": "RW5jcnlwdGVk", "page_age": None}
DIRECT = {"caller": {"type": "direct"}}
REDACTED = RawThinking("", {**OWN, "data": "RW5jcnlwdGVk"})
SUMS = Usage(input_tokens=2600, cached_tokens=2000, output_tokens=80, reasoning_tokens=50)
WHOLE = Usage(input_tokens=12, output_tokens=6)
STREAMED = Usage(input_tokens=20, output_tokens=15)


def call(tool: str, arguments: Any, call_id: str) -> RawCall:
    """A call as the server sent it."""
    return RawCall(tool, arguments, {**OWN, "id": call_id})


def search(number: int, query: str, **more: Any) -> RawThinking:
    """The server's own call of its search."""
    block = {"type": "server_tool_use", "id": f"srvtoolu_0{number}", "name": "web_search", "input": {"query": query}}
    return RawThinking("", {**OWN, "block": {**block, **more}})


def found(number: int, *pages: Any, **more: Any) -> RawThinking:
    """What came of it."""
    block = {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_0{number}", "content": list(pages), **more}
    return RawThinking("", {**OWN, "block": block})


PAUSED = (
    THOUGHT,
    RawText("Searching."),
    search(1, "weather oslo", **DIRECT),
    found(1, {"type": "web_search_result", **FOUND}, **DIRECT),
    search(2, "weather bergen", **DIRECT),
    RawThinking("", {**OWN, "paused": True}),
)


def reply(*parts: Any, finish: Finish = Finish.STOP, usage: Usage | None = WHOLE, calls: bool = False) -> ModelReply:
    """A reply; `calls` where the server said that it stopped for them."""
    return ModelReply(parts, finish, usage, announced_calls=calls, model="claude-sonnet-5")


CASES = {
    "plain.response.json": reply(RawText("Hello there.")),
    "thinking_and_calls.response.json": reply(
        THOUGHT,
        REDACTED,
        RawText("Adding."),
        call("add", {"a": 1, "b": 2}, "toolu_01"),
        call("list_tasks", {}, "toolu_02"),
        usage=SUMS,
        calls=True,
    ),
    "cut_by_limit.response.json": reply(RawText("Writing."), call("write_file", {}, "toolu_03"), finish=Finish.LENGTH),
    "refusal.response.json": reply(RawText("This request could enable cyber harm."), finish=Finish.REFUSED),
    "window_exceeded.response.json": reply(RawText("As far as"), finish=Finish.LENGTH),
    "citations.response.json": reply(RawText("The answer is "), RawText("42")),
    "server_tools.response.json": reply(
        RawText("Searching."),
        search(1, "q"),
        found(1),
        RawText("Found nothing."),
        usage=Usage(input_tokens=40, output_tokens=9),
    ),
    "paused.response.json": reply(*PAUSED, finish=Finish.PAUSED, usage=Usage(input_tokens=40, output_tokens=9)),
    "stop_sequence.response.json": reply(RawText("one, two")),
    "text.sse": reply(RawText("Hello 🌍"), usage=STREAMED),
    "thinking_and_calls.sse": reply(
        THOUGHT,
        REDACTED,
        RawText("Adding."),
        call("add", '{"a": 1, "b": 2}', "toolu_01"),
        call("list_tasks", {}, "toolu_02"),
        usage=SUMS,
        calls=True,
    ),
    "omitted_thinking.sse": reply(RawThinking("", {**OWN, "signature": "RXFzaWc="}), RawText("4"), usage=STREAMED),
    "cut_by_limit.sse": reply(
        call("write_file", '{"path":"a.py","content":"line1\\nli', "toolu_03"), finish=Finish.LENGTH, usage=STREAMED
    ),
    "citations.sse": reply(RawText("42"), usage=STREAMED),
    "paused.sse": reply(*PAUSED, finish=Finish.PAUSED, usage=STREAMED),
}
STREAMS = [case for case in CASES if case.endswith(".sse")]


def read(case: str) -> ModelReply:
    """The reply of a recorded body or stream."""
    data = (GOLDEN / case).read_bytes()
    return folded(data)[0] if case.endswith(".sse") else parsed(data)


def test_every_recording_is_read() -> None:
    """No recording lies unused."""
    assert {path.name for path in GOLDEN.iterdir() if not path.name.endswith(".request.json")} == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_golden_replies(case: str) -> None:
    """Each recording gives its reply."""
    assert read(case) == CASES[case]


@pytest.mark.parametrize("case", STREAMS)
def test_text_is_shown_on_the_way(case: str) -> None:
    """What a stream shows is its answer."""
    got, shown = folded((GOLDEN / case).read_bytes())
    assert shown == "".join(part.text for part in got.parts if isinstance(part, RawText))


@pytest.mark.parametrize("case", CASES)
def test_the_sdk_reads_the_same(case: str) -> None:
    """Text, thinking, calls, model and usage agree with the official SDK."""
    got, theirs = read(case), sdk_message(case)
    if got.finish is not Finish.REFUSED:
        texts = [block.text for block in theirs.content if block.type == "text" and block.text]
        assert [part.text for part in got.parts if isinstance(part, RawText)] == texts
    thoughts = [(block.thinking, block.signature) for block in theirs.content if block.type == "thinking"]
    signed = [part for part in got.parts if isinstance(part, RawThinking) and "signature" in (part.details or {})]
    assert [(part.text, (part.details or {})["signature"]) for part in signed] == thoughts
    served = [part.details["block"] for part in got.parts if part.details and "block" in part.details]
    ran = [block for block in theirs.content if block.type.endswith(("_tool_use", "_tool_result"))]
    assert served == [block.model_dump(exclude_unset=True) for block in ran]
    calls = [part for part in got.parts if isinstance(part, RawCall)]
    uses = [block for block in theirs.content if block.type == "tool_use"]
    assert [(part.tool, (part.details or {})["id"]) for part in calls] == [(block.name, block.id) for block in uses]
    if got.finish is not Finish.LENGTH:
        arguments = [json.loads(p.arguments) if isinstance(p.arguments, str) else p.arguments for p in calls]
        assert arguments == [block.input for block in uses]
    assert got.model == theirs.model
    assert got.announced_calls is (theirs.stop_reason == "tool_use")
    assert got.usage == normal_usage(theirs.usage.model_dump())


@pytest.mark.parametrize("case", CASES)
def test_usage_agrees_with_genai_prices(case: str) -> None:
    """Inclusive numbers, as the price table counts them."""
    theirs = sdk_message(case)
    counted = extract_usage(theirs.model_dump(mode="json"), provider_id="anthropic").usage
    got = read(case).usage
    assert got is not None
    assert (got.input_tokens, got.output_tokens) == (counted.input_tokens, counted.output_tokens)
    assert got.cached_tokens == (counted.cache_read_tokens or 0)
    assert got.reasoning_tokens == (getattr(counted, "output_reasoning_tokens", None) or 0)


def _as_text(part: Any) -> Any:
    if isinstance(part, RawCall) and not isinstance(part.arguments, str):
        return replace(part, arguments=json.dumps(part.arguments))
    return part


@pytest.mark.parametrize("case", ["thinking_and_calls.response.json", "thinking_and_calls.sse"])
def test_a_reply_goes_back_as_it_came(case: str) -> None:
    """Blocks of a stored reply are those of the server, through history and back."""
    got = read(case)
    message = stored(replace(got, parts=tuple(_as_text(part) for part in got.parts)))
    asked = request(
        user(),
        message.model_dump(mode="json"),
        *(result(c.id, "3") for c in message.calls),
        params={"cache_control": None},
    )
    turns = PROVIDER.build(asked).body["messages"]
    theirs = [block.model_dump(exclude_none=True) for block in sdk_message(case).content]
    assert turns[1]["content"] == theirs
    assert [block["tool_use_id"] for block in turns[2]["content"]] == ["toolu_01", "toolu_02"]


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_cut_anywhere_is_truncated(case: str) -> None:
    """Nothing but message_stop proves the end; what comes after it changes nothing."""
    whole = events((GOLDEN / case).read_bytes())
    for cut in range(len(whole)):
        fold = PROVIDER.fold()
        for event in whole[:cut]:
            fold.feed(event)
        with pytest.raises(ProviderError, match="without message_stop") as caught:
            fold.finish()
        assert caught.value.kind is ErrorKind.TRUNCATED_STREAM
    fold = PROVIDER.fold()
    for event in [*whole, ServerSentEvent("rubbish"), ServerSentEvent('{"type":"error","error":{}}', "error")]:
        fold.feed(event)
    assert fold.finish() == CASES[case]


ODD = [
    ('{"type":"ping"}',),
    ('{"type":"vendor_news","text":"x"}',),
    ("null",),
    (" ",),
    ('{"type":"content_block_delta","index":0,"delta":{"type":"odd_delta","text":"x"}}',),
    ('{"type":"content_block_delta","index":0,"delta":null}',),
    (
        '{"type":"content_block_start","index":99,"content_block":{"type":"odd","text":"x"}}',
        '{"type":"content_block_delta","index":99,"delta":{"type":"text_delta","text":"x"}}',
    ),
    ('{"type":"message_delta","delta":null,"usage":null}',),
    ('{"type":"content_block_stop","index":0,"more":1}',),
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("case", STREAMS)
def test_unknown_events_add_nothing(case: str, odd: tuple[str, ...]) -> None:
    """Types, fields and blocks that nobody knows are passed over wherever a block is open."""
    fold = PROVIDER.fold()
    for event in events((GOLDEN / case).read_bytes()):
        fold.feed(event)
        if '"content_block_delta"' in event.data:
            assert [fold.feed(ServerSentEvent(data)) for data in odd] == [""] * len(odd)
    assert fold.finish() == CASES[case]


def test_blocks_of_one_index() -> None:
    """A server that numbers all its blocks alike loses none."""
    stream = (GOLDEN / "thinking_and_calls.sse").read_text()
    for index in range(1, 5):
        stream = stream.replace(f'"index": {index}', '"index": 0')
    assert folded(stream.encode())[0] == CASES["thinking_and_calls.sse"]


def test_halves_of_characters_are_joined() -> None:
    """A surrogate pair cut between two deltas becomes its character, and a half that stays alone U+FFFD."""
    fold = PROVIDER.fold()
    fold.feed(ServerSentEvent('{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'))
    for text in (r"a \ud83d", r"\ude00 b \ud83d"):
        delta = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"HERE"}}'
        fold.feed(ServerSentEvent(delta.replace("HERE", text)))
    fold.feed(ServerSentEvent('{"type":"message_stop"}'))
    assert fold.finish().parts == (RawText("a 😀 b \ufffd"),)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, ErrorKind.OVERLOADED),
        ({"type": "error", "error": {"type": "api_error", "message": "m"}}, ErrorKind.SERVER),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "m"}}, ErrorKind.RATE_LIMIT),
        ({"type": "error", "error": {"type": "timeout_error", "message": "m"}}, ErrorKind.TIMEOUT),
        ({"type": "error", "error": {"type": "authentication_error", "message": "m"}}, ErrorKind.AUTHENTICATION),
        ({"type": "error", "error": {"type": "permission_error", "message": "m"}}, ErrorKind.AUTHENTICATION),
        ({"type": "error", "error": {"type": "not_found_error", "message": "m"}}, ErrorKind.NOT_FOUND),
        ({"type": "error", "error": {"type": "billing_error", "message": "m"}}, ErrorKind.QUOTA),
        (
            {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}},
            ErrorKind.CONTEXT_LENGTH,
        ),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}, ErrorKind.INVALID_REQUEST),
        ({"type": "error"}, ErrorKind.SERVER),
        ("plain words", ErrorKind.SERVER),
    ],
)
def test_errors_in_a_stream(event: Any, kind: ErrorKind) -> None:
    """An error event ends the attempt at once with its kind, wherever it comes."""
    data = event if isinstance(event, str) else json.dumps(event)
    whole = events((GOLDEN / "text.sse").read_bytes())
    for at in range(len(whole)):
        fold = PROVIDER.fold()
        for before in whole[:at]:
            fold.feed(before)
        with pytest.raises(ProviderError) as caught:
            fold.feed(ServerSentEvent(data, "error"))
        assert caught.value.kind is kind


@pytest.mark.parametrize(
    "event",
    [
        "<html>",
        '{"type":',
        "[" * 100_000,
        '{"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"x"}}',
    ],
)
def test_a_broken_stream(event: str) -> None:
    """What is no JSON, or continues nothing, is named and tried again."""
    fold = PROVIDER.fold()
    with pytest.raises(ProviderError) as caught:
        fold.feed(ServerSentEvent(event))
    assert caught.value.kind is ErrorKind.MALFORMED


def message(content: list[Any], reason: Any, **fields: Any) -> bytes:
    """A body that the SDK takes too."""
    body = {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": reason,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        **fields,
    }
    SdkMessage.model_validate({**body, "stop_reason": None})
    return json.dumps(body).encode()


TEXT = [{"type": "text", "text": "x"}]
USE = [{"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {}}]


@pytest.mark.parametrize(
    ("reason", "finish", "announced"),
    [
        ("end_turn", Finish.STOP, False),
        ("stop_sequence", Finish.STOP, False),
        ("tool_use", Finish.STOP, True),
        (None, Finish.STOP, False),
        ("max_tokens", Finish.LENGTH, False),
        ("model_context_window_exceeded", Finish.LENGTH, False),
        ("refusal", Finish.REFUSED, False),
    ],
)
def test_stop_reasons(reason: str | None, finish: Finish, announced: bool) -> None:
    """The known reasons."""
    got = parsed(message(TEXT, reason))
    assert (got.finish, got.announced_calls, got.parts) == (finish, announced, (RawText("x"),))


@pytest.mark.parametrize(
    ("content", "reason", "kind", "words"),
    [
        (TEXT, "odd", ErrorKind.MALFORMED, "unknown stop_reason 'odd'"),
        ([], "model_context_window_exceeded", ErrorKind.CONTEXT_LENGTH, "no room"),
    ],
)
def test_reasons_that_end_no_reply(content: list[Any], reason: str, kind: ErrorKind, words: str) -> None:
    """An unknown reason and a full window are errors with their names, not answers."""
    with pytest.raises(ProviderError, match=words) as caught:
        parsed(message(content, reason))
    assert caught.value.kind is kind


def test_no_call_of_a_refused_reply_runs() -> None:
    """Classifiers may cut behind a call; the text stays."""
    got = parsed(message([*TEXT, *USE], "refusal"))
    assert got.parts == (RawText("x"),)
    assert got.finish is Finish.REFUSED


def test_calls_count_whatever_the_reason() -> None:
    """A call beside another reason is kept, and a reason without a call is told."""
    assert any(isinstance(part, RawCall) for part in parsed(message(USE, "pause_turn")).parts)
    assert [type(part) for part in parsed(message(USE, "end_turn")).parts] == [RawCall]
    assert parsed(message([], "tool_use")).announced_calls


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"m"}}', ErrorKind.OVERLOADED),
        (b'{"error":{"message":"m","code":503}}', ErrorKind.OVERLOADED),
        (b"{}", ErrorKind.MALFORMED),
        (b"[]", ErrorKind.MALFORMED),
        (b'{"content":null}', ErrorKind.MALFORMED),
        (b'{"content":[{"type":"text","text":"cut', ErrorKind.MALFORMED),
        (b"<html>login</html>", ErrorKind.MALFORMED),
        (b"[" * 100_000, ErrorKind.MALFORMED),
        (b" \n", ErrorKind.TRUNCATED_STREAM),
    ],
)
def test_bodies_that_are_no_reply(body: bytes, kind: ErrorKind) -> None:
    """An error within a 200, and everything that is not a message."""
    with pytest.raises(ProviderError) as caught:
        parsed(body)
    assert caught.value.kind is kind


def test_odd_blocks_of_a_body_are_passed_over() -> None:
    """Blocks that are nothing, empty or unknown add no part."""
    content = [None, 7, {}, {"type": "text", "text": ""}, {"type": "thinking", "thinking": ""}, {"type": "odd"}, *TEXT]
    body = json.dumps({"content": content, "stop_reason": "end_turn"}).encode()
    assert parsed(body) == ModelReply((RawText("x"),), Finish.STOP, None)


@pytest.mark.parametrize(
    ("given", "arguments"),
    [({"a": 1}, {"a": 1}), ('{"a":1}', '{"a":1}'), (None, {}), ([], {})],
)
def test_arguments_in_a_body(given: Any, arguments: Any) -> None:
    """An object as it is, text undecoded, anything else as no arguments."""
    body = json.dumps({"content": [{"type": "tool_use", "name": "t", "input": given}], "stop_reason": "tool_use"})
    assert parsed(body.encode()).parts == (RawCall("t", arguments, OWN),)


@pytest.mark.parametrize(
    ("usage", "right"),
    [
        ({"input_tokens": 5, "output_tokens": 7}, Usage(input_tokens=5, output_tokens=7)),
        (
            {"input_tokens": 5, "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3}},
            Usage(input_tokens=10),
        ),
        ({"input_tokens": "5", "output_tokens": None, "cache_read_input_tokens": -1}, Usage()),
        (
            {"output_tokens": 3, "output_tokens_details": {"thinking_tokens": 9}},
            Usage(output_tokens=3, reasoning_tokens=3),
        ),
    ],
)
def test_usage_is_inclusive(usage: dict[str, Any], right: Usage) -> None:
    """Input with what the cache gave and took, whatever a server leaves out."""
    assert normal_usage(usage) == right


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"type": "invalid_request_error", "message": "tools.0: bad"}, ErrorKind.INVALID_REQUEST),
        (400, {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}, ErrorKind.CONTEXT_LENGTH),
        (
            400,
            {
                "type": "invalid_request_error",
                "message": "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000",
            },
            ErrorKind.CONTEXT_LENGTH,
        ),
        (400, {"type": "invalid_request_error", "message": "Your credit balance is too low"}, ErrorKind.QUOTA),
        (
            400,
            {"type": "invalid_request_error", "message": "You have reached your specified API usage limits."},
            ErrorKind.QUOTA,
        ),
        (401, {"type": "authentication_error", "message": "invalid x-api-key"}, ErrorKind.AUTHENTICATION),
        (402, {"type": "billing_error", "message": "m"}, ErrorKind.QUOTA),
        (403, {"type": "permission_error", "message": "m"}, ErrorKind.AUTHENTICATION),
        (404, {"type": "not_found_error", "message": "model: claude-x"}, ErrorKind.NOT_FOUND),
        (413, {"type": "request_too_large", "message": "m"}, ErrorKind.CONTEXT_LENGTH),
        (429, {"type": "rate_limit_error", "message": "m"}, ErrorKind.RATE_LIMIT),
        *(
            (429, {"type": "rate_limit_error", "message": "m", "details": {"error_code": code}}, ErrorKind.QUOTA)
            for code in ("enforced_spend_limit_reached", "contract_spend_limit_reached")
        ),
        (500, {"type": "api_error", "message": "m"}, ErrorKind.SERVER),
        (504, {"type": "timeout_error", "message": "m"}, ErrorKind.TIMEOUT),
        (529, {"type": "overloaded_error", "message": "Overloaded"}, ErrorKind.OVERLOADED),
    ],
)
def test_failures(status: int, error: dict[str, Any], kind: ErrorKind) -> None:
    """Each shape of the vendor's errors has its kind; status, request id and wait are kept."""
    body = json.dumps({"type": "error", "error": error, "request_id": "req_1"}).encode()
    got = PROVIDER.failure(WireResponse(status, {"request-id": "req_1", "retry-after": "3"}, body), 0.0)
    assert (got.kind, got.status, got.request_id, got.retry_after) == (kind, status, "req_1", 3.0)
    assert error["message"] in str(got)


def test_two_hundred_thousand_deltas() -> None:
    """A stream of single characters is put together whole."""
    fold = PROVIDER.fold()
    fold.feed(ServerSentEvent('{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'))
    event = ServerSentEvent('{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}')
    for _ in range(200_000):
        fold.feed(event)
    fold.feed(ServerSentEvent('{"type":"message_stop"}'))
    assert fold.finish().parts == (RawText("x" * 200_000),)


def test_an_empty_reply_is_no_turn() -> None:
    """A reply without content is told as such, and the conversation goes on without it."""
    got = parsed(message([], "end_turn"))
    assert got.parts == ()
    turns = sent(user("a"), stored(got).model_dump(mode="json"), user("b"))
    assert [role for role, _ in turns] == ["user"]
