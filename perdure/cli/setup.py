"""Commands that prepare and check a namespace: init, doctor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError

from perdure.cli.agent_checks import agent_checks, binary_checks, folder_check, load_all, queues_of, store_check
from perdure.cli.checks import Check, attribute_type, server_checks, type_name, worker_here
from perdure.cli.output import show, show_json, show_table
from perdure.cli.session import Json, settings, with_client
from perdure.client import Client
from perdure.connection import rpc_errors
from perdure.embedded import SEARCH_ATTRIBUTES
from perdure.worker_settings import WorkerSettings

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def init(json: Json = False) -> None:
    """Register the search attributes of runs in the namespace; safe to repeat.

    Example: perdure init
    """

    async def work(client: Client) -> dict[str, str]:
        return await register(client.temporal)

    done = with_client(work)
    if json:
        show_json(done)
    else:
        show_table(("search attribute", "type", ""), [(n, SEARCH_ATTRIBUTES[n], told) for n, told in done.items()])
    raise typer.Exit(0 if all(told in {"added", "exists"} for told in done.values()) else 1)


async def register(client: TemporalClient) -> dict[str, str]:
    """Add what is missing; for each attribute `added`, `exists`, or what is in the way."""
    with rpc_errors(client):
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    told: dict[str, str] = {}
    for name, wanted in SEARCH_ATTRIBUTES.items():
        found = listed.custom_attributes.get(name)
        if found is not None:
            same = found == attribute_type(wanted)
            told[name] = "exists" if same else f"conflict: it has the type {type_name(found)}; remove it there first"
            continue
        asked = AddSearchAttributesRequest(namespace=client.namespace, search_attributes={name: attribute_type(wanted)})
        try:
            await client.operator_service.add_search_attributes(asked)
            told[name] = "added"
        except RPCError as error:  # one by one: a full kind must not keep the others out
            told[name] = f"not added: {error.message}"
    return told


def doctor(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[AGENTS...]", help="Files with agents, or modules, to check too.", show_default=False),
    ] = None,
    call: Annotated[bool, typer.Option("--call", help="Prove each key by a real call of a few tokens.")] = False,
    here: Annotated[
        bool, typer.Option("--here", help="Only whether a worker of this machine polls the queue: for health checks.")
    ] = False,
    json: Json = False,
) -> None:
    """Check server, namespace, workers, stuck runs, storage, agents, keys and prices; each line says how to mend it.

    Example: perdure doctor my_agents.py --call
    """
    chosen = settings()
    checks = asyncio.run(worker_here(chosen.task_queue) if here else _check_all(targets or [], chosen, call=call))
    if json:
        show_json([check.model_dump() for check in checks])
    else:
        for check in checks:
            show(f"{check.level:<5} {check.name}: {check.text}", STYLES[check.level])
            if check.fix:
                show(f"      {check.fix}")
    raise typer.Exit(_code(checks))


async def _check_all(targets: Sequence[str], chosen: WorkerSettings, *, call: bool) -> list[Check]:
    """Every finding; an unreachable server leaves out what only it can answer."""
    loaded = load_all(targets)
    found = [check async for check in server_checks(chosen.task_queue, queues_of(loaded))]
    found.append(folder_check(Path(chosen.data_dir)))
    if chosen.blob_store is not None:
        found.append(await store_check(chosen, os.environ))
    return [*found, *binary_checks(), *[check async for check in agent_checks(loaded, call=call)]]


def _code(checks: list[Check]) -> int:
    if any(check.level == "fail" and check.name == "connection" for check in checks):
        return 3
    return 1 if any(check.level == "fail" for check in checks) else 0
