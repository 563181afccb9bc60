"""The SSE decoder: whatever the cuts, the same events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import ErrorKind, ProviderError
from providers.base import ServerSentEvent
from providers.sse import Decoder

STREAM = (
    "\ufeff: hello\n\nevent: ping\ndata: {}\n\ndata: 你好 🌍 é\ndata:second\n\ndata\n\nid: 7\nretry: 3\n\n"
    "data: a\u2028b\u0085c\x0bd\n\n:end\n\ndata:  two spaces\n\n"
)
EVENTS = [
    ServerSentEvent(data="{}", event="ping"),
    ServerSentEvent(data="你好 🌍 é\nsecond"),
    ServerSentEvent(data="a\u2028b\u0085c\x0bd"),
    ServerSentEvent(data=" two spaces"),
]


def decode(chunks: list[bytes], **limits: int) -> list[ServerSentEvent]:
    """All events of the chunks, with the end of the stream checked."""
    decoder = Decoder(**limits)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    decoder.close()
    return events


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@given(cuts=st.lists(st.integers(min_value=0, max_value=300)))
def test_any_cutting_gives_the_same_events(line_end: str, cuts: list[int]) -> None:
    """Cuts inside characters, line ends and the byte order mark change nothing."""
    raw = STREAM.replace("\n", line_end).encode()
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    assert decode([raw[a:b] for a, b in pairwise(edges)]) == EVENTS


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_single_bytes(line_end: str) -> None:
    """One byte at a time gives the same events too."""
    raw = STREAM.replace("\n", line_end).encode()
    assert decode([raw[i : i + 1] for i in range(len(raw))]) == EVENTS


def test_an_end_inside_a_character_is_a_truncated_stream() -> None:
    """Half a character at the end is an error and never a replacement character."""
    decoder = Decoder()
    assert decoder.feed("data: 你".encode()[:-1]) == []
    with pytest.raises(ProviderError) as caught:
        decoder.close()
    assert caught.value.kind is ErrorKind.TRUNCATED_STREAM


def test_bytes_that_are_not_utf8_are_malformed() -> None:
    """A stream in another encoding is refused instead of being guessed at."""
    with pytest.raises(ProviderError) as caught:
        Decoder().feed(b"data: caf\xe9\n\n")
    assert caught.value.kind is ErrorKind.MALFORMED


def test_an_unfinished_event_is_dropped() -> None:
    """An event counts only with the empty line behind it."""
    assert decode([b"data: a\n\ndata: b\n"]) == [ServerSentEvent(data="a")]


@pytest.mark.parametrize(
    "chunks",
    [[b"x" * 60, b"x" * 60], [b"data: " + b"y" * 50 + b"\n"] * 3, [b":" + b"z" * 101]],
    ids=["no line end", "many data lines", "a comment"],
)
def test_size_of_one_event_is_capped(chunks: list[bytes]) -> None:
    """No event grows beyond the limit, whatever it is made of."""
    with pytest.raises(ProviderError, match="larger than 100 bytes") as caught:
        decode(chunks, max_event_bytes=100)
    assert caught.value.kind is ErrorKind.MALFORMED


def test_the_cap_is_per_event() -> None:
    """A stream as a whole, and the comments in it, may be larger than the limit of one event."""
    chunks = [b"data: " + b"y" * 50 + b"\n\n", b": keep-alive comment\n"] * 50
    assert len(decode(chunks, max_event_bytes=100)) == 50


def test_four_megabytes_in_one_line() -> None:
    """A large event below the default limit arrives whole."""
    raw = b"data: " + b"x" * (4 * 1024 * 1024) + b"\n\n"
    [event] = decode([raw[i : i + 65_536] for i in range(0, len(raw), 65_536)])
    assert len(event.data) == 4 * 1024 * 1024
