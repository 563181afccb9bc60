"""The worker: reads the environment, builds clients and stores, wires them, runs. No logic lives here."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import Worker

from activities.bus import Bus
from activities.checks import CheckActivities
from activities.children import ChildActivities
from activities.converter import data_converter
from activities.exchange import Exchange, Idle
from activities.http import make_client
from activities.logs import shorten_failures
from activities.model import ModelActivities
from activities.notify import NotifyActivities
from activities.policies import Policies
from activities.recordings import Recordings
from activities.registry import Registry, load
from activities.resolve import ResolveActivities
from activities.shutdown import SHUTDOWN_GRACE, stop_on_signals, tell_failure
from activities.stores.choice import choose_store
from activities.tool_calls import ToolActivities
from activities.tool_threads import ToolThreads
from activities.transcript import Contexts, Transcripts
from activities.versions import pinned
from activities.watching import Watching
from perdure._launch import set_log_level
from perdure.connection import check_namespace, connect
from perdure.errors import PerdureError
from perdure.sinks import OnEvent
from perdure.worker_settings import WorkerSettings
from workflows.interceptor import RunInterceptor
from workflows.runner import WORKFLOWS, make_runner

THROTTLE = timedelta(milliseconds=200)
STICKY = timedelta(seconds=3)


@asynccontextmanager
async def serving(
    client: Client, registry: Registry, settings: WorkerSettings, bus: Bus | None = None, on_event: OnEvent = None
) -> AsyncIterator[Worker]:
    """A running worker for these agents; leaving the block stops it. `bus` and `on_event` are told what happens."""
    shorten_failures()
    store = choose_store(settings, os.environ)
    await store.prepare()
    transcripts, contexts, threads = Transcripts(), Contexts(), ToolThreads()
    watched = Watching(bus or Bus(), settings, os.environ, contexts, transcripts, on_event)
    idle = Idle(settings.idle_first.total_seconds(), settings.idle_between.total_seconds())
    await threads.start(registry.lifespans)
    async with make_client() as http, watched as watching:
        exchange = Exchange(http, os.environ, idle, threads, Recordings(settings, os.environ))
        models = ModelActivities(client, exchange, transcripts, contexts, store, watching.bus)
        policies = Policies(registry, threads)
        tools = ToolActivities(client, registry, threads, transcripts, contexts, store, policies)
        checks = CheckActivities(client, registry, threads, transcripts, contexts, store, policies)
        allowed = (settings.allowed_urls, settings.allowed_keys, settings.known_keys)
        resolves = ResolveActivities(client, registry, store, contexts, *allowed)
        secret = settings.decision_private_key
        key = secret.get_secret_value() if secret else None
        notices = NotifyActivities(client, registry, threads, contexts, http, os.environ, key)
        steps = (models.call_model, tools.call_tool, checks.check_policy, checks.verify_answer)
        runner = make_runner()
        worker = Worker(
            client,
            task_queue=settings.task_queue,
            workflows=WORKFLOWS,
            activities=[*steps, resolves.resolve_agent, ChildActivities(client).await_child, notices.notify],
            workflow_runner=runner,
            interceptors=[RunInterceptor(watching.bus.announce), *watching.interceptors],
            max_cached_workflows=settings.max_cached_runs,
            max_concurrent_activities=settings.max_activities,
            sticky_queue_schedule_to_start_timeout=STICKY,
            max_heartbeat_throttle_interval=THROTTLE,
            default_heartbeat_throttle_interval=THROTTLE,
            deployment_config=pinned(settings.worker_version),
            graceful_shutdown_timeout=timedelta(seconds=max(SHUTDOWN_GRACE, registry.longest_write()) + 5),
        )
        runner.left = watching.bus.left
        runner.evict = worker._bridge_worker.request_workflow_eviction  # the SDK has no public name for it
        try:
            async with tell_failure(worker), worker:
                yield worker
        finally:
            await threads.stop()


async def run(targets: Sequence[str], settings: WorkerSettings) -> None:
    """Serve the agents of files and modules until SIGTERM or SIGINT."""
    registry = Registry()
    load(targets, registry)
    client = await connect(data_converter(choose_store(settings, os.environ)))
    await check_namespace(client)
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with serving(client, registry, settings):
        names = ", ".join(registry.agents)
        print(f"worker: serving {names} on queue {settings.task_queue!r} of {client.service_client.config.target_host}")
        sys.stdout.flush()
        await stop.wait()
        print("worker: stopping; calls that must not be cut are finished first, unless asked again", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Exit code of `python worker.py my_agents.py ...`."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: python worker.py my_agents.py [more.py | package.module ...]", file=sys.stderr)
        return 2
    try:
        set_log_level(os.environ)
        asyncio.run(run(arguments, WorkerSettings.parse(os.environ)))
    except PerdureError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 3 if type(error).__name__ == "Unreachable" else 2
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a process that ran a Worker may abort while the interpreter shuts down
