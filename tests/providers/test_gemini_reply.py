"""Replies of the Gemini API, from recorded bodies and streams, judged by the SDK's own types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from genai_prices import extract_usage
from google.genai.types import FinishReason

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, ModelReply, RawCall, RawText, RawThinking
from providers.base import ServerSentEvent, WireResponse
from providers.gemini.reply import normal_usage
from providers.sse import Decoder
from tests.providers.gemini_oracle import PROVIDER, agree, chunks_of, folded

GOLDEN = Path(__file__).parent / "golden" / "gemini"
GEMINI = {"provider": "gemini"}


def signed(signature: str, **details: Any) -> dict[str, Any]:
    """Details with a signature."""
    return {**GEMINI, "model": None, "thoughtSignature": signature, **details}


def call(tool: str, arguments: Any, **details: Any) -> RawCall:
    """A call of the server."""
    signature = details.pop("thoughtSignature", None)
    return RawCall(tool, arguments, signed(signature, **details) if signature else {**GEMINI, **details})


def parsed(body: bytes | str) -> ModelReply:
    """The reply of a whole body."""
    raw = body.encode() if isinstance(body, str) else body
    return PROVIDER.parse(WireResponse(200, {"content-type": "application/json"}, raw))


def whole(parts: list[Any], reason: str | None = "STOP", **fields: Any) -> str:
    """A body with one candidate."""
    candidate = {"content": {"role": "model", "parts": parts}, **({"finishReason": reason} if reason else {})}
    return json.dumps({"candidates": [candidate], **fields})


BODIES: dict[str, tuple[Any, ...]] = {
    "text": (RawText("Sunny", signed("c2lnLVQ=")),),
    "calls": (
        RawThinking("checking"),
        call("get_weather", {"city": "Oslo"}, thoughtSignature="c2lnLUE=", id="g1"),
        call("add", {"a": 1, "b": 2}, id="g2"),
    ),
    "calls_without_ids": (RawText("Both."), call("list_tasks", None), call("add", {"a": 1, "b": 2})),
    "signed_thought": (
        RawThinking("first idea"),
        RawThinking("", signed("c2lnLUg=")),
        RawText("It is 3."),
        RawText("", signed("c2lnLVo=")),
    ),
    "cut": (call("write_file", {"path": "a.py", "content": "line1"}, id="g1"),),
    "cut_in_thought": (),
    "filtered": (RawText("Once upon"),),
}
STREAMS: dict[str, tuple[Any, ...]] = {
    "text": (
        RawThinking("let me see now"),
        RawText("Hello 你好 🌍"),
        RawText("", signed("c2lnLVQ=")),
    ),
    "calls": (
        call("add", {"a": 1, "b": 1}, thoughtSignature="c2lnLUE=", id="c1"),
        call("add", {"a": 2, "b": 2}, id="c2"),
    ),
    "late_usage": (RawText("Hi"),),
    "cut": (RawText("A long story"),),
}


@pytest.mark.parametrize("case", BODIES)
def test_golden_bodies(case: str) -> None:
    """Each recorded body gives its parts, and what the SDK and the price library read in it."""
    body = (GOLDEN / f"{case}.response.json").read_bytes()
    got = parsed(body)
    assert got.parts == BODIES[case]
    agree(got, [json.loads(body)])
    theirs = extract_usage(json.loads(body), provider_id="google").usage
    assert got.usage == Usage(
        input_tokens=theirs.input_tokens or 0,
        cached_tokens=theirs.cache_read_tokens or 0,
        output_tokens=theirs.output_tokens or 0,
        reasoning_tokens=got.usage.reasoning_tokens if got.usage else 0,
    )


@pytest.mark.parametrize("case", STREAMS)
def test_golden_streams(case: str) -> None:
    """Each recorded stream gives its parts, shows its text on the way, and reads as the SDK reads it."""
    stream = (GOLDEN / f"{case}.sse").read_bytes()
    decoder, fold = Decoder(), PROVIDER.fold()
    shown = "".join([fold.feed(event) for event in decoder.feed(stream)])
    decoder.close()
    got = fold.finish()
    assert got.parts == STREAMS[case]
    assert shown == "".join(part.text for part in got.parts if isinstance(part, RawText))
    agree(got, [json.loads(chunk) for chunk in chunks_of(stream)])


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_that_is_cut(case: str) -> None:
    """Cut at any event before the finishReason it is an error, after it a reply."""
    events = chunks_of((GOLDEN / f"{case}.sse").read_bytes())
    end = next(number for number, event in enumerate(events, 1) if "finishReason" in event)
    for cut in range(end):
        with pytest.raises(ProviderError, match="without a finishReason") as caught:
            folded(events[:cut])
        assert caught.value.kind is ErrorKind.TRUNCATED_STREAM
    for cut in range(end, len(events) + 1):
        assert folded(events[:cut])[0].parts == STREAMS[case]


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_as_one_array(case: str) -> None:
    """A proxy that loses `alt=sse` makes an array of the chunks, which says the same."""
    events = chunks_of((GOLDEN / f"{case}.sse").read_bytes())
    assert parsed(f"[{','.join(events)}]") == folded(events)[0]


@pytest.mark.parametrize("case", STREAMS)
def test_unknown_events_and_fields_are_ignored(case: str) -> None:
    """What a later version of the API adds changes nothing."""
    events = chunks_of((GOLDEN / f"{case}.sse").read_bytes())
    odd = ["null", "[]", '"ping"', " ", "7", '{"future":1}', '{"candidates":null}', '{"candidates":[null]}', "[DONE]"]
    odd += [
        '{"candidates":[{"index":1,"content":{"parts":[{"text":"another candidate"}]}}]}',
        '{"candidates":[{"content":{"parts":[{"future":{"x":1}},{"text":7},{"functionCall":"x"},null,{"text":""}]}}]}',
        '{"candidates":[{"content":null,"finishReason":null}],"usageMetadata":null,"promptFeedback":null,"error":null}',
        '{"promptFeedback":{"blockReason":"BLOCKED_REASON_UNSPECIFIED","safetyRatings":[]}}',
    ]
    grown = [{**json.loads(event), "future": {"a": [1]}} for event in events]
    for chunk in grown:
        for candidate in chunk.get("candidates", ()):
            candidate["future"] = [1]
            for part in candidate["content"]["parts"]:
                part["future"] = 1
    mixed = [data for chunk in grown for data in (*odd, json.dumps(chunk))]
    assert folded([*mixed, *odd]) == folded(events)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (ServerSentEvent('{"error":{"code":503,"message":"m","status":"UNAVAILABLE"}}'), ErrorKind.OVERLOADED),
        (ServerSentEvent('{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}'), ErrorKind.RATE_LIMIT),
        (ServerSentEvent('{"error":{"code":500,"message":"m","status":"INTERNAL"}}'), ErrorKind.SERVER),
        (ServerSentEvent('{"error":{"code":504,"message":"m","status":"DEADLINE_EXCEEDED"}}'), ErrorKind.TIMEOUT),
        (ServerSentEvent('[{"error":{"code":400,"status":"INVALID_ARGUMENT"}}]'), ErrorKind.INVALID_REQUEST),
        (ServerSentEvent('{"error":"broken"}'), ErrorKind.SERVER),
        (ServerSentEvent('{"message":"m","code":401}', "error"), ErrorKind.AUTHENTICATION),
        (ServerSentEvent('{"promptFeedback":{"blockReason":"SAFETY"}}'), ErrorKind.INVALID_REQUEST),
        (ServerSentEvent("<html>"), ErrorKind.MALFORMED),
        (ServerSentEvent('{"candidates":['), ErrorKind.MALFORMED),
        (ServerSentEvent("[" * 100_000), ErrorKind.MALFORMED),
    ],
)
def test_errors_in_a_stream(event: ServerSentEvent, kind: ErrorKind) -> None:
    """An error ends the attempt at once, after whatever was said before."""
    fold = PROVIDER.fold()
    fold.feed(ServerSentEvent(whole([{"text": "The answer is "}], None)))
    with pytest.raises(ProviderError) as caught:
        fold.feed(event)
    assert caught.value.kind is kind
    assert str(caught.value).startswith("gemini: ")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("STOP", Finish.STOP),
        ("stop", Finish.STOP),
        ("MAX_TOKENS", Finish.LENGTH),
        ("CONTINUATION", Finish.LENGTH),
        *(
            (reason, Finish.FILTERED)
            for reason in [
                "SAFETY",
                "RECITATION",
                "LANGUAGE",
                "BLOCKLIST",
                "PROHIBITED_CONTENT",
                "SPII",
                "ESCALATION",
                "MODEL_ARMOR",
                "IMAGE_SAFETY",
                "IMAGE_PROHIBITED_CONTENT",
                "IMAGE_RECITATION",
            ]
        ),
    ],
)
def test_finish_reasons(reason: str, finish: Finish) -> None:
    """The reasons that are an end, with or without a part but for a stop."""
    got = parsed(whole([{"text": "x"}], reason))
    assert (got.finish, got.parts, got.announced_calls) == (finish, (RawText("x"),), False)
    if finish is not Finish.STOP:
        assert parsed(whole([], reason)).parts == ()


@pytest.mark.parametrize("reason", [reason.value for reason in FinishReason][1:])
def test_every_reason_of_the_sdk_is_known(reason: str) -> None:
    """No reason that the SDK lists is called unknown."""
    said = ""
    try:
        parsed(whole([{"text": "x"}], reason))
    except ProviderError as error:
        said = str(error)
    assert "unknown" not in said


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ('{"error":{"code":503,"message":"m"}}', ErrorKind.OVERLOADED, "gemini: m"),
        ('[{"error":{"code":429,"message":"m"}}]', ErrorKind.RATE_LIMIT, "gemini: m"),
        ("{}", ErrorKind.MALFORMED, "expected a reply with candidates"),
        ("[]", ErrorKind.MALFORMED, "expected a reply with candidates"),
        ('"x"', ErrorKind.MALFORMED, "expected a reply with candidates"),
        ('{"candidates":[]}', ErrorKind.MALFORMED, "expected a reply with candidates"),
        ('{"candidates":[{"content":{"parts":[{"text":"cut', ErrorKind.MALFORMED, "expected JSON"),
        ("[" * 100_000, ErrorKind.MALFORMED, "expected JSON"),
        (" \n", ErrorKind.TRUNCATED_STREAM, "an empty body"),
        (whole([{"text": "x"}], None), ErrorKind.TRUNCATED_STREAM, "without a finishReason"),
        *(
            (whole([{"text": "x"}], reason), ErrorKind.MALFORMED, f"unknown finishReason {reason}")
            for reason in ("ODD", "FINISH_REASON_UNSPECIFIED")
        ),
        (whole([{"thought": True, "text": "hm"}]), ErrorKind.MALFORMED, "finishReason STOP, but is empty"),
        (whole([{"text": "", "thoughtSignature": "c2ln"}]), ErrorKind.MALFORMED, "finishReason STOP, but is empty"),
        (
            '{"promptFeedback":{"blockReason":"OTHER","blockReasonMessage":"why"}}',
            ErrorKind.INVALID_REQUEST,
            "the prompt was blocked: OTHER: why",
        ),
        (
            '{"candidates":[{"finishReason":"OTHER","finishMessage":"because"}]}',
            ErrorKind.MALFORMED,
            "ended with finishReason OTHER: because",
        ),
        (whole([{"text": "x"}], "PUP_LIMITED_DISABLED"), ErrorKind.AUTHENTICATION, "PUP_LIMITED_DISABLED"),
    ],
)
def test_bodies_that_are_no_reply(body: str, kind: ErrorKind, words: str) -> None:
    """An error within a 200, an empty answer, and everything that is not a reply."""
    with pytest.raises(ProviderError, match=words) as caught:
        parsed(body)
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("usage", "right"),
    [
        ({"promptTokenCount": 5, "candidatesTokenCount": 7}, Usage(input_tokens=5, output_tokens=7)),
        (
            {"promptTokenCount": 50, "candidatesTokenCount": 5, "thoughtsTokenCount": 7, "totalTokenCount": 62},
            Usage(input_tokens=50, output_tokens=12, reasoning_tokens=7),
        ),
        ({"candidatesTokenCount": 7, "thoughtsTokenCount": 2}, Usage(output_tokens=9, reasoning_tokens=2)),
        ({"promptTokenCount": 50, "totalTokenCount": 62}, Usage(input_tokens=50, output_tokens=12)),
        (
            {"promptTokenCount": 5, "toolUsePromptTokenCount": 4, "totalTokenCount": 9, "cachedContentTokenCount": 99},
            Usage(input_tokens=9, cached_tokens=9),
        ),
        ({"promptTokenCount": "5", "candidatesTokenCount": None, "thoughtsTokenCount": -1}, Usage()),
        ({"promptTokenCount": float("inf"), "candidatesTokenCount": 2.0}, Usage(output_tokens=2)),
    ],
)
def test_usage_is_inclusive(usage: dict[str, Any], right: Usage) -> None:
    """Input with cached tokens, output with thoughts, whatever is left out."""
    assert normal_usage(usage) == right


def test_a_signature_keeps_its_part_apart() -> None:
    """Text before and after a signed part is not joined with it."""
    parts = [
        {"text": "a"},
        {"text": "b"},
        {"text": "c", "thoughtSignature": "MQ=="},
        {"text": "d"},
        {"text": "e"},
        {"text": "f", "thought": True, "thoughtSignature": "Mg=="},
        {"text": "g"},
    ]
    expected = (
        RawText("ab"),
        RawText("c", signed("MQ==")),
        RawText("de"),
        RawThinking("f", signed("Mg==")),
        RawText("g"),
    )
    assert parsed(whole(parts)).parts == expected
    assert folded([whole([part], None) for part in parts] + [whole([])])[0].parts == expected


def test_lone_surrogates_are_replaced() -> None:
    """Halves are joined across deltas, and what stays alone becomes U+FFFD."""
    body = '{"candidates":[{"content":{"parts":[{"text":"a \\ud83d"}]}}]}'
    rest = '{"candidates":[{"content":{"parts":[{"text":"\\ude00 b \\ud83d end"}]},"finishReason":"STOP"}]}'
    got, shown = folded([body, rest])
    assert got.parts == (RawText("a 😀 b \ufffd end"),)
    assert shown == "a 😀 b \ufffd end"
    made = parsed(whole([{"functionCall": {"name": "x", "args": {"k\udc97": ["\ud83d"]}, "id": "\ud83d"}}])).parts
    assert made == (call("x", {"k\ufffd": ["\ufffd"]}, id="\ufffd"),)


def test_two_hundred_thousand_deltas() -> None:
    """A stream of single characters is put together whole."""
    event = ServerSentEvent('{"candidates":[{"content":{"parts":[{"text":"x"}]}}]}')
    fold = PROVIDER.fold()
    for _ in range(200_000):
        fold.feed(event)
    fold.feed(ServerSentEvent('{"candidates":[{"finishReason":"STOP"}]}'))
    assert fold.finish().parts == (RawText("x" * 200_000),)
