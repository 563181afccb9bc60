"""What surrounds every workflow of a worker: arguments are counted, and what runs note is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleQueryInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from perdure.announcement import Announcement
from perdure.outcomes import Outcome
from workflows.announce import HOOK


class ArgumentCounts(WorkflowInboundInterceptor):
    """Refuses what would leave a run retrying for ever: a wrong number of inputs of runs and queries."""

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        """Only a parent or an earlier run of the chain may give a second argument."""
        info = workflow.info()
        inner = info.parent is not None or info.continued_run_id is not None
        if len(input.args) > (2 if inner else 1):
            raise ApplicationError(
                f"input: a run takes one JSON object, not {len(input.args)}",
                type=Outcome.INVALID_INPUT,
                non_retryable=True,
            )
        return await super().execute_workflow(input)

    async def handle_query(self, input: HandleQueryInput) -> Any:
        """A query takes at most one argument; the built-in ones are left alone."""
        if not input.query.startswith("__") and len(input.args) > 1:
            raise ValueError(f"query {input.query!r} takes at most one argument, not {len(input.args)}")
        return await super().handle_query(input)


class RunInterceptor(Interceptor):
    """Installs ArgumentCounts on a worker or replayer; a worker also gives the function that events are told to.

    That function is called in the thread of a workflow task: it must return at once, and never raises.
    """

    def __init__(self, announce: Callable[[Announcement], None] | None = None) -> None:
        self._announce = announce

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """The interceptor of every workflow."""
        if self._announce is not None:
            input.unsafe_extern_functions[HOOK] = self._announce
        return ArgumentCounts
