"""Everything that can be seen of a run, as types: the events of its log, and what is seen only while it happens.

The class of an event is its type in other letters: `tool_end` is a `ToolEnd`. Fields may be missing where an older run
tells of it, and further ones are kept where a newer one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import Field, ValidationError
from pydantic_core import from_json

from perdure.event import Event, UnknownEvent
from perdure.people_events import (
    Answered,
    ApprovalDecided,
    ApprovalEscalated,
    ApprovalExpired,
    ApprovalRemembered,
    ApprovalReminder,
    ApprovalRequested,
    ChildEnded,
    ChildStarted,
    ExtensionExpired,
    LimitGranted,
    LimitNotAnswered,
    LimitReached,
    LimitsExtended,
    MessageRefused,
    NotDelivered,
    NotifyFailed,
    Question,
    QuestionExpired,
    Said,
    StopRequested,
)
from perdure.work_events import (
    AttemptsLost,
    Continued,
    Correction,
    Dropped,
    Memory,
    PolicyDenied,
    Reply,
    Reset,
    Retrying,
    Rewound,
    RunEnded,
    RunStarted,
    Silent,
    Text,
    ToolEnd,
    ToolNotStarted,
    ToolRefused,
    ToolStart,
    ToolUnknown,
    Truncated,
)

__all__ = [
    "EVENTS",
    "KINDS",
    "Answered",
    "ApprovalDecided",
    "ApprovalEscalated",
    "ApprovalExpired",
    "ApprovalRemembered",
    "ApprovalReminder",
    "ApprovalRequested",
    "AttemptsLost",
    "ChildEnded",
    "ChildStarted",
    "Continued",
    "Correction",
    "Dropped",
    "Event",
    "ExtensionExpired",
    "KnownEvent",
    "LimitGranted",
    "LimitNotAnswered",
    "LimitReached",
    "LimitsExtended",
    "Memory",
    "MessageRefused",
    "NotDelivered",
    "NotifyFailed",
    "PolicyDenied",
    "Question",
    "QuestionExpired",
    "Reply",
    "Reset",
    "Retrying",
    "Rewound",
    "RunEnded",
    "RunStarted",
    "Said",
    "Silent",
    "StopRequested",
    "Text",
    "ToolEnd",
    "ToolNotStarted",
    "ToolRefused",
    "ToolStart",
    "ToolUnknown",
    "Truncated",
    "UnknownEvent",
    "parse_event",
]

KnownEvent = Annotated[
    RunStarted
    | Continued
    | RunEnded
    | Text
    | Reset
    | Reply
    | AttemptsLost
    | Correction
    | Memory
    | ToolStart
    | ToolEnd
    | ToolRefused
    | ToolUnknown
    | ToolNotStarted
    | PolicyDenied
    | ApprovalRequested
    | ApprovalDecided
    | ApprovalRemembered
    | ApprovalReminder
    | ApprovalEscalated
    | ApprovalExpired
    | Question
    | Answered
    | QuestionExpired
    | Said
    | MessageRefused
    | StopRequested
    | NotifyFailed
    | LimitReached
    | LimitsExtended
    | ExtensionExpired
    | LimitGranted
    | LimitNotAnswered
    | ChildStarted
    | ChildEnded
    | NotDelivered
    | Dropped
    | Rewound
    | Truncated
    | Retrying
    | Silent,
    Field(discriminator="type"),
]
"""Every event that this version knows, told apart by `type`; an UnknownEvent is none of them."""

KINDS: tuple[type[Event], ...] = get_args(get_args(KnownEvent)[0])
EVENTS: Mapping[str, type[Event]] = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in KINDS}
"""The model of each type."""


def parse_event(event: Mapping[str, Any] | str | bytes) -> Event:
    """The event, or the line of a file with one, as its type.

    One of an unknown type, or with values that do not fit it, is an UnknownEvent. Raises ValueError (pydantic's
    ValidationError too is one) for what is no JSON, and where there is no `type` or no `at`.
    """
    if isinstance(event, str | bytes):
        return parse_event(from_json(event))
    try:
        return EVENTS.get(str(event.get("type")), UnknownEvent).model_validate(event)
    except ValidationError:
        return UnknownEvent.model_validate(event)
