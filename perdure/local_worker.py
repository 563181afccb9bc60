"""The worker of `perdure.local`: serves agents while they are added. Imports the runtime, so its path must be set."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Iterable
from typing import Any

from temporalio import client as temporal

from activities.bus import Bus, Subscription
from activities.converter import data_converter
from activities.registry import Lifespan, Registry, load
from activities.stores.choice import choose_store
from perdure.agent import Agent
from perdure.connection import connect_embedded
from perdure.errors import PerdureError
from perdure.sinks import OnEvent
from perdure.worker_settings import WorkerSettings
from worker import serving


class LocalWorker:
    """A worker on the running loop, restarted where a new agent brings a lifespan that must be entered first."""

    def __init__(self, served: Iterable[Agent | str], settings: WorkerSettings, on_event: OnEvent = None) -> None:
        """Load agents, files and modules; raises ConfigError. `on_event` is given every event of their runs."""
        self._settings = settings
        self._on_event = on_event
        self._registry = Registry()
        self._client: temporal.Client | None = None
        self._stop = asyncio.Event()
        self._bus = Bus()
        self._serving: asyncio.Task[None] | None = None
        for item in served:
            if isinstance(item, Agent):
                self._add(item)
            else:
                load([item], self._registry)

    async def connect(self, address: str) -> temporal.Client:
        """Connect, serve what was loaded, and return the connection; raises Unreachable.

        Where nothing was loaded nothing is served yet: what an earlier process has left must not meet a worker that
        lacks its tools.
        """
        converter = data_converter(choose_store(self._settings, os.environ))
        self._client = await connect_embedded(address, converter)
        if self._registry.agents:
            await self._begin()
        return self._client

    @property
    def serves(self) -> bool:
        """True once something is served."""
        return self._serving is not None

    async def serve(self, agent: Agent) -> None:
        """Serve a further agent, or another one of the same name instead of it; raises ConfigError."""
        if self._add(agent) or not self.serves:
            await self.stop()
            await self._begin()

    async def stop(self) -> None:
        """Stop gracefully."""
        task, self._serving = self._serving, None
        if task is not None:
            self._stop.set()
            await asyncio.wait([task])

    def listen(self, id: str) -> Subscription:
        """Begin to listen to what happens here in a run."""
        return self._bus.subscribe(id)

    async def alive_until(self, work: asyncio.Future[Any]) -> None:
        """Wait for the work; raises PerdureError where the worker ends before."""
        if self._serving is None:
            return
        serving_now = self._serving
        await asyncio.wait([work, serving_now], return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and serving_now is self._serving:
            error = None if serving_now.cancelled() else serving_now.exception()
            raise PerdureError(f"the worker of this process has ended: {error or 'no reason is known'}")

    async def _begin(self) -> None:
        self._stop, self._bus = asyncio.Event(), Bus()
        ready = asyncio.Event()
        self._serving = asyncio.create_task(self._serve_until(self._stop, ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([self._serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._serving.done():
            self._serving.result()

    async def _serve_until(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        assert self._client is not None
        async with serving(self._client, self._registry, self._settings, self._bus, self._on_event):
            ready.set()
            await stop.wait()

    def _add(self, agent: Agent) -> bool:
        """Register an agent; True where a lifespan came with it."""
        known = self._registry.agents.get(agent.name)
        if known is not None and known is not agent:  # a notebook's cell was run again
            del self._registry.agents[agent.name]
            for tool in known.tools:
                if self._registry.tools.get(tool.spec.name) is tool:
                    del self._registry.tools[tool.spec.name]
        before = set(self._registry.agents)
        self._registry.add(agent)
        entered = len(self._registry.lifespans)
        for name in set(self._registry.agents) - before:
            if (found := lifespan_of(self._registry.agents[name])) is not None:
                self._registry.add_lifespan(found, [name])
        return len(self._registry.lifespans) > entered


def lifespan_of(agent: Agent) -> Lifespan | None:
    """The `lifespan` of the module that an agent's tools are written in, as an agents file has it."""
    for tool in agent.tools:
        module = inspect.unwrap(tool.function).__module__ if tool.function is not None else ""
        found: Lifespan | None = getattr(sys.modules.get(module), "lifespan", None)
        if callable(found) and not inspect.signature(found).parameters:
            return found
    return None
