"""Commands that serve agents: dev, worker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.output import show
from perdure.cli.session import settings
from perdure.connection import DEFAULT_ADDRESS, connect_embedded
from perdure.embedded import EmbeddedServer, Endpoint
from perdure.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from activities.registry import Registry

PORT = 7233

Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="AGENTS...", help="Files with agents, or modules: my_agents.py package.module", show_default=False
    ),
]


def worker(targets: Targets) -> None:
    """Serve agents for a Temporal server that runs elsewhere; the same as `python worker.py`."""
    import worker as process  # the runtime, found through the launcher's path

    _log()
    asyncio.run(process.run(targets, settings()))


def dev(
    targets: Targets,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of the Temporal server.")] = PORT,
    ui_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of Temporal's web UI. [default: port + 1000]")
    ] = None,
) -> None:
    """Run a Temporal server and a worker together, with everything kept in PERDURE_DATA_DIR."""
    from activities.registry import Registry, load

    _log()
    chosen = settings()
    registry = Registry()
    load(targets, registry)
    with ExitStack() as stack:
        endpoint = EmbeddedServer.running(Path(chosen.data_dir))
        if endpoint is not None:
            show(f"a Temporal server already runs on {chosen.data_dir}; using it, and leaving it running at the end")
        else:
            server = EmbeddedServer(Path(chosen.data_dir), port=port, ui_port=ui_port)
            endpoint = stack.enter_context(server).endpoint
        asyncio.run(_serve(endpoint, targets, registry, chosen))
        show("stopping the server")


async def _serve(endpoint: Endpoint, targets: Sequence[str], registry: Registry, chosen: WorkerSettings) -> None:
    from activities.converter import data_converter
    from activities.stores.files import FileStore
    from worker import serving

    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    client = await connect_embedded(endpoint.address, data_converter(FileStore(Path(chosen.data_dir) / "blobs")))
    async with serving(client, registry, chosen):
        _show_addresses(endpoint, list(registry.agents), chosen)
        await stop.wait()
        show("stopping the worker; calls that must not be cut are finished first")


def _show_addresses(endpoint: Endpoint, agents: list[str], chosen: WorkerSettings) -> None:
    standard = endpoint.address.rpartition(":")[2] == DEFAULT_ADDRESS.rpartition(":")[2]
    prefix = "" if standard else f"TEMPORAL_ADDRESS={endpoint.address} "
    show(f"server  {endpoint.address}")
    show(f"web UI  {endpoint.ui_address or '(none)'}")
    show(f"data    {chosen.data_dir}")
    show(f"agents  {', '.join(agents)} on queue {chosen.task_queue!r}")
    show(f'next    {prefix}perdure run {agents[0]} "..."')
    show(f"        {prefix}perdure list")
    show("Ctrl-C stops both; runs are kept and go on with the next start")


def _log() -> None:
    logging.basicConfig(level=os.environ.get("PERDURE_LOG", "WARNING").upper())
