"""Events as types: every event that a run can note has one, and unknown ones are read all the same."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from perdure.announcement import Announcement
from perdure.events import EVENTS, KINDS, ChildStarted, KnownEvent, Text, ToolEnd, UnknownEvent, parse_event
from perdure.spans import part_of, place_of, run_span

AT = "2026-01-01T00:00:00+00:00"
ROOT = Path(__file__).resolve().parent.parent.parent


def noted() -> set[str]:
    """The types of all events that workflow code notes."""
    source = "".join(path.read_text() for path in sorted((ROOT / "workflows").glob("*.py")))
    return set(re.findall(r'\bnote\(\s*"([a-z_]+)"', source))


def test_every_event_of_a_run_has_a_type() -> None:
    """Nothing that workflow code notes is unknown."""
    assert noted() - set(EVENTS) == set()
    assert len(noted()) > 20


def test_every_event_of_the_contract_has_a_type() -> None:
    """The names that callers are promised."""
    promised = """run_started text reset tool_start tool_end approval_requested approval_decided question correction
        limit_reached memory child_started child_ended run_ended"""
    assert set(promised.split()) - set(EVENTS) == set()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_class_is_named_like_its_type(kind: Any) -> None:
    """`tool_end` is a `ToolEnd`; it needs nothing but its type and time, and is written as it was read."""
    [name] = [name for name, known in EVENTS.items() if known is kind]
    assert "".join(part.title() for part in name.split("_")) == kind.__name__
    event = parse_event({"type": name, "at": AT})
    assert type(event) is kind
    assert event.model_dump(mode="json", exclude_unset=True) == {"type": name, "at": AT.replace("+00:00", "Z")}
    assert kind.__doc__


def test_an_event_is_told_apart_by_its_type() -> None:
    """Both by the function and by the union of all."""
    given = {"type": "tool_end", "at": AT, "n": 4, "call_id": "c1", "tool": "pay", "status": "unknown", "newer": 1}
    event = parse_event(given)
    assert isinstance(event, ToolEnd)
    assert (event.call_id, event.status, event.n, event.model_extra) == ("c1", "unknown", 4, {"newer": 1})
    assert event.at == datetime(2026, 1, 1, tzinfo=UTC)
    known: TypeAdapter[Any] = TypeAdapter(KnownEvent)
    assert known.validate_python(given) == event


@pytest.mark.parametrize("fields", [{"type": "teleported", "to": "mars"}, {"type": "text", "offset": "far"}])
def test_events_of_newer_runs_can_be_read(fields: dict[str, Any]) -> None:
    """An unknown type, or a known one with other values, keeps its fields."""
    event = parse_event({"at": AT, "n": 1, **fields})
    assert type(event) is UnknownEvent
    assert event.type == fields["type"]
    assert event.model_dump(exclude={"at", "n"}, exclude_unset=True) == fields


@pytest.mark.parametrize("event", [{}, {"type": "text"}, {"at": AT}, {"type": "text", "at": "noon"}])
def test_what_is_no_event_is_refused(event: dict[str, Any]) -> None:
    """A type and a time are the least."""
    with pytest.raises(ValidationError):
        parse_event(event)


# --- the envelope -----------------------------------------------------------------------------------------------------


def announced(prefix: str = "", messages: int = 0, first: str = "run-b", **event: Any) -> dict[str, Any]:
    """The event of an announcement, as sinks get it."""
    whole = {"n": 1, "at": AT, **event}
    return Announcement("w", "run-c", first, prefix, "clerk", None, whole, {"team": "x"}, messages).as_event()


def test_the_envelope_says_whose_event_it_is() -> None:
    """Without fields that nobody has given."""
    event = announced(type="run_started", agent="clerk", model="m")
    assert {name: event[name] for name in ("run", "run_id", "agent", "metadata")} == {
        "run": "w",
        "run_id": "run-c",
        "agent": "clerk",
        "metadata": {"team": "x"},
    }
    assert "tenant" not in event
    assert "parent_id" not in event
    assert parse_event(event).model_dump(mode="json", exclude_unset=True)["model"] == "m"


def test_ids_follow_from_the_run_and_the_part() -> None:
    """Events about one call share a span whose parent is the run; the run's own events have the run's span."""
    started = announced(type="run_started")
    begin, end = (announced(type=kind, call_id="c1", tool="pay") for kind in ("tool_start", "tool_end"))
    assert begin["span_id"] == end["span_id"] == part_of(run_span("run-b"), "c1")
    assert begin["parent_id"] == started["span_id"] == run_span("run-b")
    assert announced(type="question", question_id="q-c1")["span_id"] == begin["span_id"]
    assert announced(type="approval_requested", call_id="c1/c2")["span_id"] == begin["span_id"]
    text, said = announced(type="text", messages=3), announced(type="reply", messages=3)
    assert text["span_id"] == said["span_id"] != announced(type="reply", messages=5)["span_id"]


def test_a_child_stands_below_the_call_that_started_it() -> None:
    """In the same trace, however deep it is."""
    root, child = place_of("run-a", ""), place_of("run-b", "run-a/c7/0123456789abcdef/")
    grandchild = place_of("run-c", "run-a/c7/0123456789abcdef/run-b/c2/fedcba9876543210/")
    assert root.parent_id is None
    assert child.parent_id == part_of(root.span_id, "c7")
    assert grandchild.parent_id == part_of(child.span_id, "c2")
    assert root.trace_id == child.trace_id == grandchild.trace_id
    assert len({root.span_id, child.span_id, grandchild.span_id}) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", place.trace_id) for place in (root, child))
    assert all(re.fullmatch("[0-9a-f]{16}", place.span_id) for place in (root, child))


def test_what_tells_of_a_child_does_not_hide_whose_event_it_is() -> None:
    """The child's agent and run have names of their own."""
    event = parse_event(announced(type="child_started", call_id="c1", workflow_id="w/c1", agent="helper"))
    assert isinstance(event, ChildStarted)
    assert (event.agent, event.child_agent) == ("clerk", "helper")
    asked = announced(type="approval_requested", call_id="c1/c1", tool="pay", run="w/c1")
    assert (asked["run"], asked["child_run"]) == ("w", "w/c1")


def test_text_is_typed() -> None:
    """With attempt and offset, and no number."""
    event = parse_event({"type": "text", "at": AT, "text": "hi", "attempt": 2, "offset": 5})
    assert isinstance(event, Text)
    assert (event.text, event.attempt, event.offset, event.n) == ("hi", 2, 5, None)
