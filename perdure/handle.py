"""One run from outside: its result, its status, and messages to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.service import RPCError

from perdure.connection import rpc_errors, translate
from perdure.contracts import RunContext
from perdure.diagnosis import retrying, why_silent, why_stuck
from perdure.errors import InvalidInput, MessageRefused, NoAnswer, PerdureError, RunCancelled, RunFailed
from perdure.messages import MESSAGES, Message
from perdure.outcomes import Outcome, RunResult
from perdure.shared_store import check_size
from perdure.sinks import EventSinks
from perdure.status import EventPage, OpenQuestion, PendingCall, RunStatus, RunUsage, StreamEvent
from perdure.streaming import PATIENCE, watch

ANSWER_WAIT = 10.0
"""Seconds that a worker may take to answer a query or a message."""


class Handle:
    """A run by its workflow id; `run_id` picks an earlier run of the same id.

    Raises InvalidInput for an id that is none. Every method raises NoSuchRun, NoAnswer where no worker answers for the
    run, Unreachable without a server.
    """

    def __init__(
        self,
        client: Client,
        id: str,
        run_id: str | None = None,
        *,
        answer_wait: float = ANSWER_WAIT,
        sinks: EventSinks | None = None,
    ) -> None:
        check_id("id", id)
        if run_id is not None:
            check_id("run_id", run_id)
        self.id = id
        self.run_id = run_id
        self.temporal = client.get_workflow_handle(id, run_id=run_id)
        """The handle of Temporal's own client."""
        self._client = client
        self._answer_wait = timedelta(seconds=answer_wait)
        self._sinks = sinks

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    # --- what it ends with --------------------------------------------------------------------------------------------

    async def result(self) -> RunResult:
        """Wait for the end; raises RunFailed with the result, or RunCancelled with the last status."""
        try:
            with rpc_errors(self._client, self.id):
                answer = await self.temporal.result()
        except WorkflowFailureError as error:
            raise await self._failure(error.cause) from error
        return RunResult.model_validate(answer)

    async def _failure(self, cause: BaseException) -> PerdureError:
        if isinstance(cause, ApplicationError):
            return RunFailed(f"run {self.id!r} ended {cause.type or 'failed'}: {cause.message}", _details(cause))
        told = await self._told()
        if isinstance(cause, CancelledError | TerminatedError):
            how = "terminated" if isinstance(cause, TerminatedError) else "cancelled"
            why = f": {cause.message}" if how == "terminated" and cause.message else ""
            return RunCancelled(f"run {self.id!r} was {how}{why}", {**told, "state": "closed"})
        spent = {name: told[name] for name in ("agent", "usage", "cost_usd", "tool_calls") if name in told}
        lost = RunResult(outcome=Outcome.FAILED, reason="workflow_timeout", steps=told.get("step", 0), **spent)
        return RunFailed(f"run {self.id!r} exceeded the timeout that it was started with", lost.model_dump(mode="json"))

    # --- what it says -------------------------------------------------------------------------------------------------

    async def status(self) -> RunStatus:
        """The run as it is now, Temporal's own view laid over what the run says of itself."""
        described = await self.describe()
        status = described.status or WorkflowExecutionStatus.RUNNING
        told = await self._told()
        known: dict[str, Any] = {
            **told,
            "id": described.id,
            "run_id": described.run_id,
            "temporal": status.name.lower(),
            "task_queue": described.task_queue,
            "started": described.start_time,
            "closed": described.close_time,
        }
        if not told:
            with rpc_errors(self._client, self.id):
                known["silent"] = await why_silent(self._client, described.task_queue)
        if status is WorkflowExecutionStatus.RUNNING:
            with rpc_errors(self._client, self.id):
                known["stuck"] = await why_stuck(self._client, described) or known.get("silent")
            known["retrying"] = retrying(described)
        else:
            known |= {"state": "closed", "pending": [], "questions": [], **await self._ending()}
        known.setdefault("state", "running")
        known.setdefault("agent", await described.memo_value("agent", "", type_hint=str))
        return RunStatus.model_validate(known | {"pending": _pending(self.id, known.get("pending"))})

    async def describe(self) -> WorkflowExecutionDescription:
        """Temporal's own description of the run."""
        with rpc_errors(self._client, self.id):
            return await self.temporal.describe()

    async def _told(self) -> dict[str, Any]:
        """What the run says of itself; empty where no worker answers for it."""
        try:
            answer: dict[str, Any] = await self._query("status", explain=False)
        except (NoAnswer, MessageRefused):
            return {}
        return answer

    async def _ending(self) -> dict[str, Any]:
        """How a closed run ended, from Temporal alone."""
        try:
            result: Mapping[str, Any] = await self.temporal.result(follow_runs=False) or {}
        except WorkflowFailureError as error:
            cause = error.cause
            if not isinstance(cause, ApplicationError):
                if isinstance(cause, CancelledError):
                    return {"outcome": Outcome.CANCELLED.value}
                return {"outcome": None, "message": str(cause) or None}
            result = {**_details(cause), "message": cause.message}
        except (RPCError, PerdureError) as error:
            return {"message": str(error)}
        taken = ("outcome", "reason", "message", "output", "usage", "cost_usd", "tool_calls", "agent")
        steps = {"step": result["steps"]} if "steps" in result else {}
        return {name: result[name] for name in taken if name in result} | steps

    async def approvals(self) -> list[PendingCall]:
        """The calls that wait for a decision, oldest first."""
        return _pending(self.id, (await self._query("approvals"))["pending"])

    async def questions(self) -> list[OpenQuestion]:
        """The questions that wait for an answer."""
        return [OpenQuestion.model_validate(question) for question in (await self._query("status"))["questions"]]

    async def events(self, after: int = 0) -> EventPage:
        """The event log above number `after`."""
        return EventPage.model_validate(await self._query("events", {"after": after}))

    def stream(self, after: int = 0, *, patience: float = PATIENCE) -> AsyncGenerator[StreamEvent, None]:
        """What happens in the run, from event number `after` on until its end, with the text that is being written.

        Joined `text` of a reply, without what a `reset` makes void, is the recorded text, whenever the viewer joins.
        NoAnswer and Unreachable are raised only after a worker or server was away for `patience` seconds, InvalidInput
        at once for an `after` or `patience` that is none.
        """
        events = watch(self._client, self, after, server=patience, worker=patience)
        return self._sinks.tap(self.id, events) if self._sinks else events

    async def conversation(self, after: int = 0) -> list[Message]:
        """The conversation so far, without its first `after` messages."""
        messages: list[Message] = []
        following: int | None = after
        while following is not None:
            page = await self._query("conversation", {"after": following})
            messages += MESSAGES.validate_python(page["messages"])
            following = page["next"]
        return messages

    async def usage(self) -> RunUsage:
        """Tokens, money and steps so far."""
        return RunUsage.model_validate(await self._query("usage"))

    async def spec(self) -> RunContext | None:
        """The agent as it was frozen into the run; None before that has happened."""
        answer = await self._query("spec")
        return RunContext.model_validate(answer) if answer else None

    async def _query(self, name: str, want: Any = None, *, explain: bool = True) -> dict[str, Any]:
        arguments = [] if want is None else [want]
        try:
            answer: dict[str, Any] = await self.temporal.query(
                name, args=arguments, result_type=dict[str, Any], rpc_timeout=self._answer_wait
            )
        except RPCError as error:
            problem = translate(error, self._client, self.id)
            if explain and isinstance(problem, NoAnswer):
                problem = await self._silence()
            raise problem from error
        except WorkflowQueryFailedError as error:
            raise NoAnswer(f"run {self.id!r} cannot answer {name!r}: {error}") from error
        return answer

    async def _silence(self) -> NoAnswer:
        described = await self.describe()
        with rpc_errors(self._client, self.id):
            reason = await why_stuck(self._client, described) or await why_silent(self._client, described.task_queue)
        return NoAnswer(f"run {self.id!r} gave no answer: {reason}")

    # --- messages -----------------------------------------------------------------------------------------------------

    async def decide(
        self,
        call_id: str | None,
        approve: bool,
        *,
        by: str | None = None,
        reason: str | None = None,
        digest: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        remember: bool | Literal["call", "tool"] | None = None,
        token: str | None = None,
        wait: bool = True,
    ) -> dict[str, Any]:
        """Decide a call that waits; `call_id` may be None while exactly one does. Raises MessageRefused.

        `digest` refuses where another call waits than the one that was looked at; `arguments` replaces the call's;
        `remember` decides the same call (True, "call") or every call of the tool ("tool") the same way from now on;
        `token` proves who decides. With `wait=False` it is sent and forgotten, as every message.
        """
        given = {"by": by, "reason": reason, "digest": digest, "arguments": arguments, "token": token}
        verdict = {"call_id": call_id, "approve": approve, "remember": remember}
        return await self._send("decide", {**verdict, **given}, wait)

    async def approve(self, call_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """`decide` with yes; the same fields."""
        return await self.decide(call_id, True, **fields)

    async def deny(self, call_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """`decide` with no; the same fields."""
        return await self.decide(call_id, False, **fields)

    async def say(self, text: str, *, message_id: str | None = None, wait: bool = True) -> dict[str, Any]:
        """Say something further as the user; a repeated `message_id` counts once. Raises MessageRefused."""
        return await self._send("say", {"text": text, "message_id": message_id}, wait)

    async def answer(self, question_id: str, text: str, *, by: str | None = None, wait: bool = True) -> dict[str, Any]:
        """Answer a question that the run asked a person; raises MessageRefused."""
        return await self._send("answer", {"question_id": question_id, "text": text, "by": by}, wait)

    async def extend(
        self,
        *,
        steps: int | None = None,
        tool_calls: int | None = None,
        tokens: int | None = None,
        cost_usd: Decimal | str | None = None,
        deadline: timedelta | str | float | None = None,
        wait: bool = True,
    ) -> dict[str, Any]:
        """Raise limits of the run by so much; one that is paused on a limit goes on. Raises MessageRefused."""
        seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else deadline
        money = None if cost_usd is None else str(cost_usd)
        given = {"steps": steps, "tool_calls": tool_calls, "tokens": tokens, "cost_usd": money, "deadline": seconds}
        return await self._send("extend", given, wait)

    async def stop(self, reason: str | None = None, *, wait: bool = True) -> dict[str, Any]:
        """End the run after its present step, keeping what there is; raises MessageRefused."""
        return await self._send("stop", {"reason": reason}, wait)

    async def cancel(self) -> None:
        """Ask Temporal to cancel the run; `result` then raises RunCancelled. Raises MessageRefused after its end."""
        described = await self.describe()
        if described.status is not WorkflowExecutionStatus.RUNNING:
            raise MessageRefused(f"run {self.id!r} has ended")
        with rpc_errors(self._client, self.id):
            await self.temporal.cancel()

    async def _send(self, name: str, payload: dict[str, Any], wait: bool) -> dict[str, Any]:
        body = {field: value for field, value in payload.items() if value is not None}
        check_size(self._client, body, name)
        with rpc_errors(self._client, self.id):
            if not wait:
                await self.temporal.signal(name, body)
                return {}
            try:
                answer: dict[str, Any] = await self.temporal.execute_update(
                    name, body, result_type=dict[str, Any], rpc_timeout=self._answer_wait
                )
            except WorkflowUpdateFailedError as error:
                reason = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
                raise MessageRefused(f"run {self.id!r}: {reason}") from error
            except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                raise await self._silence() from error
        return answer


def check_id(field: str, id: object) -> None:
    """Raise InvalidInput for what is no id of a run."""
    if not isinstance(id, str) or not id.strip():
        raise InvalidInput(f"{field}: must be a text that is not empty, such as 'inv-42'")


def _pending(run: str, calls: Any) -> list[PendingCall]:
    return [PendingCall.model_validate({**call, "run": run}) for call in calls or ()]


def _details(cause: ApplicationError) -> dict[str, Any]:
    """The result that a failed run left in its failure, or what can be said without one."""
    if cause.details and isinstance(cause.details[0], dict):
        found: dict[str, Any] = cause.details[0]
        return found
    return RunResult(outcome=Outcome.FAILED, reason=cause.type).model_dump(mode="json")
