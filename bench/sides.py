"""The two sides of every comparison, Perdure and the hand-written loop, behind one face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from temporalio.client import Client, WorkflowHandle
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import worker
from activities.converter import data_converter
from activities.registry import Registry
from activities.stores.files import FileStore
from bench import loop
from bench.agents import AGENTS
from perdure.contracts import AGENT_WORKFLOW
from perdure.worker_settings import WorkerSettings
from workflows.interceptor import RunInterceptor
from workflows.runner import WORKFLOWS, make_runner

ORDINARY, QUICK, POLICY, APPROVAL, TOLD, STREAMED = "ordinary", "quick", "policy", "approval", "told", "streamed"
"""Kinds of runs."""

Handle = WorkflowHandle[Any, Any]


class Side(Protocol):
    """What a measurement needs of a side."""

    name: str
    kinds: frozenset[str]

    def converter(self, folder: Path) -> DataConverter:
        """The data converter of clients, workers and replays."""
        ...

    def serve(self, client: Client, folder: Path, cached: int) -> Any:
        """An async context manager around a running worker."""
        ...

    async def start(self, client: Client, kind: str, turns: int, id: str) -> Handle:
        """Start a run of so many turns."""
        ...

    async def decide(self, handle: Handle, *, wait: bool) -> None:
        """Approve the call that waits: by update, or else by signal."""
        ...

    def replayer(self, folder: Path) -> Replayer:
        """What replays this side's histories."""
        ...


class Perdure:
    """Perdure as its worker runs it."""

    name = "perdure"
    kinds = frozenset(AGENTS)

    def converter(self, folder: Path) -> DataConverter:
        """See Side."""
        return data_converter(FileStore(folder / "blobs"))

    @asynccontextmanager
    async def serve(self, client: Client, folder: Path, cached: int) -> AsyncIterator[Worker]:
        """See Side."""
        registry = Registry()
        for agent in AGENTS.values():
            registry.add(agent)
        settings = WorkerSettings(task_queue=self.name, data_dir=folder, max_cached_runs=cached)
        async with worker.serving(client, registry, settings) as running:
            yield running

    async def start(self, client: Client, kind: str, turns: int, id: str) -> Handle:
        """See Side."""
        asked: Mapping[str, Any] = {"agent": kind, "prompt": "hello", "limits": {"steps": turns}}
        return await client.start_workflow(AGENT_WORKFLOW, asked, id=id, task_queue=self.name)

    async def decide(self, handle: Handle, *, wait: bool) -> None:
        """See Side."""
        await (handle.execute_update if wait else handle.signal)("approve", {})

    def replayer(self, folder: Path) -> Replayer:
        """See Side."""
        return Replayer(
            workflows=WORKFLOWS,
            workflow_runner=make_runner(),
            interceptors=[RunInterceptor()],
            data_converter=self.converter(folder),
        )


class HandWritten:
    """The loop, with the settings of Perdure's worker."""

    name = "loop"
    kinds = frozenset({ORDINARY, QUICK, APPROVAL, TOLD, STREAMED})

    def converter(self, folder: Path) -> DataConverter:
        """See Side."""
        return DataConverter.default

    @asynccontextmanager
    async def serve(self, client: Client, folder: Path, cached: int) -> AsyncIterator[Worker]:
        """See Side."""
        async with Worker(
            client,
            task_queue=self.name,
            workflows=loop.WORKFLOWS,
            activities=loop.ACTIVITIES,
            workflow_runner=self._runner(),
            max_cached_workflows=cached,
            max_concurrent_activities=WorkerSettings().max_activities,
            sticky_queue_schedule_to_start_timeout=worker.STICKY,
            max_heartbeat_throttle_interval=worker.THROTTLE,
            default_heartbeat_throttle_interval=worker.THROTTLE,
        ) as running:
            yield running

    async def start(self, client: Client, kind: str, turns: int, id: str) -> Handle:
        """See Side."""
        if kind in {TOLD, STREAMED}:
            return await client.start_workflow(loop.Streamed.run, kind == STREAMED, id=id, task_queue=self.name)
        arguments = [turns, kind == QUICK, kind == APPROVAL]
        return await client.start_workflow(loop.Loop.run, args=arguments, id=id, task_queue=self.name)

    async def decide(self, handle: Handle, *, wait: bool) -> None:
        """See Side."""
        if wait:
            await handle.execute_update("approve", {"approve": True})
        else:
            await handle.signal("approve_later", {"approve": True})

    def replayer(self, folder: Path) -> Replayer:
        """See Side."""
        return Replayer(workflows=loop.WORKFLOWS, workflow_runner=self._runner())

    def _runner(self) -> WorkflowRunner:
        """Its module passes through the sandbox, as Perdure's do: that is twice as fast to load and half the memory."""
        return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules("bench"))


PERDURE, LOOP = Perdure(), HandWritten()
SIDES: tuple[Side, Side] = (PERDURE, LOOP)
"""In the order in which they take turns."""
