"""Waits for a child run that exists already: after a reset, its parent attaches to it instead of starting another."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from activities.beats import Beats
from perdure.contracts import ChildRef


class ChildActivities:
    """Attaches to child runs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn(name="await_child")
    async def await_child(self, child: ChildRef) -> dict[str, Any]:
        """The result of the child, or what its failure carries."""
        async with Beats():
            try:
                result: dict[str, Any] = await self._client.get_workflow_handle(child.workflow_id).result()
                return result
            except WorkflowFailureError as error:
                cause = error.cause
                if isinstance(cause, ApplicationError) and cause.details and isinstance(cause.details[0], dict):
                    found: dict[str, Any] = cause.details[0]
                    return found
                outcome = "cancelled" if isinstance(cause, CancelledError) else "failed"
                return {"outcome": outcome, "reason": str(cause)[:500]}
