"""The one table from a kind of provider failure to what Temporal does about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.exceptions import ApplicationError

from perdure.errors import ErrorKind, ProviderError
from providers.retry_after import LONGEST

RETRYABLE: dict[ErrorKind, bool] = {
    ErrorKind.INVALID_REQUEST: False,
    ErrorKind.AUTHENTICATION: False,
    ErrorKind.NOT_FOUND: False,
    ErrorKind.QUOTA: False,
    ErrorKind.CONTEXT_LENGTH: False,
    ErrorKind.CONFIGURATION: False,
    ErrorKind.RATE_LIMIT: True,
    ErrorKind.OVERLOADED: True,
    ErrorKind.SERVER: True,
    ErrorKind.CONNECTION: True,
    ErrorKind.TIMEOUT: True,
    ErrorKind.STALLED: True,
    ErrorKind.TRUNCATED_STREAM: True,
    ErrorKind.MALFORMED: True,
}


def to_application_error(error: ProviderError, *details: Any) -> ApplicationError:
    """What an activity raises for a provider's failure: type is the kind, the delay is the provider's own."""
    delay = error.retry_after
    request = f" (request {error.request_id})" if error.request_id else ""
    return ApplicationError(
        f"{error}{request}",
        *details,
        type=error.kind.value,
        non_retryable=not RETRYABLE[error.kind],
        next_retry_delay=timedelta(seconds=min(delay, LONGEST)) if delay is not None else None,
    )
