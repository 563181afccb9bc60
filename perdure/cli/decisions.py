"""Commands that speak to a run: approvals, approve, deny, say, answer, stop, cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from perdure.cli.output import moment, note, short_json, show, show_json, show_table
from perdure.cli.session import By, Json, RunId, read_json, who, with_client
from perdure.client import Client
from perdure.errors import NoAnswer, RunCancelled, RunFailed
from perdure.handle import Handle
from perdure.status import PendingCall

CallId = Annotated[
    str | None,
    typer.Argument(metavar="[CALL]", help="The call; may be left out while exactly one waits.", show_default=False),
]
Reason = Annotated[str | None, typer.Option(help="Why; the model is told where a call is denied.")]
Digest = Annotated[str | None, typer.Option(help="Refuse unless the call that waits has this digest.")]


def approvals(json: Json = False) -> None:
    """The inbox: every call of every run that waits for a decision."""

    silent: dict[str, NoAnswer] = {}

    async def work(client: Client) -> list[PendingCall]:
        return await client.approvals(on_silent=silent.__setitem__)

    waiting = with_client(work)
    if json:
        show_json(waiting)
    elif not waiting and not silent:
        show("nothing waits for approval")
    elif waiting:
        columns = ("run", "call", "tool", "arguments", "until", "approved", "asked because")
        show_table(columns, [_row(call) for call in waiting])
        show("decide with `perdure approve RUN CALL` or `perdure deny RUN CALL --reason ...`")
    if silent:
        runs = "1 run" if len(silent) == 1 else f"{len(silent)} runs"
        note(f"{runs} could not be asked: {', '.join(sorted(silent))}; {next(iter(silent.values()))}")
        raise typer.Exit(1)


def _row(call: PendingCall) -> tuple[object, ...]:
    given = sum(1 for decision in call.decisions if decision.get("approve"))
    approved = f"{given} of {call.quorum}"
    return call.run, call.call_id, call.tool, short_json(call.arguments), moment(call.deadline), approved, call.reason


def approve(
    id: RunId,
    call: CallId = None,
    by: By = None,
    reason: Reason = None,
    arguments: Annotated[str | None, typer.Option(help="Run it with these instead: JSON, or @file.")] = None,
    digest: Digest = None,
    json: Json = False,
) -> None:
    """Approve a call that waits."""
    given = {"reason": reason, "arguments": read_json(arguments, "--arguments"), "digest": digest}
    answer = _tell(id, lambda handle: handle.approve(call, by=who(by), **given))
    _show_decision(id, "approved", answer, json)


def deny(
    id: RunId,
    call: CallId = None,
    by: By = None,
    reason: Reason = None,
    digest: Digest = None,
    json: Json = False,
) -> None:
    """Deny a call that waits."""
    answer = _tell(id, lambda handle: handle.deny(call, by=who(by), reason=reason, digest=digest))
    _show_decision(id, "denied", answer, json)


def say(
    id: RunId,
    text: Annotated[str, typer.Argument(help="A further message of the user.", show_default=False)],
    json: Json = False,
) -> None:
    """Say something further to a run; it is taken in before the next model call."""
    answer = _tell(id, lambda handle: handle.say(text))
    _show(answer, f"said to {id}", json)


def answer(
    id: RunId,
    question: Annotated[str, typer.Argument(help="The question's id, as `perdure show` has it.", show_default=False)],
    text: Annotated[str, typer.Argument(help="The answer.", show_default=False)],
    by: By = None,
    json: Json = False,
) -> None:
    """Answer a question that a run asked a person."""
    taken = _tell(id, lambda handle: handle.answer(question, text, by=who(by)))
    _show(taken, f"answered {question} of {id}", json)


def stop(id: RunId, reason: Annotated[str | None, typer.Option(help="Why.")] = None, json: Json = False) -> None:
    """End a run after its present step, keeping what there is."""
    taken = _tell(id, lambda handle: handle.stop(reason))
    _show(taken, f"{id} ends after its present step", json)


def cancel(id: RunId, json: Json = False) -> None:
    """Cancel a run and wait until it has ended."""

    async def work(client: Client) -> str:
        handle = client.handle(id)
        await handle.cancel()
        try:
            return (await handle.result()).outcome.value
        except RunCancelled:
            return "cancelled"
        except RunFailed as error:
            return str(error.result.get("outcome"))

    outcome = with_client(work)
    _show({"id": id, "outcome": outcome}, f"{id} ended: {outcome}", json)
    raise typer.Exit(0 if outcome == "cancelled" else 1)


def _tell(id: str, message: Callable[[Handle], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    async def work(client: Client) -> dict[str, Any]:
        return await message(client.handle(id))

    return with_client(work)


def _show_decision(id: str, verdict: str, answer: dict[str, Any], json: bool) -> None:
    more = "; it waits for further approvers" if answer.get("open") else ""
    _show(answer, f"{verdict} {answer.get('call_id')} of {id}{more}", json)


def _show(answer: dict[str, Any], words: str, json: bool) -> None:
    show_json(answer) if json else show(words)
