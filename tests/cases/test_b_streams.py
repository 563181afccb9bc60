"""Cases B, the pure part: streams as they come, and what they add up to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import ErrorKind, ProviderError
from perdure.model_call import Finish, ModelReply, RawCall, RawText
from providers.base import WireResponse
from providers.chat.provider import ChatCompletions
from providers.sse import Decoder

GOLDEN = Path(__file__).parents[1] / "providers" / "golden" / "chat_completions"
PROVIDER = ChatCompletions("compatible")


def fold(chunks: list[bytes]) -> ModelReply:
    """The reply of a stream that came in these chunks."""
    decoder, folding = Decoder(), PROVIDER.fold()
    for chunk in chunks:
        for event in decoder.feed(chunk):
            folding.feed(event)
    decoder.close()
    return folding.finish()


def stream(case: str) -> ModelReply:
    """The reply of a recorded stream."""
    return fold([(GOLDEN / f"{case}.sse").read_bytes()])


def parse(body: bytes, content_type: str = "application/json", status: int = 200) -> ModelReply:
    """The reply of a whole body."""
    return PROVIDER.parse(WireResponse(status, {"content-type": content_type}, body))


def calls(reply: ModelReply) -> list[tuple[str, Any, Any]]:
    """Tool, decoded arguments and server's id of each call."""
    return [
        (
            part.tool,
            json.loads(part.arguments) if isinstance(part.arguments, str) else part.arguments,
            (part.details or {}).get("id"),
        )
        for part in reply.parts
        if isinstance(part, RawCall)
    ]


def said(reply: ModelReply) -> str:
    """The text of a reply."""
    return "".join(part.text for part in reply.parts if isinstance(part, RawText))


INTERLEAVED = [
    ("get_weather", {"city": "Rome"}, "a"),
    ("add", {"a": 4, "b": 5}, "b"),
    ("list_tasks", None, None),
]


@pytest.mark.parametrize(
    ("case", "right"),
    [
        ("no_index", [("get_weather", {"city": "Oslo"}, "a"), ("add", {"a": 1, "b": 2}, "b")]),
        ("same_index", [("get_weather", {"city": "Oslo"}, "a"), ("add", {"a": 1, "b": 2}, "b")]),
        ("interleaved", INTERLEAVED),
        ("name_repeated", INTERLEAVED),
    ],
)
def test_20_21_22_fragments_of_calls(case: str, right: list[Any]) -> None:
    """Without index, with one index for all, interleaved, with late ids and split or repeated names."""
    reply = stream(case)
    assert calls(reply) == right
    assert reply.announced_calls


@pytest.mark.parametrize("case", ["error_chunk", "insufficient_resource", "finish_error"])
def test_25_an_error_in_the_middle(case: str) -> None:
    """The text so far is no answer, and the attempt may be repeated."""
    with pytest.raises(ProviderError) as caught:
        stream(case)
    assert caught.value.kind is ErrorKind.SERVER


CUT = '{"path":"a.py","content":"line1\\nli'


@pytest.mark.parametrize("form", ["body", "stream"])
def test_27_a_call_cut_by_the_output_limit(form: str) -> None:
    """The arguments stay raw and cut, and the reason is told: nothing here makes half a call whole."""
    body = (GOLDEN / "cut_by_length.response.json").read_bytes()
    reply = parse(body) if form == "body" else stream("cut_by_length")
    assert [part.arguments for part in reply.parts if isinstance(part, RawCall)] == [CUT]
    assert reply.finish is Finish.LENGTH


def test_27_cut_but_called_complete() -> None:
    """A server that hides the cut still gives the raw text, for the decoder of arguments to judge."""
    reply = parse((GOLDEN / "cut_but_tool_calls.response.json").read_bytes())
    assert [part.arguments for part in reply.parts if isinstance(part, RawCall)] == [CUT]
    assert (reply.finish, reply.announced_calls) == (Finish.STOP, True)


def test_27_whole_calls_under_the_limit() -> None:
    """Calls that parse carry the reason too, so that none of them is taken for complete."""
    reply = parse((GOLDEN / "whole_but_length.response.json").read_bytes())
    assert [call[0] for call in calls(reply)] == ["write_file", "pay"]
    assert reply.finish is Finish.LENGTH


