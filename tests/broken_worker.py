"""A worker whose code has a bug: every workflow task of its runs fails, as after a bad deploy."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from perdure.contracts import AGENT_WORKFLOW

BUG = "no such luck"


@workflow.defn(name=AGENT_WORKFLOW, sandboxed=False)
class Broken:
    """A run that never gets anywhere."""

    @workflow.run
    async def run(self, given: Any = None) -> None:
        """Fail the workflow task, not the run."""
        raise RuntimeError(BUG)


@asynccontextmanager
async def broken_worker(client: Client, queue: str | None = None) -> AsyncIterator[str]:
    """Serve a queue with it; yields the queue's name."""
    name = queue or f"broken-{secrets.token_hex(4)}"
    async with Worker(client, task_queue=name, workflows=[Broken]):
        yield name
