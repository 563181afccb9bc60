"""The deploy gate: `perdure replay` plays the histories of runs against the code of this installation."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated

import typer

from perdure.cli.histories import Candidate, find_files, of_files, of_query, of_runs
from perdure.cli.output import counted, line, note, show, show_json, show_table
from perdure.cli.replay_pool import Found, replay_all
from perdure.cli.session import Json, with_client
from perdure.client import OPEN, Client
from perdure.durations import parse_duration
from perdure.errors import ConfigError

MOST_JOBS = 8
EACH = 100
"""So many runs between two lines of progress, where no terminal shows a counter."""

ADVICE: Mapping[str, str] = {
    "differs": (
        "a worker with this code cannot go on with such runs: they stick until it is mended. Keep the old order of "
        "commands for them with `workflow.patched`, or let workers of the old code finish them (worker versioning), or "
        "wait for their end"
    ),
    "failed": "this code raises while it replays, so the runs stick: mend it, then replay again",
    "timeout": "a worker would give such a task up after 10 s and try it again for ever: mend what loops or waits",
    "no_store": (
        "nothing is known about these: give the PERDURE_* settings of the store that their workers use, or replay "
        "histories that `perdure export` has written where the store can be reached"
    ),
    "unreadable": "write the file with `perdure export ID --output FILE` or `temporal workflow show -w ID -o json`",
    "foreign": "another program runs this workflow type: leave it out, or look whether it is the right namespace",
    "missing": "look for its id with `perdure list`; look at TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE",
}
"""What to do, by the result of a replay."""

WORDS: Mapping[str, str] = {"no_store": "no store"}


def replay(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID...]",
            help="Runs: workflow ids, or id:run_id for a certain run of a chain. (default: all open runs)",
            show_default=False,
        ),
    ] = None,
    history: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE...",
            help="Files with histories as `perdure export` or `temporal workflow show -o json` writes them, or folders "
            "of such files. No server is asked.",
        ),
    ] = None,
    query: Annotated[str | None, typer.Option(help="Runs that this visibility query of Temporal finds.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many runs, the newest first. (default: all)")
    ] = None,
    timeout: Annotated[str, typer.Option(help="How long one replay may take.")] = "60s",
    jobs: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes that replay. (default: one a core, at most 8)")
    ] = None,
    json: Json = False,
) -> None:
    """Replay histories against this code: the gate before a deploy.

    Each history must give exactly the commands that it holds, else its run would stick on a worker with this code.
    Nothing is executed: no model, no tool. The agents file is not needed, for every run carries its frozen spec.

    The exit code is 0 if all replay, 1 if one does not, 2 for wrong usage, 3 without a connection.

    Examples: perdure replay; perdure replay inv-42; perdure replay --history tests/histories
    """
    seconds = _seconds(timeout)
    _check(given, history, query, limit)
    progress = Progress(sys.stderr.isatty())
    workers = jobs or min(MOST_JOBS, os.cpu_count() or 1)

    async def play(candidates: AsyncIterator[Candidate]) -> list[Found]:
        return await replay_all(candidates, jobs=workers, seconds=seconds, told=progress.told)

    async def work(client: Client) -> list[Found]:
        return await play(of_runs(client, given) if given else of_query(client, query or OPEN, limit))

    if history:
        files = find_files([*history, *(given or ())])
        workers = min(workers, len(files))
        found = asyncio.run(play(of_files(files)))
    else:
        workers = min(workers, len(given)) if given else workers
        found = with_client(work)
    progress.end()
    show_json(found) if json else _show(found, query)
    raise typer.Exit(0 if all(one["result"] == "fine" for one in found) else 1)


def _seconds(timeout: str) -> float:
    try:
        return parse_duration(timeout).total_seconds()
    except ValueError as error:
        raise ConfigError(f"--timeout: {error}") from None


def _check(given: list[str] | None, history: list[str] | None, query: str | None, limit: int | None) -> None:
    if query is not None and (given or history):
        raise ConfigError("--query: give ids, --history or --query, not two of them")
    if limit is not None and (given or history):
        raise ConfigError("--limit: is for the runs that a query finds")


class Progress:
    """Tells people on standard error how far it is."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._done: Counter[str] = Counter()

    def told(self, found: Found) -> None:
        """One more has ended."""
        self._done["fine" if found["result"] == "fine" else "not fine"] += 1
        if self._terminal:
            print(f"\rreplayed {self._said()}", end="", file=sys.stderr, flush=True)
        elif self._done.total() % EACH == 0:
            note(f"replayed {self._said()}")

    def end(self) -> None:
        """Leave the line to what follows."""
        if self._terminal and self._done:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _said(self) -> str:
        return f"{self._done.total()}, {self._done['fine']} fine"


def _show(found: Sequence[Found], query: str | None) -> None:
    if not found:
        show("no runs, so nothing was replayed" if query else "no open runs, so nothing was replayed")
        return
    rows = [(one["run"], one["run_id"], one["events"], WORDS.get(one["result"], one["result"])) for one in found]
    show_table(("run", "run id", "events", "result"), rows)
    counts = Counter(one["result"] for one in found)
    for result, advice in ADVICE.items():
        for one in (one for one in found if one["result"] == result):
            show()
            show(f"{one['run']}: {_told(one)}", "red")
        if counts[result]:
            show(f"  {advice}")
    show()
    show(f"this code replays {counts['fine']} of {counted(len(found), 'run')}")


def _told(found: Found) -> str:
    message = line(found.get("message", ""), 600)
    match found["result"]:
        case "differs" if found.get("event_id"):
            wants = found.get("wanted") or ("nothing there" if "No command" in message else "something else")
            return (
                f"differs at event {found['event_id']}: the history has {found['recorded']}, this code wants {wants} "
                f"({message})"
            )
        case "differs":
            return f"differs: {message}"
        case "failed" if found.get("event_id"):
            return f"raises after event {found['event_id']} ({found['recorded']}): {message}"
        case _:
            return message
