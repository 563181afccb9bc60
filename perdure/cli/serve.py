"""Commands that serve agents: dev, worker."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure._launch import set_log_level
from perdure.cli.output import note, show
from perdure.cli.session import settings
from perdure.connection import DEFAULT_ADDRESS, connect_embedded
from perdure.diagnosis import pollers
from perdure.embedded import Endpoint
from perdure.errors import PerdureError
from perdure.shared_server import Origin, SharedServer
from perdure.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from activities.registry import Registry

PORT = 7233
LOOK = 1.0
"""Seconds between two looks at the server."""

FOUND: Mapping[Origin, str] = {
    Origin.ORPHAN: "the process that started it has gone, so it is taken over and stopped at the end",
    Origin.SHARED: "using it; the last process that uses it stops it",
    Origin.FOREIGN: "using it, and leaving it running at the end",
}
ENDED: Mapping[Origin, str] = {
    Origin.OWN: "both",
    Origin.ORPHAN: "both",
    Origin.SHARED: "the worker",
    Origin.FOREIGN: "the worker",
}

Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="AGENTS...", help="Files with agents, or modules: my_agents.py package.module", show_default=False
    ),
]


def worker(targets: Targets) -> None:
    """Serve agents for a Temporal server that runs elsewhere; the same as `python worker.py`.

    SIGTERM or Ctrl-C lets calls end that must not be cut; a second one ends the process at once.

    Example: perdure worker my_agents.py
    """
    import worker as process  # the runtime, found through the launcher's path

    set_log_level(os.environ)
    asyncio.run(process.run(targets, settings()))


def dev(
    targets: Targets,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help=f"Port of the Temporal server. [default: {PORT}]")
    ] = None,
    ui_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of Temporal's web UI. [default: port + 1000]")
    ] = None,
) -> None:
    """Run a Temporal server and a worker together, with everything kept in PERDURE_DATA_DIR.

    Where a server already runs on that folder it is used; the last process that uses it stops it. A second Ctrl-C ends
    everything at once.

    Example: perdure dev my_agents.py
    """
    from activities.registry import Registry, load

    set_log_level(os.environ)
    chosen = settings()
    registry = Registry()
    load(targets, registry)
    server = SharedServer(Path(chosen.data_dir), port=port or PORT, ui_port=ui_port, headless=False)
    try:
        endpoint = server.open()
        if (found := FOUND.get(server.origin)) is not None:
            show(f"a Temporal server already runs on {chosen.data_dir}; {found}")
            _warn_of_ports(endpoint, port, ui_port)
        try:
            died = asyncio.run(_serve(server, endpoint, registry, chosen))
        except PerdureError:
            if server.alive():
                raise
            died = True
    finally:
        stopped = server.close()
    if died:
        note(f"the Temporal server of {chosen.data_dir} has ended by itself; see {server.log}")
        raise typer.Exit(1)
    show("the server is stopped" if stopped else "the server is left running")


async def _serve(server: SharedServer, endpoint: Endpoint, registry: Registry, chosen: WorkerSettings) -> bool:
    """Serve until a signal, or until the server has died, which returns True."""
    from activities.converter import data_converter
    from activities.shutdown import stop_on_signals
    from activities.stores.choice import choose_store
    from worker import serving

    stop = asyncio.Event()
    stop_on_signals(stop, server.close)
    client = await connect_embedded(endpoint.address, data_converter(choose_store(chosen, os.environ)))
    if any(_lives(identity) for identity in await pollers(client, chosen.task_queue)):
        note(
            f"another worker polls queue {chosen.task_queue!r}; all workers of a queue must serve the same agents; "
            "set PERDURE_TASK_QUEUE for another set"
        )
    async with serving(client, registry, chosen):
        _show_addresses(endpoint, list(registry.agents), chosen)
        show(f"Ctrl-C stops {ENDED[server.origin]}; runs are kept and go on with the next start")
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK)
            if not await asyncio.to_thread(server.alive):
                return True
        show("stopping the worker; calls that must not be cut are finished first; Ctrl-C again ends it at once")
    return False


def _lives(identity: str) -> bool:
    """False for a worker of this machine whose process has gone: the server remembers it for a while."""
    pid, _, host = identity.partition("@")
    if host != socket.gethostname() or not pid.isdigit():
        return True
    with suppress(OSError):  # there is no /proc, or no such process, which the signal tells
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
        if state == ["Z"]:  # killed, and its parent has not noticed yet
            return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _warn_of_ports(endpoint: Endpoint, port: int | None, ui_port: int | None) -> None:
    for option, given, address in (("--port", port, endpoint.address), ("--ui-port", ui_port, endpoint.ui_address)):
        if given is not None and not (address or "").endswith(f":{given}"):
            note(f"{option} {given} is ignored: the running server has {address or 'no web UI'}")


def _show_addresses(endpoint: Endpoint, agents: list[str], chosen: WorkerSettings) -> None:
    standard = endpoint.address.rpartition(":")[2] == DEFAULT_ADDRESS.rpartition(":")[2]
    prefix = "" if standard else f"TEMPORAL_ADDRESS={endpoint.address} "
    show(f"server  {endpoint.address}")
    show(f"web UI  {endpoint.ui_address or '(none)'}")
    show(f"data    {chosen.data_dir}")
    show(f"agents  {', '.join(agents)} on queue {chosen.task_queue!r}")
    show(f'next    {prefix}perdure run {agents[0]} "..."')
    show(f"        {prefix}perdure list")
