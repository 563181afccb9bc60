"""The one table from a kind of provider failure to whether it passes, and the error that Temporal gets for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.exceptions import ApplicationError

from perdure.errors import ErrorKind, ProviderError

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


class UnknownPrice(ProviderError):
    """Nobody knows what a model costs, and a limit on cost is set."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.CONFIGURATION, message)


def to_application_error(error: ProviderError, *details: Any, final: bool, pause: float | None) -> ApplicationError:
    """What an activity raises for a provider's failure; its type is the kind.

    `final` where nobody is left who could be asked, `pause` in seconds until the next attempt; None for Temporal's own.
    """
    request = f" (request {error.request_id})" if error.request_id else ""
    return ApplicationError(
        f"{error}{request}",
        *details,
        type="unknown_price" if isinstance(error, UnknownPrice) else error.kind.value,
        non_retryable=final,
        next_retry_delay=timedelta(seconds=pause) if pause is not None else None,
    )
