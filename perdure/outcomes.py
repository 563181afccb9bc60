"""How a run can end, and the result it leaves."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from perdure.messages import Usage


class Outcome(StrEnum):
    """The outcomes of a run; the first five complete the workflow, the next two fail it, the last cancels it."""

    SUCCESS = "success"
    NO_SOLUTION = "no_solution"
    BUDGET_EXCEEDED = "budget_exceeded"
    TIMEOUT = "timeout"
    BLOCKED = "blocked"
    INVALID_INPUT = "invalid_input"
    FAILED = "failed"
    CANCELLED = "cancelled"


FAILING = frozenset({Outcome.INVALID_INPUT, Outcome.FAILED})
"""Outcomes that close the workflow as Failed."""


class Ending(BaseModel):
    """What a strategy returns: how the run ends, and with what."""

    model_config = ConfigDict(frozen=True)

    outcome: Outcome
    output: str = ""
    reason: str | None = None
    structured: Any = None
    message: str | None = None
    """More about a failure, for people."""


class RunFault(Exception):
    """Ends the run from wherever it is raised; caught in one place."""

    def __init__(self, outcome: Outcome, reason: str, message: str) -> None:
        super().__init__(message)
        self.ending = Ending(outcome=outcome, reason=reason, message=message)


class RunResult(BaseModel):
    """The result of a run as it is recorded and returned, every field present."""

    model_config = ConfigDict(frozen=True)

    outcome: Outcome
    output: str = ""
    structured: Any = None
    reason: str | None = None
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost_usd: str = "0"
    agent: str = ""
    spec_digest: str = ""
