"""What a run does, in words: events of a history and commands of the code, so that the two can be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_commands import WorkflowCommand

from perdure.contracts import AWAIT_CHILD, CALL_MODEL, CALL_TOOL, CHECK_POLICY, NOTIFY, RESOLVE, VERIFY

ACTIVITIES: Mapping[str, str] = {
    RESOLVE.name: "the resolving of the agent",
    CALL_MODEL.name: "a model call",
    CALL_TOOL.name: "a tool call",
    CHECK_POLICY.name: "the check by the policy",
    VERIFY.name: "the verification of the answer",
    AWAIT_CHILD.name: "the wait for a child run",
    NOTIFY.name: "a notice",
}

_STEP = re.compile(r", step (\d+)$")
_CALL = re.compile(r"(c\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Deed:
    """One thing that a run asks of Temporal; two are the same where `kind` and `name` are."""

    kind: str
    name: str
    words: str


def _activity(name: str, id: str, summary: str) -> str:
    known = ACTIVITIES.get(name)
    if known is None:
        return f"an activity {name!r}"
    if name == CALL_MODEL.name and (step := _STEP.search(summary)):
        return f"the model call of step {step[1]}"
    if name == CALL_TOOL.name and (call := _CALL.fullmatch(id)):
        again = f", scheduled for the {call[2]}. time" if call[2] else ""
        return " ".join(("the tool call", call[1], *summary.split()[:1])) + again
    return f"{known} ({summary})" if name == NOTIFY.name and summary else known


def _scheduled(name: str, id: str, summary: str) -> Deed:
    return Deed("activity", f"{name} {id}", _activity(name, id, summary))


def _timer(id: str, summary: str) -> Deed:
    return Deed("timer", id, f"the timer of {summary!r}" if summary else "a timer")


def _plain(kind: str, words: str) -> Callable[..., Deed]:
    return lambda *_: Deed(kind, "", words)


_ATTRIBUTES = _plain("attributes", "the update of the run's search attributes")
_MEMO = _plain("memo", "the update of the run's memo")
_COMPLETE = _plain("complete", "the end of the run with a result")
_FAIL = _plain("fail", "the end of the run as failed")
_CANCEL = _plain("cancel", "the end of the run as cancelled")
_CONTINUE = _plain("continue", "going on as a new run of the chain")
_STOP_ACTIVITY = _plain("stop activity", "the cancellation of a call")
_STOP_TIMER = _plain("stop timer", "the end of a timer before its time")
_SIGNAL = _plain("signal", "a message to another run")


def _child(id: str) -> Deed:
    return Deed("child", id, f"the start of the child run {id}")


E = EventType
_EVENTS: Mapping[int, Callable[[Any, str], Deed]] = {
    E.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: lambda a, s: _scheduled(a.activity_type.name, a.activity_id, s),
    E.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED: _STOP_ACTIVITY,
    E.EVENT_TYPE_TIMER_STARTED: lambda a, s: _timer(a.timer_id, s),
    E.EVENT_TYPE_TIMER_CANCELED: _STOP_TIMER,
    E.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: lambda a, _: _child(a.workflow_id),
    E.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: _SIGNAL,
    E.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: _ATTRIBUTES,
    E.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED: _MEMO,
    E.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: _COMPLETE,
    E.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: _FAIL,
    E.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: _CANCEL,
    E.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: _CONTINUE,
}
"""Events that stand for a command of the workflow, by their attributes and summary."""

_COMMANDS: Mapping[str, Callable[[Any, str], Deed]] = {
    "schedule_activity": lambda c, s: _scheduled(c.activity_type, c.activity_id, s),
    "request_cancel_activity": _STOP_ACTIVITY,
    "start_timer": lambda c, s: _timer(str(c.seq), s),
    "cancel_timer": _STOP_TIMER,
    "start_child_workflow_execution": lambda c, _: _child(c.workflow_id),
    "signal_external_workflow_execution": _SIGNAL,
    "upsert_workflow_search_attributes": _ATTRIBUTES,
    "modify_workflow_properties": _MEMO,
    "complete_workflow_execution": _COMPLETE,
    "fail_workflow_execution": _FAIL,
    "cancel_workflow_execution": _CANCEL,
    "continue_as_new_workflow_execution": _CONTINUE,
}
"""Commands of the code that become such an event."""

_ENDS: Mapping[str, tuple[str, str]] = {
    "cancel_timer": ("start_timer", "seq"),
    "request_cancel_activity": ("schedule_activity", "seq"),
}
"""What a command takes back; where both are of one workflow task neither reaches the history."""

_LATER: Mapping[int, str] = {
    E.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "the start of the run",
    E.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "a message to the run",
    E.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "a message to the run",
    E.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: "the request to cancel the run",
    E.EVENT_TYPE_TIMER_FIRED: "the end of a timer",
}
"""What happens to a run."""


def of_event(event: HistoryEvent) -> Deed | None:
    """The command that an event stands for, if it does."""
    made = _EVENTS.get(event.event_type)
    return made(_attributes(event), _summary(event)) if made else None


def of_command(command: WorkflowCommand) -> Deed | None:
    """A command that becomes an event; None for answers, and for what runs inside the worker."""
    variant = command.WhichOneof("variant")
    made = _COMMANDS.get(variant or "")
    return made(getattr(command, variant or ""), _summary(command)) if made else None


def of_local(command: WorkflowCommand) -> Deed | None:
    """What the code wants to run inside the worker: it becomes no event of its own, but a marker."""
    if command.WhichOneof("variant") != "schedule_local_activity":
        return None
    wanted = command.schedule_local_activity
    return _scheduled(wanted.activity_type, wanted.activity_id, _summary(command))


def is_local(event: HistoryEvent, number: str | None) -> bool:
    """Whether an event is the marker of a local activity, of the one that has this number in the run if it is given."""
    if event.event_type != E.EVENT_TYPE_MARKER_RECORDED:
        return False
    found = _text_of(event.marker_recorded_event_attributes.details["data"].payloads, "seq")
    return bool(found) and number in {None, found}


def lasting(commands: Sequence[WorkflowCommand]) -> list[WorkflowCommand]:
    """The commands of one workflow task without those that take each other back."""
    undone: set[tuple[str, int]] = set()
    for command in commands:
        variant = command.WhichOneof("variant") or ""
        if variant in _ENDS:
            begin, field = _ENDS[variant]
            undone.add((begin, getattr(getattr(command, variant), field)))
    begun = {key for c in commands if (key := _key(c)) in undone}
    return [c for c in commands if _key(c) not in begun and _begin(c) not in begun]


def name_event(event: HistoryEvent, earlier: Sequence[HistoryEvent] = ()) -> str:
    """An event in words; `earlier` are those before it, among which is what it belongs to."""
    deed = of_event(event)
    if deed is not None:
        return deed.words
    if event.event_type == E.EVENT_TYPE_MARKER_RECORDED:
        return _marker(event)
    attributes = _attributes(event)
    scheduled = getattr(attributes, "scheduled_event_id", 0)
    begun = next((e for e in earlier if e.event_id == scheduled), None)
    if begun is not None and (deed := of_event(begun)) is not None:
        return f"the end of {deed.words}"
    return _LATER.get(event.event_type, EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower())


def _marker(event: HistoryEvent) -> str:
    attributes = event.marker_recorded_event_attributes
    if attributes.marker_name == "core_patch":
        return f"the patch {_text_of(attributes.details['patch-data'].payloads, 'id')!r}"
    name = _text_of(attributes.details["data"].payloads, "activity_type")
    return _activity(name, "", "") if name else "what the worker noted"


def _text_of(payloads: Sequence[Any], field: str) -> str:
    try:
        return str(json.loads(payloads[0].data)[field])
    except (IndexError, ValueError, KeyError, TypeError):
        return ""


def _attributes(event: HistoryEvent) -> Any:
    return getattr(event, event.WhichOneof("attributes") or "", None)


def _summary(item: HistoryEvent | WorkflowCommand) -> str:
    try:
        return " ".join(str(json.loads(item.user_metadata.summary.data or b'""')).split())
    except ValueError:
        return ""


def _key(command: WorkflowCommand) -> tuple[str, int]:
    variant = command.WhichOneof("variant") or ""
    return variant, getattr(getattr(command, variant, None), "seq", 0)


def _begin(command: WorkflowCommand) -> tuple[str, int] | None:
    variant = command.WhichOneof("variant") or ""
    if variant not in _ENDS:
        return None
    begin, field = _ENDS[variant]
    return begin, getattr(getattr(command, variant), field)
