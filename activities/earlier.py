"""After a reset: what became of a write in the runs that the reset threw away."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from perdure.contracts import CALL_MODEL, CALL_TOOL, ModelOutput, ToolInput, ToolOutput
from perdure.messages import Usage


@dataclass
class _Attempt:
    """The last attempt of one call in an earlier run."""

    task: ToolInput
    output: ToolOutput | None = None


async def recorded(client: Client, workflow_id: str, run_id: str, task: ToolInput) -> ToolOutput | None:
    """The recorded result of the same call in an earlier run, `unknown` where it has none; None if it never ran.

    Calls are the same by tool and arguments; the n-th of them here is the n-th there.
    """
    base = await _base_of(client, workflow_id, run_id)
    seen = {run_id}
    while base is not None and base not in seen:
        seen.add(base)
        found = await _find(client, workflow_id, base, task)
        if found is not None:
            return found
        base = await _base_of(client, workflow_id, base)
    return None


@dataclass
class Thrown:
    """What model calls have used whose replies a reset threw away."""

    usage: Usage = field(default_factory=Usage)
    cost: Decimal = Decimal(0)


async def spent_after_reset(client: Client, workflow_id: str, run_id: str, counted: str | None) -> Thrown:
    """What the run that was reset to make this one had spent after that point, and so on back to the run `counted`."""
    thrown = Thrown()
    reset = await _reset_of(client, workflow_id, run_id)
    while reset is not None:
        base, at = reset
        told = await _add_spent(client, workflow_id, base, at, thrown)
        # A reply that knew what resets before it threw away has it among what was lost.
        reset = None if told or base == counted else await _reset_of(client, workflow_id, base)
    return thrown


async def _add_spent(client: Client, workflow_id: str, run_id: str | None, at: int, thrown: Thrown) -> bool:
    """Add what a run has spent from an event on, and those that continued it; whether that has earlier resets in it."""
    told = False
    while run_id:
        models: set[int] = set()
        following: str | None = None
        async for event in client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                if event.activity_task_scheduled_event_attributes.activity_type.name == CALL_MODEL.name:
                    models.add(event.event_id)
            elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED and event.event_id >= at:
                done = event.activity_task_completed_event_attributes
                if done.scheduled_event_id in models:
                    output: ModelOutput = await _decoded(client, done.result.payloads, ModelOutput)
                    thrown.usage = thrown.usage + output.usage + output.lost
                    thrown.cost += Decimal(output.cost) + Decimal(output.lost_cost)
                    told = told or output.counted is not None
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                following = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        run_id, at = following, 0
    return told


async def _reset_of(client: Client, workflow_id: str, run_id: str) -> tuple[str, int] | None:
    """The run that this one was reset from, and the number of the first event that differs."""
    found: tuple[str, int] | None = None
    async for event in client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
        failed = event.workflow_task_failed_event_attributes
        if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            found = (failed.base_run_id, event.event_id)
    return found


async def _base_of(client: Client, workflow_id: str, run_id: str) -> str | None:
    """The run that this one was reset from."""
    reset = await _reset_of(client, workflow_id, run_id)
    return reset[0] if reset else None


async def _find(client: Client, workflow_id: str, run_id: str, task: ToolInput) -> ToolOutput | None:
    calls: dict[str, _Attempt] = {}
    scheduled: dict[int, str] = {}
    async for event in client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
        await _take(client, event, calls, scheduled)
    same = [a for a in calls.values() if _content(a.task) == _content(task)]
    if task.same >= len(same):
        return None
    attempt = same[task.same]
    if attempt.output is None:
        return ToolOutput(status="unknown", why="the run was reset while it ran, or before its result was recorded")
    return None if attempt.output.status == "not_started" else attempt.output


def _content(task: ToolInput) -> object:
    return task.tool, task.arguments, task.whole


async def _take(client: Client, event: HistoryEvent, calls: dict[str, _Attempt], scheduled: dict[int, str]) -> None:
    if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        begun = event.activity_task_scheduled_event_attributes
        if begun.activity_type.name == CALL_TOOL.name:
            task: ToolInput = await _decoded(client, begun.input.payloads, ToolInput)
            scheduled[event.event_id] = task.call
            calls[task.call] = _Attempt(task)
    elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
        done = event.activity_task_completed_event_attributes
        if (call := scheduled.get(done.scheduled_event_id)) is not None:
            calls[call].output = await _decoded(client, done.result.payloads, ToolOutput)
    elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
        over = event.activity_task_timed_out_event_attributes
        call = scheduled.get(over.scheduled_event_id)
        if call is not None and over.failure.timeout_failure_info.timeout_type == _SCHEDULE_TO_START:
            calls[call].output = ToolOutput(status="not_started")


_SCHEDULE_TO_START = 2


async def _decoded(client: Client, payloads: Any, hint: type[Any]) -> Any:
    [value] = await client.data_converter.decode(list(payloads), [hint])
    return value
