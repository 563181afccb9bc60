"""Agents in a plain script: a Temporal server and a worker of this process's own, behind ordinary calls.

The server and the worker's loop live beside the caller's code, so it works in a script, in a thread and in a notebook.
Everything is kept in a folder: a process that is killed leaves its runs there, and the next one goes on with them.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from perdure._launch import add_app_path
from perdure.agent import Agent
from perdure.client import Client
from perdure.diagnosis import missing_worker
from perdure.errors import ConfigError
from perdure.handle import Handle
from perdure.messages import Message
from perdure.outcomes import RunResult
from perdure.shared_server import SharedServer
from perdure.sinks import OnEvent, check_path, check_sinks
from perdure.status import EventPage, PendingCall, RunStatus, RunSummary, RunUsage, StreamEvent
from perdure.streaming import watch
from perdure.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from perdure.local_worker import LocalWorker

T = TypeVar("T")
Calls = list[PendingCall]
"""`Local.list` hides the built-in name inside the class."""


class Waiter(Protocol):
    """Does asynchronous work elsewhere and waits for it here."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns or raises."""
        ...


QUEUE = "perdure-local"
"""Of an interactive session; a script has one of its own."""


class LocalRun:
    """A run of this process's server; the methods of `Handle` without `await`."""

    def __init__(self, handle: Handle, wait: Waiter, watch: Callable[[int], AsyncGenerator[StreamEvent, None]]) -> None:
        self.id = handle.id
        self._handle = handle
        self._wait = wait
        self._watch = watch

    def __repr__(self) -> str:
        return f"LocalRun({self.id!r})"

    def result(self) -> RunResult:
        """Wait for the end; raises RunFailed or RunCancelled."""
        return self._wait(self._handle.result())

    def status(self) -> RunStatus:
        """The run as it is now."""
        return self._wait(self._handle.status())

    def approvals(self) -> list[PendingCall]:
        """The calls that wait for a decision."""
        return self._wait(self._handle.approvals())

    def events(self, after: int = 0) -> EventPage:
        """The event log above number `after`."""
        return self._wait(self._handle.events(after))

    def stream(self, after: int = 0) -> Generator[StreamEvent, None, None]:
        """What happens in the run, from event number `after` on until its end; see `Handle.stream`."""
        return self._told(self._watch(after))  # its loop closes it where nobody holds it any more

    def _told(self, events: AsyncGenerator[StreamEvent, None]) -> Generator[StreamEvent, None, None]:
        while (event := self._wait(_next(events))) is not None:
            yield event

    def conversation(self) -> list[Message]:
        """The whole conversation so far."""
        return self._wait(self._handle.conversation())

    def usage(self) -> RunUsage:
        """Tokens, money and steps so far."""
        return self._wait(self._handle.usage())

    def decide(self, call_id: str | None, approve: bool, **fields: Any) -> dict[str, Any]:
        """Decide a call that waits; fields of `Handle.decide`."""
        return self._wait(self._handle.decide(call_id, approve, **fields))

    def approve(self, call_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """Approve a call that waits."""
        return self._wait(self._handle.approve(call_id, **fields))

    def deny(self, call_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """Deny a call that waits."""
        return self._wait(self._handle.deny(call_id, **fields))

    def say(self, text: str, **fields: Any) -> dict[str, Any]:
        """Say something further as the user."""
        return self._wait(self._handle.say(text, **fields))

    def answer(self, question_id: str, text: str, **fields: Any) -> dict[str, Any]:
        """Answer a question that the run asked a person."""
        return self._wait(self._handle.answer(question_id, text, **fields))

    def extend(self, **more: Any) -> dict[str, Any]:
        """Raise limits of the run; fields of `Handle.extend`."""
        return self._wait(self._handle.extend(**more))

    def stop(self, reason: str | None = None) -> dict[str, Any]:
        """End the run after its present step."""
        return self._wait(self._handle.stop(reason))

    def cancel(self) -> None:
        """Cancel the run."""
        self._wait(self._handle.cancel())


class Local:
    """A server and a worker in this process; made by `local`, used in a `with` block."""

    def __init__(
        self,
        *served: Agent | str,
        data_dir: Path | str | None = None,
        events_file: Path | str | None = None,
        on_event: OnEvent = None,
    ) -> None:
        for item in served:
            if not isinstance(item, Agent | str):
                raise ConfigError(f"perdure.local: {item!r:.80} is no Agent, and no name of a file or module")
        check_path("data_dir", data_dir)
        check_sinks(events_file, on_event)
        settings = WorkerSettings.parse(os.environ)
        folder = Path(settings.data_dir if data_dir is None else data_dir).absolute()
        events = settings.events_file if events_file is None else Path(events_file)
        changed = {"task_queue": queue_of_script(), "data_dir": folder, "events_file": events}
        self._settings = settings.model_copy(update=changed)
        self._on_event = on_event
        self._served = served
        self._server = SharedServer(folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure-local", daemon=True)
        self._client: Client | None = None
        self._worker: LocalWorker | None = None

    # --- what callers use ---------------------------------------------------------------------------------------------

    def run(self, agent: Agent | str, prompt: str | None = None, **fields: Any) -> RunResult:
        """Run an agent to its result; fields of `Client.start`.

        Where a run of the given `id` exists, of this process or an earlier one, its result is waited for instead.
        Raises RunFailed, RunCancelled, InvalidInput, AlreadyStarted where that run is another agent's.
        """
        return self.start(agent, prompt, **fields).result()

    def start(self, agent: Agent | str, prompt: str | None = None, **fields: Any) -> LocalRun:
        """Start a run without waiting for it, or attach to the one of the given `id`."""
        client, worker = self._opened()
        if isinstance(agent, Agent):
            self._wait(worker.serve(agent))
        elif not worker.serves:
            raise ConfigError(f"no agent is served yet; give the Agent instead of {agent!r}, or perdure.local(agent)")
        return self._run_of(self._wait(client.start(agent, prompt, **{"if_exists": "attach", **fields})))

    def stream(
        self, agent: Agent | str, prompt: str | None = None, **fields: Any
    ) -> Generator[StreamEvent, None, None]:
        """Run an agent and tell what happens in it until its end; see `run` and `Handle.stream`."""
        return self.start(agent, prompt, **fields).stream()

    def handle(self, id: str) -> LocalRun:
        """A run by its id; raises ConfigError for an open one that nothing here or elsewhere could go on with."""
        return self._run_of(self._opened()[0].handle(id))

    def list(self, query: str | None = None, limit: int = 50) -> list[RunSummary]:
        """The newest runs of the folder; see `Client.list`."""
        return self._wait(self._opened()[0].list(query, limit))

    def approvals(self) -> Calls:
        """All calls that wait for a decision."""
        return self._wait(self._opened()[0].approvals())

    # --- its life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _open(self) -> None:
        add_app_path()
        from perdure.local_worker import LocalWorker  # imports the runtime, which the path above leads to

        self._worker = worker = LocalWorker(self._served, self._settings, self._on_event)
        connection = self._wait(worker.connect(self._server.open().address))
        self._client = Client(connection, task_queue=self._settings.task_queue)

    def close(self) -> None:
        """Stop the worker, which finishes what must not be cut, and the server, unless another process uses it."""
        worker, self._worker, self._client = self._worker, None, None
        if worker is not None:
            self._wait(worker.stop())
        if self._thread.is_alive():
            self._wait(_settle())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._server.close()

    def _opened(self) -> tuple[Client, LocalWorker]:
        if self._client is None or self._worker is None:
            raise ConfigError("perdure.local() is not open; use it as `with perdure.local() as p:`")
        return self._client, self._worker

    def _run_of(self, handle: Handle) -> LocalRun:
        """The run for callers, unless waiting for it would be for ever."""
        client, worker = self._opened()
        described = self._wait(handle.describe())
        if described.close_time is None:
            own = described.task_queue == client.task_queue
            if own and not worker.serves:
                raise ConfigError(f"run {handle.id!r} is open; say which agent goes on with it: perdure.local(agent)")
            if not own and self._wait(missing_worker(client.temporal, described.task_queue)):
                raise ConfigError(f"run {handle.id!r} is open, and {whose(described.task_queue)}")
        hear = partial(worker.listen, handle.id)
        return LocalRun(handle, self._wait, partial(watch, client.temporal, handle, listening=hear))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the loop beside; an interrupt of the caller cancels it there."""
        future = asyncio.run_coroutine_threadsafe(self._guarded(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work, or for the end of the worker that it may be waiting for."""
        if self._worker is None:
            return await work
        task = asyncio.ensure_future(work)
        try:
            await self._worker.alive_until(task)
            return await task
        finally:
            task.cancel()


def local(
    *served: Agent | str,
    data_dir: Path | str | None = None,
    events_file: Path | str | None = None,
    on_event: OnEvent = None,
) -> Local:
    """Agents without any server: `with perdure.local() as p: p.run(agent, "...").output`.

    `served` are agents, files or modules to serve from the start, so that runs of an earlier process of the same script
    go on; an agent given to `run` is served from then on. `data_dir` (default `PERDURE_DATA_DIR`, else `.perdure`)
    keeps everything. A process that is ended by force (SIGTERM without a handler, SIGKILL) leaves its server running:
    the next `perdure.local` or `perdure dev` on the folder takes it over and stops it at its end.
    Every event of the runs is appended to `events_file`, a line of JSON each, and given to `on_event`, in a thread
    beside; it may be async. Both get it redacted, and can neither slow nor harm a run.
    Raises ConfigError, EmbeddedServerError.
    """
    return Local(*served, data_dir=data_dir, events_file=events_file, on_event=on_event)


def queue_of_script() -> str:
    """A queue that every process of the running script has and no other: another one's worker lacks its agents."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        return QUEUE
    path = Path(script).resolve()
    return f"{QUEUE}-{path.stem}-{sha256(str(path).encode()).hexdigest()[:8]}"


def whose(queue: str) -> str:
    """What goes on with the runs of a queue that nothing here serves; a queue of `queue_of_script` tells the script."""
    if queue == QUEUE:
        return "belongs to an interactive session; go on with it in one, or give another id"
    script = re.fullmatch(rf"{QUEUE}-(.+)-[0-9a-f]{{8}}", queue)
    if script is None:
        return f"no worker serves its queue {queue!r}; start one with `perdure dev`, or give another id"
    return (
        f"belongs to the script {script[1]}.py, which does not run; run it, from the folder where it was when it began "
        "the run (a script that was moved or renamed is another one), or give another id"
    )


async def _next(events: AsyncIterator[StreamEvent]) -> StreamEvent | None:
    return await anext(events, None)


async def _settle() -> None:
    """End what is left on the loop, so that nothing of it touches the interpreter while that shuts down."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()
