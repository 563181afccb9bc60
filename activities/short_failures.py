"""Failures on their way into history: cut to what the server takes, whatever was raised."""

from __future__ import annotations

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError, FailureError

MESSAGE_CHARS, TRACE_CHARS, CAUSES = 4_000, 10_000, 10
"""Characters of a message and of a stack trace, and how many causes are told.

A failure that is larger than the server takes never arrives: what failed would run again at the end of its time.
"""


class ShortFailures(DefaultFailureConverter):
    """The SDK's failures with short texts and few causes, also of exceptions whose text cannot be made."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See base class."""
        known = exception if isinstance(exception, FailureError) else _told(exception)
        super().to_failure(known, payload_converter, failure)
        failure.message = _cut(failure.message, MESSAGE_CHARS)
        failure.stack_trace = _cut(failure.stack_trace, TRACE_CHARS)


def _told(error: BaseException) -> ApplicationError:
    """The first exceptions of a chain in the SDK's own kind."""
    told = _one(error)
    last, cause = told, error.__cause__
    for _ in range(CAUSES):
        if cause is None:
            break
        following = _one(cause)
        last.__cause__ = following
        last, cause = following, cause.__cause__
    return told


def _one(error: BaseException) -> ApplicationError:
    try:
        message = str(error)
    except BaseException:  # an exception's own __str__ may raise anything
        message = "(its message cannot be shown)"
    made = ApplicationError(_cut(message, MESSAGE_CHARS), type=type(error).__name__)
    made.__traceback__ = error.__traceback__
    return made


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}[... {len(text)} characters in all ...]"
