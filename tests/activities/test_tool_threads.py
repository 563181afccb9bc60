"""The threads of authors' functions: used again when a call has ended, never while one may still be interrupted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities.tool_threads import TimedOut, ToolCancelled, ToolThreads


@pytest.fixture
async def threads() -> AsyncIterator[ToolThreads]:
    """Threads without lifespans."""
    made = ToolThreads()
    await made.start([])
    yield made
    await made.stop()


async def run(threads: ToolThreads, function: Any, seconds: float | None = 20.0) -> Any:
    """What a function returned."""
    outcome = await threads.run(function, {}, seconds)
    assert outcome.error is None
    return outcome.value


async def test_a_thread_is_used_again(threads: ToolThreads) -> None:
    """Calls one after the other share a thread; calls side by side do not."""
    first = await run(threads, threading.get_ident)
    assert await run(threads, threading.get_ident) == first
    together = threading.Barrier(3)

    def meet() -> int:
        together.wait(20)
        return threading.get_ident()

    assert len(set(await asyncio.gather(*(run(threads, meet) for _ in range(3))))) == 3


async def test_what_a_function_raises_leaves_its_thread_usable(threads: ToolThreads) -> None:
    """Even SystemExit is an outcome, and the thread goes on."""

    def leave() -> None:
        raise SystemExit(3)

    ident = await run(threads, threading.get_ident)
    outcome = await threads.run(leave, {}, 20.0)
    assert isinstance(outcome.error, SystemExit)
    assert await run(threads, threading.get_ident) == ident


async def test_an_interrupted_thread_is_not_used_again(threads: ToolThreads) -> None:
    """A function whose time is over gets its exception, and later calls have another thread that nobody interrupts."""
    left = threading.Event()
    idents: list[int] = []

    def linger() -> None:
        idents.append(threading.get_ident())
        try:
            while True:
                time.sleep(0.01)
        except ToolCancelled:
            left.set()
            raise

    with pytest.raises(TimedOut):
        await threads.run(linger, {}, 0.1)
    later = await run(threads, threading.get_ident)
    assert later not in idents
    assert await asyncio.to_thread(left.wait, 20)
    assert await run(threads, threading.get_ident) == later


async def test_a_cancellation_that_comes_too_late_hits_nobody(threads: ToolThreads) -> None:
    """A call that has ended when it is cancelled leaves the next one in its thread alone."""
    ended = threading.Event()

    def quick() -> None:
        ended.set()

    await run(threads, threading.get_ident)
    task = asyncio.create_task(run(threads, quick))
    await asyncio.sleep(0)
    assert ended.wait(20)
    time.sleep(0.2)  # noqa: ASYNC251  the loop must not see the end before it sees the cancellation
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task

    def slow() -> str:
        for _ in range(50):
            time.sleep(0.002)
        return "unharmed"

    assert await run(threads, slow) == "unharmed"
