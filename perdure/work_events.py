"""Events about what a run does by itself, and about watching it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perdure.event import CallEvent, Event

# --- the run --------------------------------------------------------------------------------------------------------


class RunStarted(Event):
    """The agent is resolved and the run begins."""

    type: Literal["run_started"]
    model: str = ""
    spec_digest: str = ""


class Continued(Event):
    """The run goes on in a new history."""

    type: Literal["continued"]


class RunEnded(Event):
    """The run has ended; nothing follows."""

    type: Literal["run_ended"]
    outcome: str | None = None
    reason: str | None = None
    message: str | None = None


# --- the model ------------------------------------------------------------------------------------------------------


class Text(Event):
    """What the model has said further, while it says it."""

    type: Literal["text"]
    text: str = ""
    attempt: int = 1
    offset: int = 0
    """Characters of the same attempt before it."""


class Reset(Event):
    """A new attempt of the same model call begins: what the earlier one has said is void."""

    type: Literal["reset"]
    attempt: int = 1


class Reply(Event):
    """A model call is complete."""

    type: Literal["reply"]
    step: int = 0
    text: str | None = None
    """The beginning of it."""
    calls: list[str] = Field(default_factory=list)
    """Ids of the tool calls that it asks for."""
    tokens: int = 0
    cost_usd: str = "0"
    message_id: str | None = None
    model: str | None = None
    """Who has answered, where it was not the agent's first model."""


class AttemptsLost(Event):
    """Attempts of a model call came to nothing, and have cost about this much."""

    type: Literal["attempts_lost"]
    tokens: int = 0
    cost_usd: str = "0"


class Correction(Event):
    """The model was told what is wrong with its answer."""

    type: Literal["correction"]
    about: str = ""
    text: str = ""


class Memory(Event):
    """Something was remembered or recalled."""

    type: Literal["memory"]


# --- tools ----------------------------------------------------------------------------------------------------------


class ToolStart(CallEvent):
    """A call begins, after its approval."""

    type: Literal["tool_start"]
    step: int = 0


class ToolEnd(CallEvent):
    """A call has its result."""

    type: Literal["tool_end"]
    status: str = "done"
    """`done`, `not_started` or `unknown`."""
    error: bool = False


class ToolRefused(CallEvent):
    """A call was not executed; the model is told why."""

    type: Literal["tool_refused"]
    reason: str = ""


class ToolUnknown(CallEvent):
    """Nobody can say whether a call took effect."""

    type: Literal["tool_unknown"]
    reason: str = ""


class ToolNotStarted(CallEvent):
    """A call provably did not begin, and is scheduled again."""

    type: Literal["tool_not_started"]
    reason: str = ""


class PolicyDenied(CallEvent):
    """The agent's policy forbids a call."""

    type: Literal["policy_denied"]
    reason: str = ""


# --- watching -------------------------------------------------------------------------------------------------------


class Dropped(Event):
    """Whoever watches was too slow: this many events are missing here."""

    type: Literal["dropped"]
    count: int = 0


class Rewound(Event):
    """The run was reset: what a stream has given of events above number `after` no longer counts."""

    type: Literal["rewound"]
    after: int = 0


class Truncated(Event):
    """This many events have made room before a stream could read them."""

    type: Literal["truncated"]
    missing: int = 0


class Retrying(Event):
    """An attempt has failed, and another one follows."""

    type: Literal["retrying"]
    activity: str = ""
    attempt: int = 1
    text: str = ""


class Silent(Event):
    """Nothing can be seen of the run at the moment."""

    type: Literal["silent"]
    text: str = ""
