"""One tool call made durable: scheduled by its effect, and told apart into done, not started and unknown."""

from __future__ import annotations

import asyncio
import builtins
from dataclasses import dataclass
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType, is_cancelled_exception

from perdure.canonical import digest
from perdure.contracts import CALL_TOOL, SUMMARY_LIMIT, ToolInput, ToolOutput
from perdure.messages import CallPart, ToolMessage, text
from perdure.outcomes import Outcome, RunFault
from perdure.questions import Question
from perdure.tools import REPEATABLE, ToolSpec
from workflows import options
from workflows.children import Children
from workflows.state import RunState
from workflows.steps import execute, execute_locally
from workflows.views import Board

ANSWERS = ("done", "not done", "retry")


@dataclass(frozen=True)
class Done:
    """The end of one call."""

    message: ToolMessage
    status: Literal["done", "not_started", "unknown"]
    structured: Any = None


class Attempts:
    """Runs one call at a time to its end; never lets a `write` happen twice on its own."""

    def __init__(self, run: RunState, board: Board) -> None:
        self._run = run
        self._board = board
        self._children = Children(run)

    async def run(self, call: CallPart, spec: ToolSpec, *, same: int, approved: bool, note: str | None) -> Done:
        """Run a call that may run; `same` identical ones came before it in this run."""
        if spec.agent is not None:
            message = await self._children.run(call, spec)
            return Done(message, "done")
        after_reset = workflow.info().original_execution_run_id != workflow.info().run_id
        task = ToolInput(
            call=call.id,
            tool=call.tool,
            arguments=call.arguments,
            definition=digest(spec.definition) if approved else None,
            run=self._run.chain,
            earlier=workflow.info().original_execution_run_id
            if after_reset and spec.effect not in REPEATABLE
            else None,
            same=same,
            note=note,
            approved_at_step=self._run.account.steps if approved else None,
        )
        round_ = 0
        while True:
            output = await self._schedule(task, spec, round_)
            if output.status == "unknown":
                answer = await self._unknown(call, spec, output.why or "")
                if answer != "retry":
                    return Done(self._told(call, spec, answer, output.why), "unknown" if answer == "tell" else "done")
                task = task.model_copy(update={"earlier": None})
                round_ += 10
                continue
            assert output.message is not None
            return Done(output.message, output.status, output.structured)

    async def _schedule(self, task: ToolInput, spec: ToolSpec, round_: int) -> ToolOutput:
        """Schedule until the call began, at most a few times."""
        for tries in range(options.NOT_STARTED_ATTEMPTS):
            output = await self._once(task, spec, round_ + tries)
            if output.status != "not_started":
                return output
            self._run.note("tool_not_started", call_id=task.call, tool=task.tool, reason=output.why)
        body = f"not executed: the call could not be started: {output.why}"
        return ToolOutput(message=self._message(task.call, body, error=True))

    async def _once(self, task: ToolInput, spec: ToolSpec, number: int) -> ToolOutput:
        summary = summarise(task.tool, task.arguments)
        try:
            if spec.quick:
                return await execute_locally(CALL_TOOL, task, options.quick_options(spec), summary)
            name = task.call if number == 0 else f"{task.call}.{number + 1}"
            chosen = options.tool_options(spec)
            return await execute(CALL_TOOL, task, chosen, summary, activity_id=name, queue=spec.queue)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return self._interpret(error, task, spec)

    def _interpret(self, error: ActivityError, task: ToolInput, spec: ToolSpec) -> ToolOutput:
        cause = error.cause
        if isinstance(cause, TimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START:
            return ToolOutput(status="not_started", why=f"no worker serves the queue {spec.queue!r}")
        if isinstance(cause, ApplicationError) and cause.type == "NotStarted":
            return ToolOutput(status="not_started", why=cause.message)
        if isinstance(cause, TimeoutError):
            why = "its worker was lost" if cause.type is TimeoutType.HEARTBEAT else "it did not end in time"
        else:
            why = str(cause or error)[:1_000]
        if spec.effect in REPEATABLE:
            body = f"failed after {spec.attempts} attempts: {why}"
            return ToolOutput(message=self._message(task.call, body, error=True))
        return ToolOutput(status="unknown", why=why)

    async def _unknown(self, call: CallPart, spec: ToolSpec, why: str) -> str:
        """What to do about an unknown outcome: `tell`, or a person's answer."""
        self._run.note("tool_unknown", call_id=call.id, tool=call.tool, reason=why)
        if spec.on_unknown == "fail":
            raise RunFault(Outcome.FAILED, "unknown_outcome", f"{call.id} ({call.tool}): outcome unknown: {why}")
        if spec.on_unknown == "tell":
            return "tell"
        run, now = self._run, workflow.now()
        question = Question(
            question_id=f"q-{call.id}",
            text=f"{call.tool} {call.arguments}: {why}, so it is unknown whether it took effect. Look, then answer.",
            options=ANSWERS,
            asked_at=now,
            deadline=now + options.QUESTION_WAIT,
        )
        run.questions.ask(question)
        run.note("question", question_id=question.question_id, text=question.text[:500])
        self._board.changed(self._run, "waiting for an answer")
        try:
            await workflow.wait_condition(
                lambda: question.question_id in run.questions.answers or run.stop_reason is not None,
                timeout=options.QUESTION_WAIT,
                timeout_summary=f"question {question.question_id}",
            )
        except builtins.TimeoutError:
            run.note("question_expired", question_id=question.question_id)
        except asyncio.CancelledError:
            run.questions.close(question.question_id)
            raise
        run.questions.close(question.question_id)
        self._board.changed(self._run, "running tools")
        answer = run.questions.answers.get(question.question_id)
        return answer.text.strip() if answer else "tell"

    def _told(self, call: CallPart, spec: ToolSpec, answer: str, why: str | None) -> ToolMessage:
        if answer == "done":
            return self._message(call.id, "a person confirmed that this was done; there is no result", error=False)
        if answer == "not done":
            return self._message(call.id, "a person confirmed that this was not done", error=True)
        body = (
            f"outcome unknown: {why}; {spec.name} may or may not have taken effect. Find out before you rely on it; "
            "the same call again needs a person's approval"
        )
        return self._message(call.id, body, error=True)

    def _message(self, call: str, body: str, *, error: bool) -> ToolMessage:
        return ToolMessage(role="tool", call=call, parts=text(body), error=error, id=self._run.mint())


def summarise(tool: str, arguments: dict[str, Any]) -> str:
    """A line for the timeline: the tool and its short arguments."""
    values = (str(v) for v in arguments.values() if isinstance(v, str | int | float | bool))
    line = " ".join([tool, *(value if len(value) <= 40 else f"{value[:37]}..." for value in values)])
    return " ".join(line.split())[:SUMMARY_LIMIT]
