"""Events about people, limits and child runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from perdure.event import CallEvent, Event

# --- people ---------------------------------------------------------------------------------------------------------


class ApprovalRequested(CallEvent):
    """A call waits for a decision."""

    type: Literal["approval_requested"]
    digest: str = ""
    deadline: datetime | None = None
    reason: str | None = None
    approvers: list[str] = Field(default_factory=list)
    child_run: str | None = None
    """Workflow id of the child run that asks; `call_id` is then a path."""


class ApprovalDecided(CallEvent):
    """Somebody has decided."""

    type: Literal["approval_decided"]
    approve: bool = False
    by: str | None = None
    verified: bool = False
    """Whether a signature proves who it was."""
    reason: str | None = None
    remember: Any = None
    edited: bool = False
    arguments: dict[str, Any] | None = None
    """As they were edited."""


class ApprovalRemembered(CallEvent):
    """An earlier decision holds for this call too."""

    type: Literal["approval_remembered"]
    approve: bool = False


class ApprovalReminder(CallEvent):
    """Those who may decide were reminded."""

    type: Literal["approval_reminder"]
    deadline: datetime | None = None
    approvers: list[str] = Field(default_factory=list)


class ApprovalEscalated(CallEvent):
    """Others may decide now."""

    type: Literal["approval_escalated"]
    deadline: datetime | None = None
    approvers: list[str] = Field(default_factory=list)


class ApprovalExpired(CallEvent):
    """Nobody has decided in time."""

    type: Literal["approval_expired"]
    on_timeout: str = ""


class Question(Event):
    """The agent asks a person."""

    type: Literal["question"]
    question_id: str = ""
    text: str = ""
    deadline: datetime | None = None


class Answered(Event):
    """A person has answered."""

    type: Literal["answered"]
    question_id: str = ""
    text: str = ""
    by: str | None = None
    verified: bool = False


class QuestionExpired(Event):
    """Nobody has answered in time."""

    type: Literal["question_expired"]
    question_id: str = ""


class Said(Event):
    """The user has said something further."""

    type: Literal["said"]
    message_id: str | None = None
    text: str = ""


class MessageRefused(Event):
    """A message to the run was bad, and changed nothing."""

    type: Literal["message_refused"]
    message: str = ""
    """Its name."""
    reason: str = ""


class StopRequested(Event):
    """The run is to end after its present step."""

    type: Literal["stop_requested"]
    reason: str | None = None


class NotifyFailed(Event):
    """A notice could not be delivered."""

    type: Literal["notify_failed"]
    about: str = ""
    error: str = ""


# --- limits ---------------------------------------------------------------------------------------------------------


class LimitReached(Event):
    """A limit is reached; with `paused` the run waits until `deadline` for somebody to extend it."""

    type: Literal["limit_reached"]
    reason: str = ""
    deadline: datetime | None = None
    paused: bool = False


class LimitsExtended(Event):
    """Limits were raised by this much; durations in seconds."""

    type: Literal["limits_extended"]
    steps: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost_usd: str | None = None
    deadline: Any = None


class ExtensionExpired(Event):
    """Nobody has extended the limit in time."""

    type: Literal["extension_expired"]
    reason: str = ""


class LimitGranted(Event):
    """A child run was given more of a limit, or was not."""

    type: Literal["limit_granted"]
    call_id: str = ""
    limit: str = ""
    granted: bool = False


class LimitNotAnswered(Event):
    """The parent did not say whether there is more of a limit."""

    type: Literal["limit_not_answered"]
    limit: str = ""


# --- child runs -----------------------------------------------------------------------------------------------------


class ChildStarted(Event):
    """A call has started a run of another agent."""

    type: Literal["child_started"]
    call_id: str = ""
    workflow_id: str = ""
    """Of the child run."""
    child_agent: str = ""


class ChildEnded(Event):
    """That run has ended."""

    type: Literal["child_ended"]
    call_id: str = ""
    workflow_id: str = ""
    outcome: str | None = None
    tokens: int = 0


class NotDelivered(Event):
    """A message to another run could not be delivered."""

    type: Literal["not_delivered"]
    message: str = ""
    to: str = ""
    reason: str = ""
