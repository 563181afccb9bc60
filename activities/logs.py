"""Failures that the runtime expects, in one line of the log instead of a traceback."""

from __future__ import annotations

import asyncio
import logging

from temporalio.exceptions import ApplicationError

SOURCE = "temporalio.activity"


class BriefFailures(logging.Filter):
    """Rewrites the SDK's record of a failed attempt where the failure is one of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record; one of our failures, or a cancelled attempt, loses its traceback and shows its message."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            said = "cancelled"
        elif isinstance(error, ApplicationError) and error.type:
            said = f"{error.type}: {error.message}"
        else:
            return True
        where = record.__dict__.get("temporal_activity") or {}
        asked = f"{where.get('activity_type', 'activity')} of run {where.get('workflow_id', '?')}"
        record.msg, record.args = "%s, attempt %s: %s", (asked, where.get("attempt", "?"), said)
        record.exc_info = record.exc_text = None
        return True


BRIEF = BriefFailures()


def shorten_failures() -> None:
    """Install the filter; a second call changes nothing."""
    logging.getLogger(SOURCE).addFilter(BRIEF)
