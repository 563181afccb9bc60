"""What a viewer shows of replies, from windows that come late, twice, with gaps and in the wrong order."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.event_log import EventLog
from perdure.live_text import LiveText, Told, Window
from perdure.messages import AssistantMessage, BlobPart, TextPart
from perdure.overheard import Overheard
from perdure.status import EventPage


def shown(told: Iterable[Told], before: str = "") -> str:
    """What stands there after some events."""
    for kind, fields in told:
        if kind == "reset":
            before = ""
        else:
            assert fields["offset"] == len(before)
            before += fields["text"]
    return before


def message(*parts: TextPart | BlobPart) -> AssistantMessage:
    """A recorded reply."""
    return AssistantMessage(role="assistant", parts=parts)


def said(text: str) -> AssistantMessage:
    """A recorded reply of one text."""
    return message(TextPart(type="text", text=text))


@pytest.mark.parametrize("seed", range(50))
def test_any_windows_end_as_what_is_recorded(seed: int) -> None:
    """Whatever part of whatever attempt is seen, in order of attempts: the recorded text stands there at the end."""
    chance = random.Random(seed)
    live = LiveText()
    text = ""
    final = ""
    for step in range(4):
        for attempt in range(1, chance.randint(2, 4)):
            final = "".join(chance.choice("ab\N{GRINNING FACE}\u597d \n") for _ in range(chance.randint(0, 60)))
            end = 0
            for _ in range(chance.randint(0, 8)):
                end = chance.randint(end, len(final))
                begin = max(0, end - chance.randint(1, 40))
                text = shown(live.see(Window(f"call-{step}", attempt, begin, final[begin:end])), text)
                assert final.startswith(text) or not text
        text = shown(live.record(said(final)), text)
        assert text == final
        text = ""


def test_windows_that_come_late_do_not_go_back() -> None:
    """A window of an attempt that was given up shows nothing more."""
    live = LiveText()
    text = shown(live.see(Window("a", 1, 0, "old")))
    text = shown(live.begin("a", 2), text)
    assert text == ""
    assert list(live.see(Window("a", 1, 0, "older"))) == []
    assert shown(live.see(Window("a", 2, 0, "new"))) == "new"
    assert list(live.record(said("new"))) == []


def test_a_text_that_history_refers_to() -> None:
    """All of it stays; a part of it gives way to what the conversation has."""
    kept = message(BlobPart(type="blob", digest="d", size=5, preview="12 [... 5 in all ...]"))
    for seen, end in (("12345", "12345"), ("123", "12 [... 5 in all ...]"), ("", "12 [... 5 in all ...]")):
        live = LiveText()
        text = shown(live.see(Window("a", 1, 0, seen)))
        assert shown(live.record(kept), text) == end


def test_half_a_character_waits_for_its_other_half() -> None:
    """A pair of surrogates is shown as one character, and what cannot be carried as it is recorded."""
    live = LiveText()
    text = shown(live.see(Window("a", 1, 0, "x\ufffd")))
    assert text == "x"
    text = shown(live.see(Window("a", 1, 0, "x\N{GRINNING FACE}y\x00")), text)
    assert shown(live.record(said("x\N{GRINNING FACE}y\ufffd")), text) == "x\N{GRINNING FACE}y\ufffd"


def piece(text: str, offset: int, *, call: str = "1", attempt: int = 1) -> dict[str, Any]:
    """Text as a worker of this process tells it."""
    about = {"run_id": "r", "activity_id": call, "attempt": attempt}
    return {"type": "text", "text": text, "offset": offset, **about}


def test_overheard_text_waits_for_its_turn() -> None:
    """It is due once the log is read up to the event before it, and not any more when its reply is read."""
    heard = Overheard(0)
    heard.hear({"type": "run_started", "n": 1})
    heard.hear(piece("ab", 0))
    assert heard.take(read=0, replied=0) is None
    assert heard.take(read=1, replied=0) == Window("r/1", 1, 0, "ab")
    heard.told(2)
    heard.hear(piece("cd", 2))
    assert heard.take(read=1, replied=0) == Window("r/1", 1, 2, "cd")
    assert heard.take(read=2, replied=2) is None
    heard.hear({"type": "reply", "n": 2})
    assert heard.take(read=2, replied=2) is None
    heard.hear(piece("next", 0, call="2"))
    assert heard.take(read=2, replied=2) == Window("r/2", 1, 0, "next")
    heard.hear({"type": "reset", "run_id": "r", "activity_id": "2", "attempt": 2})
    assert heard.take(read=2, replied=2) == Window("r/2", 2, 0, "")


def page(*types: str, first: int = 1, after: int = 0) -> EventPage:
    """A page of a log whose kept events begin at a number."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    events: list[Any] = [{"n": n, "at": at, "type": kind} for n, kind in enumerate(types, first)]
    kept = [event for event in events if event["n"] > after]
    return EventPage(events=kept, last=first + len(types) - 1, truncated=after + 1 < first)


def test_a_log_that_grows() -> None:
    """Each event is new once; the cursor asks for the last one again, to see that it is still the same."""
    log = EventLog(0)
    assert [event.n for event in log.take(page("a", "b")).events] == [1, 2]
    assert log.cursor == 1
    further = page("a", "b", "run_ended", after=log.cursor)
    assert log.continues(further)
    fresh = log.take(further)
    assert ([event.n for event in fresh.events], fresh.rewound, fresh.missing) == ([3], None, 0)
    assert log.ended


def test_a_log_that_is_set_back() -> None:
    """Another event under a known number, or fewer events, tell where the run was set back to."""
    log = EventLog(0)
    log.take(page("a", "b", "c"))
    assert not log.continues(page("a", "x", "y", "z", after=log.cursor))
    fresh = log.take(page("a", "x", "y", "z"))
    assert ([event.n for event in fresh.events], fresh.rewound) == ([2, 3, 4], 1)
    assert not log.continues(page("a", "x", after=log.cursor))
    fresh = log.take(page("a", "x"))
    assert ([event.n for event in fresh.events], fresh.rewound) == ([], 2)
    assert EventLog(9).take(page("a", "b")).rewound == 0


def test_a_log_that_has_lost_its_beginning() -> None:
    """How many events have made room unread is told."""
    log = EventLog(2)
    assert log.take(page("e", "f", first=5)).missing == 2
    later = page("j", "k", first=10, after=log.cursor)
    assert log.continues(later)
    assert log.take(later).missing == 3
