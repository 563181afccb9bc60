"""What all events of runs have."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


class Event(BaseModel):
    """What all events have; the fields from `run` on are the envelope that sinks of a worker add."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str
    at: datetime
    n: int | None = None
    """Number in the run's event log; None for what is not recorded. `run_id` and `n` name an event that comes twice."""
    run: str = ""
    """Workflow id."""
    run_id: str = ""
    """Temporal's run id, another one after a continue-as-new."""
    agent: str = ""
    tenant: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    """What the run was started with."""
    trace_id: str = ""
    """32 hex digits: the same for a run and all runs below it."""
    span_id: str = ""
    """16 hex digits: of the run, or of the model or tool call that the event is about."""
    parent_id: str | None = None
    """16 hex digits: for a call that of its run, for a run that of the call that started it, if any."""


class UnknownEvent(Event):
    """An event of a type that this version does not know; its fields are kept."""


class CallEvent(Event):
    """What the events about one tool call have."""

    call_id: str = ""
    tool: str = ""
    stage: int | None = None
    """Of an approval with several stages."""
