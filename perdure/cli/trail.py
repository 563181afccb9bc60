"""What Temporal's history says of a run: when each activity began and ended, and in which attempt, worker or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.converter import PayloadConverter

from perdure.connection import rpc_errors

MOST_EVENTS = 10_000
"""Read of one run; a run with more is shown without the times of its later steps."""

_ENDS: Mapping[EventType.ValueType, str] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "completed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "timed_out",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "canceled",
}
_CHILD_ENDS: Mapping[EventType.ValueType, str] = {
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: "timed_out",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: "canceled",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: "terminated",
}


@dataclass
class Action:
    """One activity or child run, as history has it."""

    kind: str
    """Name of the activity, or `child`."""
    id: str
    """Of the activity in its run; the workflow id of a child."""
    summary: str
    asked: datetime
    began: datetime | None = None
    ended: datetime | None = None
    attempts: int = 1
    status: str = "running"
    failure: str | None = None

    @property
    def seconds(self) -> float | None:
        """How long its last attempt took."""
        return (self.ended - self.began).total_seconds() if self.ended and self.began else None


@dataclass
class Trail:
    """The activities and children of one run in the order of their beginning."""

    actions: list[Action] = field(default_factory=list)
    cut: bool = False
    """History has more than was read."""

    def of(self, kind: str) -> list[Action]:
        """Those of one kind."""
        return [action for action in self.actions if action.kind == kind]


async def read_trail(client: Client, described: WorkflowExecutionDescription) -> Trail:
    """Read a run's history, and what is pending, which history does not have yet."""
    trail = Trail()
    asked: dict[int, Action] = {}
    handle = client.get_workflow_handle(described.id, run_id=described.run_id)
    with rpc_errors(client, described.id):
        async for event in handle.fetch_history_events():
            if event.event_id > MOST_EVENTS:
                trail.cut = True
                break
            _take(event, trail, asked)
    open_actions = {action.id: action for action in trail.actions if action.status == "running"}
    for pending in described.raw_description.pending_activities:
        if (action := open_actions.get(pending.activity_id)) is not None:
            action.attempts = pending.attempt
            action.failure = pending.last_failure.message or None
            if pending.HasField("last_started_time"):
                action.began = pending.last_started_time.ToDatetime(UTC)
    return trail


def _take(event: HistoryEvent, trail: Trail, asked: dict[int, Action]) -> None:
    at = event.event_time.ToDatetime(UTC)
    match event.event_type:
        case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            made = Action(scheduled.activity_type.name, scheduled.activity_id, _summary(event), at)
            asked[event.event_id] = made
            trail.actions.append(made)
        case EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            action = asked[started.scheduled_event_id]
            action.began, action.attempts = at, started.attempt
        case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            child = event.start_child_workflow_execution_initiated_event_attributes
            made = Action("child", child.workflow_id, _summary(event), at, began=at)
            asked[event.event_id] = made
            trail.actions.append(made)
        case kind if kind in _ENDS or kind in _CHILD_ENDS:
            told: Any = getattr(event, event.WhichOneof("attributes") or "")
            number = told.scheduled_event_id if kind in _ENDS else told.initiated_event_id
            if (ended := asked.get(number)) is not None:
                ended.ended, ended.status = at, _ENDS.get(kind) or _CHILD_ENDS[kind]
                if "failure" in told.DESCRIPTOR.fields_by_name:
                    ended.failure = told.failure.cause.message or told.failure.message or None


def _summary(event: HistoryEvent) -> str:
    """The static words beside an event, which Temporal's web UI shows too."""
    payload = event.user_metadata.summary
    if payload.metadata.get("encoding") != b"json/plain":
        return ""
    return str(PayloadConverter.default.from_payload(payload))
