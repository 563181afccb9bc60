"""The tool calls of one reply: judged together, approved, run in the right order, answered in call order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.approval import Approval, Pending, Refused, Verdict
from perdure.arguments import check_arguments, near_names
from perdure.canonical import digest
from perdure.contracts import CHECK_POLICY, PolicyInput, PolicyOutput
from perdure.limits import LimitReached
from perdure.messages import CallPart, ToolMessage, text
from perdure.outcomes import Outcome, RunFault
from perdure.runtime import Ran
from perdure.tools import REPEATABLE, ToolSpec
from workflows import options
from workflows.attempts import Attempts, Done
from workflows.state import RunState
from workflows.steps import execute_locally
from workflows.views import Board

MOST_CALLS = 128
"""Calls of one reply; more are answered with an error."""
SIDE_BY_SIDE = 32
"""Calls scheduled at once: a workflow task's commands must stay far below 4 MiB."""
PATIENCE = 2
"""Refused repetitions within a turn before the run ends with reason `loop`."""


@dataclass
class Planned:
    """One call with what was decided about it before anything runs."""

    call: CallPart
    spec: ToolSpec | None = None
    identity: str = ""
    same: int = 0
    refusal: str | None = None
    approval: Approval | None = None
    why: str | None = None
    """Why a person is asked, where the tool itself does not."""
    began: bool = False
    """It was handed to a worker."""


