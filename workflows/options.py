"""Timeouts and retries of every kind of activity, each with its reason; the one place of the workflows for them."""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from perdure.tools import REPEATABLE, ToolSpec


class LocalOptions(TypedDict):
    """Of a local activity."""

    start_to_close_timeout: timedelta
    retry_policy: RetryPolicy


class Options(LocalOptions, total=False):
    """Of an activity."""

    cancellation_type: ActivityCancellationType
    schedule_to_start_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta


RESOLVE: Options = {
    # Instructions may be a function that does I/O.
    "start_to_close_timeout": timedelta(seconds=60),
    "retry_policy": RetryPolicy(maximum_attempts=5),
}

MODEL: Options = {
    # Long enough for reasoning models; the idle limits on data inside the activity are much shorter.
    "start_to_close_timeout": timedelta(minutes=10),
    # A killed worker's call is resumed after this; a server outage that is longer repeats a paid call.
    "heartbeat_timeout": timedelta(seconds=30),
    # A call that is cancelled still says what it has used.
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    "retry_policy": RetryPolicy(
        maximum_interval=timedelta(seconds=60),
        maximum_attempts=6,
        # An oversized reply would be paid for again and again.
        non_retryable_error_types=["PayloadsTooLarge"],
    ),
}

POLICY: LocalOptions = {
    # Local: one event for all calls of a reply. A policy that needs longer denies.
    "start_to_close_timeout": timedelta(seconds=10),
    "retry_policy": RetryPolicy(maximum_attempts=2),
}

VERIFY: Options = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": timedelta(seconds=30),
    "retry_policy": RetryPolicy(maximum_attempts=3),
}

AWAIT_CHILD: Options = {
    "start_to_close_timeout": timedelta(days=30),
    "heartbeat_timeout": timedelta(seconds=60),
    "retry_policy": RetryPolicy(maximum_attempts=100),
}

NOTIFY: Options = {
    # The run goes on meanwhile; what cannot be told in a minute is told by the next reminder.
    "start_to_close_timeout": timedelta(seconds=15),
    "schedule_to_close_timeout": timedelta(seconds=60),
    "retry_policy": RetryPolicy(maximum_attempts=3),
}

MARGIN = timedelta(seconds=15)
"""A tool's own timeout is kept inside the attempt; this much later Temporal gives the attempt up."""

QUEUE_WAIT = timedelta(minutes=5)
"""How long a call waits for a worker of the tool's own queue before it counts as not started."""

QUESTION_WAIT = timedelta(hours=24)
"""How long a person has to say what became of a call whose outcome is unknown."""

LIMIT_WAIT = timedelta(hours=24)
"""How long a run that is paused on a limit waits for somebody to extend it."""

GRANT_WAIT = LIMIT_WAIT + timedelta(hours=1)
"""How long a child run waits for its parent's answer: the parent may be paused itself."""

AT_ONCE = timedelta(0)

NOTICES_WAIT = timedelta(seconds=15)
"""How long a run that has ended waits for its last notices: one attempt of each."""

NOT_STARTED_ATTEMPTS = 3
"""How often a call that provably never began is scheduled."""


def tool_options(spec: ToolSpec) -> Options:
    """How a tool runs: `read` and `idempotent` calls are repeated after a lost worker, the others never."""
    options: Options = {
        "start_to_close_timeout": spec.timeout + MARGIN,
        "heartbeat_timeout": spec.heartbeat,
        "retry_policy": RetryPolicy(maximum_attempts=spec.attempts if spec.effect in REPEATABLE else 1),
    }
    if spec.queue:
        options["schedule_to_start_timeout"] = QUEUE_WAIT
    return options


def quick_options(spec: ToolSpec) -> LocalOptions:
    """A quick tool runs inside the worker that holds the run."""
    return {
        "start_to_close_timeout": spec.timeout + timedelta(seconds=1),
        "retry_policy": RetryPolicy(maximum_attempts=spec.attempts),
    }
