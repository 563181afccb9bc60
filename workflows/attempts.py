"""One tool call made durable: scheduled by its effect, and told apart into done, not started and unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType, is_cancelled_exception

from perdure.canonical import digest
from perdure.contracts import CALL_TOOL, SUMMARY_LIMIT, ToolInput, ToolOutput
from perdure.excerpt import excerpt
from perdure.messages import CallPart, ToolMessage, text
from perdure.outcomes import Outcome, RunFault
from perdure.tools import REPEATABLE, ToolSpec
from workflows import options
from workflows.children import Children
from workflows.questions import Asking
from workflows.state import RunState
from workflows.steps import execute, execute_locally
from workflows.turn import Planned

ANSWERS = ("done", "not done", "retry")
UNDECODED = "Failed decoding arguments"
"""What the SDK says of a call whose input could not be fetched, before it calls any code of ours."""
TOLD_CHARS = 20_000
"""Characters of arguments that a person or the model is shown in words."""


@dataclass(frozen=True)
class Done:
    """The end of one call."""

    message: ToolMessage
    status: Literal["done", "not_started", "unknown"]
    structured: Any = None


class Attempts:
    """Runs one call at a time to its end; never lets a `write` happen twice on its own."""

    def __init__(self, run: RunState, children: Children, asking: Asking) -> None:
        self._run = run
        self._children = children
        self._asking = asking

    async def run(self, plan: Planned, spec: ToolSpec) -> Done:
        """Run a call that may run, or go on with it where the run was continued as new."""
        call = plan.call
        if spec.asks:
            return Done(await self._ask_person(call, spec), "done")
        if spec.agent is not None:
            plan.phase = "running"
            return Done(await self._children.run(call, spec), "done")
        task = self._task(plan, spec)
        while True:
            if plan.phase == "unknown":
                answer = await self._unknown(plan, spec)
                if answer != "retry":
                    return Done(self._told(call, spec, answer, plan.why), "unknown" if answer == "tell" else "done")
                task = task.model_copy(update={"earlier": None})
                plan.round += 10
            plan.phase = "running"
            output = await self._schedule(task, spec, plan.round)
            if output.status != "unknown":
                assert output.message is not None
                return Done(output.message, output.status, output.structured)
            plan.phase, plan.why = "unknown", output.why or ""
            self._run.note("tool_unknown", call_id=call.id, tool=call.tool, reason=plan.why)

    def _task(self, plan: Planned, spec: ToolSpec) -> ToolInput:
        run, call, approved = self._run, plan.call, plan.approval is not None
        after_reset = workflow.info().original_execution_run_id != workflow.info().run_id
        return ToolInput(
            call=call.id,
            tool=call.tool,
            arguments=call.arguments,
            definition=digest(spec.definition) if approved else None,
            run=run.chain,
            earlier=workflow.info().original_execution_run_id
            if after_reset and spec.effect not in REPEATABLE
            else None,
            same=plan.same,
            note=f"[The approver changed the arguments to {excerpt(call.arguments, TOLD_CHARS)}]\n"
            if plan.edited
            else None,
            approved_at_step=run.account.steps if approved else None,
            whole=call.whole,
        )

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
        if isinstance(cause, ApplicationError) and (cause.type == "NotStarted" or cause.message == UNDECODED):
            return ToolOutput(status="not_started", why=cause.message)
        if isinstance(cause, TimeoutError):
            why = "its worker was lost" if cause.type is TimeoutType.HEARTBEAT else "it did not end in time"
        else:
            why = str(cause or error)[:1_000]
        if spec.effect in REPEATABLE:
            body = f"failed after {spec.attempts} attempts: {why}"
            return ToolOutput(message=self._message(task.call, body, error=True))
        return ToolOutput(status="unknown", why=why)

    async def _unknown(self, plan: Planned, spec: ToolSpec) -> str:
        """What to do about an unknown outcome: `tell`, or a person's answer."""
        call, why = plan.call, plan.why
        if spec.on_unknown == "fail":
            raise RunFault(Outcome.FAILED, "unknown_outcome", f"{call.id} ({call.tool}): outcome unknown: {why}")
        if spec.on_unknown == "tell":
            return "tell"
        shown = excerpt(call.arguments, TOLD_CHARS)
        words = f"{call.tool} {shown}: {why}, so it is unknown whether it took effect. Look, then answer."
        return await self._asking.ask(call.id, words, ANSWERS, options.QUESTION_WAIT) or "tell"

    async def _ask_person(self, call: CallPart, spec: ToolSpec) -> ToolMessage:
        """The answer of a person as the result of the call."""
        # Answers are compared without the spaces around them.
        options_ = (str(option).strip() for option in call.arguments.get("options") or ())
        words, choices = str(call.arguments["question"]), tuple(dict.fromkeys(o for o in options_ if o))
        answer = await self._asking.ask(call.id, words, choices, spec.timeout)
        if answer is None:
            return self._message(call.id, "nobody answered in time", error=True)
        return self._message(call.id, answer, error=False)

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
