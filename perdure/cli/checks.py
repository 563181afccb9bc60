"""The checks of `perdure doctor` that a server answers: each is a generator of findings, and none stops the others."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from perdure.cli.output import counted
from perdure.client import RUNS
from perdure.connection import connect, rpc_errors
from perdure.diagnosis import PROBLEMS, STUCK, clock_behind, missing_worker, pollers
from perdure.embedded import SEARCH_ATTRIBUTES
from perdure.errors import InvalidInput, PerdureError

SHORT_RETENTION_DAYS = 30
SHOWN = 10
"""Ids of stuck runs that one line names."""
CLOCKS = timedelta(seconds=5)
"""A difference of clocks that does no harm."""


class Check(BaseModel):
    """One finding."""

    model_config = ConfigDict(frozen=True)

    name: str
    level: Literal["ok", "warn", "fail"]
    text: str
    fix: str | None = None


async def server_checks(queue: str, tool_queues: Sequence[str] = ()) -> AsyncIterator[Check]:
    """Everything about the server, its namespace and the workers of the queue and of the queues of tools."""
    try:
        client = await connect()
        with rpc_errors(client):
            days = await _retention(client)
            listed = await client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace=client.namespace)
            )
            found = [check async for check in _workers(client, queue)]
            for name in tool_queues:
                if name != queue and (missing := await missing_worker(client, name, activities=True)) is not None:
                    found.append(Check(name="worker of tools", level="warn", text=missing))
            stuck = await _stuck(client)
    except PerdureError as error:
        yield Check(name="connection", level="fail", text=str(error))
        return
    address = client.service_client.config.target_host
    yield Check(name="connection", level="ok", text=f"{address}, namespace {client.namespace!r}")
    short = days < SHORT_RETENTION_DAYS
    yield Check(
        name="retention",
        level="warn" if short else "ok",
        text=f"closed runs are kept {counted(days, 'day')}",
        fix=f"temporal operator namespace update --namespace {client.namespace} --retention 90d" if short else None,
    )
    for check in (*attribute_checks(dict(listed.custom_attributes)), *found, stuck):
        yield check


async def worker_here(queue: str) -> list[Check]:
    """Whether a worker of this machine polls the queue: the health check of a container."""
    try:
        client = await connect()
        with rpc_errors(client):
            found = await pollers(client, queue)
    except PerdureError as error:
        return [Check(name="connection", level="fail", text=str(error))]
    host = socket.gethostname()
    here = [identity for identity in found if identity.partition("@")[2] == host]
    if here:
        return [Check(name="worker", level="ok", text=f"queue {queue!r} is polled by {', '.join(here)}")]
    return [Check(name="worker", level="fail", text=f"no worker of {host!r} polls queue {queue!r}")]


async def _retention(client: Client) -> float:
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    return described.config.workflow_execution_retention_ttl.ToTimedelta().total_seconds() / 86_400


def attribute_checks(registered: dict[str, IndexedValueType.ValueType]) -> Iterator[Check]:
    """Search attributes that are missing or of another type."""
    wanted = {name: attribute_type(kind) for name, kind in SEARCH_ATTRIBUTES.items()}
    missing = [name for name in wanted if name not in registered]
    wrong = [name for name, kind in wanted.items() if registered.get(name, kind) != kind]
    if wrong:
        text = f"of another type than Perdure's: {', '.join(wrong)}"
        fix = "remove them in the namespace, then run `perdure init`; until then runs do without them"
        yield Check(name="search attributes", level="fail", text=text, fix=fix)
    if missing:
        text = f"not registered: {', '.join(missing)}; runs work, but cannot be found by them"
        yield Check(name="search attributes", level="warn", text=text, fix="run `perdure init`")
    if not wrong and not missing:
        yield Check(name="search attributes", level="ok", text=f"all {len(wanted)} are registered")


async def _workers(client: Client, queue: str) -> AsyncIterator[Check]:
    """Who polls the queue, for runs and for their calls, and what their polls say of this machine's clock."""
    for activities, what in ((False, "runs"), (True, "calls")):
        if (missing := await missing_worker(client, queue, activities=activities)) is not None:
            yield Check(name="worker", level="warn", text=missing if what == "runs" else f"for calls: {missing}")
            return
    polling = await pollers(client, queue)
    text = f"queue {queue!r} is polled by {counted(len(polling), 'worker')}: {', '.join(sorted(polling))}"
    yield Check(name="worker", level="ok", text=text)
    behind = await clock_behind(client, queue)
    if behind > CLOCKS:
        text = f"this machine's clock is at least {behind.total_seconds():.0f} s behind the server's"
        fix = "set the clocks by NTP; deadlines and `perdure show` are wrong by that much"
        yield Check(name="clock", level="warn", text=text, fix=fix)


async def _stuck(client: Client) -> Check:
    """Open runs whose workflow task fails again and again."""
    query = f"{RUNS} AND {STUCK}"
    try:
        with rpc_errors(client):
            count = (await client.count_workflows(query)).count
            ids = [run.id async for run in client.list_workflows(query, limit=SHOWN)] if count else []
    except InvalidInput:  # a server before 1.30
        return Check(name="stuck runs", level="ok", text=f"not known: the server has no {PROBLEMS}")
    if not count:
        return Check(name="stuck runs", level="ok", text="none")
    more = f" and {count - len(ids)} more: `perdure list --stuck`" if count > len(ids) else ""
    return Check(
        name="stuck runs",
        level="fail",
        text=f"{count}, their workflow task fails: {', '.join(ids)}{more}",
        fix=f"`perdure show {ids[0] if ids else 'ID'}` says why; a corrected worker lets them go on, a replay error "
        "needs the code that they began with",
    )


def attribute_type(name: str) -> IndexedValueType.ValueType:
    """Temporal's number of a type such as `Keyword`."""
    return IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{name.upper()}")


def type_name(number: IndexedValueType.ValueType) -> str:
    """The name of a type as Temporal's command line writes it."""
    return IndexedValueType.Name(number).removeprefix("INDEXED_VALUE_TYPE_").capitalize()
