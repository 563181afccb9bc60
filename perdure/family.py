"""What a run and its child runs tell each other: what a child waits for, what it may spend, and the answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from perdure.approval import Request
from perdure.limits import LimitsOverride, Need
from perdure.questions import Question

CHILD_WAITS, CHILD_NEEDS, GRANT = "_child_waits", "_child_needs", "_grant"
"""Names of the signals."""


class ChildOrigin(BaseModel):
    """What a parent hands to its child beside the input; never accepted from outside."""

    model_config = ConfigDict(frozen=True)

    key_prefix: str
    parent: str | None = None
    """Workflow id of the parent, which is told what its child waits for."""


class Message(BaseModel):
    """Base of the signals' payloads."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ChildWaits(Message):
    """What a child run waits for, whenever that changes."""

    child: str
    """Workflow id."""
    requests: tuple[Request, ...] = ()
    questions: tuple[Question, ...] = ()
    paused: bool = False
    """It waits for a higher limit."""


class ChildNeeds(Message):
    """More of a limit that a child run asks for."""

    child: str
    need: Need
    number: int
    """Of its questions of this kind."""


class Grant(Message):
    """The answer to a child that needs more."""

    number: int | None = None
    """Which question it answers; None where nobody asked."""
    more: LimitsOverride | None = None
    """None: there is no more."""
