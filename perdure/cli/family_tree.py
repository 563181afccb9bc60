"""A run and the runs that it started, asked one generation after the other, within bounds."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus

from perdure.cli.trail import read_trail
from perdure.cli.tree import CallNode, RunNode, grow
from perdure.client import Client
from perdure.errors import MessageRefused, NoAnswer, NoSuchRun, RunCancelled, RunFailed
from perdure.handle import Handle
from perdure.messages import Message
from perdure.status import EventPage, RunStatus

DEPTH = 5
"""Generations of child runs that are shown."""
MOST_RUNS = 50
"""Runs that are shown, the first included."""
SIDE_BY_SIDE = 8


async def tree_of(client: Client, id: str, *, depth: int = DEPTH, most: int = MOST_RUNS) -> RunNode:
    """The tree of a run with its child runs, at most so many generations and runs; raises NoSuchRun."""
    root = await _node(client, id, ask=True)
    generation, shown = [root], 1
    for deep in range(depth + 1):
        calls = [(call, node.status.silent is None) for node in generation for call in node.calls() if call.child]
        room = most - shown if deep < depth else 0
        for call, _ in calls[room:]:
            call.not_shown = f"see it with `perdure show {call.child}`"
        slots = asyncio.Semaphore(SIDE_BY_SIDE)
        await asyncio.gather(*(_fill(client, call, answers, slots) for call, answers in calls[:room]))
        generation = [call.run for call, _ in calls[:room] if call.run is not None]
        shown += len(generation)
    return root


async def _fill(client: Client, call: CallNode, answers: bool, slots: asyncio.Semaphore) -> None:
    assert call.child is not None
    async with slots:
        try:
            call.run = await _node(client, call.child, ask=answers)
        except NoSuchRun as error:  # it has not started yet, or its retention is over
            call.not_shown = str(error)


async def _node(client: Client, id: str, *, ask: bool) -> RunNode:
    """One run; without `ask` from Temporal alone: where no worker answers each question would wait for it."""
    handle = client.handle(id)
    described = await handle.describe()
    status = await handle.status() if ask else outline(described)
    page, messages = EventPage(), list[Message]()
    if status.silent is None and ask:
        try:
            page, messages = await handle.events(), await handle.conversation()
        except (NoAnswer, MessageRefused) as error:
            status = status.model_copy(update={"silent": str(error)})
    return grow(status, page, messages, await read_trail(client.temporal, described))


def outline(described: WorkflowExecutionDescription) -> RunStatus:
    """What Temporal's description says of a run."""
    status = described.status or WorkflowExecutionStatus.RUNNING
    return RunStatus(
        id=described.id,
        run_id=described.run_id,
        state="running" if status is WorkflowExecutionStatus.RUNNING else "closed",
        temporal=status.name.lower(),
        silent="no worker answers for its family",
        task_queue=described.task_queue,
        started=described.start_time,
        closed=described.close_time,
    )


async def result_of(handle: Handle, status: RunStatus) -> dict[str, Any] | None:
    """The result of a closed run, of a failed one too; None where it has none."""
    if status.state != "closed":
        return None
    try:
        return (await handle.result()).model_dump(mode="json")
    except RunFailed as error:
        return error.result
    except RunCancelled:
        return None
