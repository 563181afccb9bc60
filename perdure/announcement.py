"""What a run tells the worker that works on it: an event of its log, or a piece of text, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.messages import Usage
from perdure.spans import Place, part_named, part_of, place_of

RENAMED = {"approval_requested": {"run": "child_run"}, "child_started": {"agent": "child_agent"}}
"""Fields of recorded events that are called like one of the envelope, but tell of a child run."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of a run at its end."""

    began: str
    """ISO 8601."""
    model: str
    steps: int
    usage: Usage
    cost_usd: str
    log: tuple[dict[str, Any], ...]
    """The events that are still kept."""
    asked: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    """What it was started with: roles and parts."""
    output: str = ""


@dataclass(frozen=True, slots=True)
class Announcement:
    """One event with its surroundings; made in every turn, so it only holds what is there already."""

    workflow_id: str
    run_id: str
    first_run: str
    """Run id of the chain's first execution."""
    key_prefix: str
    agent: str
    tenant: str | None
    event: dict[str, Any]
    """`type`, `at` and the event's own fields; `n` where it is recorded."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    messages: int = 0
    """How many there were before the last model call."""
    since: str | None = None
    """When that began which this event ends; ISO 8601."""
    ended: Ended | None = None
    """Set for the end of a run."""

    @property
    def place(self) -> Place:
        """Where the run stands."""
        return place_of(self.first_run, self.key_prefix)

    def as_event(self) -> dict[str, Any]:
        """The event as sinks and subscribers get it, not yet redacted: the envelope and the event's own fields."""
        place, part = self.place, part_named(self.event, self.messages)
        span = part_of(place.span_id, part) if part else place.span_id
        envelope = {
            "run": self.workflow_id,
            "run_id": self.run_id,
            "agent": self.agent,
            "tenant": self.tenant,
            "metadata": dict(self.metadata),
            "trace_id": place.trace_id,
            "span_id": span,
            "parent_id": place.span_id if part else place.parent_id,
        }
        renamed = RENAMED.get(self.event["type"], {})
        own = {renamed.get(name, name): value for name, value in self.event.items()}
        return {**{name: value for name, value in envelope.items() if value is not None}, **own}
