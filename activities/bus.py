"""Everything that happens on a worker, for whoever listens in its process: events of runs, and text as it is said.

Nobody who listens can slow a run or stop it: what is told is put on bounded queues, and who is too slow is told how
much was dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Self

from temporalio import activity

from perdure.announcement import Announcement
from perdure.contracts import RunContext

KEPT = 10_000
"""Events a subscriber may be behind."""
REMEMBERED = 10_000
"""Events of which a second telling is known: a workflow task that could not be completed is done again."""

Listener = Callable[[Announcement], None]
"""Must return at once and be safe in any thread."""


class Bus:
    """Hands every announcement of this worker's runs and model calls to all that listen."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._subscriptions: set[Subscription] = set()
        self._told: OrderedDict[tuple[str, int], dict[str, Any]] = OrderedDict()
        self._ending: dict[str, Announcement] = {}
        """Ends of runs that are not recorded yet: a message that comes just then is taken first."""
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def announce(self, told: Announcement) -> None:
        """Tell everybody; called in any thread, never raises and never waits for anybody."""
        if told.ended is not None:
            self._ending[told.run_id] = told
        elif self._listeners:
            self._tell(told)

    def left(self, run_id: str, ended: bool) -> None:
        """A run has left this worker; its end is told if it is recorded, else the run goes on elsewhere."""
        told = self._ending.pop(run_id, None)
        if told is not None and ended and self._listeners:
            self._tell(told)

    def _tell(self, told: Announcement) -> None:
        if not self._is_known(told):
            for listener in self._listeners:
                with suppress(Exception):
                    listener(told)

    def listen(self, listener: Listener) -> None:
        """Call this function with every announcement from now on."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def leave(self, listener: Listener) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known != listener)

    def subscribe(self, workflow_id: str | None = None, *, most: int = KEPT) -> Subscription:
        """Events from now on as an async iterator, of one run or of all; it ends when the worker stops.

        Each is a dict: an envelope (`run`, `run_id`, `agent`, `tenant`, `metadata`, `trace_id`, `span_id`, `parent_id`)
        and the event's own fields, `type` and `at` among them, and `n` where the run has recorded it. Besides recorded
        events there are `text` (`text`, `attempt`, `offset`, `activity_id`), `reset` (`attempt`, `activity_id`) and,
        where the subscriber was more than `most` events behind, `dropped` (`count`). Nothing is redacted.
        """
        subscription = Subscription(self, workflow_id, most)
        if self._closed:
            subscription.end()
        else:
            self._subscriptions.add(subscription)
            self.listen(subscription.put)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Tell a subscriber nothing more."""
        self.leave(subscription.put)
        self._subscriptions.discard(subscription)

    def close(self) -> None:
        """Tell the ends that were held back, and end all subscriptions, when they have given what they have."""
        for run_id in list(self._ending):
            self.left(run_id, ended=True)
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.end()

    def _is_known(self, told: Announcement) -> bool:
        """Whether the same event was told before."""
        number = told.event.get("n")
        if number is None:
            return False
        key, own = (told.run_id, number), {name: value for name, value in told.event.items() if name != "at"}
        with self._lock:
            known = self._told.get(key) == own
            self._told[key] = own
            self._told.move_to_end(key)
            if len(self._told) > REMEMBERED:
                self._told.popitem(last=False)
        return known


class Subscription:
    """One subscriber's place; an async iterator, and a context manager that leaves."""

    def __init__(self, bus: Bus, workflow_id: str | None, most: int) -> None:
        self._bus = bus
        self._workflow_id = workflow_id
        self._waiting: deque[Announcement] = deque()
        self._most = most
        self._dropped = 0
        self._ended = False
        self._lock = threading.Lock()
        self._ready = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, told: Announcement) -> None:
        """Keep it until it is taken; where there is no room the oldest is dropped and counted."""
        if self._workflow_id not in {None, told.workflow_id}:
            return
        with self._lock:
            if len(self._waiting) >= self._most:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(told)
            wake = len(self._waiting) == 1
        if wake:
            self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # its loop is closed, so nobody waits there
                self._loop.call_soon_threadsafe(self._ready.set)

    def close(self) -> None:
        """Leave: nothing is kept any more."""
        self._bus.forget(self)
        self.end()

    async def aclose(self) -> None:
        """Leave."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        self._loop = asyncio.get_running_loop()
        while True:
            self._ready.clear()
            with self._lock:
                if self._dropped:
                    count, self._dropped = self._dropped, 0
                    return {"type": "dropped", "at": _now(), "count": count}
                told = self._waiting.popleft() if self._waiting else None
            if told is not None:
                return told.as_event()
            if self._ended:
                self._bus.forget(self)
                raise StopAsyncIteration
            await self._ready.wait()


class Voice:
    """What one attempt of a model call says, told on the bus."""

    def __init__(self, bus: Bus, context: RunContext, chain: str, messages: int) -> None:
        """`chain` is the first run id of the run, `messages` how many there are before the call."""
        self._bus = bus
        self._context = context
        self._chain = chain
        self._messages = messages
        if activity.info().attempt > 1:
            self._tell("reset")

    def say(self, text: str, offset: int) -> None:
        """Tell a piece of text that begins `offset` characters after the beginning of the attempt's text."""
        self._tell("text", text=text, offset=offset)

    def _tell(self, kind: str, **fields: Any) -> None:
        if not self._bus.is_heard:
            return
        info, context = activity.info(), self._context
        event = {"type": kind, "at": _now(), "attempt": info.attempt, "activity_id": info.activity_id, **fields}
        self._bus.announce(
            Announcement(
                workflow_id=info.workflow_id or "",
                run_id=info.workflow_run_id or "",
                first_run=self._chain,
                key_prefix=context.key_prefix,
                agent=context.spec.name,
                tenant=context.tenant,
                event=event,
                metadata=context.metadata,
                messages=self._messages,
            )
        )


def _now() -> str:
    return datetime.now(UTC).isoformat()
