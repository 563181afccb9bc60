"""What people are told of a run that waits for them, by a function of its agent or a webhook."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.approval import Pending
from perdure.questions import Question

NoticeKind = Literal["requested", "reminder", "escalated", "expired", "question", "limit"]


class Notification(BaseModel):
    """What `notify=` is told: a call that waits for approval, a question, or a limit that a run is paused on."""

    model_config = ConfigDict(frozen=True)

    kind: NoticeKind
    run: str = ""
    """Workflow id."""
    agent: str = ""
    tenant: str | None = None
    user: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    call: Pending | None = None
    """The call that waits, with its digest and deadline; None for questions and limits."""
    question: Question | None = None
    limit: str | None = None
    """The reason word of the limit, such as `max_steps`."""
    deadline: str | None = None
    """ISO time until which the run waits."""
    tokens: dict[str, str] = Field(default_factory=dict)
    """A signed decision token for each approver by name, where the worker has a private key."""
