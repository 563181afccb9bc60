"""All that watches a worker from inside: sinks of events, and traces. None of it can slow a run or stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self

from temporalio.worker import Interceptor

from activities.bus import Bus
from activities.traces import Attempts, make_traces
from activities.transcript import Contexts, Transcripts
from perdure.redact import Redactor, secrets_of
from perdure.sinks import EventSinks, OnEvent
from perdure.worker_settings import WorkerSettings


class Watching:
    """The sinks and traces that the settings, the environment and `on_event` ask for, on one bus."""

    def __init__(
        self,
        bus: Bus,
        settings: WorkerSettings,
        environment: Mapping[str, str],
        contexts: Contexts,
        transcripts: Transcripts,
        on_event: OnEvent = None,
    ) -> None:
        secrets = secrets_of(environment)
        self.bus = bus
        """Told of everything that happens; closed at the end."""
        self._sinks = EventSinks(events_file=settings.events_file, on_event=on_event, secrets=secrets)
        if self._sinks:
            bus.listen(self._sinks.put)
        self.interceptors: list[Interceptor] = []
        """What the worker needs for it."""
        redactor = Redactor(secrets)
        self._traces = make_traces(environment, settings.traces_file, redactor, content=settings.trace_content)
        if self._traces is not None:
            bus.listen(self._traces.listen)
            self.interceptors.append(Attempts(self._traces, contexts, transcripts))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let what was told go out, for a bounded time."""
        self.bus.close()
        self.bus.leave(self._sinks.put)
        await asyncio.to_thread(self._sinks.close)
        if self._traces is not None:
            self.bus.leave(self._traces.listen)
            await asyncio.to_thread(self._traces.close)
