"""One run as a tree: its steps, their calls with what was decided of them, and child runs below their call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from perdure.cli.events import CallBook
from perdure.cli.trail import Action, Trail
from perdure.contracts import CALL_MODEL, CALL_TOOL
from perdure.messages import Message
from perdure.status import EventPage, RunEvent, RunStatus

RESULT_CHARS = 2_000


class Decision(BaseModel):
    """What one person decided of a call."""

    at: datetime
    approve: bool
    by: str | None = None
    reason: str | None = None
    edited: bool = False


class CallNode(BaseModel):
    """One call of a tool."""

    call_id: str
    tool: str = ""
    arguments: Any = None
    status: str = "planned"
    """planned, waiting_approval, running, done, failed, refused, unknown, ..."""
    started: datetime | None = None
    ended: datetime | None = None
    seconds: float | None = None
    """Of the last attempt; a child's from its start to its end."""
    attempts: int | None = None
    """None where nothing ran, or where history does not say."""
    error: str | None = None
    """The last failure of an attempt."""
    result: str | None = None
    """The beginning of what the model was told."""
    decisions: list[Decision] = Field(default_factory=list)
    events: list[RunEvent] = Field(default_factory=list)
    """What else happened to it: asked, reminded, expired, not started, unknown."""
    child: str | None = None
    """Workflow id of the run that it started."""
    run: RunNode | None = None
    """That run."""
    not_shown: str | None = None
    """Why that run is not shown."""


class StepNode(BaseModel):
    """One model call and what came of it."""

    step: int
    ended: datetime | None = None
    seconds: float | None = None
    """Of the attempt that gave the reply."""
    attempts: int | None = None
    error: str | None = None
    tokens: int | None = None
    cost_usd: str | None = None
    text: str | None = None
    calls: list[CallNode] = Field(default_factory=list)
    events: list[RunEvent] = Field(default_factory=list)
    """What happened beside its calls: messages, corrections, limits, questions."""


class RunNode(BaseModel):
    """A run."""

    status: RunStatus
    model: str | None = None
    seconds: float | None = None
    """From start to end, waits included."""
    before: list[RunEvent] = Field(default_factory=list)
    """What happened before the first step."""
    steps: list[StepNode] = Field(default_factory=list)
    truncated: bool = False
    """Older events have made room."""

    def calls(self) -> list[CallNode]:
        """All calls of its steps."""
        return [call for step in self.steps for call in step.calls]


def grow(status: RunStatus, page: EventPage, messages: list[Message], trail: Trail) -> RunNode:
    """The tree of one run, children left out, from what it says; from history alone where it says nothing."""
    node = RunNode(status=status, truncated=page.truncated, seconds=_between(status.started, status.closed))
    if page.events:
        _Reading(node, messages, trail).read(page.events)
    else:
        _from_history(node, trail)
    for call in status.pending:
        for known in node.calls():
            if known.call_id == call.call_id and call.run == status.id:
                known.status = "waiting_approval"
    return node


