"""Work that is given up, to be done again elsewhere, when its worker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

T = TypeVar("T")

SHUTDOWN_GRACE = 10.0
"""Seconds that repeatable work gets to end when its worker stops."""


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
