"""How a run shows in Temporal: search attributes, memo, summaries; and that it works where none are registered."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, tool
from perdure.embedded import EmbeddedServer, find_binary
from perdure.testing import calls, reply, scripted
from tests.conftest import Serve
from tests.lab import Run, eventually, laboratory


@tool(effect="write", approval=True)
def pay(to: str) -> str:
    """Pay."""
    return "paid"


def payer() -> Agent:
    """An agent that pays."""
    used = {"usage": {"input_tokens": 7, "output_tokens": 3}}
    return Agent("payer", scripted({**calls("pay", to="bob"), **used}, {**reply("ok"), **used}, name="x"), tools=[pay])


async def attributes(run: Run) -> dict[str, Any]:
    """The search attributes of a run, ours only."""
    described = await run.handle.describe()
    return {
        pair.key.name: pair.value for pair in described.typed_search_attributes if pair.key.name.startswith("Perdure")
    }


async def test_search_attributes(serve: Serve) -> None:
    """They follow the state; the inbox is a query of them."""
    lab = await serve(payer())
    run = await lab.start("payer", "Pay.", tenant="acme", user="ann")
    await run.asks()
    shown = {"PerdureAgent": "payer", "PerdureModel": "scripted:x", "PerdureTenant": "acme", "PerdureUser": "ann"}
    assert await attributes(run) == {**shown, "PerdureState": "waiting_approval"}
    query = f"PerdureState='waiting_approval' AND ExecutionStatus='Running' AND WorkflowId='{run.id}'"

    async def listed() -> list[str]:
        return [execution.id async for execution in lab.client.list_workflows(query)]

    assert await eventually(listed) == [run.id]
    await run.update("approve", {})
    await run.result()
    assert await attributes(run) == {
        **shown, "PerdureState": "closed", "PerdureOutcome": "success", "PerdureSteps": 2, "PerdureTokens": 20,
        "PerdureCostUsd": 0.0,
    }  # fmt: skip


async def test_memo_and_details(serve: Serve) -> None:
    """The memo names agent and prompt; the details in Temporal Web tell how the run ended."""
    lab = await serve(payer())
    run = await lab.start("payer", "Pay " + "x" * 500)
    await run.asks()
    described = await run.handle.describe()
    assert await described.memo() == {"agent": "payer", "prompt": ("Pay " + "x" * 500)[:200]}
    assert "waits for approval" in str(await run.handle.query("__temporal_workflow_metadata"))
    await run.update("approve", {})
    await run.result()


async def test_a_namespace_without_search_attributes(
    temporal_server: EmbeddedServer, store: FileStore, data_dir: Path
) -> None:
    """Where they are not registered a run works without them."""
    await create_namespace(temporal_server.address, "bare")
    client = await Client.connect(temporal_server.address, namespace="bare", data_converter=data_converter(store))
    async with laboratory(client, data_dir, payer()) as lab:
        run = await lab.start("payer", tenant="acme")
        await run.asks()
        await run.update("approve", {})
        assert (await run.result())["output"] == "ok"
        assert await attributes(run) == {}


@pytest.mark.parametrize("name", ["PerdureState", "PerdureSteps"])
async def test_a_search_attribute_of_another_type(
    temporal_server: EmbeddedServer, store: FileStore, data_dir: Path, name: str
) -> None:
    """One that is registered with another type is left alone, and the run works."""
    namespace = f"typed-{name.lower()}"
    await create_namespace(temporal_server.address, namespace)
    command = ["search-attribute", "create", "--name", name, "--type", "Bool"]
    await operate(temporal_server.address, *command, "--namespace", namespace)
    client = await Client.connect(temporal_server.address, namespace=namespace, data_converter=data_converter(store))
    async with laboratory(client, data_dir, payer()) as lab:
        run = await lab.start("payer")
        await run.asks()
        await run.update("approve", {})
        assert (await run.result())["output"] == "ok"


async def create_namespace(address: str, name: str) -> None:
    """Create a namespace and wait until it can be used."""
    await operate(address, "namespace", "create", "--namespace", name)
    client = await Client.connect(address, namespace=name)

    async def usable() -> bool:
        try:
            return [execution async for execution in client.list_workflows("")] == []
        except Exception:
            return False

    await eventually(usable)


async def operate(address: str, *command: str) -> None:
    """Run an operator command of Temporal's command line."""
    whole = [str(find_binary()), "operator", *command, "--address", address]
    await asyncio.to_thread(subprocess.run, whole, check=True, capture_output=True)
