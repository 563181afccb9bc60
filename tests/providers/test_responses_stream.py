"""Streamed replies in the Responses format: recorded streams, and what may go wrong with each of their events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from perdure.errors import ErrorKind, ProviderError
from perdure.model_call import ModelReply, RawText, RawThinking
from providers.base import ServerSentEvent
from providers.sse import Decoder
from tests.providers.test_responses_reply import BODIES, FAILED, GOLDEN, OPENAI, call, judged

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def events(stream: bytes) -> list[ServerSentEvent]:
    """The events of a stream."""
    return Decoder().feed(stream)


def folded(stream: list[ServerSentEvent]) -> tuple[ModelReply, str]:
    """The reply of a stream, and the text that was shown on the way."""
    fold = OPENAI.fold()
    shown = "".join([fold.feed(event) for event in stream])
    return fold.finish(), shown


def event(kind: str, **fields: Any) -> ServerSentEvent:
    """One event."""
    return ServerSentEvent(json.dumps({"type": kind, **fields}), kind)


STREAMS = sorted(path.stem for path in GOLDEN.glob("*.sse"))


@pytest.mark.parametrize("case", STREAMS)
def test_golden_streams(case: str) -> None:
    """Each recorded stream gives the same reply as its body, and shows its text on the way."""
    stream = events((GOLDEN / f"{case}.sse").read_bytes())
    read = [EVENTS.validate_json(event.data) for event in stream]
    got, shown = folded(stream)
    assert got == BODIES[case]
    judged(read[-1].response, got)
    assert shown == "".join(event.delta for event in read if event.type in SHOWN)


SHOWN = ("response.output_text.delta", "response.refusal.delta")


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_that_ends_early_is_truncated(case: str) -> None:
    """At every boundary between events before the last."""
    stream = events((GOLDEN / f"{case}.sse").read_bytes())
    for cut in range(len(stream)):
        with pytest.raises(ProviderError) as caught:
            folded([*stream[:cut], ServerSentEvent("[DONE]")])
        assert caught.value.kind is ErrorKind.TRUNCATED_STREAM


@pytest.mark.parametrize("case", STREAMS)
@pytest.mark.parametrize("without", ["delta", "done", "added", "doubled", "nameless", "final output", "order"])
def test_a_stream_that_lacks_or_repeats_something(case: str, without: str) -> None:
    """Deltas or wholes alone, events twice or in another order, no event names: reply and shown text are the same."""
    stream = events((GOLDEN / f"{case}.sse").read_bytes())
    *middle, end = stream
    if without == "doubled":
        middle = [each for event in middle for each in ([event] if ".delta" in event.event else [event, event])]
    elif without == "nameless":
        middle = [ServerSentEvent(event.data) for event in middle]
    elif without == "order":
        middle = [e for e in middle if ".done" in e.event] + [e for e in middle if ".done" not in e.event]
    elif without == "final output":
        body = json.loads(end.data)
        body["response"]["output"] = []
        end = ServerSentEvent(json.dumps(body), end.event)
    else:
        middle = [event for event in middle if not event.event.endswith(f".{without}")]
    got, shown = folded([*middle, end])
    assert got == BODIES[case]
    assert shown == folded(stream)[1]


@pytest.mark.parametrize("case", ["plain", "refusal", "parallel_calls"])
def test_deltas_alone(case: str) -> None:
    """Where no item comes whole, not even at the end, the pieces make the reply."""
    *middle, end = events((GOLDEN / f"{case}.sse").read_bytes())
    body = json.loads(end.data)
    del body["response"]["output"]
    got, _ = folded([*(e for e in middle if ".done" not in e.event), ServerSentEvent(json.dumps(body), end.event)])
    assert got == BODIES[case]


@pytest.mark.parametrize("last", [None, "", "Z"])
def test_what_only_the_stream_said_of_reasoning_is_kept(last: str | None) -> None:
    """Encrypted content is taken from where the item is done, whatever the announcement and the final response say."""
    *middle, end = events((GOLDEN / "reasoning_call.sse").read_bytes())
    body = json.loads(end.data)
    body["response"]["output"][0]["encrypted_content"] = last
    got, _ = folded([*middle, ServerSentEvent(json.dumps(body), end.event)])
    assert got == BODIES["reasoning_call"]


def test_reasoning_that_was_only_announced_does_not_go_back() -> None:
    """Its encrypted content may be incomplete."""
    *middle, end = events((GOLDEN / "reasoning_call.sse").read_bytes())
    body = json.loads(end.data)
    body["response"]["output"] = []
    stream = [e for e in middle if not (e.event.endswith("item.done") and "rs_1" in e.data)]
    got, _ = folded([*stream, ServerSentEvent(json.dumps(body), end.event)])
    thinking, called = got.parts
    assert isinstance(thinking, RawThinking)
    assert thinking.text == "**Adding**\n\nNeed the sum.\n\nCall the tool."
    assert "encrypted_content" not in (thinking.details or {})["item"]
    assert called == BODIES["reasoning_call"].parts[1]


def test_the_final_response_wins_over_what_was_streamed() -> None:
    """Text, arguments, order and number of items are as the end says."""
    output: list[dict[str, Any]] = [
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add", "arguments": '{"a":2}'},
        {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "final"}]},
    ]
    got, shown = folded(
        [
            event("response.output_item.added", output_index=0, item={"type": "message", "id": "msg_1"}),
            event("response.output_text.delta", output_index=0, content_index=0, delta="draft"),
            event("response.output_item.done", output_index=1, item={**output[0], "arguments": '{"a":1}'}),
            event("response.output_item.done", output_index=2, item={**output[0], "id": "fc_2", "call_id": "call_2"}),
            event("response.completed", response={"status": "completed", "output": output}),
        ]
    )
    assert got.parts == (call("add", '{"a":2}', "call_1"), RawText("final"))
    assert shown == "draft"


def test_items_go_by_their_index() -> None:
    """Gateways name an item anew in each event, and items may come in any order."""
    got, _ = folded(
        [
            event("response.output_text.delta", output_index=1, item_id="x1", content_index=0, delta="b"),
            event("response.output_text.delta", output_index=0, item_id="x2", content_index=0, delta="a"),
            event("response.output_text.delta", output_index=1, item_id="x3", content_index=0, delta="c"),
            event("response.output_text.delta", output_index=0, item_id="x1", content_index=0, delta="d"),
            event("response.completed"),
        ]
    )
    assert got.parts == (RawText("ad"), RawText("bc"))


def test_items_without_an_index_go_by_their_id() -> None:
    """And by the newest item where there is no id either."""
    got, shown = folded(
        [
            event("response.output_item.added", item={"type": "message", "id": "m1"}),
            event("response.output_text.delta", item_id="m1", delta="a"),
            event("response.function_call_arguments.delta", item_id="f1", delta="{"),
            event("response.output_text.delta", item_id="m1", delta="b"),
            event("response.function_call_arguments.delta", item_id="f1", delta="}"),
            event("response.output_item.done", item={"type": "function_call", "id": "f1", "call_id": "c", "name": "t"}),
            event("response.completed"),
        ]
    )
    assert shown == "ab"
    assert got.parts == (RawText("ab"), call("t", None, "c"))
    assert folded([event("response.output_text.delta", delta=d) for d in "xy"] + [event("response.completed")])[
        0
    ].parts == (RawText("xy"),)


@pytest.mark.parametrize(
    "odd",
    [
        ServerSentEvent("null"),
        ServerSentEvent("[]"),
        ServerSentEvent(" "),
        ServerSentEvent("[DONE]"),
        ServerSentEvent("{}"),
        event("response.unknown.delta", output_index=0, delta="x"),
        event("keepalive", sequence_number=3),
        event("response.output_text.delta", output_index=0, content_index=0, delta=None),
        event("response.output_text.delta", output_index=0, content_index=0, delta="", obfuscation="abc"),
        event("response.output_text.annotation.added", output_index=0, annotation={"type": "odd"}),
        event("response.content_part.done", output_index=0, part={"type": "odd", "text": "x"}),
        event("response.queued", response={"status": "queued", "error": None}),
    ],
)
def test_odd_events_add_nothing(odd: ServerSentEvent) -> None:
    """Unknown types and fields, and events without anything for the answer, are passed over wherever they stand."""
    stream = events((GOLDEN / "plain.sse").read_bytes())
    for at in range(len(stream) + 1):
        got, shown = folded([*stream[:at], odd, *stream[at:]])
        assert (got, shown) == (BODIES["plain"], "Hello")


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (event("error", code="server_error", message="m", param=None), ErrorKind.SERVER),
        (event("error", code="rate_limit_exceeded", message="m", param=None), ErrorKind.RATE_LIMIT),
        (event("error", code="context_length_exceeded", message="m"), ErrorKind.CONTEXT_LENGTH),
        (event("error", error={"code": "insufficient_quota", "message": "m"}), ErrorKind.QUOTA),
        (event("error", code="invalid_prompt", message="m"), ErrorKind.INVALID_REQUEST),
        (ServerSentEvent('{"error":{"message":"m","code":502}}'), ErrorKind.SERVER),
        (ServerSentEvent("plain words", "error"), ErrorKind.SERVER),
        (event("response.failed", response={**FAILED, "error": {"code": "server_error"}}), ErrorKind.SERVER),
        (event("response.failed", response={**FAILED, "error": None}), ErrorKind.SERVER),
        (event("response.failed"), ErrorKind.SERVER),
        (
            event("response.completed", response={**FAILED, "error": {"code": "rate_limit_exceeded"}}),
            ErrorKind.RATE_LIMIT,
        ),
        (ServerSentEvent("<html>"), ErrorKind.MALFORMED),
        (ServerSentEvent('{"type":'), ErrorKind.MALFORMED),
        (ServerSentEvent("[" * 100_000), ErrorKind.MALFORMED),
    ],
)
def test_errors_in_a_stream(bad: ServerSentEvent, kind: ErrorKind) -> None:
    """An error ends the attempt at once, wherever it stands before the end."""
    stream = events((GOLDEN / "plain.sse").read_bytes())
    for at in range(len(stream)):
        fold = OPENAI.fold()
        for before in stream[:at]:
            fold.feed(before)
        with pytest.raises(ProviderError) as caught:
            fold.feed(bad)
        assert caught.value.kind is kind


def test_two_hundred_thousand_deltas() -> None:
    """A stream of single characters is put together whole."""
    delta = event("response.output_text.delta", output_index=0, content_index=0, delta="x")
    got, shown = folded([*[delta] * 200_000, event("response.completed")])
    assert got.parts == (RawText("x" * 200_000),)
    assert len(shown) == 200_000


def test_surrogates_cut_between_deltas() -> None:
    """Halves of a pair are joined, a half alone becomes a replacement character."""
    halves = ["a \ud83d", "\ude00 b ", "\ud83d"]
    stream = [event("response.output_text.delta", output_index=0, content_index=0, delta=half) for half in halves]
    assert folded([*stream, event("response.completed")])[0].parts == (RawText("a \U0001f600 b \ufffd"),)
