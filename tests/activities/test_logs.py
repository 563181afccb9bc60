"""Expected failures in the log."""

from __future__ import annotations

import asyncio
import logging

import pytest
from temporalio.exceptions import ApplicationError

from activities.logs import BRIEF


def record(error: BaseException) -> logging.LogRecord:
    """What the SDK logs of a failed attempt."""
    info = (type(error), error, error.__traceback__)
    made = logging.LogRecord("temporalio.activity", logging.WARNING, __file__, 1, "Completing as failed", (), info)
    made.temporal_activity = {"activity_type": "call_model", "workflow_id": "inv-42", "attempt": 2}
    return made


def test_a_failure_of_ours_is_one_line() -> None:
    """Activity, run, attempt, kind and message; no traceback."""
    made = record(ApplicationError("set OPENAI_API_KEY", type="configuration"))
    assert BRIEF.filter(made)
    assert made.getMessage() == "call_model of run inv-42, attempt 2: configuration: set OPENAI_API_KEY"
    assert made.exc_info is None


def test_a_cancelled_attempt_is_one_line() -> None:
    """A cancelled run is no fault."""
    made = record(asyncio.CancelledError())
    assert BRIEF.filter(made)
    assert made.getMessage() == "call_model of run inv-42, attempt 2: cancelled"
    assert made.exc_info is None


@pytest.mark.parametrize("error", [ValueError("a bug"), ApplicationError("of somebody else")])
def test_anything_else_keeps_its_traceback(error: Exception) -> None:
    """A bug must stay findable."""
    made = record(error)
    assert BRIEF.filter(made)
    assert made.getMessage() == "Completing as failed"
    assert made.exc_info is not None
