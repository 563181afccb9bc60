"""Commands that show runs: list, show."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from perdure.cli import completion, offers
from perdure.cli.family_tree import result_of, tree_of
from perdure.cli.output import clean, moment, note, short_json, show, show_json, show_rich, show_table
from perdure.cli.pages import read_page
from perdure.cli.session import Json, RunId, with_client
from perdure.cli.tree_view import draw, work_of
from perdure.client import Client, quoted
from perdure.diagnosis import STUCK
from perdure.status import RunStatus, RunSummary


class State(StrEnum):
    """States of a run."""

    RUNNING = "running"
    WAITING_APPROVAL = "waiting_approval"
    WAITING_ANSWER = "waiting_answer"
    WAITING_LIMIT = "waiting_limit"
    WAITING_MESSAGE = "waiting_message"
    CLOSED = "closed"


def list_runs(
    query: Annotated[str | None, typer.Option(help="A visibility query of Temporal.")] = None,
    state: Annotated[State | None, typer.Option(help="Only runs in this state.")] = None,
    agent: Annotated[
        str | None, typer.Option(help="Only runs of this agent.", autocompletion=completion.agents)
    ] = None,
    stuck: Annotated[bool, typer.Option("--stuck", help="Only open runs whose workflow task fails.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, newest first.")] = 50,
    every: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    page: Annotated[str | None, typer.Option(help="Go on where a list ended: the mark that it printed.")] = None,
    json: Json = False,
) -> None:
    """Runs with their state, agent and cost.

    Example: perdure list --state waiting_approval --agent clerk
    """
    terms = (query, _of_state(state), STUCK if stuck else None, agent and f"PerdureAgent='{quoted(agent)}'")
    wanted = " AND ".join(f"({term})" for term in terms if term)
    runs, more = with_client(lambda client: read_page(client, wanted, None if every else limit, page))
    if json:
        show_json(runs)
    elif runs:
        columns = ("id", "agent", "state", "started", "steps", "tokens", "cost", "prompt")
        show_table(columns, [_row(run) for run in runs])
    else:
        show("no runs")
    if more is not None:
        note(f"there are more: go on with --page {more}, or give --all")
    failing = [run.id for run in runs if run.problems]
    if failing and not json:
        note(f"stuck, their workflow task fails: {len(failing)}; `perdure show {failing[0]}` says why")


def _of_state(state: State | None) -> str | None:
    if state is None:
        return None
    if state is State.CLOSED:
        return "ExecutionStatus!='Running'"
    said = f"PerdureState='{state}'"
    if state is State.RUNNING:  # or it has not said yet: `open` in the list
        said = f"({said} OR PerdureState IS NULL)"
    return f"{said} AND ExecutionStatus='Running'"


def _row(run: RunSummary) -> tuple[object, ...]:
    ended = run.outcome or run.temporal
    state = ended if run.closed else run.state
    return (
        run.id,
        run.agent,
        f"{state}, stuck" if run.problems else state,
        moment(run.started),
        run.steps,
        run.tokens,
        "" if run.cost_usd is None else f"${run.cost_usd:.6g}",
        clean(run.prompt or "")[:60],
    )


def show_run(id: RunId, json: Json = False) -> None:
    """One run: its state, its steps with their calls and decisions, its child runs, its result.

    Example: perdure show inv-42
    """

    async def work(client: Client) -> None:
        tree = await tree_of(client, id)
        result = await result_of(client.handle(id), tree.status)
        if json:
            show_json({"status": tree.status, "result": result, **tree.model_dump(mode="json", exclude={"status"})})
            return
        show_status(tree.status)
        show()
        show_rich(draw(tree))
        if result and result.get("output"):
            show()
            show(result["output"])

    with_client(work)


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
        "spent": f"{work_of(status)}, ${status.cost_usd}" if "usage" in status.model_fields_set else "unknown",
    }
    for name, value in shown.items():
        if value:
            show(f"{name:<9} {value}", "red" if name == "stuck" else "")
    for call in status.pending:
        asked = f"{call.call_id} {call.tool} {short_json(call.arguments)}"
        show(f"{'waits':<9} {asked}: {offers.approve(status.id, call.call_id)}", "yellow")
    for question in status.questions:
        options = f" ({' | '.join(question.options)})" if question.options else ""
        answer = offers.answer(status.id, question.question_id, question.options)
        show(f"{'asks':<9} {question.text}{options}: {answer}", "yellow")
    if status.paused:
        until = moment(status.paused_until)
        show(f"{'paused':<9} on {status.paused} until {until}: {offers.extend(status.id, status.paused)}", "yellow")
