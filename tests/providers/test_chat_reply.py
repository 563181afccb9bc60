"""Replies in the Chat Completions format, from recorded bodies and streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, ModelReply, RawCall, RawText, RawThinking
from providers.base import ServerSentEvent, WireResponse
from providers.chat.provider import ChatCompletions
from providers.chat.reply import normal_usage
from providers.sse import Decoder

GOLDEN = Path(__file__).parent / "golden" / "chat_completions"
PROVIDER = ChatCompletions("srv")
SRV = {"provider": "srv"}


def folded(stream: bytes) -> tuple[ModelReply, str]:
    """The reply of a stream, and the text that was shown on the way."""
    decoder, fold = Decoder(), PROVIDER.fold()
    shown = "".join([fold.feed(event) for event in decoder.feed(stream)])
    decoder.close()
    return fold.finish(), shown


def parsed(body: bytes) -> ModelReply:
    """The reply of a whole body."""
    return PROVIDER.parse(WireResponse(200, {"content-type": "application/json"}, body))


def call(tool: str, arguments: Any, **details: Any) -> RawCall:
    """A call of the server."""
    return RawCall(tool, arguments, {**SRV, **details})


def reply(*parts: Any, finish: Finish = Finish.STOP, calls: bool = False, **fields: Any) -> ModelReply:
    """A reply; `calls` where the server said that it stopped for them."""
    return ModelReply(parts=parts, finish=finish, usage=fields.get("usage"), announced_calls=calls, **_model(fields))


def _model(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": fields["model"]} if "model" in fields else {}


CUT = call("write_file", '{"path":"a.py","content":"line1\\nli', id="c1")
DETAILS = [
    {"type": "reasoning.text", "text": "2+2", "index": 0, "format": "f", "signature": "c2ln"},
    {"type": "reasoning.encrypted", "data": "ZW5j", "index": 1},
]

BODIES = {
    "gemini_signature": reply(
        call(
            "get_weather",
            '{"city":"Oslo"}',
            id="c1",
            extra_content={"google": {"thought_signature": "c2lnLUE="}},
        ),
        calls=True,
    ),
    "deepseek_reasoning": reply(
        RawThinking("need the sum", {**SRV, "reasoning_content": True}),
        call("add", '{"a":2,"b":3}', id="c1"),
        calls=True,
    ),
    "openrouter_details": reply(
        RawThinking(
            "2+2",
            {
                **SRV,
                "reasoning": True,
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "2+2", "signature": "c2ln", "index": 0},
                    {"type": "reasoning.encrypted", "data": "ZW5j", "index": 1},
                ],
            },
        ),
        RawText("4"),
        model="x/y",
    ),
    "content_parts": reply(RawThinking("hm", SRV), RawText("yes")),
    "function_call": reply(call("add", '{"a":1,"b":2}')),
    "object_arguments": reply(call("add", {"a": 1, "b": 2}), call("list_tasks", None), calls=True),
    "same_id_twice": reply(call("add", '{"a":1,"b":1}', id="x"), call("add", '{"a":2,"b":2}', id="x"), calls=True),
    "refusal": reply(
        RawText("I cannot help with that."),
        finish=Finish.REFUSED,
        usage=Usage(input_tokens=9, output_tokens=6),
        model="gpt-5-mini",
    ),
    "usage_details": reply(
        RawText("42"),
        usage=Usage(input_tokens=1100, cached_tokens=1000, output_tokens=10, reasoning_tokens=8),
        model="gpt-5-mini-2026",
    ),
    "cut_by_length": reply(CUT, finish=Finish.LENGTH),
}

STREAMS = {
    "openai": reply(
        RawText("Hello"),
        usage=Usage(input_tokens=12, cached_tokens=4, output_tokens=3, reasoning_tokens=1),
        model="gpt-5-mini-2026",
    ),
    "deepseek": reply(
        RawThinking("need the sum", {**SRV, "reasoning_content": True}),
        call("add", '{"a":2,"b":3}', id="call_0_x"),
        calls=True,
        usage=Usage(input_tokens=30, cached_tokens=10, output_tokens=20),
        model="deepseek-flash",
    ),
    "openrouter": reply(RawThinking("2+2", {**SRV, "reasoning": True, "reasoning_details": DETAILS}), RawText("4")),
    "same_index": reply(
        call("get_weather", '{"city":"Oslo"}', id="a"), call("add", '{"a":1,"b":2}', id="b"), calls=True
    ),
    "no_done": reply(RawText("Hi")),
    "surrogates": reply(RawText("a 😀 b \ufffd end")),
}


@pytest.mark.parametrize("case", BODIES)
def test_golden_bodies(case: str) -> None:
    """Each recorded body gives its reply."""
    assert parsed((GOLDEN / f"{case}.response.json").read_bytes()) == BODIES[case]


@pytest.mark.parametrize("case", STREAMS)
def test_golden_streams(case: str) -> None:
    """Each recorded stream gives its reply, and shows its text on the way."""
    got, shown = folded((GOLDEN / f"{case}.sse").read_bytes())
    assert got == STREAMS[case]
    assert shown == "".join(part.text for part in got.parts if isinstance(part, RawText))


def test_done_is_no_proof() -> None:
    """[DONE] without a finish_reason is a cut stream."""
    with pytest.raises(ProviderError, match="without a finish_reason") as caught:
        folded((GOLDEN / "done_only.sse").read_bytes())
    assert caught.value.kind is ErrorKind.TRUNCATED_STREAM


def test_nothing_counts_after_done() -> None:
    """What a server sends behind [DONE] changes nothing."""
    stream = (GOLDEN / "openai.sse").read_bytes() + b'data: {"error":"late"}\n\ndata: rubbish\n\n'
    assert folded(stream)[0] == STREAMS["openai"]


@pytest.mark.parametrize("stream", [b"", b": ping\n\n", b'data: {"choices":[]}\n\n'])
def test_an_empty_stream_is_truncated(stream: bytes) -> None:
    """A stream without a reply is never an empty success."""
    with pytest.raises(ProviderError) as caught:
        folded(stream)
    assert caught.value.kind is ErrorKind.TRUNCATED_STREAM


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (ServerSentEvent('{"error":{"message":"m","code":502}}'), ErrorKind.SERVER),
        (ServerSentEvent('{"error":"broken"}'), ErrorKind.SERVER),
        (ServerSentEvent('{"message":"m","type":"overloaded_error"}', "error"), ErrorKind.OVERLOADED),
        (ServerSentEvent("plain words", "error"), ErrorKind.SERVER),
        (ServerSentEvent('{"object":"error","message":"bad","code":400}'), ErrorKind.INVALID_REQUEST),
        (ServerSentEvent('{"choices":[{"error":{"message":"m","code":429}}]}'), ErrorKind.RATE_LIMIT),
        (ServerSentEvent('{"choices":[{"finish_reason":"abort"}]}'), ErrorKind.SERVER),
        (ServerSentEvent("<html>"), ErrorKind.MALFORMED),
        (ServerSentEvent('{"choices":['), ErrorKind.MALFORMED),
        (ServerSentEvent("[" * 100_000), ErrorKind.MALFORMED),
    ],
)
def test_errors_in_a_stream(event: ServerSentEvent, kind: ErrorKind) -> None:
    """An error event ends the attempt at once, in every shape that servers use."""
    fold = PROVIDER.fold()
    with pytest.raises(ProviderError) as caught:
        fold.feed(event)
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    "data",
    [
        "null",
        "[]",
        '"ping"',
        " ",
        '{"choices":null}',
        '{"choices":[null]}',
        '{"choices":[{"delta":{"content":7,"tool_calls":null}}]}',
        '{"choices":[{"delta":{"tool_calls":[null]}}]}',
        '{"choices":[{"index":1,"delta":{"content":"another choice"}}]}',
        '{"usage":"none","error":null}',
    ],
)
def test_odd_chunks_add_nothing(data: str) -> None:
    """Chunks without anything for the answer are passed over."""
    fold = PROVIDER.fold()
    assert fold.feed(ServerSentEvent(data)) == ""
    fold.feed(ServerSentEvent('{"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}'))
    assert fold.finish() == reply(RawText("Hi"))


@pytest.mark.parametrize(
    ("reason", "finish", "announced"),
    [
        ("stop", Finish.STOP, False),
        ("STOP", Finish.STOP, False),
        ("eos", Finish.STOP, False),
        ("tool_calls", Finish.STOP, True),
        ("function_call", Finish.STOP, False),
        ("length", Finish.LENGTH, False),
        ("MAX_TOKENS", Finish.LENGTH, False),
        ("content_filter", Finish.FILTERED, False),
        ("SAFETY", Finish.FILTERED, False),
        ("refusal", Finish.REFUSED, False),
    ],
)
def test_finish_reasons(reason: str, finish: Finish, announced: bool) -> None:
    """The known reasons and their synonyms."""
    got = parsed(b'{"choices":[{"message":{"content":"x"},"finish_reason":"%s"}]}' % reason.encode())
    assert (got.finish, got.announced_calls) == (finish, announced)


def test_an_unknown_finish_reason_is_not_a_stop() -> None:
    """What nobody knows is named and not taken for success."""
    with pytest.raises(ProviderError, match="unknown finish_reason 'odd'") as caught:
        parsed(b'{"choices":[{"message":{"content":"x"},"finish_reason":"odd"}]}')
    assert caught.value.kind is ErrorKind.MALFORMED


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error":{"message":"m","code":503}}', ErrorKind.OVERLOADED),
        (b'{"error":{"message":"m","code":"invalid_api_key"},"choices":[]}', ErrorKind.AUTHENTICATION),
        (b"{}", ErrorKind.MALFORMED),
        (b"[]", ErrorKind.MALFORMED),
        (b'{"choices":[]}', ErrorKind.MALFORMED),
        (b'{"choices":[{"text":"old format"}]}', ErrorKind.MALFORMED),
        (b'{"choices":[{"message":{"content":"cut', ErrorKind.MALFORMED),
        (b"[" * 100_000, ErrorKind.MALFORMED),
        (b'{"choices":[{"message":{},"finish_reason":"error"}]}', ErrorKind.SERVER),
        (b" \n", ErrorKind.TRUNCATED_STREAM),
    ],
)
def test_bodies_that_are_no_reply(body: bytes, kind: ErrorKind) -> None:
    """An error within a 200, and everything that is not a completion."""
    with pytest.raises(ProviderError) as caught:
        parsed(body)
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("usage", "right"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 7}, Usage(input_tokens=5, output_tokens=7)),
        (
            {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 62},
            Usage(input_tokens=50, output_tokens=12),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 7, "cached_tokens": 3},
            Usage(input_tokens=5, cached_tokens=3, output_tokens=7),
        ),
        ({"prompt_tokens": "5", "completion_tokens": None, "total_tokens": -1}, Usage()),
        ({"prompt_tokens": float("inf"), "prompt_tokens_details": 3, "completion_tokens": 2.0}, Usage(output_tokens=2)),
        (
            {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(input_tokens=5, cached_tokens=5),
        ),
    ],
)
def test_usage_is_inclusive(usage: dict[str, Any], right: Usage) -> None:
    """Input with cached tokens, output with reasoning, whatever the server counts."""
    assert normal_usage(usage) == right


@pytest.mark.parametrize(
    "chunk",
    [
        '{"choices":[],"x_groq":{"usage":{"prompt_tokens":3,"completion_tokens":4}}}',
        '{"choices":[{"delta":{},"usage":{"prompt_tokens":3,"completion_tokens":4}}]}',
        '{"usage":{"prompt_tokens":3,"completion_tokens":4}}',
    ],
)
def test_usage_where_servers_put_it(chunk: str) -> None:
    """The last usage counts, also in the places of single servers."""
    fold = PROVIDER.fold()
    fold.feed(ServerSentEvent('{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}'))
    fold.feed(ServerSentEvent(chunk))
    assert fold.finish().usage == Usage(input_tokens=3, output_tokens=4)


def test_two_hundred_thousand_deltas() -> None:
    """A stream of single characters is put together whole."""
    event = ServerSentEvent('{"choices":[{"delta":{"content":"x"}}]}')
    fold = PROVIDER.fold()
    for _ in range(200_000):
        fold.feed(event)
    fold.feed(ServerSentEvent('{"choices":[{"finish_reason":"stop"}]}'))
    assert fold.finish().parts == (RawText("x" * 200_000),)
