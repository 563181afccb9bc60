"""A run and its child runs: what children wait for is shown and decided at their parent, who also gives them more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import FailureError

from perdure.approval import Refused
from perdure.family import CHILD_NEEDS, CHILD_WAITS, GRANT, ChildNeeds, ChildWaits, Grant
from perdure.limits import LimitReached, LimitsOverride, Need, reached
from workflows import options
from workflows.state import RunState
from workflows.views import Board

PATH = "/"
"""Between the call that started a child and what waits in it: `c2/c1` is the call `c1` of the child of `c2`."""


async def _no_more(reached: LimitReached) -> bool:
    return False


class Family:
    """What one run and its relatives tell each other."""

    def __init__(self, run: RunState, board: Board) -> None:
        self._run = run
        self._board = board
        self._tasks: list[asyncio.Task[None]] = []
        self._asked = 0
        self._seeking: asyncio.Task[None] | None = None
        self.more: Callable[[LimitReached], Coroutine[Any, Any, bool]] = _no_more
        """How this run gets a higher limit itself."""

    # --- as a parent --------------------------------------------------------------------------------------------------

    def child_of(self, path: str) -> tuple[str, str] | None:
        """The child run and the rest of a path into it; None for what is this run's own."""
        head, slash, rest = path.partition(PATH)
        found = next((child for child, call in self._run.children.items() if call == head), None)
        return (found, rest) if slash and found else None

    def pass_on(self, name: str, field: str, path: str, payload: dict[str, Any]) -> bool:
        """Send a message about something that waits in a child to that child; False for what is this run's own."""
        found = self.child_of(path)
        if found is not None:
            self.send(found[0], name, {**payload, field: found[1]})
        return found is not None

    def child_waits(self, told: ChildWaits, apply: bool) -> None:
        """Show what a child waits for; raises Refused for a stranger."""
        run, call = self._run, self._run.children.get(told.child)
        if call is None:
            raise Refused(f"no child run {told.child!r} is open")
        times = (*(r.pending.deadline for r in told.requests), *(q.deadline for q in told.questions))
        if any(time.tzinfo is None for time in times):
            raise Refused("deadline: needs a time zone")
        if not apply:
            return
        here = {f"{call}{PATH}{r.pending.call_id}": r for r in told.requests}
        for call_id in [c for c in run.approvals.open if c.startswith(f"{call}{PATH}") and c not in here]:
            run.approvals.drop(call_id)
        for call_id, request in here.items():
            pending = request.pending.model_copy(update={"call_id": call_id, "run": request.pending.run or told.child})
            if call_id not in run.approvals.open:
                deadline = pending.deadline.isoformat()
                asked = {"call_id": call_id, "tool": pending.tool, "digest": pending.digest}
                run.note("approval_requested", **asked, deadline=deadline, run=pending.run, reason=pending.reason)
            run.approvals.mirror(request.model_copy(update={"pending": pending}))
        self._show_questions(call, told)
        (run.paused_children.add if told.paused else run.paused_children.discard)(call)
        self._board.changed(run, run.activity)

    def _show_questions(self, call: str, told: ChildWaits) -> None:
        run = self._run
        here = {f"{call}{PATH}{q.question_id}": q for q in told.questions}
        for question_id in [q for q in run.questions.open if q.startswith(f"{call}{PATH}") and q not in here]:
            run.questions.close(question_id)
        for question_id, question in here.items():
            if question_id not in run.questions.open:
                run.note("question", question_id=question_id, text=question.text[:500])
            child = question.run or told.child
            run.questions.open[question_id] = question.model_copy(update={"question_id": question_id, "run": child})

    def child_needs(self, told: ChildNeeds, apply: bool) -> None:
        """A child asks for more of a limit; raises Refused for a stranger."""
        call = self._run.children.get(told.child)
        if call is None:
            raise Refused(f"no child run {told.child!r} is open")
        if apply:
            self._run.needs[call] = told
            self.review()

    def ended(self, child: str) -> None:
        """A child has ended: nothing of it waits any more, and what it did not use is there for others."""
        run, call = self._run, self._run.children.pop(child)
        run.needs.pop(call, None)
        run.paused_children.discard(call)
        for call_id in [c for c in run.approvals.open if c.startswith(f"{call}{PATH}")]:
            run.approvals.drop(call_id)
        for question_id in [q for q in run.questions.open if q.startswith(f"{call}{PATH}")]:
            run.questions.close(question_id)
        self._board.changed(run, run.activity)
        self.review()

    def extended(self, by: LimitsOverride) -> None:
        """The run's limits were raised: its children have more time, and what they ask for may be there now."""
        if by.deadline is not None:
            for child in self._run.children:
                self.send(child, GRANT, Grant(more=LimitsOverride(deadline=by.deadline)))
        self.review()

    def stop(self, reason: str | None) -> None:
        """The run is to stop after its present step, and so are the children that it waits for."""
        for child in self._run.children:
            self.send(child, "stop", {} if reason is None else {"reason": reason})

    def review(self) -> None:
        """Give children what they ask for, as far as it is there; where all ask and nobody gives, one goes without."""
        run = self._run
        for call, asked in list(run.needs.items()):
            amount = run.account.grant(call, asked.need, run.limits)
            if amount is not None:
                self._answer(call, Need(limit=asked.need.limit, amount=amount).override)
        stuck = run.needs and len(run.needs) == len(run.children)
        if stuck and (self._seeking is None or self._seeking.done()):
            self._seeking = asyncio.create_task(self._seek())

    async def _seek(self) -> None:
        """Get more for the whole tree, or let the youngest of those who ask end."""
        run, need = self._run, next(iter(self._run.needs.values())).need
        here = getattr(run.account.left(run.limits), need.limit, None) or 0
        if await self._more(reached(need.limit, need.amount - max(0, here))) and run.stop_reason is None:
            self._seeking = None
            self.review()
        elif run.needs:
            self._answer(list(run.needs)[-1], None)

    async def _more(self, reached: LimitReached) -> bool:
        """Get more, unless nobody asks any more."""
        run = self._run
        seeking = asyncio.create_task(self.more(reached))
        await workflow.wait_condition(lambda: seeking.done() or not run.needs)
        if not seeking.done():
            seeking.cancel()
            await workflow.wait([seeking])
            return True
        return seeking.result()

    def _answer(self, call: str, more: LimitsOverride | None) -> None:
        asked = self._run.needs.pop(call)
        self._run.note("limit_granted", call_id=call, limit=asked.need.limit, granted=more is not None)
        self.send(asked.child, GRANT, Grant(number=asked.number, more=more))

    # --- as a child ---------------------------------------------------------------------------------------------------

    async def report(self, continued: bool) -> None:
        """Tell the parent what this run waits for, whenever that changes; for as long as the run lasts."""
        run = self._run
        # What the earlier run of the chain has told may be out of date before this one begins.
        told: tuple[Any, ...] | None = None if continued else ()
        assert run.parent is not None
        while True:
            await workflow.wait_condition(lambda: self._waits() != told)  # noqa: B023
            told = self._waits()
            state = ChildWaits(
                child=workflow.info().workflow_id,
                requests=tuple(run.approvals.open.values()),
                questions=tuple(run.questions.open.values()),
                paused=run.state == "waiting_limit",
            )
            run.sending += 1
            await self._deliver(run.parent, CHILD_WAITS, state)  # one after the other: the last one counts

    def _waits(self) -> tuple[Any, ...]:
        run = self._run
        requests = [(r.pending.call_id, r.pending.stage, len(r.pending.decisions)) for r in run.approvals.open.values()]
        paused = ["paused"] if run.state == "waiting_limit" else []
        waits = (*requests, *run.questions.open, *paused)
        return (*waits, run.misread) if waits else ()

    async def ask(self, need: Need) -> bool:
        """Ask the parent for more of a limit; False where there is none."""
        run = self._run
        assert run.parent is not None
        self._asked += 1
        number, before = self._asked, run.extended
        run.tick()
        run.asking = True
        run.tick()
        self.send(run.parent, CHILD_NEEDS, ChildNeeds(child=workflow.info().workflow_id, need=need, number=number))
        try:
            await workflow.wait_condition(
                lambda: number in run.grants or run.extended != before or run.stop_reason is not None,
                timeout=options.GRANT_WAIT,
                timeout_summary=f"more {need.limit}",
            )
        except TimeoutError:
            run.note("limit_not_answered", limit=need.limit)
        run.asking = False
        run.tick()
        run.grants.pop(number, None)
        return run.extended != before or run.stop_reason is not None

    def granted(self, told: Grant, apply: bool) -> None:
        """Take what the parent gives."""
        if self._run.parent is not None and told.more is not None:
            self._run.extend(told.more, own=True, apply=apply)
        if apply and self._run.parent is not None:
            if told.more is not None:
                self.extended(told.more)
            if told.number is not None:
                self._run.grants[told.number] = told

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, workflow_id: str, name: str, payload: BaseModel | dict[str, Any]) -> None:
        """Signal another run; one that has ended meanwhile needs nothing any more."""
        self._run.sending += 1
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.create_task(self._deliver(workflow_id, name, payload)))

    async def _deliver(self, workflow_id: str, name: str, payload: BaseModel | dict[str, Any]) -> None:
        try:
            await workflow.get_external_workflow_handle(workflow_id).signal(name, payload)
        except FailureError as error:
            self._run.note("not_delivered", message=name, to=workflow_id, reason=str(error)[:300])
        self._run.sending -= 1
