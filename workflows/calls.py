"""The tool calls of one reply: judged together, approved, run in the right order, answered in call order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.approval import Approval
from perdure.arguments import near_names
from perdure.contracts import CHECK_POLICY, MOST_CALLS, PolicyInput, PolicyOutput
from perdure.limits import LimitReached
from perdure.messages import CallPart, ToolMessage, text
from perdure.outcomes import Outcome, RunFault
from perdure.runtime import Ran
from perdure.tools import REPEATABLE, ToolSpec
from workflows import options
from workflows.allowance import Allowance
from workflows.attempts import Attempts, Done
from workflows.decisions import Decisions
from workflows.state import RunState
from workflows.steps import execute_locally
from workflows.turn import Planned, identity
from workflows.views import Board

SIDE_BY_SIDE = 32
"""Calls scheduled at once: a workflow task's commands must stay far below 4 MiB."""
PATIENCE = 2
"""Refused repetitions within a turn before the run ends with reason `loop`."""


class Calls:
    """Runs the calls of replies, one reply at a time."""

    def __init__(
        self, run: RunState, board: Board, attempts: Attempts, decisions: Decisions, allowance: Allowance
    ) -> None:
        self._run = run
        self._board = board
        self._attempts = attempts
        self._decisions = decisions
        self._allowance = allowance

    async def execute(self, calls: Sequence[CallPart], max_repeats: int) -> list[Ran]:
        """Run the calls of one reply and add their results to the conversation. Raises where the run must end."""
        run = self._run
        if not run.turn:  # else the run was continued as new while people were waited for
            await self._make_room(calls)
            run.turn = self._plan(calls, max_repeats)
            self._keep_one_final(run.turn)
            await self._ask_policy(run.turn)
            self._request_approvals(run.turn)
        plans = run.turn
        ran = await self._run_all(plans)
        run.turn = []
        self._forgive_waiting(plans)
        if any(plan.over for plan in plans) and run.stop_reason is None:
            raise LimitReached("max_tool_calls")
        if run.counters["refused_repeats"] > PATIENCE:
            raise RunFault(Outcome.NO_SOLUTION, "loop", "the model repeated the same call again and again")
        return ran

    # --- before anything runs -----------------------------------------------------------------------------------------

    async def _make_room(self, calls: Sequence[CallPart]) -> None:
        """Get a higher limit on tool calls where that is how the run does it; what is over is refused by the plan."""
        run, wanted = self._run, sum(1 for call in calls[:MOST_CALLS] if not call.error and self._spec(call))
        while run.stop_reason is None:
            run.go_on_if_full()
            try:
                run.account.check_tool_calls(run.limits, wanted)
                return
            except LimitReached as reached:
                if not await self._allowance.more(reached):
                    return

    def _plan(self, calls: Sequence[CallPart], max_repeats: int) -> list[Planned]:
        """Refuse what cannot run, and count the rest."""
        run = self._run
        plans = [Planned(call=call, identity=identity(call)) for call in calls]
        room = run.account.left(run.limits).tool_calls
        for index, plan in enumerate(plans):
            call, spec = plan.call, self._spec(plan.call)
            if call.error:
                plan.refusal = call.error
            elif spec is None:
                plan.refusal = self._no_such_tool(call)
            elif index >= MOST_CALLS:
                plan.refusal = f"not executed: at most {MOST_CALLS} calls in one reply"
            elif run.turn_calls[plan.identity] >= max_repeats:
                run.counters["refused_repeats"] += 1
                plan.refusal = (
                    f"not executed: you already made this call {max_repeats} times with the same arguments; "
                    "use its result, or do something else"
                )
            elif room < 1:
                plan.over = True
                plan.refusal = f"not executed: the limit of {run.limits.tool_calls} tool calls is reached"
            else:
                room -= 1
                self._count(plan, spec)
        self._count_broken(plans, max_repeats)
        return plans

    def _count(self, plan: Planned, spec: ToolSpec) -> None:
        run = self._run
        run.account.tool_calls += 1
        plan.same = run.calls[plan.identity]
        run.calls[plan.identity] += 1
        run.turn_calls[plan.identity] += 1
        plan.approval = spec.approval
        if plan.identity in run.unsure:
            plan.approval = spec.approval or Approval()
            plan.why = "an earlier identical call has an unknown outcome"

    def _no_such_tool(self, call: CallPart) -> str:
        assert self._run.context is not None
        known = [tool.name for tool in self._run.context.spec.tools]
        hint = near_names(call.tool, known) or known[:20]
        return f"there is no tool {call.tool!r}; you have {', '.join(hint) or 'no tools'}"

    def _count_broken(self, plans: list[Planned], max_repeats: int) -> None:
        """Calls that can never run count as repetitions too, each once a reply."""
        run = self._run
        broken = [plan for plan in plans if plan.call.error or self._spec(plan.call) is None]
        for one in dict.fromkeys(f"{plan.identity}!" for plan in broken):
            run.turn_calls[one] += 1
            if run.turn_calls[one] > max_repeats:
                run.counters["refused_repeats"] += 1

    def _forgive_waiting(self, plans: list[Planned]) -> None:
        """A read whose result has changed since the last time is no repetition: the model waits for something."""
        for plan in plans:
            spec = self._spec(plan.call)
            if spec is None or spec.effect not in REPEATABLE or plan.refusal is not None or plan.message is None:
                continue
            if self._run.repetition.changed(plan.call, plan.message):
                self._run.turn_calls[plan.identity] -= 1

    def _keep_one_final(self, plans: list[Planned]) -> None:
        """A valid call of a final tool ends the run, so nothing else of its reply runs."""
        final = next((p for p in plans if not p.refusal and (spec := self._spec(p.call)) and spec.final), None)
        if final is None:
            return
        for plan in plans:
            if plan is not final and not plan.refusal:
                plan.refusal = f"not executed: {final.call.tool} ends the run; send it alone, after everything else"

    async def _ask_policy(self, plans: list[Planned]) -> None:
        """Let the agent's policy judge all calls at once; no answer, or a wrong one, denies."""
        run = self._run
        assert run.context is not None
        asked = [plan for plan in plans if not plan.refusal]
        if not run.context.spec.policy or not asked:
            return
        calls = tuple((p.call.id, p.call.tool, p.call.arguments) for p in asked)
        whole = {p.call.id: p.call.whole for p in asked if p.call.whole is not None}
        question = PolicyInput(calls=calls, step=run.account.steps, run=run.chain, whole=whole)
        try:
            output = await execute_locally(CHECK_POLICY, question, options.POLICY, "policy")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            why = f"the policy failed: {str(error.cause or error)[:500]}"
            output = PolicyOutput(decisions={plan.call.id: ("deny", why) for plan in asked})
        for plan in asked:
            action, reason = output.decisions.get(plan.call.id, ("allow", ""))
            if action == "deny":
                plan.refusal = f"not executed: denied by policy: {reason}"
                run.note("policy_denied", call_id=plan.call.id, tool=plan.call.tool, reason=reason)
            elif action == "ask":
                plan.approval, plan.why = plan.approval or Approval(), reason

    def _request_approvals(self, plans: list[Planned]) -> None:
        for plan in plans:
            spec = self._spec(plan.call)
            if plan.refusal is None and plan.approval is not None and spec is not None:
                self._decisions.request(plan, spec)
        if self._run.approvals.open:
            self._board.changed(self._run, "waiting for approval")

    # --- running ------------------------------------------------------------------------------------------------------

    async def _run_all(self, plans: list[Planned]) -> list[Ran]:
        run = self._run
        assert run.context is not None
        slots = asyncio.Semaphore(SIDE_BY_SIDE if run.context.spec.parallel_tools else 1)
        tasks: list[asyncio.Task[Ran]] = []
        before: asyncio.Task[Ran] | None = None
        for plan in plans:
            spec = self._spec(plan.call)
            ordered = spec is not None and spec.effect not in REPEATABLE
            task = asyncio.create_task(self._one(plan, before if ordered else None, slots))
            task.add_done_callback(_retrieve)
            tasks.append(task)
            before = task if ordered else before
        try:
            while not _settled(tasks):
                await workflow.wait_condition(lambda: _settled(tasks) or (run.full and self._only_waits()))
                if run.full and self._only_waits() and not _settled(tasks):  # still, for what came with it ran first
                    self._go_on(tasks)
        except asyncio.CancelledError:  # not finally: a worker that puts the run aside must change nothing
            self._answer_all(plans, tasks)
            raise
        ended = [task for task in tasks if task.done()]  # all, or those up to the first that ends the run
        self._answer_all(plans, tasks)
        return [task.result() for task in ended]

    def _go_on(self, tasks: list[asyncio.Task[Ran]]) -> None:
        """Continue as new; nothing of what is carried may begin in this run any more."""
        carried = self._run.carry()
        for task in tasks:
            task.cancel()
        workflow.continue_as_new(args=[None, carried])

    def _only_waits(self) -> bool:
        """Nothing is in flight: what has no result yet waits for people, or for calls that do."""
        return self._run.sending == 0 and not any(p.phase == "running" and p.message is None for p in self._run.turn)

    def _answer_all(self, plans: list[Planned], tasks: list[asyncio.Task[Ran]]) -> None:
        """Give every call its result; what still runs or waits is cut short."""
        for task in tasks:
            task.cancel()
        for plan in plans:
            self._run.approvals.close(plan.call.id)
            self._run.questions.close(f"q-{plan.call.id}")
        self._run.messages.extend(self._answer(plan, task) for plan, task in zip(plans, tasks, strict=True))

    def _answer(self, plan: Planned, task: asyncio.Task[Ran]) -> ToolMessage:
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result().message
        spec = self._spec(plan.call)
        if plan.phase != "planned" and spec is not None and spec.effect not in REPEATABLE:
            why = "the run ended while it ran"
            self._run.note("tool_unknown", call_id=plan.call.id, tool=plan.call.tool, reason=why)
            return self._error(plan, f"outcome unknown: {why}; {plan.call.tool} may or may not have taken effect")
        return self._error(plan, "interrupted: the run ended before this call had a result")

    async def _one(self, plan: Planned, before: asyncio.Task[Ran] | None, slots: asyncio.Semaphore) -> Ran:
        if plan.message is not None:
            return Ran(plan.message, final=plan.final, structured=plan.structured)
        if plan.refusal is None and plan.approval is not None and not plan.approved:
            plan.refusal = await self._decisions.wait(plan)
            if plan.edited:
                self._count_edited(plan)
        if plan.refusal is not None:
            self._run.note("tool_refused", call_id=plan.call.id, tool=plan.call.tool, reason=plan.refusal[:500])
            return self._keep(plan, Ran(message=self._error(plan, plan.refusal)))
        if before is not None:
            await workflow.wait([before])
        if self._run.stop_reason and plan.approval is not None:
            return self._keep(plan, Ran(message=self._error(plan, "not executed: the run was stopped")))
        async with slots:
            return self._keep(plan, await self._execute(plan))

    def _count_edited(self, plan: Planned) -> None:
        """The call is another one from now on: the one that the approver made of it."""
        plan.identity = identity(plan.call)
        plan.same = self._run.calls[plan.identity]
        self._run.calls[plan.identity] += 1

    async def _execute(self, plan: Planned) -> Ran:
        run, call, spec = self._run, plan.call, self._spec(plan.call)
        assert spec is not None
        if plan.phase == "planned" and not run.questions.knows(f"q-{call.id}"):
            run.note("tool_start", call_id=call.id, tool=call.tool, step=run.account.steps)
        done: Done = await self._attempts.run(plan, spec)
        run.note("tool_end", call_id=call.id, tool=call.tool, status=done.status, error=done.message.error or None)
        if done.status == "unknown":
            run.unsure.add(plan.identity)
        return Ran(done.message, final=spec.final and not done.message.error, structured=done.structured)

    def _keep(self, plan: Planned, ran: Ran) -> Ran:
        """Its result stays with the plan until all calls of the reply have one."""
        plan.message, plan.final, plan.structured = ran.message, ran.final, ran.structured
        return ran

    def _spec(self, call: CallPart) -> ToolSpec | None:
        assert self._run.context is not None
        return self._run.context.spec.tool(call.tool)

    def _error(self, plan: Planned, body: str) -> ToolMessage:
        return ToolMessage(role="tool", call=plan.call.id, parts=text(body), error=True, id=self._run.mint())


def _settled(tasks: Sequence[asyncio.Task[Ran]]) -> bool:
    """All have ended, or one ends the run."""
    ended = [task for task in tasks if task.done()]
    return len(ended) == len(tasks) or any(task.cancelled() or task.exception() for task in ended)


def _retrieve(task: asyncio.Task[Ran]) -> None:
    """A call that was cut short has nobody left who would look at how it ended."""
    if not task.cancelled():
        task.exception()
