"""A workflow type that nobody wrote fails at once and says which ones exist."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.contracts import AGENT_WORKFLOW
from perdure.outcomes import Outcome


@workflow.defn(dynamic=True)
class UnknownWorkflow:
    """Catches every other workflow type on the queue."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        """Fail with the names that are known."""
        raise ApplicationError(
            f"workflow type {workflow.info().workflow_type!r} does not exist here; start {AGENT_WORKFLOW!r}",
            type=Outcome.INVALID_INPUT,
            non_retryable=True,
        )
