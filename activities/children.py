"""Waits for a child run that exists: after a reset its parent attaches to it; a cancelled one says what it has used."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError

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
                if isinstance(cause, CancelledError):
                    return {"outcome": "cancelled", **await self._spent(child)}
                return {"outcome": "failed", "reason": str(cause)[:500]}

    async def _spent(self, child: ChildRef) -> dict[str, Any]:
        """What a run without a result has used; nothing where it cannot be asked."""
        try:
            spent: dict[str, Any] = await self._client.get_workflow_handle(child.workflow_id).query("usage")
        except RPCError as error:
            activity.logger.warning("%s cannot be asked what it has used: %s", child.workflow_id, error.message)
            return {}
        return spent
