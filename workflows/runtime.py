"""The Runtime that strategies see, made of activities: every step checked before it spends, recorded once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception

from perdure.agent import AgentSpec
from perdure.contracts import CALL_MODEL, NOTHING, VERIFY, ModelInput, ModelOutput, VerifyInput, VerifyOutput, tally_of
from perdure.errors import ErrorKind
from perdure.limits import REASONS as LIMIT_REASONS
from perdure.limits import LimitReached, reached
from perdure.messages import AssistantMessage, CallPart, Message, ToolMessage, Usage, text_of
from perdure.outcomes import Ending, Outcome, RunFault
from perdure.runtime import Ran, Reply
from workflows import options
from workflows.allowance import Allowance
from workflows.attempts import Attempts
from workflows.calls import Calls
from workflows.children import Children
from workflows.decisions import Decisions
from workflows.family import Family
from workflows.notices import Notices
from workflows.questions import Asking
from workflows.state import RunState
from workflows.steps import execute
from workflows.views import Board

NEAR_TOKENS = 50_000
"""From here on a model call is told how many tokens are left, so that its answer fits."""

LIMITS = {reason: limit for limit, reason in LIMIT_REASONS.items()}
"""The limit of each reason word."""

REASONS = {ErrorKind.CONTEXT_LENGTH: "context_length", ErrorKind.CONFIGURATION: "configuration"}
"""Reasons of failed model calls other than `provider_error`."""


class Stopped(Exception):
    """The run was asked to stop."""


class WorkflowRuntime:
    """Runtime of `AgentWorkflow`."""

    def __init__(self, run: RunState, board: Board, notices: Notices, family: Family) -> None:
        self._run = run
        self._board = board
        self._allowance = Allowance(run, board, notices, family)
        attempts = Attempts(run, Children(run, family), Asking(run, board, notices))
        self._calls = Calls(run, board, attempts, Decisions(run, board, notices), self._allowance)

    @property
    def spec(self) -> AgentSpec:
        """The agent, frozen."""
        assert self._run.context is not None
        return self._run.context.spec

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far."""
        return self._run.messages

    async def model(self, *, tool_choice: str = "auto") -> Reply:
        """One model call; raises LimitReached, RunFault or Stopped instead where it must not happen."""
        run = self._run
        output = await self._paid_for(tool_choice)
        run.account.steps += 1
        run.account.spend(output.usage, Decimal(output.cost))
        run.counters["unpriced"] += output.unpriced
        run.last_usage = output.usage
        run.sent = len(run.messages)
        run.messages.append(output.message)
        run.next_call += len(output.message.calls)
        body = text_of(output.message)
        run.note(
            "reply",
            step=run.account.steps,
            text=body[:500] or None,
            calls=[call.id for call in output.message.calls] or None,
            tokens=output.usage.total,
            cost_usd=output.cost,
            message_id=output.message.id or None,
            model=output.model,
        )
        return Reply(
            message=output.message,
            finish=output.finish,
            announced=output.announced,
            structured=output.structured,
            misfit=output.misfit,
        )

    async def tools(self, calls: Sequence[CallPart], *, max_repeats: int = 3) -> Sequence[Ran]:
        """Run calls; their results are in the conversation afterwards, in call order."""
        self._board.changed(self._run, f"running {', '.join(call.tool for call in calls)}"[:200])
        return await self._calls.execute(calls, max_repeats)

    def open_calls(self) -> Sequence[CallPart]:
        """Calls of the last reply without a result."""
        messages = self._run.messages
        answered: set[str] = set()
        for message in reversed(messages):
            if isinstance(message, ToolMessage):
                answered.add(message.call)
            elif isinstance(message, AssistantMessage):
                return [call for call in message.calls if call.id not in answered]
            else:
                return []
        return []

    def take_said(self) -> bool:
        """Add what the user said meanwhile; a new turn begins with it."""
        run = self._run
        if not run.said:
            return False
        while run.said:
            run.say(run.said.popleft()["text"])
        run.turn_calls.clear()
        run.repetition.clear()
        run.counters["refused_repeats"] = 0
        return True

    def tell(self, text: str, kind: str = "correction") -> None:
        """Add a correction to the conversation."""
        self._run.say(text)
        self._run.note("correction", about=kind, text=text[:500])

    async def verify(self, output: str, structured: Any) -> str | None:
        """Ask the agent's own check; one that crashes ends the run, for it is never a pass."""
        if not self.spec.verify:
            return None
        answer = VerifyInput(conversation=self._run.conversation(), structured=structured)
        try:
            verdict = await execute(VERIFY, answer, options.VERIFY, "verify the answer")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            verdict = VerifyOutput(problem=str(error.cause or error)[:1_000], crashed=True)
        if verdict.crashed:
            raise RunFault(Outcome.FAILED, "verify_crashed", f"verify: {verdict.problem}")
        return verdict.problem

    def count(self, name: str) -> int:
        """Add one to a counter of the run."""
        self._run.counters[name] += 1
        return self._run.counters[name]

    def idle(self, words: str = "", done: Sequence[tuple[CallPart, Ran]] = ()) -> int:
        """Take note of a reply; how many in a row brought nothing new."""
        return self._run.repetition.step(self.spec, words, [(call, ran.message) for call, ran in done])

    def now(self) -> datetime:
        """The run's time."""
        return workflow.now()

    async def _paid_for(self, tool_choice: str) -> ModelOutput:
        """The reply, as soon as the limits allow for it."""
        run = self._run
        while True:
            self._between_steps()
            try:
                if run.seconds_left() <= 0:
                    raise LimitReached("deadline")
                run.account.check_step(run.limits, self._estimate())
                output = await self._call_model(self._question(tool_choice))
                self._count_lost(output)
                if not output.over:
                    return output
                short = Decimal(output.short) if output.short else Decimal(0)
                raise reached(LIMITS[output.over], short)
            except LimitReached as found:
                if not await self._allowance.more(found):
                    raise

    def _between_steps(self) -> None:
        """Stop, or continue as new, where nothing is in flight."""
        run = self._run
        if run.stop_reason is not None:
            raise Stopped(run.stop_reason)
        run.go_on_if_full()

    def _question(self, tool_choice: str) -> ModelInput:
        run, left = self._run, self._run.account.left(self._run.limits)
        self._board.changed(run, f"waiting for {self.spec.models[0].label}, step {run.account.steps + 1}")
        info = workflow.info()
        after_reset = info.original_execution_run_id != info.run_id and run.reset_counted != info.run_id
        return ModelInput(
            conversation=run.conversation(),
            first_call=run.next_call,
            tool_choice=tool_choice,
            cost_left=str(left.cost_usd) if left.cost_usd is not None else None,
            tokens_left=left.tokens if left.tokens < NEAR_TOKENS else None,
            after_reset=after_reset,
            counted=run.reset_counted if after_reset else None,
        )

    def _count_lost(self, output: ModelOutput) -> None:
        """What attempts that came to nothing have used is spent too, as far as one can say."""
        run = self._run
        run.reset_counted = output.counted or run.reset_counted
        if output.lost.total or output.lost_cost != "0":
            run.account.spend(output.lost, Decimal(output.lost_cost), confirmed=False)
            run.note("attempts_lost", tokens=output.lost.total, cost_usd=output.lost_cost)

    def _estimate(self) -> int:
        """About how many tokens the next call takes in: what the last one reported, and four characters each since."""
        fresh = sum(len(text_of(message)) for message in self._run.messages[self._run.sent :])
        return self._run.last_usage.total + fresh // 4

    async def _call_model(self, question: ModelInput) -> ModelOutput:
        run, label = self._run, self.spec.models[0].name or self.spec.models[0].provider
        try:
            output = await execute(CALL_MODEL, question, options.MODEL, f"{label}, step {run.account.steps + 1}")
        except ActivityError as error:
            self._count_failed(error)
            if is_cancelled_exception(error) or _is_cancelled():
                raise asyncio.CancelledError from error
            raise model_fault(error) from error
        if _is_cancelled():
            self._count_lost(output)
            run.account.spend(output.usage, Decimal(output.cost))
            raise asyncio.CancelledError
        return output

    def _count_failed(self, error: ActivityError) -> None:
        """What a call without any reply has used: as its last attempt says, as its last heartbeat does, or guessed."""
        cause = error.cause
        if isinstance(cause, ApplicationError):
            if cause.details:
                self._count_lost(ModelOutput.model_validate(cause.details[0]))
            return
        # Nobody is left who would say it: what was sent is paid for.
        left = cause.last_heartbeat_details if isinstance(cause, TimeoutError) else ()
        used = tally_of(left) if left else Usage(input_tokens=self._estimate())
        account = self._run.account
        price = account.cost_usd / account.usage.total if account.usage.total else Decimal(0)
        self._count_lost(ModelOutput(message=NOTHING, lost=used, lost_cost=str(price * used.total)))


def _is_cancelled() -> bool:
    """Whether who awaits here is to end; an activity that had a reply nevertheless does not raise that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def model_fault(error: ActivityError) -> RunFault:
    """How a run ends whose model could not be reached or refused the request."""
    cause = error.cause
    kind = cause.type if isinstance(cause, ApplicationError) else None
    message = cause.message if isinstance(cause, ApplicationError) else str(cause or error)
    if kind == "unknown_price":
        return RunFault(Outcome.FAILED, "unknown_price", message)
    reason = REASONS.get(ErrorKind(kind), "provider_error") if kind in set(ErrorKind) else "provider_error"
    return RunFault(Outcome.FAILED, reason, message[:2_000])


def limit_ending(reason: str) -> Ending:
    """How a run ends at a limit."""
    outcome = Outcome.TIMEOUT if reason == "deadline" else Outcome.BUDGET_EXCEEDED
    return Ending(outcome=outcome, reason=reason)
