"""Cases 5, 7 and 8 in their ways: opaque parts come back byte for byte, whatever happens between two turns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, tool
from perdure.embedded import EmbeddedServer
from tests.conftest import Serve
from tests.fake_vendors import PROVIDERS, FakeVendors, fake_vendors
from tests.lab import Lab, Run, laboratory
from tests.processes import WorkerProcess

pytestmark = pytest.mark.slow

every_vendor = pytest.mark.parametrize("vendor", PROVIDERS)

LARGE = 300_000
"""Characters of an opaque part that does not fit into history."""

AGENTS = """
from perdure import Agent, Model, tool

@tool(effect="write", approval=True)
def look(n: int) -> str:
    return f"seen {{n}}"

agent = Agent("looker", Model(**{model!r}), tools=[look])
"""


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


@pytest.fixture(scope="module")
def eager_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that suggests to continue as new after every turn."""
    settings = {"limit.historyCount.suggestContinueAsNew": "12"}
    with EmbeddedServer(tmp_path_factory.mktemp("eager"), headless=True, dynamic_config=settings) as server:
        yield server


def asked(vendors: FakeVendors) -> list[str]:
    """Who was asked, in order, once it is sure that nobody had to refuse a conversation."""
    assert vendors.broken == []
    return [vendor for vendor, _ in vendors.requests]


@every_vendor
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("size", [24, LARGE], ids=["small", "large"])
async def test_plain(serve: Serve, vendor: str, stream: bool, size: int) -> None:
    """Over three turns with calls each request has all opaque parts so far, also those too large for history."""
    async with fake_vendors("call", "call", "call", "done", size=size) as vendors:
        agent = Agent("looker", vendors.model(vendor, stream=stream), tools=[look])
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (asked(vendors), result["outcome"], result["output"]) == ([vendor] * 4, "success", "done")


@every_vendor
async def test_a_worker_is_killed(client: Client, temporal_server: EmbeddedServer, tmp_path: Path, vendor: str) -> None:
    """Another process, which has seen nothing of the run, sends the parts that the killed one was given."""
    async with fake_vendors("call", "call", "done") as vendors:
        file = tmp_path / "agents.py"
        file.write_text(AGENTS.format(model=vendors.model(vendor).model_dump(mode="json")))
        queue = f"q-{tmp_path.name}"
        number = 0

        def begin() -> WorkerProcess:
            nonlocal number
            number += 1
            return WorkerProcess(file, address=temporal_server.address, queue=queue, data_dir=tmp_path,
                                 log=tmp_path / f"{number}.log")  # fmt: skip

        worker = begin()
        try:
            run = await Lab(client, queue, None).start("looker")  # type: ignore[arg-type]
            for _ in range(2):
                pending = await run.asks(2)
                worker.kill()
                worker = begin()
                for call in pending:
                    await run.send("approve", {"call_id": call["call_id"], "by": "ann"})
            result = await run.result()
        finally:
            worker.close()
    assert (asked(vendors), result["outcome"], result["output"]) == ([vendor] * 3, "success", "done")


@every_vendor
async def test_continue_as_new(eager_server: EmbeddedServer, store: FileStore, data_dir: Path, vendor: str) -> None:
    """A run that goes on as a new one takes the parts along."""
    eager = await Client.connect(eager_server.address, data_converter=data_converter(store))
    async with fake_vendors("call", "call", "call", "call", "done") as vendors:
        agent = Agent("looker", vendors.model(vendor), tools=[look])
        async with laboratory(eager, data_dir, agent) as lab:
            run = await lab.start(agent)
            result = await run.result()
            assert len(await run.events("continued")) >= 2
    assert (asked(vendors), result["outcome"], result["output"]) == ([vendor] * 5, "success", "done")


@pytest.mark.parametrize(("first", "second"), list(permutations(PROVIDERS, 2)))
async def test_another_vendor_and_back(serve: Serve, first: str, second: str) -> None:
    """Where another vendor steps in he sees nothing of the first one's parts, who sees his own again and no others."""
    steps = ("call", "refuse", "call", "call", "refuse", "call", "done")
    async with fake_vendors(*steps) as vendors:
        agent = Agent("looker", [vendors.model(first), vendors.model(second)], tools=[look])
        lab = await serve(agent)
        result = await lab.run(agent)
    assert asked(vendors) == [first, first, second, first, first, second, first]
    assert (result["outcome"], result["output"]) == ("success", "done")


@every_vendor
async def test_another_model_and_back(serve: Serve, vendor: str) -> None:
    """Another model of the vendor is given what is good for it: of Gemini no signature, of the others all."""
    async with fake_vendors("call", "refuse", "call", "call", "done") as vendors:
        agent = Agent("looker", [vendors.model(vendor, "large"), vendors.model(vendor, "small")], tools=[look])
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (asked(vendors), result["outcome"], result["output"]) == ([vendor] * 5, "success", "done")


@pytest.mark.parametrize(("first", "second"), list(permutations(["anthropic", "gemini", "responses"], 2)))
async def test_everything_at_once(
    eager_server: EmbeddedServer, store: FileStore, data_dir: Path, first: str, second: str
) -> None:
    """Large parts, two vendors in turn, runs that continue as new, and workers that come and go between them."""
    eager = await Client.connect(eager_server.address, data_converter=data_converter(store))

    @tool(effect="write", approval=True)
    def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    async def approve(run: Run) -> None:
        for call in await run.asks(2):
            await run.send("approve", {"call_id": call["call_id"], "by": "ann"})

    async with fake_vendors("call", "refuse", "call", "call", "done", size=LARGE) as vendors:
        agent = Agent("looker", [vendors.model(first), vendors.model(second)], tools=[look])
        async with laboratory(eager, data_dir, agent) as lab:
            run = await lab.start(agent)
            await run.asks(2)
        for _ in range(2):
            async with laboratory(eager, data_dir, agent, queue=lab.queue):
                pending = await run.asks(2)
                await approve(run)
                await run.seen("approval_requested", int(pending[-1]["call_id"][1:]) + 2)
        async with laboratory(eager, data_dir, agent, queue=lab.queue):
            await approve(run)
            result = await run.result()
            assert await run.events("continued")
    assert asked(vendors) == [first, first, second, first, first]
    assert (result["outcome"], result["output"]) == ("success", "done")
