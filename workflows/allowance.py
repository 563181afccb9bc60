"""What happens at a limit: more is asked of the parent, or waited for from people, or there is none."""

from __future__ import annotations

import asyncio
import contextlib
from decimal import Decimal

from temporalio import workflow

from perdure.limits import LimitReached, Need
from workflows import options
from workflows.family import Family
from workflows.notices import Notices
from workflows.state import RunState
from workflows.views import Board


class Allowance:
    """Gets a run more of what it has used up."""

    def __init__(self, run: RunState, board: Board, notices: Notices, family: Family) -> None:
        self._run = run
        self._board = board
        self._notices = notices
        self._family = family
        family.more = self.more

    async def more(self, reached: LimitReached) -> bool:
        """True where it is worth looking again: the limit is higher, or the run is to stop or to continue as new."""
        run = self._run
        assert run.context is not None
        if run.parent is not None and reached.need is not None and self._within_own(reached.need):
            return await self._family.ask(reached.need)
        return run.context.spec.on_limit == "pause" and await self._pause(reached)

    def _within_own(self, need: Need) -> bool:
        """Whether the agent's own limits allow more: only what a parent has lowered can it raise."""
        run = self._run
        assert run.context is not None
        own = getattr(run.context.most or run.context.spec.limits, need.limit)
        if need.limit == "deadline":
            return False
        return own is None or Decimal(getattr(run.limits, need.limit) or 0) + need.amount <= own

    def _may_continue(self) -> bool:
        """Whether the run is to continue as new; it cannot while calls wait for this, and would ask again and again."""
        return self._run.full and self._run.sending == 0 and not self._run.turn

    async def _pause(self, reached: LimitReached) -> bool:
        """Wait until somebody extends the limits, for a day at most."""
        run, before, now = self._run, self._run.extended, workflow.now()
        run.paused = reached
        if run.paused_until is None:
            run.paused_until = now + options.LIMIT_WAIT
            run.note("limit_reached", reason=reached.reason, deadline=run.paused_until.isoformat(), paused=True)
            self._notices.tell("limit", limit=reached.reason, deadline=run.paused_until)
        self._board.changed(run, f"paused: {reached.reason} is reached")
        try:
            with contextlib.suppress(TimeoutError):  # an extension that came with it counts
                await workflow.wait_condition(
                    lambda: run.extended != before or run.stop_reason is not None or self._may_continue(),
                    timeout=max(run.paused_until - now, options.AT_ONCE),
                    timeout_summary=f"extension of {reached.reason}",
                )
        except asyncio.CancelledError:  # the child that needed it has ended
            if run.paused is reached:  # and the run does not wait for itself by now
                run.paused = run.paused_until = None
                self._board.changed(run, "going on")
            raise
        over = run.extended == before and run.stop_reason is None and workflow.now() >= run.paused_until
        if over:
            run.note("extension_expired", reason=reached.reason)
        if over or run.extended != before:
            run.paused_until = None
        run.paused = None
        self._board.changed(run, "going on")
        return not over
