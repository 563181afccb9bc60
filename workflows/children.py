"""Agents as tools: a child run with an id derived from the call, on its parent's account."""

from __future__ import annotations

import json
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

from perdure.canonical import digest
from perdure.contracts import AGENT_WORKFLOW, AWAIT_CHILD, ChildRef
from perdure.family import ChildOrigin
from perdure.limits import LimitReached, Share, child_limits
from perdure.messages import CallPart, ToolMessage, text
from perdure.tools import ToolSpec
from workflows import options
from workflows.family import Family
from workflows.state import RunState
from workflows.steps import execute


class Children:
    """Starts child runs, or attaches to those that an earlier attempt of this run has started."""

    def __init__(self, run: RunState, family: Family) -> None:
        self._run = run
        self._family = family

    async def run(self, call: CallPart, spec: ToolSpec) -> ToolMessage:
        """The child's answer as the result of the call; its failure is an error that the model sees."""
        run, info = self._run, workflow.info()
        assert run.input is not None
        assert run.context is not None
        child_id = f"{info.workflow_id}/{call.id}-{info.first_execution_run_id[:8]}"
        try:
            share = await self._share(call)
        except LimitReached as reached:
            return self._answer(call, f"not executed: {reached.reason} is reached", error=True)
        start = {
            "agent": spec.agent,
            "prompt": call.arguments["prompt"],
            "limits": child_limits(share, run.seconds_left()),
            "metadata": run.context.metadata,
            **{name: value for name in ("tenant", "user", "data") if (value := getattr(run.context, name)) is not None},
        }
        origin = ChildOrigin(key_prefix=key_of(run, call), parent=info.workflow_id)
        run.children[child_id] = call.id
        run.note("child_started", call_id=call.id, workflow_id=child_id, agent=spec.agent)
        try:
            result = await workflow.execute_child_workflow(
                AGENT_WORKFLOW,
                args=[start, origin],
                id=child_id,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                static_summary=f"{spec.agent}: {call.arguments['prompt']}"[:200],
            )
        except WorkflowAlreadyStartedError:
            result = await self._attach(child_id)
        except ChildWorkflowError as error:
            if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
                raise
            # A cancelled run has no result, but it can be asked what it has used.
            result = await self._attach(child_id) if is_cancelled_exception(error) else failure_result(error)
        return self._settle(call, child_id, result)

    async def _share(self, call: CallPart) -> Share:
        """What the child may spend; raises LimitReached where nothing is left and nobody gives more."""
        run = self._run
        while True:
            try:
                return run.account.reserve(call.id, run.limits, 1 + self._waiting())
            except LimitReached as reached:
                if run.children or not await self._family.more(reached) or run.stop_reason is not None:
                    raise

    async def _attach(self, child_id: str) -> dict[str, Any]:
        try:
            attached = ChildRef(workflow_id=child_id)
            return await execute(AWAIT_CHILD, attached, options.AWAIT_CHILD, f"attach to {child_id}"[:100])
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return {"outcome": "failed", "reason": str(error.cause or error)[:500]}

    def _settle(self, call: CallPart, child_id: str, result: dict[str, Any]) -> ToolMessage:
        run = self._run
        spent = run.account.settle(call.id, result)
        outcome = result.get("outcome")
        run.note("child_ended", call_id=call.id, workflow_id=child_id, outcome=outcome, tokens=spent.total)
        self._family.ended(child_id)
        body = {"output": result.get("output", ""), "steps": result.get("steps", 0), "tokens": spent.total}
        if outcome == "success":
            if result.get("structured") is not None:
                body["output"] = result["structured"]
            return self._answer(call, json.dumps(body, ensure_ascii=False))
        ended = f"the agent ended {outcome}{f' ({why})' if (why := result.get('reason')) else ''}"
        return self._answer(call, json.dumps({"error": ended, **body}, ensure_ascii=False), error=True)

    def _answer(self, call: CallPart, body: str, *, error: bool = False) -> ToolMessage:
        return ToolMessage(role="tool", call=call.id, parts=text(body), error=error, id=self._run.mint())

    def _waiting(self) -> int:
        """How many calls of this reply are for children that have not begun."""
        assert self._run.context is not None
        spec = self._run.context.spec
        specs = (spec.tool(p.call.tool) for p in self._run.turn if p.phase == "planned" and p.refusal is None)
        return sum(1 for found in specs if found is not None and found.agent is not None)


def failure_result(error: ChildWorkflowError) -> dict[str, Any]:
    """The result that a failed child left in its failure, or what can be said without one."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        if cause.details and isinstance(cause.details[0], dict):
            result: dict[str, Any] = cause.details[0]
            return result
        return {"outcome": cause.type or "failed", "reason": cause.message[:500]}
    return {"outcome": "cancelled" if is_cancelled_exception(error) else "failed", "reason": str(cause or error)[:500]}


def key_of(run: RunState, call: CallPart) -> str:
    """The idempotency key of a call: the same in every attempt, after continue-as-new and after a reset."""
    assert run.context is not None
    hexes = digest(call.arguments)[7:23]
    return f"{run.context.key_prefix}{workflow.info().first_execution_run_id}/{call.id}/{hexes}"
