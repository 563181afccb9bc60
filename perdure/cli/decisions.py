"""Commands that speak to a run: approvals, approve, deny, say, answer, extend, stop, cancel; and decision-key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import typer

from perdure.cli import completion
from perdure.cli.output import counted, moment, note, short_json, show, show_json, show_table
from perdure.cli.session import By, Json, OpenRunId, read_json, read_text, who, with_client
from perdure.client import Client
from perdure.connection import rpc_errors
from perdure.decision_tokens import make_key
from perdure.diagnosis import missing_worker
from perdure.errors import ConfigError, NoAnswer, RunCancelled, RunFailed
from perdure.handle import Handle
from perdure.status import PendingCall

WaitingRunId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The run: its workflow id.", show_default=False, autocompletion=completion.waiting_run_ids
    ),
]
CANCEL_WAIT = 8.0
"""Seconds after which it is asked whether anybody is there who could end a cancelled run."""

CallId = Annotated[
    str | None,
    typer.Argument(
        metavar="[CALL]",
        help="The call; may be left out while exactly one waits.",
        show_default=False,
        autocompletion=completion.call_ids,
    ),
]
Reason = Annotated[str | None, typer.Option(help="Why; the model is told where a call is denied.")]
Digest = Annotated[str | None, typer.Option(help="Refuse unless the call that waits has this digest.")]
Reach = Annotated[
    Literal["call", "tool"] | None,
    typer.Option("--remember", help="Decide the same call, or every call of the tool, the same way from now on."),
]
Token = Annotated[
    str | None, typer.Option(help="Signed proof of who decides; @file reads it from a file.", show_default=False)
]


def approvals(json: Json = False) -> None:
    """The inbox: every call of every run that waits for a decision.

    Example: perdure approvals
    """

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
        runs, why = ", ".join(sorted(silent)), next(iter(silent.values()))
        note(f"{counted(len(silent), 'run')} could not be asked: {runs}; {why}")
        raise typer.Exit(1)


def _row(call: PendingCall) -> tuple[object, ...]:
    given = sum(1 for one in call.decisions if one.get("approve") and one.get("stage", 0) == call.stage)
    approved = f"{given} of {call.quorum}"
    return call.run, call.call_id, call.tool, short_json(call.arguments), moment(call.deadline), approved, call.reason


def approve(
    id: WaitingRunId,
    call: CallId = None,
    by: By = None,
    reason: Reason = None,
    arguments: Annotated[str | None, typer.Option(help="Run it with these instead: JSON, or @file.")] = None,
    digest: Digest = None,
    remember: Reach = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Approve a call that waits; `c2/c1` is the call c1 of the child run that c2 has started.

    Example: perdure approve inv-42 c1 --reason 'the invoice is real'
    """
    given = {"reason": reason, "arguments": read_json(arguments, "--arguments"), "digest": digest}
    given |= {"remember": remember, **_identity(by, token)}
    answer = _tell(id, lambda handle: handle.approve(call, **given))
    _show_decision(id, "approved", answer, json)


def deny(
    id: WaitingRunId,
    call: CallId = None,
    by: By = None,
    reason: Reason = None,
    digest: Digest = None,
    remember: Reach = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Deny a call that waits.

    Example: perdure deny inv-42 c1 --reason 'pay it next month'
    """
    given = {"reason": reason, "digest": digest, "remember": remember, **_identity(by, token)}
    answer = _tell(id, lambda handle: handle.deny(call, **given))
    _show_decision(id, "denied", answer, json)


def _identity(by: str | None, token: str | None) -> dict[str, str | None]:
    """Who decides: a token says so itself, else it is the given name or the user's."""
    return {"by": who(by), "token": None} if token is None else {"by": by, "token": read_text(token, "--token")}


def decision_key(json: Json = False) -> None:
    """A new pair of keys for signed decisions, as lines of an environment file; where each goes is said beside them.

    Example: perdure decision-key > keys.env
    """
    private, public = make_key()
    if json:
        show_json({"private": private, "public": public})
        return
    show(f"PERDURE_DECISION_PRIVATE_KEY={private}")
    note("the private key is secret: for the system that signs decisions, or workers whose notifications carry tokens")
    show(f"PERDURE_DECISION_KEYS={public}")
    note("the public key is for every worker whose runs are to believe such decisions; several with commas between")


def say(
    id: OpenRunId,
    text: Annotated[str, typer.Argument(help="A further message of the user.", show_default=False)],
    json: Json = False,
) -> None:
    """Say something further to a run; it is taken in before the next model call.

    Example: perdure say inv-42 'Only half of it.'
    """
    answer = _tell(id, lambda handle: handle.say(text))
    _show(answer, f"said to {id}", json)


def answer(
    id: OpenRunId,
    question: Annotated[
        str,
        typer.Argument(
            help="The question's id, as `perdure show` has it.",
            show_default=False,
            autocompletion=completion.question_ids,
        ),
    ],
    text: Annotated[str, typer.Argument(help="The answer.", show_default=False)],
    by: By = None,
    json: Json = False,
) -> None:
    """Answer a question that a run asked a person.

    Example: perdure answer inv-42 q-c1 'It did happen.'
    """
    taken = _tell(id, lambda handle: handle.answer(question, text, by=who(by)))
    _show(taken, f"answered {question} of {id}", json)


def extend(
    id: OpenRunId,
    steps: Annotated[int | None, typer.Option(min=1, help="So many model calls more.")] = None,
    tool_calls: Annotated[int | None, typer.Option(min=1, help="So many tool calls more.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="So many tokens more.")] = None,
    cost_usd: Annotated[str | None, typer.Option(help="So many US dollars more, such as 0.50.")] = None,
    deadline: Annotated[str | None, typer.Option(help="So much time more, such as 10m.")] = None,
    json: Json = False,
) -> None:
    """Raise limits of a run; one that is paused on a limit goes on.

    Example: perdure extend inv-42 --steps 10 --cost-usd 0.50
    """
    given = {"steps": steps, "tool_calls": tool_calls, "tokens": tokens, "cost_usd": cost_usd, "deadline": deadline}
    more: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not more:
        raise ConfigError("extend: say by how much, such as --steps 10")
    taken = _tell(id, lambda handle: handle.extend(**more))
    _show(taken, f"extended {id} by {', '.join(f'{name} {value}' for name, value in more.items())}", json)


def stop(id: OpenRunId, reason: Annotated[str | None, typer.Option(help="Why.")] = None, json: Json = False) -> None:
    """End a run after its present step, keeping what there is.

    Example: perdure stop inv-42 --reason 'no longer needed'
    """
    taken = _tell(id, lambda handle: handle.stop(reason))
    _show(taken, f"{id} ends after its present step", json)


async def _outcome(client: Client, handle: Handle) -> str:
    """How a cancelled run ends; raises NoAnswer where nobody is there who could end it."""
    while True:
        try:
            return (await asyncio.wait_for(handle.result(), CANCEL_WAIT)).outcome.value
        except TimeoutError:
            queue = (await handle.describe()).task_queue
            with rpc_errors(client.temporal, handle.id):
                missing = await missing_worker(client.temporal, queue)
            if missing is not None:
                raise NoAnswer(f"run {handle.id!r} will be cancelled when a worker comes: {missing}") from None


def cancel(id: OpenRunId, json: Json = False) -> None:
    """Cancel a run and wait until it has ended.

    Example: perdure cancel inv-42
    """

    async def work(client: Client) -> str:
        handle = client.handle(id)
        await handle.cancel()
        try:
            return await _outcome(client, handle)
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
