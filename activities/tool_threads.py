"""Where authors' functions run: async ones on a loop of their own, the others in threads of their own.

Whatever they do (block, raise SystemExit, never return), the worker's own loop goes on beating and polling.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from activities.registry import Lifespan
from perdure.errors import ConfigError, PerdureError

MOST_FREE = 16
"""Threads that are kept for later calls."""
CANCEL_GRACE = 3.0
"""Seconds that a cancelled function has to clean up before it is left alone."""


class ToolCancelled(BaseException):
    """Raised inside an author's function when its run was cancelled or its time is over."""


class TimedOut(PerdureError):
    """A function did not end in its time."""


@dataclass(frozen=True)
class Outcome:
    """What a function returned or raised."""

    value: Any = None
    error: BaseException | None = None


class ToolThreads:
    """Runs authors' functions; holds what their lifespans yield."""

    def __init__(self) -> None:
        self._states: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="perdure-tools", daemon=True)
        self._stack = AsyncExitStack()
        self._free: list[_Hand] = []

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._loop.is_closed():
            try:
                self._loop.run_forever()
                self._loop.close()
                return
            except BaseException:
                continue

    async def start(self, lifespans: list[Lifespan]) -> None:
        """Start the loop and enter the lifespans on it; raises ConfigError where one fails."""
        self._thread.start()
        for lifespan in lifespans:
            outcome = await self._on_loop(partial(self._enter, lifespan), None)
            if outcome.error is not None:
                raise ConfigError(f"lifespan: {type(outcome.error).__name__}: {outcome.error}")
            self._states.append(outcome.value)

    async def stop(self) -> None:
        """Leave the lifespans and stop the loop; functions that still run are left alone."""
        while self._free:
            self._free.pop().dismiss()
        if self._thread.is_alive():
            await self._on_loop(self._stack.aclose, CANCEL_GRACE * 3)
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join, CANCEL_GRACE)

    def state_of(self, home: int | None) -> Any:
        """What the lifespan with this number yielded; None without one."""
        return self._states[home] if home is not None else None

    async def _enter(self, lifespan: Lifespan) -> Any:
        return await self._stack.enter_async_context(lifespan())

    async def run(self, function: Callable[..., Any], arguments: Mapping[str, Any], seconds: float | None) -> Outcome:
        """Call a function and return what it returned or raised; raises TimedOut, and CancelledError when cancelled."""
        if inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__ is async too
        ):
            return await self._on_loop(lambda: function(**arguments), seconds)
        return await self._in_thread(lambda: function(**arguments), seconds)

    async def _in_thread(self, call: Callable[[], Any], seconds: float | None) -> Outcome:
        """Run in a thread that nothing else uses: it may block for ever, and others must not wait behind it."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Outcome] = loop.create_future()
        context = contextvars.copy_context()
        hand = self._free.pop() if self._free else _Hand()

        def settle(outcome: Outcome) -> None:
            if waiter.done():  # it was interrupted
                return
            waiter.set_result(outcome)
            if len(self._free) < MOST_FREE:
                self._free.append(hand)
            else:
                hand.dismiss()

        def work() -> None:
            try:
                outcome = Outcome(value=context.run(call))
            except BaseException as error:  # whatever it raises is its outcome
                outcome = Outcome(error=error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, outcome)

        hand.do(work)
        try:
            done, _ = await _wait(waiter, seconds)
        except asyncio.CancelledError:
            if waiter.cancelled():  # else it has just ended, and the thread may be another call's already
                hand.interrupt()
            raise
        if done:
            return waiter.result()
        waiter.cancel()
        hand.interrupt()
        raise TimedOut("it did not end in time")

    async def _on_loop(self, call: Callable[[], Any], seconds: float | None) -> Outcome:
        async def contained() -> Outcome:
            try:
                return Outcome(value=await call())
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # SystemExit must not reach the loop
                return Outcome(error=error)

        future = asyncio.run_coroutine_threadsafe(contained(), self._loop)
        waiter = asyncio.wrap_future(future)
        done, _ = await _wait(waiter, seconds)
        if done:
            return (
                waiter.result()
                if not waiter.cancelled()
                else Outcome(error=RuntimeError("it was cancelled from inside"))
            )
        future.cancel()
        raise TimedOut("it did not end in time")


class _Hand:
    """A thread that does one job at a time; new ones for every call would cost more than most calls."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="perdure-tool", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(ToolCancelled):  # it may come when the function has just ended
            while (job := self._jobs.get()) is not None:
                job()
                del job  # it would keep arguments and result until the next one

    def do(self, job: Callable[[], None]) -> None:
        """Start a job; the one before must have ended."""
        self._jobs.put(job)

    def dismiss(self) -> None:
        """End after the present job."""
        self._jobs.put(None)

    def interrupt(self) -> None:
        """Raise ToolCancelled in the job when it next runs Python code; no other job may follow."""
        self.dismiss()
        if self._thread.ident is not None and self._thread.is_alive():
            ident = ctypes.c_ulong(self._thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(ToolCancelled))


async def _wait(waiter: asyncio.Future[Outcome], seconds: float | None) -> tuple[set[Any], set[Any]]:
    try:
        return await asyncio.wait([waiter], timeout=seconds)
    except asyncio.CancelledError:
        waiter.cancel()
        raise
