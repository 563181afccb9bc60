"""All errors that Perdure raises.

PerdureError
├── AlreadyStarted      a run of this id exists
├── ConfigError         an agent, tool, model or limit that cannot work; raised when it is constructed or loaded
├── InvalidInput        a run's input or a message to a run that breaks the contract
├── MessageRefused      the run refused a message, which changed nothing
├── NoAnswer            the run exists, but no worker answers for it
├── NoSuchRun           no run of this id in the namespace
├── ProviderError       a model provider's failure, with its kind; retried or not by one table
├── RetryTool           raised by a tool that wants to be tried again
├── RunCancelled        the run was cancelled or terminated
├── RunFailed           the run ended `failed` or `invalid_input`; carries the result
└── Unreachable         no Temporal server, or it does not let us in
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.messages import Usage


class PerdureError(Exception):
    """Base of all errors of Perdure."""


class ConfigError(PerdureError, ValueError):
    """Something an author wrote cannot work; the message names the thing, the field and the fix."""


class InvalidInput(PerdureError):
    """Input of a run or a message to it breaks the contract; the message names the field."""


class ErrorKind(StrEnum):
    """What went wrong at a provider; `activities._failures` maps each to a retry or an end."""

    INVALID_REQUEST = "invalid_request"
    AUTHENTICATION = "authentication"
    NOT_FOUND = "not_found"
    QUOTA = "quota"
    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    SERVER = "server"
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    TRUNCATED_STREAM = "truncated_stream"
    MALFORMED = "malformed"
    CONTEXT_LENGTH = "context_length"
    CONFIGURATION = "configuration"


class ProviderError(PerdureError):
    """A model provider's failure.

    `retry_after` is in seconds and comes from the provider; `status` is the HTTP status where there was one. `usage` is
    what the provider says that the failed call has used.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.usage = usage
        self.kind = kind
        self.status = status
        self.retry_after = retry_after
        self.request_id = request_id


class RetryTool(PerdureError):
    """Raised inside a tool to be tried again after `delay` seconds, within the attempts of the tool's effect."""

    def __init__(self, message: str = "", *, delay: float = 1.0) -> None:
        super().__init__(message or "the tool asked to be tried again")
        self.delay = delay


class RunFailed(PerdureError):
    """The run ended `failed` or `invalid_input`; `result` is what there is, in the shape of a run's result."""

    def __init__(self, message: str, result: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.result = dict(result)


class RunCancelled(PerdureError):
    """The run was cancelled or terminated; `status` is what the run last said of itself."""

    def __init__(self, message: str, status: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = dict(status or {})


class AlreadyStarted(PerdureError):
    """A run of this id exists; `run_id` is Temporal's, `state` its status there (`running`, `completed`, ...).

    `agent` is set where attaching was asked for and the run is another agent's.
    """

    def __init__(self, id: str, run_id: str, state: str, *, agent: str | None = None) -> None:
        whose = f" and is of agent {agent!r}" if agent else ""
        fix = "give another id" if agent else "attach to it, or give another id"
        super().__init__(f"run {id!r} exists already{whose} and is {state}; {fix}")
        self.agent = agent
        self.id = id
        self.run_id = run_id
        self.state = state


class MessageRefused(PerdureError):
    """The run refused a message; the text says what was wrong with it, and nothing has changed."""


class NoAnswer(PerdureError):
    """The run exists, but no worker answered for it in time; the text says why, where the server knows."""


class NoSuchRun(PerdureError):
    """No run of this id in the namespace, or none any more."""


class Unreachable(PerdureError):
    """The Temporal server cannot be reached, or does not let us in."""
