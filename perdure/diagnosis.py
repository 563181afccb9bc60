"""Why a run does not go on or does not answer: asked of the server, for such a run cannot speak for itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import (
    EventType,
    PendingActivityState,
    PendingWorkflowTaskState,
    TaskQueueType,
    WorkflowTaskFailedCause,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription

POLL_LIFE = timedelta(seconds=75)
"""A poll waits for a minute at most; whoever polled longer ago is gone."""
NOT_REGISTERED = "is not registered on this worker"
"""What the SDK answers for an activity that the worker was not given."""
PROBLEMS = "TemporalReportedProblems"
"""The search attribute that the server gives a run whose workflow task fails again and again."""
STUCK = f"{PROBLEMS} IS NOT NULL AND ExecutionStatus='Running'"


async def missing_worker(client: Client, queue: str, *, activities: bool = False) -> str | None:
    """None while a worker polls the queue, else a line that says what is missing."""
    since = await _since_poll(client, queue, activities)
    return None if since is not None and since < POLL_LIFE else _missing(client, queue)


async def pollers(client: Client, queue: str) -> list[str]:
    """Identities of the workers that poll the queue, as far as the server knows; a worker calls itself `pid@host`."""
    return [identity for identity, since in await _polls(client, queue, False) if since < POLL_LIFE]


async def clock_behind(client: Client, queue: str) -> timedelta:
    """How far this machine's clock is behind the server's at least: a poll cannot have been made in the future."""
    since = await _since_poll(client, queue, False)
    return max(timedelta(0), -since) if since is not None else timedelta(0)


async def why_silent(client: Client, queue: str) -> str:
    """Why a query or message has got no answer: no worker polls, or the one that did is gone or busy."""
    since = await _since_poll(client, queue, False)
    if since is None or since >= POLL_LIFE:
        return _missing(client, queue)
    seconds = since.total_seconds()
    return f"no worker answers for it; one polled queue {queue!r} {seconds:.0f} s ago, and is gone or busy"


async def _since_poll(client: Client, queue: str, activities: bool) -> timedelta | None:
    """How long ago a worker last polled; None where none did in the last minutes."""
    return min((since for _, since in await _polls(client, queue, activities)), default=None)


async def _polls(client: Client, queue: str, activities: bool) -> list[tuple[str, timedelta]]:
    """The identity of each worker, and how long ago it last polled."""
    kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY if activities else TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    asked = DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind)
    described = await client.workflow_service.describe_task_queue(asked)
    now = datetime.now(UTC)
    return [(poller.identity, now - poller.last_access_time.ToDatetime(UTC)) for poller in described.pollers]


def _missing(client: Client, queue: str) -> str:
    address = client.service_client.config.target_host
    return f"no worker is polling queue {queue!r} at {address}; start one with `perdure worker my_agents.py`"


async def why_stuck(client: Client, described: WorkflowExecutionDescription) -> str | None:
    """Why a running run does not go on, or None where nothing shows."""
    raw = described.raw_description
    if raw.HasField("pending_workflow_task"):
        task = raw.pending_workflow_task
        waiting = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
        if waiting and (missing := await missing_worker(client, described.task_queue)):
            return missing
        if task.attempt > 1:
            cause = await _last_task_failure(client, described)
            return f"its workflow task fails, attempt {task.attempt}{cause}; a corrected worker lets it go on"
    for activity in raw.pending_activities:
        name = activity.activity_options.task_queue.name or described.task_queue
        unstarted = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED and activity.attempt <= 1
        if unstarted and (missing := await missing_worker(client, name, activities=True)):
            return f"{_name(activity)} waits: {missing}"
    return None


def retrying(described: WorkflowExecutionDescription) -> list[str]:
    """The activities of a run beyond their first attempt, each with its last failure and when it is tried next."""
    now = datetime.now(UTC)
    return [
        f"{_name(activity)}: attempt {activity.attempt}"
        f"{f' of {activity.maximum_attempts}' if activity.maximum_attempts else ''}"
        f"{_next_try(activity, now)}"
        f"{f', after: {message[:300]}' if (message := activity.last_failure.message) else ''}"
        f"{_unknown_type(activity, described.task_queue)}"
        for activity in described.raw_description.pending_activities
        if activity.attempt > 1
    ]


def _next_try(activity: PendingActivityInfo, now: datetime) -> str:
    if activity.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        return ", running"
    if not activity.HasField("next_attempt_schedule_time"):
        return ""
    seconds = (activity.next_attempt_schedule_time.ToDatetime(UTC) - now).total_seconds()
    return f", next in {seconds:.0f} s" if seconds > 0 else ", next at once"


def _unknown_type(activity: PendingActivityInfo, queue: str) -> str:
    if NOT_REGISTERED not in activity.last_failure.message:
        return ""
    name = activity.activity_options.task_queue.name or queue
    return f"; a worker of queue {name!r} does not know it: all workers of a queue must run the same release"


def _name(activity: PendingActivityInfo) -> str:
    return f"{activity.activity_type.name} {activity.activity_id}"


async def _last_task_failure(client: Client, described: WorkflowExecutionDescription) -> str:
    """The cause as the newest failed workflow task of the history tells it; later attempts are not written there."""
    asked = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=described.id, run_id=described.run_id),
        maximum_page_size=20,
    )
    page = await client.workflow_service.get_workflow_execution_history_reverse(asked)
    for event in page.history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failed = event.workflow_task_failed_event_attributes
            cause = WorkflowTaskFailedCause.Name(failed.cause).removeprefix("WORKFLOW_TASK_FAILED_CAUSE_").lower()
            return f": {failed.failure.message[:500]} ({cause.replace('_', ' ')})"
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
            return ": its worker did not end it in time"
    return ""