def test_28_comments_pings_and_odd_fields() -> None:
    """Everything that is not a chunk is passed over."""
    raw = (
        b': OPENROUTER PROCESSING\n\n:\n\n:keepalive\n\nevent: ping\ndata: {"type":"ping"}\n\nretry: 3000\nid: 7\n\n'
        b'data:\n\ndata:{"choices":[{"delta":{"content":"no space "}}]}\n\ndata: {"choices":[{"delta":\n'
        b'data: {"content":"two data lines"}}]}\n\nunknownfield: x\n'
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    assert said(fold([raw])) == "no space two data lines"


BODY = (
    b"\xef\xbb\xbf"
    + (
        'data: {"choices":[{"delta":{"content":"你好 🌍 é"}}]}\r\n\r\n'
        'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    ).encode()
)


@pytest.mark.parametrize(
    "chunks",
    [
        [BODY[i : i + 1] for i in range(len(BODY))],
        [piece + b"\r" for piece in BODY.split(b"\r")[:-1]] + [BODY.split(b"\r")[-1]],
        [BODY],
        [BODY.replace(b"\r\n", b"\r")],
        [bytes([byte]) for byte in BODY.replace(b"\r\n", b"\r")],
    ],
    ids=["single bytes", "after every CR", "one piece", "CR only", "CR only, single bytes"],
)
def test_30_bytes_cut_anywhere(chunks: list[bytes]) -> None:
    """The text is the same wherever the network cuts."""
    assert said(fold(chunks)) == "你好 🌍 é"


def test_30_an_end_inside_a_character() -> None:
    """It may be tried again, and no replacement character is made up."""
    with pytest.raises(ProviderError) as caught:
        fold([BODY[: BODY.index("🌍".encode()) + 2]])
    assert caught.value.kind is ErrorKind.TRUNCATED_STREAM


def test_32_filter_chunks() -> None:
    """Chunks without choices or delta do no harm, and the end is `filtered`."""
    reply = stream("azure_filter")
    assert (said(reply), reply.finish) == ("Blue", Finish.FILTERED)


def test_35_one_json_body_instead_of_a_stream() -> None:
    """(a) The caller hands the body to `parse`, which gives the reply."""
    body = b'{"choices":[{"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}'
    assert said(parse(body)) == "hello"


@pytest.mark.parametrize(
    ("body", "content_type", "status", "kind", "words"),
    [
        (b"<html>login</html>", "text/html", 200, ErrorKind.MALFORMED, "text/html: login"),
        (b"", "application/json", 204, ErrorKind.TRUNCATED_STREAM, "HTTP 204"),
        (b"OK", "text/plain", 200, ErrorKind.MALFORMED, "text/plain: OK"),
    ],
)
def test_35_a_page_or_nothing(body: bytes, content_type: str, status: int, kind: ErrorKind, words: str) -> None:
    """(b, d) Never an empty success; the type of what came is named."""
    with pytest.raises(ProviderError, match=words) as caught:
        parse(body, content_type, status)
    assert caught.value.kind is kind


@pytest.mark.parametrize("chunks", [[], [b""], [b"\n\n"]])
def test_35_an_empty_stream(chunks: list[bytes]) -> None:
    """(c) A stream without events is a cut one."""
    with pytest.raises(ProviderError) as caught:
        fold(chunks)
    assert caught.value.kind is ErrorKind.TRUNCATED_STREAM


def test_38_fifty_megabytes_without_a_line_end() -> None:
    """(c) The decoder stops at its cap long before the end."""
    with pytest.raises(ProviderError, match="larger than") as caught:
        fold([b"x" * 1_000_000] * 50)
    assert caught.value.kind is ErrorKind.MALFORMED


def test_52_half_a_surrogate_pair() -> None:
    """An escape that no encoder takes appears as U+FFFD."""
    raw = b'data: {"choices":[{"delta":{"content":"ok \\ud83d end"},"finish_reason":"stop"}]}\n\n'
    assert said(fold([raw])) == "ok \ufffd end"
