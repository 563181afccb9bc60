"""The checks of `perdure doctor`: each is a generator of findings, and none stops the others."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from perdure.agent import Agent
from perdure.connection import connect, rpc_errors
from perdure.diagnosis import missing_worker
from perdure.embedded import SEARCH_ATTRIBUTES, find_binary
from perdure.errors import ConfigError, PerdureError, ProviderError
from perdure.messages import Usage
from perdure.model import Model
from perdure.worker_settings import WorkerSettings

SHORT_RETENTION_DAYS = 30
SAMPLE = Usage(input_tokens=1_000, output_tokens=1_000)
"""A call whose price is asked for, to learn whether one is known."""


class Check(BaseModel):
    """One finding."""

    model_config = ConfigDict(frozen=True)

    name: str
    level: Literal["ok", "warn", "fail"]
    text: str
    fix: str | None = None


async def check_all(targets: Sequence[str], settings: WorkerSettings) -> list[Check]:
    """Every finding; an unreachable server leaves out what only it can answer."""
    found = [check async for check in _server(settings.task_queue)]
    return [*found, _data_folder(Path(settings.data_dir)), *_binary(), *_agents(targets)]


async def _server(queue: str) -> AsyncIterator[Check]:
    try:
        client = await connect()
    except PerdureError as error:
        yield Check(name="connection", level="fail", text=str(error))
        return
    try:
        with rpc_errors(client):
            days = await _retention(client)
            listed = await client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace=client.namespace)
            )
            missing = await missing_worker(client, queue)
    except PerdureError as error:
        yield Check(name="connection", level="fail", text=str(error))
        return
    address = client.service_client.config.target_host
    yield Check(name="connection", level="ok", text=f"{address}, namespace {client.namespace!r}")
    short = days < SHORT_RETENTION_DAYS
    yield Check(
        name="retention",
        level="warn" if short else "ok",
        text=f"closed runs are kept {days:g} days",
        fix=f"temporal operator namespace update --namespace {client.namespace} --retention 90d" if short else None,
    )
    for check in _attributes(dict(listed.custom_attributes)):
        yield check
    yield Check(
        name="worker",
        level="warn" if missing else "ok",
        text=missing or f"a worker polls queue {queue!r}",
    )


async def _retention(client: Client) -> float:
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    return described.config.workflow_execution_retention_ttl.ToTimedelta().total_seconds() / 86_400


def _attributes(registered: dict[str, IndexedValueType.ValueType]) -> Iterator[Check]:
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


def attribute_type(name: str) -> IndexedValueType.ValueType:
    """Temporal's number of a type such as `Keyword`."""
    return IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{name.upper()}")


def type_name(number: IndexedValueType.ValueType) -> str:
    """The name of a type as Temporal's command line writes it."""
    return IndexedValueType.Name(number).removeprefix("INDEXED_VALUE_TYPE_").capitalize()


def _data_folder(folder: Path) -> Check:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        problem = "is no folder" if not there.is_dir() else "cannot be written"
        fix = "a worker keeps large values there; set PERDURE_DATA_DIR to a folder that can be written"
        return Check(name="data folder", level="fail", text=f"{folder}: {there} {problem}", fix=fix)
    text = f"{folder} can be written" if there == folder.absolute() else f"{folder} can be made"
    return Check(name="data folder", level="ok", text=text)


def _binary() -> Iterator[Check]:
    try:
        yield Check(name="embedded server", level="ok", text=str(find_binary()))
    except ConfigError as error:
        yield Check(name="embedded server", level="warn", text=str(error), fix="only `dev` and `local` need it")


def _agents(targets: Sequence[str]) -> Iterator[Check]:
    from activities.registry import Registry, load  # the runtime, found through the launcher's path

    for target in targets:
        registry = Registry()
        try:
            load([target], registry)
        except ConfigError as error:
            yield Check(name="agents", level="fail", text=str(error))
            continue
        yield Check(name="agents", level="ok", text=f"{target}: {', '.join(registry.agents)}")
        for agent in registry.agents.values():
            yield from _models(agent)


def _models(agent: Agent) -> Iterator[Check]:
    from activities.prices import cost_of

    for model in agent.models:
        name = f"model of {agent.name}"
        try:
            _reach(model)
        except ProviderError as error:
            yield Check(name=name, level="fail", text=str(error))
            continue
        yield Check(name=name, level="ok", text=f"{model.label} can be called from here")
        if cost_of(model, SAMPLE) is None:
            text = f"no price is known for {model.label}: its cost counts as zero"
            yield Check(
                name=name, level="warn", text=text, fix="give it one: Model(..., price=Price(input=..., output=...))"
            )


def _reach(model: Model) -> None:
    """Raise ProviderError where the environment lacks what the model needs; nothing is sent."""
    from activities.endpoints import endpoint_of, entry_of

    if entry_of(model).auth != "none":
        endpoint_of(model, "", os.environ)
