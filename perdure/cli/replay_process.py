"""A process that replays histories for `perdure replay`: one that hangs can be killed, and several use several cores.

On standard input come a line of JSON (`workflow_id`, `bytes`) and a history as protobuf; on standard output go a line
when the code is loaded, and one for each history: what was found, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHistory
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import Replayer, WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.workflow import Info

from perdure._launch import add_app_path
from perdure.cli.deeds import is_local, lasting, name_event, of_command, of_event, of_local

_DIFFERENT = re.compile(r"Nondeterminism error: (.*?)\", source:|Fatal error in workflow machines: (.*?)\", source:")
_EVENT_ID = re.compile(r"(?:HistoryEvent\(id|event_id): (\d+)")
_LOCAL = re.compile(r"LocalActivity\((\d+)\)")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')

LOOK = 1.0
"""Seconds between two looks at the process that began this one."""


class Recorder(WorkflowRunner):
    """Another runner, and what the code asked for in the workflow task that was replayed last."""

    def __init__(self, runner: WorkflowRunner) -> None:
        self._runner = runner
        self.clear()

    def clear(self) -> None:
        """Begin with the next history."""
        self.at = 0
        """Id of the event that began the task."""
        self.commands: list[WorkflowCommand] = []
        self.raised: Any = None
        """The failure of the task, where the code raised."""

    def prepare_workflow(self, defn: Any) -> None:
        """See base class."""
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """See base class."""
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See base class."""
        return _Recorded(self._runner.create_instance(det), self)

    def take(self, act: WorkflowActivation, done: WorkflowActivationCompletion) -> None:
        """Keep what one activation gave; several may belong to one workflow task."""
        if any(job.HasField("remove_from_cache") for job in act.jobs):
            return
        if act.history_length != self.at:
            self.at, self.commands = act.history_length, []
        self.commands += done.successful.commands
        if done.HasField("failed"):
            self.raised = done.failed.failure


class _Recorded(WorkflowInstance):
    """One replayed run."""

    def __init__(self, run: WorkflowInstance, recorder: Recorder) -> None:
        self._run = run
        self._recorder = recorder

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """See base class."""
        done = self._run.activate(act)
        self._recorder.take(act, done)
        return done

    def get_serialization_context(self, command_info: Any) -> SerializationContext | None:
        """See base class."""
        return self._run.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        """See base class."""
        return self._run.get_external_store_context(command_info)

    def get_info(self) -> Info:
        """See base class."""
        return self._run.get_info()

    def get_thread_id(self) -> int | None:
        """See base class."""
        return self._run.get_thread_id()


def explain(events: Sequence[HistoryEvent], recorder: Recorder, error: Exception | None) -> dict[str, Any]:
    """What a replay found: `result` is `fine`, `differs` or `failed`."""
    said = str(error) if error is not None else ""
    different = _DIFFERENT.search(said)
    if different:
        message = (different[1] or different[2]).replace('\\"', '"')
        return {"result": "differs", "message": message, **_difference(events, recorder, message)}
    if error is not None:
        return {"result": "failed", **_raised(events, recorder, said)}
    return _left_over(events, recorder) or {"result": "fine"}


def _recorded(events: Sequence[HistoryEvent], at: int) -> list[HistoryEvent] | None:
    """The events that the workflow task begun at an event has made; None where it has not ended."""
    done = next(
        (e for e in events if e.event_id > at and e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED), None
    )
    if done is None:
        return None
    made = [e for e in events if of_event(e) is not None]
    return [e for e in made if _task_of(e) == done.event_id]


def _task_of(event: HistoryEvent) -> int:
    attributes = getattr(event, event.WhichOneof("attributes") or "", None)
    return int(getattr(attributes, "workflow_task_completed_event_id", 0))


