"""Waiting for decisions: requests opened, reminders and escalations when they are due, the verdict at the end."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

from perdure.approval import Verdict
from perdure.canonical import digest
from perdure.outcomes import Outcome, RunFault
from perdure.tools import ToolSpec
from workflows.notices import Notices
from workflows.state import RunState
from workflows.turn import Planned, binding
from workflows.views import Board

EXPIRED = "not executed: the approval expired, nobody decided in time"


class Decisions:
    """The approvals of one run's own calls."""

    def __init__(self, run: RunState, board: Board, notices: Notices) -> None:
        self._run = run
        self._board = board
        self._notices = notices

    def request(self, plan: Planned, spec: ToolSpec) -> None:
        """Ask for a call, unless it was decided before for such calls."""
        assert plan.approval is not None
        run, call = self._run, plan.call
        opened = run.approvals.request(
            plan.approval,
            workflow.now(),
            # A decision for every call of the tool is not one for calls that are asked about for another reason.
            definition=digest({"tool": call.tool, "definition": spec.definition, "why": plan.why}),
            effect=spec.effect,
            reask=plan.identity in run.unsure,
            call_id=call.id,
            tool=call.tool,
            arguments=call.arguments,
            whole=call.whole,
            digest=binding(call.tool, call.arguments, spec, call.whole),
            reason=plan.why,
        )
        if isinstance(opened, Verdict):
            run.note("approval_remembered", call_id=call.id, tool=call.tool, approve=opened.approved)
            return
        pending = opened.pending
        run.note(
            "approval_requested",
            call_id=call.id,
            tool=call.tool,
            digest=pending.digest,
            deadline=pending.deadline.isoformat(),
            reason=plan.why,
            approvers=list(pending.approvers) or None,
        )
        self._notices.tell("requested", call=pending)

    async def wait(self, plan: Planned) -> str | None:
        """Wait for the verdict; None where the call may run, else why not. Raises RunFault for `fail` on timeout."""
        run, call_id, rule = self._run, plan.call.id, plan.approval
        assert rule is not None
        while call_id in run.approvals.open and run.stop_reason is None:
            due = run.approvals.open[call_id].wake
            try:
                await workflow.wait_condition(
                    lambda: call_id not in run.approvals.open or run.stop_reason is not None,
                    timeout=max(timedelta(0), due - workflow.now()),
                    timeout_summary=f"approval {plan.call.tool} {call_id}"[:100],
                )
            except TimeoutError:
                self._act_on_time(call_id, plan)
        run.approvals.close(call_id)
        verdict = run.approvals.settled[call_id]
        self._board.changed(run, "running tools")
        if verdict.expired and rule.on_timeout == "fail":
            raise RunFault(Outcome.FAILED, "approval_timeout", f"nobody decided {call_id} ({plan.call.tool}) in time")
        if not verdict.approved:
            return why_not(verdict)
        if verdict.arguments is not None:
            plan.call = plan.call.model_copy(update={"arguments": verdict.arguments, "whole": None})
            plan.edited = True
        plan.approved = True
        return None

    def _act_on_time(self, call_id: str, plan: Planned) -> None:
        """Remind, escalate or expire, and tell so."""
        run, request = self._run, self._run.approvals.open.get(call_id)
        if request is None:
            return
        kind = run.approvals.advance(call_id, workflow.now())
        if kind is None:
            return
        pending = request.pending
        told = {"call_id": call_id, "tool": pending.tool, "stage": pending.stage or None}
        if kind == "expired":
            run.note("approval_expired", **told, on_timeout=request.rule.on_timeout)
        else:
            deadline, approvers = pending.deadline.isoformat(), list(pending.approvers) or None
            run.note(f"approval_{kind}", **told, deadline=deadline, approvers=approvers)
            self._board.changed(run, run.activity)
        self._notices.tell(kind, call=pending)


def why_not(verdict: Verdict) -> str:
    """What the model is told of a call that may not run."""
    if verdict.expired:
        return EXPIRED
    by = f" by {verdict.by}" if verdict.by else ""
    return f"not executed: denied{by}{f': {verdict.reason}' if verdict.reason else ''}"
