"""What a client learns of a run: typed answers of its queries, with Temporal's own view laid over them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from perdure.messages import Usage, Whole


class Answer(BaseModel):
    """Base of answers: fields that a newer run adds are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class PendingCall(Answer):
    """A tool call that waits for a decision."""

    run: str = ""
    """The workflow id of the run that waits; a child's where a child asks."""
    call_id: str
    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    digest: str = ""
    requested_at: datetime | None = None
    deadline: datetime | None = None
    reason: str | None = None
    stage: int = 0
    quorum: int = 1
    approvers: tuple[str, ...] = ()
    """Who may decide now; empty means anybody."""
    decisions: list[dict[str, Any]] = Field(default_factory=list)
    whole: Whole | None = None
    """Digest and size of the arguments, where `arguments` is an excerpt; `conversation` has all of them."""


class OpenQuestion(Answer):
    """A question that waits for a person's answer."""

    question_id: str
    text: str = ""
    options: tuple[str, ...] = ()
    deadline: datetime | None = None


class RunUsage(Answer):
    """What a run has spent."""

    usage: Usage = Usage()
    cost_usd: str = "0"
    steps: int = 0
    tool_calls: int = 0
    active_seconds: float = 0.0
    unconfirmed: dict[str, Any] = Field(default_factory=dict)
    """The part of usage and cost that is estimated: attempts that failed, were lost or cancelled."""


class RunStatus(Answer):
    """A run as it is now."""

    id: str
    run_id: str
    state: str
    """One of the contract's states; `closed` also where the run could not say so itself."""
    temporal: str
    """Temporal's status: running, completed, failed, canceled, terminated, timed_out, ..."""
    stuck: str | None = None
    """Why the run cannot go on by itself, and what would help."""
    silent: str | None = None
    """Why no worker answered for the run; the fields below are then what Temporal alone knows."""
    retrying: list[str] = Field(default_factory=list)
    """Activities beyond their first attempt, with their last failure."""
    task_queue: str = ""
    started: datetime | None = None
    closed: datetime | None = None
    agent: str = ""
    activity: str = ""
    """What the run is doing, in words."""
    step: int = 0
    tool_calls: int = 0
    outcome: str | None = None
    """None for a run that was terminated or timed out: it had no time for one."""
    reason: str | None = None
    message: str | None = None
    output: str | None = None
    """The beginning of the output; `result` has all of it."""
    usage: Usage = Usage()
    cost_usd: str = "0"
    limits: dict[str, Any] = Field(default_factory=dict)
    pending: list[PendingCall] = Field(default_factory=list)
    questions: list[OpenQuestion] = Field(default_factory=list)
    said: int = 0
    stopping: str | None = None
    paused: str | None = None
    """The limit that it waits for somebody to extend."""
    paused_until: datetime | None = None


class RunSummary(Answer):
    """One run of a list, from what Temporal has indexed; None where the namespace has no such attribute."""

    id: str
    run_id: str
    agent: str | None = None
    state: str
    """`open` where a run that goes on has not said in which state it is."""
    temporal: str
    outcome: str | None = None
    started: datetime | None = None
    closed: datetime | None = None
    model: str | None = None
    tenant: str | None = None
    user: str | None = None
    steps: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    prompt: str | None = None
    """The beginning of the prompt."""
    problems: tuple[str, ...] = ()
    """What the server has found wrong with the run's workflow tasks; such a run is stuck."""


class RunEvent(Answer):
    """One entry of a run's event log; the other fields depend on `type`."""

    n: int
    at: datetime
    type: str


class EventPage(Answer):
    """Events after a cursor."""

    events: list[RunEvent] = Field(default_factory=list)
    last: int = 0
    """Number of the newest event: the next cursor."""
    truncated: bool = False
    """Older events than these have made room; Temporal's history still has what they told of."""


class StreamEvent(Answer):
    """One event of a stream: a recorded one with its number, or what is seen only while it happens, without one.

    The other fields depend on `type`; those of an event of the log are as they stand there.
    """

    n: int | None = None
    """Number in the event log: the cursor to come back with. None for `text`, `reset`, `rewound`, `retrying`, `silent`,
    and for a `run_ended` that the run could not record."""
    at: datetime
    type: str
    text: str | None = None
    """Of `text`: what the model has said further."""
    attempt: int | None = None
    """Of `text` and `reset`: the attempt of the model call."""
    offset: int | None = None
    """Of `text`: characters of the same reply before it."""
    step: int | None = None
    """The model call that it belongs to, from 1 on."""