def _difference(events: Sequence[HistoryEvent], recorder: Recorder, message: str) -> dict[str, Any]:
    """The first event that differs, as the history has it and as the code wants it."""
    made = _recorded(events, recorder.at) or []
    wanted = [deed for c in lasting(recorder.commands) if (deed := of_command(c)) is not None]
    local = next((deed.words for c in recorder.commands if (deed := of_local(c)) is not None), None)
    if (inside := _LOCAL.search(message)) or "recorded marker" in message:  # a marker is no event of a command
        number = inside[1] if inside else None
        marker = next((e for e in events if e.event_id > recorder.at and is_local(e, number)), None)
        if marker is not None:
            return _pair(events, marker, local)
    for event, deed in zip_longest(made, wanted):
        known = of_event(event) if event is not None else None
        if known is not None and deed is not None and (known.kind, known.name) == (deed.kind, deed.name):
            continue
        if event is not None:
            return _pair(events, event, deed.words if deed else local)
    given = _EVENT_ID.search(message)
    event = next((e for e in events if given is not None and e.event_id == int(given[1])), None)
    return _pair(events, event, local) if event is not None else {}


def _pair(events: Sequence[HistoryEvent], event: HistoryEvent, wanted: str | None) -> dict[str, Any]:
    return {"event_id": event.event_id, "recorded": name_event(event, events), "wanted": wanted}


def _left_over(events: Sequence[HistoryEvent], recorder: Recorder) -> dict[str, Any] | None:
    """What the code wants more than the last finished workflow task has: the replay itself does not see it."""
    made = _recorded(events, recorder.at)
    if made is None:
        return None
    wanted = [deed for c in lasting(recorder.commands) if (deed := of_command(c)) is not None]
    more = wanted[len(made) :]
    if not more:
        return None
    return {
        "result": "differs",
        "event_id": events[-1].event_id,
        "recorded": "nothing more",
        "wanted": more[0].words,
        "message": "the code asks for more than the history holds",
    }


def _raised(events: Sequence[HistoryEvent], recorder: Recorder, said: str) -> dict[str, Any]:
    """Where the code raised, and after which event of the run."""
    failure = recorder.raised
    if failure is None:
        return {"message": said[:1_000]}
    kind = failure.application_failure_info.type or "error"
    places = _PLACE.findall(_innermost(failure).stack_trace)
    place = f" ({places[-1][0]}:{places[-1][1]})" if places else ""
    found: dict[str, Any] = {"message": f"{kind}: {failure.message}{place}"[:1_000]}
    before = [e for e in events if e.event_id < recorder.at and "WORKFLOW_TASK" not in EventType.Name(e.event_type)]
    if before:
        found |= {"event_id": before[-1].event_id, "recorded": name_event(before[-1], events)}
    return found


def _innermost(failure: Any) -> Any:
    while failure.HasField("cause"):
        failure = failure.cause
    return failure


def leave_with(parent: int) -> None:
    """End this process when the one that began it has gone: a replay that loops would not notice the end of input."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


def requests() -> Iterator[tuple[str, History]]:
    """Workflow ids and histories, as they come."""
    while line := sys.stdin.buffer.readline():
        head = json.loads(line)
        yield head["workflow_id"], History.FromString(sys.stdin.buffer.read(head["bytes"]))


async def main(answers: Any) -> None:
    """Replay until the input ends."""
    add_app_path()
    from activities.converter import data_converter
    from workflows.interceptor import RunInterceptor
    from workflows.runner import WORKFLOWS, make_runner

    def answer(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    recorder = Recorder(make_runner())
    replayer = Replayer(
        workflows=WORKFLOWS,
        workflow_runner=recorder,
        interceptors=[RunInterceptor()],
        data_converter=data_converter(None),
        debug_mode=True,  # who asks has a time limit of their own, which a busy machine does not trip over
    )
    answer({"result": "ready"})
    for workflow_id, history in requests():
        recorder.clear()
        error: Exception | None = None
        try:
            await replayer.replay_workflow(WorkflowHistory(workflow_id, list(history.events)))
        except Exception as raised:
            error = raised
        answer(explain(history.events, recorder, error))


if __name__ == "__main__":
    # Temporal's core and what a workflow prints go to standard output: they must not come between the answers.
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
    asyncio.run(main(stream))
    stream.flush()
    os._exit(0)  # a process that ran a Worker may abort while the interpreter shuts down