class _Reading:
    """Takes events in, one after another."""

    def __init__(self, node: RunNode, messages: list[Message], trail: Trail) -> None:
        self._node = node
        self._trail = trail
        self._models = trail.of(CALL_MODEL.name)
        self._book = CallBook()
        self._book.read(messages)
        self._calls: dict[str, CallNode] = {}
        self._takes: Mapping[str, Callable[[RunEvent, dict[str, Any]], None]] = {
            "run_started": self._run_started,
            "reply": self._reply,
            "tool_start": self._tool_start,
            "tool_end": self._tool_end,
            "tool_refused": self._tool_refused,
            "approval_decided": self._approval_decided,
            "child_started": self._child_started,
            "child_ended": self._child_ended,
        }

    def read(self, events: list[RunEvent]) -> None:
        for event in events:
            take = self._takes.get(event.type)
            fields = event.model_extra or {}
            if take is not None:
                take(event, fields)
            elif (call := self._calls.get(fields.get("call_id", "").split("/")[0])) is not None:  # a child's call too
                call.events.append(event)
            elif event.type != "run_ended":
                (self._node.steps[-1].events if self._node.steps else self._node.before).append(event)
        for call in self._calls.values():
            call.result = (self._book.results.get(call.call_id) or "")[:RESULT_CHARS] or None
            self._time(call)
        self._open_step()

    def _run_started(self, event: RunEvent, fields: dict[str, Any]) -> None:
        self._node.model = fields.get("model")

    def _reply(self, event: RunEvent, fields: dict[str, Any]) -> None:
        step = StepNode(step=fields["step"], ended=event.at, **_some(fields, "tokens", "cost_usd", "text"))
        mine = [action for action in self._models if action.ended and action.ended <= event.at]
        self._models = self._models[len(mine) :]
        if done := [action for action in mine if action.status == "completed"]:
            step.seconds, step.ended = done[-1].seconds, done[-1].ended
            step.attempts = sum(action.attempts for action in mine)
            step.error = next((action.failure for action in mine if action.failure), None)
        for id in fields.get("calls") or ():
            made = CallNode(call_id=id, tool=self._book.tools.get(id, ""), arguments=self._book.arguments.get(id))
            step.calls.append(made)
            self._calls[id] = made
        self._node.steps.append(step)

    def _open_step(self) -> None:
        """A model call that goes on now is a step too."""
        running = [action for action in self._models if action.status == "running"]
        if running:
            now = running[-1]
            number = self._node.steps[-1].step + 1 if self._node.steps else 1
            self._node.steps.append(StepNode(step=number, attempts=now.attempts, error=now.failure))

    def _tool_start(self, event: RunEvent, fields: dict[str, Any]) -> None:
        if (call := self._of(fields)) is not None:
            call.status, call.started = "running", event.at

    def _tool_end(self, event: RunEvent, fields: dict[str, Any]) -> None:
        if (call := self._of(fields)) is not None:
            call.status = "failed" if fields.get("error") else fields.get("status", "done")
            call.ended = event.at

    def _tool_refused(self, event: RunEvent, fields: dict[str, Any]) -> None:
        if (call := self._of(fields)) is not None:
            call.status, call.ended = "refused", event.at

    def _approval_decided(self, event: RunEvent, fields: dict[str, Any]) -> None:
        if (call := self._of(fields)) is not None:
            call.decisions.append(
                Decision(at=event.at, edited=bool(fields.get("edited")), **_some(fields, "approve", "by", "reason"))
            )
            if fields.get("arguments") is not None:
                call.arguments = fields["arguments"]
            call.events.append(event)

    def _child_started(self, event: RunEvent, fields: dict[str, Any]) -> None:
        if (call := self._of(fields)) is not None:
            call.child, call.started, call.status = fields.get("workflow_id"), event.at, "running"

    def _child_ended(self, event: RunEvent, fields: dict[str, Any]) -> None:
        if (call := self._of(fields)) is not None:
            call.ended = event.at
            call.seconds = _between(call.started, event.at)

    def _of(self, fields: dict[str, Any]) -> CallNode | None:
        return self._calls.get(fields.get("call_id", ""))

    def _time(self, call: CallNode) -> None:
        """Times and attempts as history has them; a quick tool has none there, so the events must do."""
        mine = [action for action in self._trail.of(CALL_TOOL.name) if action.id.split(".")[0] == call.call_id]
        if mine:
            call.attempts = sum(action.attempts for action in mine)
            call.seconds = mine[-1].seconds
            call.error = mine[-1].failure
        elif call.seconds is None:
            call.seconds = _between(call.started, call.ended)


def _from_history(node: RunNode, trail: Trail) -> None:
    """What Temporal alone knows: that a step or a call was made, when, how often, and how it ended."""
    for action in trail.actions:
        if action.kind == CALL_MODEL.name:
            node.steps.append(
                StepNode(
                    step=len(node.steps) + 1,
                    ended=action.ended,
                    seconds=action.seconds,
                    attempts=action.attempts,
                    error=action.failure,
                    text=action.summary or None,
                )
            )
        elif action.kind in {CALL_TOOL.name, "child"} and node.steps:
            node.steps[-1].calls.append(_call_of(action))


def _call_of(action: Action) -> CallNode:
    child = action.kind == "child"
    return CallNode(
        call_id=action.id.rpartition("/")[2].split("-")[0] if child else action.id,
        tool=action.summary,
        status={"completed": "done"}.get(action.status, action.status),
        started=action.began,
        ended=action.ended,
        seconds=action.seconds,
        attempts=None if child else action.attempts,
        error=action.failure,
        child=action.id if child else None,
    )


def _some(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None
