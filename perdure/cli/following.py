"""Commands that follow a run: run, events."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer

from perdure.cli import completion
from perdure.cli.events import as_cloud_event, plain
from perdure.cli.follow import SERVER_WAIT, Follower, as_recorded, on_terminal, show_live
from perdure.cli.output import note, note_json, show, show_json
from perdure.cli.screen import Screen
from perdure.cli.session import Json, RunId, read_json, read_pairs, with_client
from perdure.client import Client
from perdure.connection import rpc_errors
from perdure.diagnosis import missing_worker
from perdure.errors import AlreadyStarted, NoAnswer, RunCancelled, RunFailed, Unreachable
from perdure.handle import Handle
from perdure.status import RunEvent, StreamEvent
from perdure.streaming import watch

INTERRUPTED = 130


class Format(StrEnum):
    """Formats of the event log."""

    TEXT = "text"
    JSONL = "jsonl"
    CLOUDEVENTS = "cloudevents"


def run(
    agent: Annotated[
        str,
        typer.Argument(
            help="Name of an agent that a worker serves.", show_default=False, autocompletion=completion.agents
        ),
    ],
    prompt: Annotated[str, typer.Argument(help="What it is to do.", show_default=False)],
    follow: Annotated[bool, typer.Option(help="Show the run until its end.")] = True,
    json: Json = False,
    id: Annotated[str | None, typer.Option(help="Workflow id; refused where it exists.")] = None,
    data: Annotated[str | None, typer.Option(help="What the run is about: JSON, or @file with JSON.")] = None,
    user: Annotated[str | None, typer.Option(help="Whom it is for.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Which tenant it is for.")] = None,
    limit: Annotated[list[str] | None, typer.Option(help="A lower limit, such as steps=5; may be repeated.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="name=value; may be repeated.")] = None,
) -> None:
    """Start a run and follow it: its steps, its approvals, its result.

    Example: perdure run clerk "Pay invoice 42" --id inv-42
    """
    fields: dict[str, Any] = {
        "id": id,
        "data": read_json(data, "--data"),
        "user": user,
        "tenant": tenant,
        "limits": read_pairs(limit, "--limit") or None,
        "metadata": read_pairs(metadata, "--metadata") or None,
    }
    started: list[str] = []

    async def work(client: Client) -> int:
        handle = await client.start(agent, prompt, **fields)
        started.append(handle.id)
        if not follow:
            _show_started(handle, json)
            return await _warn_of_missing_worker(client)
        return await _follow(client, handle, json)

    try:
        code = with_client(work)
    except AlreadyStarted as error:
        if json:
            raise
        note(
            f"run {error.id!r} exists already and is {error.state}; see it with `perdure show {error.id}`, follow it "
            f"with `perdure events {error.id} --follow`, or give another id"
        )
        code = 1
    except Unreachable:
        if started:
            note(_how_to_return(started[0]))
        raise
    except KeyboardInterrupt:
        if started:
            note(_how_to_return(started[0]))
        elif id is not None:
            note(f"whether run {id} has begun is not known; `perdure show {id}` tells")
        code = INTERRUPTED
    raise typer.Exit(code)


def _how_to_return(id: str) -> str:
    return (
        f"run {id} goes on; follow it with `perdure events {id} --follow`, see it with `perdure show {id}`, "
        f"end it with `perdure cancel {id}`"
    )


def _show_started(handle: Handle, json: bool) -> None:
    if json:
        show_json({"id": handle.id})
        return
    show(f"started {handle.id}")
    show(f"follow it with `perdure events {handle.id} --follow`, see it with `perdure show {handle.id}`")


async def _warn_of_missing_worker(client: Client) -> int:
    """1 where nobody would take the run on, for nobody stays to see it."""
    with rpc_errors(client.temporal):
        missing = await missing_worker(client.temporal, client.task_queue)
    if missing is not None:
        note(f"{missing}; the run waits until one does")
    return 0 if missing is None else 1


async def _follow(client: Client, handle: Handle, json: bool) -> int:
    screen = Screen()
    follower = Follower(handle, screen)
    if not json:
        screen.line(f"run {handle.id}", "dim")
    try:
        await follower.follow(client, ask=on_terminal() and not json, quiet=json)
    except NoAnswer as error:  # it has ended; only its last events cannot be read
        note(error)
    try:
        result: dict[str, Any] = (await handle.result()).model_dump(mode="json")
    except RunFailed as error:
        note_json({"error": str(error), "type": "RunFailed", "code": 1}) if json else note(error)
        result = error.result
    except RunCancelled as error:
        note(error)
        result = {"outcome": error.status.get("outcome") or "cancelled", "status": error.status}
    if json:
        show_json({"id": handle.id, **result})
    elif result.get("output") and result["output"] != follower.answer:
        show()
        show(result["output"])
    return 0 if result.get("outcome") == "success" else 1


def events(
    id: RunId,
    after: Annotated[int, typer.Option(min=0, help="Only events above this number.")] = 0,
    format: Annotated[
        Format, typer.Option(help="Lines for people, or one JSON object a line: as it is, or as a CloudEvent.")
    ] = Format.TEXT,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until the run has ended, with the text that is being written.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """The event log of a run.

    Example: perdure events inv-42 --follow
    """
    format = Format.JSONL if json else format
    cursor = after

    async def work(client: Client) -> None:
        nonlocal cursor
        handle = client.handle(id)
        printed = _Printer(format, client.temporal.namespace, id)
        if not follow:
            for event in (await handle.events(after)).events:
                printed(event)
            return
        async for told in watch(client.temporal, handle, after, server=SERVER_WAIT, worker=math.inf):
            printed(told)
            cursor = told.n or cursor

    try:
        with_client(work)
    except KeyboardInterrupt:
        note(f"go on with `perdure events {id} --follow --after {cursor}`")
        raise typer.Exit(INTERRUPTED) from None


class _Printer:
    """Prints the events of one run in a format."""

    def __init__(self, format: Format, namespace: str, run: str) -> None:
        self._format = format
        self._namespace = namespace
        self._run = run
        self._screen = Screen()

    def __call__(self, event: StreamEvent | RunEvent) -> None:
        if self._format is Format.JSONL:
            show_json(event.model_dump(mode="json", exclude_unset=True))
        elif self._format is Format.CLOUDEVENTS:
            show_json(as_cloud_event(event, self._namespace, self._run))
        elif isinstance(event, RunEvent):
            self._screen.line(plain(event))
        elif not show_live(self._screen, event):
            shown = self._screen.take_text() if event.type == "reply" else ""
            recorded = as_recorded(event.model_copy(update={"text": None}) if shown else event)
            self._screen.line(plain(recorded))
