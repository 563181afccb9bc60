"""Commands that start runs and show them: run, list, show, events."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from shlex import quote
from typing import Annotated, Any

import typer

from perdure.cli.events import CallBook, in_words, plain, style_of
from perdure.cli.follow import POLL, Follower, how_to_approve, on_terminal, show_event
from perdure.cli.output import clean, moment, note, short_json, show, show_json, show_table
from perdure.cli.session import Json, RunId, read_json, read_pairs, with_client
from perdure.client import Client, quoted
from perdure.errors import AlreadyStarted, NoAnswer, RunCancelled, RunFailed
from perdure.handle import Handle
from perdure.status import EventPage, RunEvent, RunStatus, RunSummary

INTERRUPTED = 130


class Format(StrEnum):
    """Formats of the event log."""

    TEXT = "text"
    JSONL = "jsonl"


class State(StrEnum):
    """States of a run."""

    RUNNING = "running"
    WAITING_APPROVAL = "waiting_approval"
    WAITING_ANSWER = "waiting_answer"
    CLOSED = "closed"


def run(
    agent: Annotated[str, typer.Argument(help="Name of an agent that a worker serves.", show_default=False)],
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
    """Start a run and follow it: its steps, its approvals, its result."""
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
            return 0
        return await _follow(client, handle, json)

    try:
        code = with_client(work)
    except AlreadyStarted as error:
        note(
            f"run {error.id!r} exists already and is {error.state}; see it with `perdure show {error.id}`, follow it "
            f"with `perdure events {error.id} --follow`, or give another id"
        )
        code = 1
    except KeyboardInterrupt:
        if started:
            id = started[0]
            note(f"run {id} goes on; see it with `perdure show {id}`, end it with `perdure cancel {id}`")
        code = INTERRUPTED
    raise typer.Exit(code)


def _show_started(handle: Handle, json: bool) -> None:
    if json:
        show_json({"id": handle.id})
        return
    show(f"started {handle.id}")
    show(f"follow it with `perdure events {handle.id} --follow`, see it with `perdure show {handle.id}`")


async def _follow(client: Client, handle: Handle, json: bool) -> int:
    asks = on_terminal() and not json

    def told(event: RunEvent, book: CallBook) -> None:
        hint = None if asks else how_to_approve(event, handle.id)
        if not json:
            show_event(event, book)
        if hint is not None:
            print(clean(hint), file=sys.stderr if json else sys.stdout, flush=True)

    if not json:
        show(f"run {handle.id}", "dim")
    try:
        result: dict[str, Any] = (await Follower(client, handle, told).follow(ask=asks)).model_dump(mode="json")
    except RunFailed as error:
        note(error)
        result = error.result
    except RunCancelled as error:
        note(error)
        result = {"outcome": error.status.get("outcome") or "cancelled", "status": error.status}
    if json:
        show_json({"id": handle.id, **result})
    elif result.get("output"):
        show()
        show(result["output"])
    return 0 if result.get("outcome") == "success" else 1


def list_runs(
    query: Annotated[str | None, typer.Option(help="A visibility query of Temporal.")] = None,
    state: Annotated[State | None, typer.Option(help="Only runs in this state.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, newest first.")] = 50,
    json: Json = False,
) -> None:
    """Runs with their state, agent and cost."""
    terms = [f"({query})"] if query else []
    if state is State.CLOSED:
        terms.append("ExecutionStatus!='Running'")
    elif state is not None:
        terms.append(f"PerdureState='{state}' AND ExecutionStatus='Running'")
    if agent is not None:
        terms.append(f"PerdureAgent='{quoted(agent)}'")

    async def work(client: Client) -> list[RunSummary]:
        return await client.list(" AND ".join(terms) or None, limit)

    runs = with_client(work)
    if json:
        show_json(runs)
    elif not runs:
        show("no runs")
    else:
        columns = ("id", "agent", "state", "started", "steps", "tokens", "cost", "prompt")
        show_table(columns, [_row(run) for run in runs])


def _row(run: RunSummary) -> tuple[object, ...]:
    ended = run.outcome or run.temporal
    cost = "" if run.cost_usd is None else f"${run.cost_usd:.6g}"
    prompt = clean(run.prompt or "")[:60]
    return (
        run.id,
        run.agent,
        ended if run.closed else run.state,
        moment(run.started),
        run.steps,
        run.tokens,
        cost,
        prompt,
    )


def show_run(id: RunId, json: Json = False) -> None:
    """One run: its state, its steps with their calls and decisions, its result."""

    async def work(client: Client) -> None:
        handle = client.handle(id)
        status = await handle.status()
        result = await _result_of(handle, status)
        book, page = CallBook(), EventPage()
        if status.silent is None:
            page = await handle.events()
            book.read(await handle.conversation())
        if json:
            events = [event.model_dump(mode="json") for event in page.events]
            show_json({"status": status.model_dump(mode="json"), "result": result, "events": events})
            return
        show_status(status)
        _show_steps(page, book, status.silent)
        if result and result.get("output"):
            show()
            show(result["output"])

    with_client(work)


async def _result_of(handle: Handle, status: RunStatus) -> dict[str, Any] | None:
    if status.state != "closed":
        return None
    try:
        return (await handle.result()).model_dump(mode="json")
    except RunFailed as error:
        return error.result
    except RunCancelled:
        return None


def show_status(status: RunStatus) -> None:
    """Print a run as it is now."""
    ended = status.outcome or status.temporal
    shown = {
        "run": status.id,
        "agent": status.agent,
        "state": f"{ended}{f' ({status.reason})' if status.reason not in {None, ended} else ''}"
        if status.state == "closed"
        else status.state,
        "message": status.message,
        "doing": status.activity if status.state != "closed" else None,
        "stuck": status.stuck,
        "retrying": "; ".join(status.retrying) or None,
        "started": moment(status.started),
        "closed": moment(status.closed),
        "spent": f"{status.step} steps, {status.tool_calls} tool calls, {status.usage.total} tokens, ${status.cost_usd}"
        if "usage" in status.model_fields_set
        else "unknown",
    }
    for name, value in shown.items():
        if value:
            show(f"{name:<9} {value}", "red" if name == "stuck" else "")
    for call in status.pending:
        asked = f"{call.call_id} {call.tool} {short_json(call.arguments)}"
        show(f"{'waits':<9} {asked}: perdure approve {status.id} {call.call_id}", "yellow")
    for question in status.questions:
        options = f" ({' | '.join(question.options)})" if question.options else ""
        answer = quote(question.options[0]) if question.options else "TEXT"
        asked = f"{question.text}{options}: perdure answer {status.id} {question.question_id} {answer}"
        show(f"{'asks':<9} {asked}", "yellow")


def _show_steps(page: EventPage, book: CallBook, silent: str | None) -> None:
    show()
    if silent:
        show(f"its steps cannot be shown: {silent}", "red")
    if page.truncated:
        show("(older events have made room; Temporal's history of the run still has them)")
    for event in page.events:
        show(in_words(event, book), style_of(event))


def events(
    id: RunId,
    after: Annotated[int, typer.Option(min=0, help="Only events above this number.")] = 0,
    format: Annotated[Format, typer.Option(help="Lines for people, or one JSON object a line.")] = Format.TEXT,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run has ended.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """The event log of a run."""
    as_json = json or format is Format.JSONL

    async def work(client: Client) -> None:
        handle, cursor, told = client.handle(id), after, ""
        while True:
            closed = follow and (await handle.describe()).close_time is not None
            try:
                page = await handle.events(cursor)
            except NoAnswer as error:
                if not follow or closed:
                    raise
                if str(error) != told:
                    note(error)
                told = str(error)
                continue
            for event in page.events:
                show_json(event) if as_json else show(plain(event))
            cursor = page.last
            if not follow or closed:
                return
            await asyncio.sleep(POLL)

    try:
        with_client(work)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
