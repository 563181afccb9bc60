"""Where histories come from: runs of a server, and files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from perdure.cli.session import settings
from perdure.client import RUNS, Client
from perdure.connection import rpc_errors
from perdure.contracts import AGENT_WORKFLOW
from perdure.errors import ConfigError, NoSuchRun, PerdureError

if TYPE_CHECKING:
    from activities.stores.base import BlobStore

_RUN_ID = re.compile(r"(.+):([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_SUFFIX = re.compile(r"_[0-9]+$")


class NotReplayable(Exception):
    """There is nothing that could be replayed: `result` is the word for it."""

    def __init__(self, result: str, message: str) -> None:
        super().__init__(message)
        self.result = result


@dataclass
class Candidate:
    """A history that is to be replayed; it is read when its turn has come."""

    name: str
    """The run's workflow id, or the file."""
    read: Callable[[], Awaitable[WorkflowHistory]]
    """The whole history, with every payload in it; raises NotReplayable."""
    run_id: str | None = None


def split(given: str) -> tuple[str, str | None]:
    """Workflow id and run id of `id:run_id`; an id may have colons of its own."""
    found = _RUN_ID.fullmatch(given)
    return (found[1], found[2]) if found else (given, None)


async def of_runs(client: Client, given: Sequence[str]) -> AsyncIterator[Candidate]:
    """The histories of runs by id, or `id:run_id`."""
    for one in given:
        id, run_id = split(one)

        async def read(id: str = id, run_id: str | None = run_id) -> WorkflowHistory:
            try:
                return await fetch(client, id, run_id)
            except NoSuchRun as error:
                raise NotReplayable("missing", str(error)) from None

        yield Candidate(id, read, run_id)


async def of_query(client: Client, query: str, limit: int | None) -> AsyncIterator[Candidate]:
    """The histories of the runs that a visibility query finds, the newest first."""
    with rpc_errors(client.temporal):
        async for found in client.temporal.list_workflows(f"{RUNS} AND ({query})", limit=limit):

            async def read(id: str = found.id, run_id: str = found.run_id) -> WorkflowHistory:
                try:
                    return await fetch(client, id, run_id)
                except NoSuchRun as error:  # its retention has ended meanwhile
                    raise NotReplayable("missing", str(error)) from None

            yield Candidate(found.id, read, found.run_id)


async def of_files(files: Sequence[Path]) -> AsyncIterator[Candidate]:
    """The histories of files."""
    for file in files:

        async def read(file: Path = file) -> WorkflowHistory:
            return await complete(parse(file))

        yield Candidate(str(file), read)


def find_files(given: Sequence[str]) -> list[Path]:
    """The files, and all `*.json` of the folders; raises ConfigError for what does not exist or holds none."""
    found: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            inside = sorted(path.glob("*.json"))
            if not inside:
                raise ConfigError(f"--history: folder {path} has no *.json")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise ConfigError(f"--history: there is no {path}")
    return found


async def fetch(client: Client, id: str, run_id: str | None = None) -> WorkflowHistory:
    """The history of a run, complete; raises NoSuchRun, or NotReplayable where its store does not have a payload."""
    temporal = client.temporal
    with rpc_errors(temporal, id):
        if run_id is None:  # a run that goes on as new between two pages would give half of each
            run_id = (await temporal.get_workflow_handle(id).describe()).run_id
        history = await temporal.get_workflow_handle(id, run_id=run_id).fetch_history()
    return await complete(history)


def parse(file: Path) -> WorkflowHistory:
    """The history in a file; raises NotReplayable that says what is wrong with it."""
    try:
        given: Any = json.loads(file.read_bytes())
    except OSError as error:
        raise NotReplayable("unreadable", f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise NotReplayable("unreadable", f"is no JSON: {error}") from None
    if isinstance(given, list):  # as Temporal's web UI has saved them
        given = {"events": given}
    if not isinstance(given, dict) or not isinstance(given.get("events"), list):
        raise NotReplayable("unreadable", "is JSON, but no history: it has no list of `events`")
    try:
        return WorkflowHistory.from_json(_SUFFIX.sub("", file.stem), {"events": given["events"]})
    except Exception as error:  # the parser raises what it comes across
        raise NotReplayable("unreadable", f"is no history: {error}"[:400]) from None


async def complete(history: WorkflowHistory) -> WorkflowHistory:
    """The history of an agent's run with its own workflow id and every payload; raises NotReplayable."""
    from activities.export import inlined

    events, store = history.events, _store()
    _check(events)
    try:
        whole = await inlined(history, store)
    except (PerdureError, OSError) as error:
        raise NotReplayable("no_store", str(error)) from None
    # The ids of child runs derive from it.
    id = events[0].workflow_execution_started_event_attributes.workflow_id or history.workflow_id
    return WorkflowHistory(id, list(whole.events))


@lru_cache(maxsize=1)
def _store() -> BlobStore:
    from activities.stores.choice import choose_store

    return choose_store(settings(), os.environ)


def lost_value(history: WorkflowHistory) -> int | None:
    """The first event with a value that the store does not have: it may be a stranger's, or the store another one."""
    from activities.export import payloads
    from activities.stores.driver import UNDECODABLE

    return next(
        (e.event_id for e in history.events if any(p.metadata.get("encoding") == UNDECODABLE for p in payloads(e))),
        None,
    )


def _check(events: Sequence[HistoryEvent]) -> None:
    if not events:
        raise NotReplayable("unreadable", "is empty: it has no events")
    first = events[0]
    if first.WhichOneof("attributes") != "workflow_execution_started_event_attributes":
        raise NotReplayable("unreadable", f"does not begin with the start of a run, but with event {first.event_id}")
    wrong = next((e.event_id for number, e in enumerate(events, 1) if e.event_id != number), None)
    if wrong is not None:
        raise NotReplayable("unreadable", f"is not complete: events are missing before event {wrong}")
    kind = first.workflow_execution_started_event_attributes.workflow_type.name
    if kind != AGENT_WORKFLOW:
        raise NotReplayable("foreign", f"is a run of workflow type {kind!r}, not of {AGENT_WORKFLOW}")
