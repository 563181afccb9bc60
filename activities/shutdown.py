"""How a worker stops: by signals, and with work that is given up, to be done again elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from perdure.errors import PerdureError

T = TypeVar("T")

SHUTDOWN_GRACE = 10.0
"""Seconds that repeatable work gets to end when its worker stops."""


def stop_on_signals(stop: asyncio.Event, at_once: Callable[[], object] = lambda: None) -> None:
    """Stop gracefully at the first SIGTERM or Ctrl-C; at the second do what `at_once` says and end the process."""
    loop = asyncio.get_running_loop()

    def received(number: int) -> None:
        if not stop.is_set():
            stop.set()
            return
        print(
            "ended at once; calls that were cut are done again, or their outcome is unknown",
            file=sys.stderr,
            flush=True,
        )
        at_once()
        os._exit(128 + number)  # threads of tools may go on for ever

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)


@asynccontextmanager
async def tell_failure(worker: Worker) -> AsyncIterator[None]:
    """Raise PerdureError where the worker has ended by itself: the SDK cancels the block around it, even at its end."""
    try:
        yield
    except BaseException as error:
        failure = worker._async_context_run_exception
        if failure is None or isinstance(failure, asyncio.CancelledError):
            raise
        raise PerdureError(f"the worker has ended: {failure}") from error


async def until_stopping(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; raises a retryable error where the worker stops and `work` outlasts the grace."""
    running = asyncio.create_task(work)
    stopping = asyncio.create_task(_stopped())
    try:
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise ApplicationError("the worker stopped", type="WorkerStopped", next_retry_delay=timedelta(milliseconds=1))
    finally:
        stopping.cancel()
        running.cancel()


async def _stopped() -> None:
    await activity.wait_for_worker_shutdown()
    await asyncio.sleep(SHUTDOWN_GRACE)