class Calls:
    """Runs the calls of replies, one reply at a time."""

    def __init__(self, run: RunState, board: Board, attempts: Attempts) -> None:
        self._run = run
        self._board = board
        self._attempts = attempts

    async def execute(self, calls: Sequence[CallPart], max_repeats: int) -> list[Ran]:
        """Run the calls of one reply and add their results to the conversation. Raises where the run must end."""
        plans = [Planned(call=call) for call in calls]
        over = self._plan(plans, max_repeats)
        self._keep_one_final(plans)
        await self._ask_policy(plans)
        self._request_approvals(plans)
        ran = await self._run_all(plans)
        if over:
            raise LimitReached("max_tool_calls")
        if self._run.counters["refused_repeats"] > PATIENCE:
            raise RunFault(Outcome.NO_SOLUTION, "loop", "the model repeated the same call again and again")
        return ran

    # --- before anything runs -----------------------------------------------------------------------------------------

    def _plan(self, plans: list[Planned], max_repeats: int) -> bool:
        """Find each call's tool and refuse what cannot run; True where the limit on tool calls is reached."""
        run = self._run
        assert run.context is not None
        spec, over = run.context.spec, False
        for index, plan in enumerate(plans):
            call = plan.call
            plan.spec = spec.tool(call.tool)
            plan.identity = identity(call)
            if call.error:
                plan.refusal = call.error
            elif plan.spec is None:
                known = [tool.name for tool in spec.tools]
                hint = near_names(call.tool, known) or known[:20]
                plan.refusal = f"there is no tool {call.tool!r}; you have {', '.join(hint) or 'no tools'}"
            elif index >= MOST_CALLS:
                plan.refusal = f"not executed: at most {MOST_CALLS} calls in one reply"
            elif run.turn_calls[plan.identity] >= max_repeats:
                run.counters["refused_repeats"] += 1
                plan.refusal = (
                    f"not executed: you already made this call {max_repeats} times with the same arguments; "
                    "use its result, or do something else"
                )
            elif run.account.tool_calls >= run.limits.tool_calls:
                over = True
                plan.refusal = f"not executed: the limit of {run.limits.tool_calls} tool calls is reached"
            else:
                run.account.tool_calls += 1
                plan.same = run.calls[plan.identity]
                run.calls[plan.identity] += 1
                run.turn_calls[plan.identity] += 1
                plan.approval = plan.spec.approval
                if plan.identity in run.unsure:
                    plan.approval = plan.spec.approval or Approval()
                    plan.why = "an earlier identical call has an unknown outcome"
        self._count_broken(plans, max_repeats)
        return over

    def _count_broken(self, plans: list[Planned], max_repeats: int) -> None:
        """Calls that can never run count as repetitions too, each once a reply."""
        run = self._run
        for identity in dict.fromkeys(f"{plan.identity}!" for plan in plans if plan.call.error or plan.spec is None):
            run.turn_calls[identity] += 1
            if run.turn_calls[identity] > max_repeats:
                run.counters["refused_repeats"] += 1

    def _keep_one_final(self, plans: list[Planned]) -> None:
        """A valid call of a final tool ends the run, so nothing else of its reply runs."""
        final = next((p for p in plans if not p.refusal and p.spec and p.spec.final), None)
        if final is None:
            return
        for plan in plans:
            if plan is not final and not plan.refusal:
                plan.refusal = f"not executed: {final.call.tool} ends the run; send it alone, after everything else"

    async def _ask_policy(self, plans: list[Planned]) -> None:
        run = self._run
        assert run.context is not None
        open_plans = [plan for plan in plans if not plan.refusal]
        if not run.context.spec.policy or not open_plans:
            return
        asked = tuple((plan.call.id, plan.call.tool, plan.call.arguments) for plan in open_plans)
        try:
            question = PolicyInput(calls=asked, step=run.account.steps, run=run.chain)
            judged = await execute_locally(CHECK_POLICY, question, options.POLICY, f"policy for {len(asked)} calls")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            judged = PolicyOutput(decisions={call: ("deny", "the policy could not be asked") for call, _, _ in asked})
        for plan in open_plans:
            action, reason = judged.decisions.get(plan.call.id, (None, ""))
            if action == "deny":
                plan.refusal = f"not executed: denied by policy: {reason}"
                run.note("policy_denied", call_id=plan.call.id, tool=plan.call.tool, reason=reason)
            elif action == "ask":
                assert plan.spec is not None
                plan.approval, plan.why = plan.spec.approval or Approval(), reason

    def _request_approvals(self, plans: list[Planned]) -> None:
        run, now = self._run, workflow.now()
        for plan in plans:
            if plan.refusal or plan.approval is None or plan.spec is None:
                continue
            call, spec = plan.call, plan.spec
            pending = Pending(
                call_id=call.id,
                tool=call.tool,
                arguments=call.arguments,
                digest=binding(call.tool, call.arguments, spec),
                requested_at=now,
                deadline=now + plan.approval.timeout,
                reason=plan.why,
                quorum=plan.approval.quorum,
            )
            run.approvals.request(pending, plan.approval, lambda given, spec=spec: _checked(given, spec))  # type: ignore[misc]
            run.note(
                "approval_requested",
                call_id=call.id,
                tool=call.tool,
                digest=pending.digest,
                deadline=pending.deadline.isoformat(),
                reason=plan.why,
            )
        if run.approvals.open:
            self._board.changed(self._run, "waiting for approval")

    # --- running ------------------------------------------------------------------------------------------------------

    async def _run_all(self, plans: list[Planned]) -> list[Ran]:
        run = self._run
        assert run.context is not None
        slots = asyncio.Semaphore(SIDE_BY_SIDE if run.context.spec.parallel_tools else 1)
        tasks: list[asyncio.Task[Ran]] = []
        before: asyncio.Task[Ran] | None = None
        for plan in plans:
            ordered = plan.spec is not None and plan.spec.effect not in REPEATABLE
            task = asyncio.create_task(self._one(plan, before if ordered else None, slots))
            task.add_done_callback(_retrieve)
            tasks.append(task)
            before = task if ordered else before
        try:
            await workflow.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:  # not finally: a worker that puts the run aside must change nothing
            self._answer_all(plans, tasks)
            raise
        ended = [task for task in tasks if task.done()]  # all, or those up to the first that ends the run
        self._answer_all(plans, tasks)
        return [task.result() for task in ended]

    def _answer_all(self, plans: list[Planned], tasks: list[asyncio.Task[Ran]]) -> None:
        """Give every call its result; what still runs or waits is cut short."""
        for task in tasks:
            task.cancel()
        for plan in plans:
            self._run.approvals.close(plan.call.id)
        self._run.messages.extend(self._answer(plan, task) for plan, task in zip(plans, tasks, strict=True))

    def _answer(self, plan: Planned, task: asyncio.Task[Ran]) -> ToolMessage:
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result().message
        if plan.began and plan.spec is not None and plan.spec.effect not in REPEATABLE:
            why = "the run ended while it ran"
            self._run.note("tool_unknown", call_id=plan.call.id, tool=plan.call.tool, reason=why)
            return self._error(plan, f"outcome unknown: {why}; {plan.call.tool} may or may not have taken effect")
        return self._error(plan, "interrupted: the run ended before this call had a result")

    async def _one(self, plan: Planned, before: asyncio.Task[Ran] | None, slots: asyncio.Semaphore) -> Ran:
        if plan.refusal is None and plan.approval is not None:
            refused = await self._await_decision(plan)
            plan.refusal = refused
        if plan.refusal is not None:
            self._run.note("tool_refused", call_id=plan.call.id, tool=plan.call.tool, reason=plan.refusal[:500])
            return Ran(message=self._error(plan, plan.refusal))
        if before is not None:
            await workflow.wait([before])
        if self._run.stop_reason and plan.approval is not None:
            return Ran(message=self._error(plan, "not executed: the run was stopped"))
        async with slots:
            return await self._execute(plan)

    async def _await_decision(self, plan: Planned) -> str | None:
        """Wait for the decision; None where the call may run, else why not. Edited arguments replace the call's."""
        run, call_id, rule = self._run, plan.call.id, plan.approval
        assert rule is not None
        pending = run.approvals.open[call_id]
        verdict: Verdict | None = None
        try:
            await workflow.wait_condition(
                lambda: call_id not in run.approvals.open or run.stop_reason is not None,
                timeout=max(timedelta(0), pending.deadline - workflow.now()),
                timeout_summary=f"approval {plan.call.tool} {call_id}"[:100],
            )
        except TimeoutError:
            if call_id in run.approvals.open:
                verdict = run.approvals.expire(call_id)
                run.note("approval_expired", call_id=call_id, tool=plan.call.tool, on_timeout=rule.on_timeout)
        if call_id in run.approvals.open:
            run.approvals.close(call_id)
        verdict = verdict or run.approvals.settled[call_id]
        self._board.changed(self._run, "running tools")
        if verdict.expired and rule.on_timeout == "fail":
            raise RunFault(Outcome.FAILED, "approval_timeout", f"nobody decided {call_id} ({plan.call.tool}) in time")
        if verdict.approved:
            if verdict.arguments is not None:
                self._edit(plan, verdict.arguments)
            return None
        if verdict.expired:
            return "not executed: the approval expired, nobody decided in time"
        by = f" by {verdict.by}" if verdict.by else ""
        return f"not executed: denied{by}{f': {verdict.reason}' if verdict.reason else ''}"

    def _edit(self, plan: Planned, arguments: dict[str, Any]) -> None:
        """The call is another one from now on: the one that the approver made of it."""
        plan.call = plan.call.model_copy(update={"arguments": arguments})
        plan.why = "edited"
        plan.identity = identity(plan.call)
        plan.same = self._run.calls[plan.identity]
        self._run.calls[plan.identity] += 1

    async def _execute(self, plan: Planned) -> Ran:
        run, call, spec = self._run, plan.call, plan.spec
        assert spec is not None
        plan.began = True
        run.note("tool_start", call_id=call.id, tool=call.tool, step=run.account.steps)
        done: Done = await self._attempts.run(
            call,
            spec,
            same=plan.same,
            approved=plan.approval is not None,
            note=f"[The approver changed the arguments to {call.arguments}]\n" if plan.why == "edited" else None,
        )
        run.note("tool_end", call_id=call.id, tool=call.tool, status=done.status, error=done.message.error or None)
        if done.status == "unknown":
            run.unsure.add(plan.identity)
        return Ran(done.message, final=spec.final and not done.message.error, structured=done.structured)

    def _error(self, plan: Planned, body: str) -> ToolMessage:
        return ToolMessage(role="tool", call=plan.call.id, parts=text(body), error=True, id=self._run.mint())


def identity(call: CallPart) -> str:
    """The same for the same tool and arguments."""
    return digest({"tool": call.tool, "arguments": call.arguments})[7:23]


def binding(tool: str, arguments: dict[str, Any], spec: ToolSpec) -> str:
    """The digest that an approval is bound to: tool name, arguments and definition."""
    return digest({"tool": tool, "arguments": arguments, "definition": spec.definition})


def _checked(given: dict[str, Any], spec: ToolSpec) -> tuple[dict[str, Any], str]:
    checked = check_arguments(spec.parameters, given)
    if checked.error is not None or checked.value is None:
        raise Refused(f"arguments: {checked.error}")
    return checked.value, binding(spec.name, checked.value, spec)


def _retrieve(task: asyncio.Task[Ran]) -> None:
    """A call that was cut short has nobody left who would look at how it ended."""
    if not task.cancelled():
        task.exception()
