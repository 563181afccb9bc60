"""Watching a run: its event log as it grows, and the text of the reply that is being written.

A viewer only asks the server: nothing of it enters the run's history. What is being written comes from the heartbeats
of the pending model call, which Temporal shows to whoever describes the run; what is done comes from the run's queries,
which are asked only when the history has grown.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.connection import translate
from perdure.contracts import CALL_MODEL
from perdure.diagnosis import retrying
from perdure.errors import InvalidInput, NoAnswer, PerdureError, Unreachable
from perdure.event_log import EventLog
from perdure.live_text import LiveText, Told, Window
from perdure.messages import AssistantMessage
from perdure.overheard import Overheard
from perdure.status import RunEvent, StreamEvent

if TYPE_CHECKING:
    from perdure.handle import Handle

PATIENCE = 60.0
"""Seconds that a server or worker may be away before a stream gives up."""
LOOK_WAIT = timedelta(seconds=10)
"""How long one description of the run may take."""
QUICK, SLOW = 0.2, 5.0
"""Seconds between two looks at a run, the least and the most."""
EASE = 1 / 60
"""Between them: this part of the time in which nothing has happened."""
CLOSED_WAIT = 15.0
"""Seconds that the worker of a run which has ended may be away: nothing more will happen in it."""


class Ear(Protocol):
    """What is told in this process of one run: recorded events, and pieces of text as they come."""

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]: ...

    async def __anext__(self) -> dict[str, Any]: ...

    def close(self) -> None:
        """Listen no more."""
        ...


class Viewer:
    """One viewer of one run, from a cursor to its end."""

    def __init__(
        self,
        client: Client,
        handle: Handle,
        after: int,
        *,
        server: float,
        worker: float,
        listening: Callable[[], Ear] | None,
    ) -> None:
        """`server` and `worker` are how many seconds each may be away; `listening` begins to listen to this process."""
        self._client = client
        self._handle = handle
        self._after = after
        self._patience = {Unreachable: server, NoAnswer: worker}
        self._log = EventLog(after)
        self._live = LiveText()
        self._messages: dict[str, AssistantMessage] = {}
        self._read = 0
        """Messages of the conversation that were read."""
        self._seen = ("", 0)
        """Temporal's run and the length of its history that the log was read at."""
        self._step = 0
        self._told: list[StreamEvent] = []
        self._tried: set[tuple[str, int]] = set()
        self._replied = 0
        """Number of the last reply that was read."""
        self._listening = listening
        self._ear: Ear | None = None
        self._overheard = Overheard(0)
        self._ended = False
        self._looked = self._answered = self._moved = _now()
        self._complaint = ""

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """The events until the run has ended; raises NoSuchRun, and NoAnswer or Unreachable when patience is over."""
        self._answered, self._looked = _now(), -math.inf
        try:
            while not self._ended:
                rest = self._looked + min(max((_now() - self._moved) * EASE, QUICK), SLOW) - _now()
                await (self._listen(rest) if rest > 0 else self._look())
                told, self._told = self._told, []
                if told:
                    self._moved = _now()
                for event in told:
                    yield event
        finally:
            if self._ear is not None:
                self._ear.close()

    async def _look(self) -> None:
        """Ask what is new."""
        closed = False
        try:
            described = await self._describe()
            closed = self._is_closed(described)
            await self._compare(described, closed=closed)
            self._ended, self._answered, self._complaint = closed, _now(), ""
        except PerdureError as trouble:
            self._wait_out(trouble, closed=closed)
        self._looked = _now()

    async def _describe(self) -> WorkflowExecutionDescription:
        try:
            return await self._handle.temporal.describe(rpc_timeout=LOOK_WAIT)
        except RPCError as error:
            raise translate(error, self._client, self._handle.id) from error

    def _is_closed(self, described: WorkflowExecutionDescription) -> bool:
        if described.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:  # the next run of the chain is described soon
            return self._handle.run_id is not None
        return described.status is not WorkflowExecutionStatus.RUNNING

    async def _compare(self, described: WorkflowExecutionDescription, *, closed: bool) -> None:
        """Tell what is new. Live text counts only where the history has not grown since the log was read."""
        seen = (described.run_id, described.history_length)
        if seen == self._seen and not closed:
            self._tell(await self._heard(described), step=self._step + 1)
            self._tell_overheard()
            return
        await self._read_log()
        self._tell_overheard()
        if self._ear is None and self._listening is not None:
            self._ear, self._overheard = self._listening(), Overheard(self._log.last)
            await self._read_log()  # again: text that is heard must not come before what was recorded just then
        if closed:
            self._tell(self._live.void(), step=self._step + 1)
            if not self._log.ended and described.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:
                self._tell([("run_ended", await self._ending())])
        self._seen = seen

    def _tell(self, told: Iterable[Told], step: int | None = None) -> None:
        about = {} if step is None else {"step": step}
        for kind, fields in told:
            fields = fields | about if kind in {"text", "reset"} else fields
            self._told.append(StreamEvent(at=datetime.now(UTC), type=kind, **fields))

    # --- what is recorded ---------------------------------------------------------------------------------------------

    async def _read_log(self) -> None:
        """Tell the new events of the log, each reply after its text."""
        page = await self._handle.events(self._log.cursor)
        if not self._log.continues(page):
            page = await self._handle.events()
            self._messages, self._read = {}, 0
        if any(event.type == "reply" and event.n > self._log.last for event in page.events):
            messages = await self._handle.conversation(self._read)
            self._read += len(messages)
            self._messages |= {m.id: m for m in messages if isinstance(m, AssistantMessage)}
        fresh = self._log.take(page)
        if fresh.rewound is not None:
            self._after = min(self._after, fresh.rewound)
            self._tell(self._live.void())
            self._tell([("rewound", {"after": fresh.rewound})])
            self._replied = self._overheard.last = 0
        if fresh.missing:
            self._tell([("truncated", {"missing": fresh.missing})])
        replies = [event for event in fresh.events if event.type == "reply"]
        if replies and self._live.length:  # the rest of a text is not interrupted by what happened beside it
            await self._reply(replies.pop(0))
        for event in fresh.events:
            if event in replies:
                await self._reply(event)
            if event.n > self._after:
                self._told.append(StreamEvent.model_validate(event.model_dump(exclude_unset=True)))

    async def _reply(self, event: RunEvent) -> None:
        await self._hear_up_to(event.n)
        fields = event.model_extra or {}
        self._step, self._replied = fields.get("step", self._step + 1), event.n
        message = self._messages.pop(fields.get("message_id", ""), None)
        if event.n > self._after:
            self._tell(self._live.record(message, fields.get("text") or ""), step=self._step)

    async def _ending(self) -> dict[str, Any]:
        """The end of a run that could not record it: terminated, timed out, or ended by Temporal."""
        status = await self._handle.status()
        about = {"outcome": status.outcome, "reason": status.reason or status.temporal, "message": status.message}
        return {name: value for name, value in about.items() if value is not None}

    # --- what is happening --------------------------------------------------------------------------------------------

    async def _heard(self, described: WorkflowExecutionDescription) -> list[Told]:
        """What the pending calls say: text of the model, and attempts that have failed."""
        pending = described.raw_description.pending_activities
        told = list(self._failing(described))
        calls = [activity for activity in pending if activity.activity_type.name == CALL_MODEL.name]
        if not calls:
            return [*self._live.void(), *told]
        call = min(calls, key=lambda activity: activity.scheduled_time.ToNanoseconds())
        name = f"{described.run_id}/{call.activity_id}"
        told += self._live.begin(name, call.attempt)
        window = await self._window(name, call)
        if window is not None and window.attempt == call.attempt:  # what another one has said is void
            told += self._live.see(window)
        return told

    async def _window(self, name: str, call: PendingActivityInfo) -> Window | None:
        try:
            (said,) = await self._client.data_converter.decode(call.heartbeat_details.payloads)
            return Window(call=name, attempt=said["attempt"], offset=said["offset"], text=said["text"])
        except Exception:  # no beat yet, or one that this client's converter cannot read: the reply will be recorded
            return None

    def _failing(self, described: WorkflowExecutionDescription) -> Iterator[Told]:
        again = [activity for activity in described.raw_description.pending_activities if activity.attempt > 1]
        for activity, words in zip(again, retrying(described), strict=True):
            key = (f"{described.run_id}/{activity.activity_id}", activity.attempt)
            if key not in self._tried:
                self._tried.add(key)
                yield "retrying", {"activity": activity.activity_type.name, "attempt": activity.attempt, "text": words}

    # --- what is overheard in this process ----------------------------------------------------------------------------

    async def _listen(self, seconds: float) -> None:
        """Take in one thing more that is heard, or nothing in so many seconds."""
        event = await self._hear(seconds)
        if event is None:
            return
        self._overheard.hear(event)
        try:
            if self._overheard.last > self._log.last:
                await self._read_log()
        except PerdureError as trouble:
            self._wait_out(trouble, closed=False)
        self._tell_overheard()

    async def _hear(self, seconds: float) -> dict[str, Any] | None:
        if self._ear is None:
            await asyncio.sleep(seconds)
            return None
        try:
            async with asyncio.timeout(seconds):  # what is there already comes even in no time
                event = await anext(self._ear, None)
        except TimeoutError:
            return None
        if event is None:  # that worker has stopped; there may be another one at the next look
            self._ear = None
        return event

    async def _hear_up_to(self, reply: int) -> None:
        """Take in what has been told of a reply that the log has already."""
        while self._overheard.last < reply and (event := await self._hear(0)) is not None:
            self._overheard.hear(event)
            self._tell_overheard()

    def _tell_overheard(self) -> None:
        """Tell what was heard of the present reply; everything before it must have been read."""
        window = self._overheard.take(self._log.last, self._replied)
        if window is not None:
            self._tell(self._live.see(window), step=self._step + 1)
            self._overheard.told(self._live.length)

    # --- patience -----------------------------------------------------------------------------------------------------

    def _wait_out(self, trouble: PerdureError, *, closed: bool) -> None:
        """Say once why nothing comes; raises what is no trouble of the moment, and what has lasted too long."""
        passing = [kind for kind in self._patience if isinstance(trouble, kind) or type(trouble) is PerdureError]
        if not passing:
            raise trouble
        patience = self._patience[passing[0]]
        if closed and passing[0] is NoAnswer:
            patience = min(patience, CLOSED_WAIT)
        if _now() - self._answered > patience:
            raise trouble
        if self._complaint != passing[0].__name__:
            self._complaint = passing[0].__name__
            self._tell([("silent", {"text": str(trouble)})])


def _now() -> float:
    return time.monotonic()


def check_after(after: object) -> None:
    """Raise InvalidInput for what is no number of an event."""
    if type(after) is not int or after < 0:
        raise InvalidInput(f"after: must be the number of an event from 0 on, not {after!r:.80}")


def watch(
    client: Client,
    handle: Handle,
    after: int = 0,
    *,
    server: float = PATIENCE,
    worker: float = PATIENCE,
    listening: Callable[[], Ear] | None = None,
) -> AsyncGenerator[StreamEvent, None]:
    """The events of a run from number `after` on until its end.

    `server` and `worker` are how many seconds each may be away. With `listening` the text comes in every piece in which
    a worker of this process has got it. Raises InvalidInput for a cursor or patience that is none.
    """
    check_after(after)
    for seconds in (server, worker):
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise InvalidInput(f"patience: must be a number of seconds from 0 on, not {seconds!r:.80}")
    return Viewer(client, handle, after, server=server, worker=worker, listening=listening).events()
