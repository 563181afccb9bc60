"""Messages in bursts: more than the server lets into one run, and none is lost when it goes on in a new one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import calls, reply, scripted
from tests.lab import Run, laboratory, words_of

pytestmark = pytest.mark.slow

WAVES = 105
SIGNALS, UPDATES = 100, 20
"""Of a wave: 10,500 and 2,100 in all; the server lets 10,000 and 2,000 into a run."""
COUNTED = 3
"""Signals of a wave that say something new."""
IN_FLIGHT = 8
"""Updates at once; the server takes ten, and one too many makes it drop those that it has."""
TRIES = 10
AGAIN = {RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.UNAVAILABLE}
"""What the server answers to an update that it has not taken, and that may be sent again."""

SUGGESTING: dict[str, dict[str, str]] = {
    "a server that suggests to go on": {},
    "a server that never does": {
        "limit.historyCount.suggestContinueAsNew": "50000",
        "history.maxTotalUpdates.suggestContinueAsNewThreshold": "1",
    },
}


@dataclass
class Link:
    """What one run of a chain has in its history."""

    signals: int = 0
    accepted: int = 0
    completed: int = 0


async def chain_of(client: Client, run: Run) -> list[Link]:
    """The runs of the chain, the first one first."""
    links = []
    run_id: str | None = run.handle.first_execution_run_id
    while run_id:
        history = await client.get_workflow_handle(run.id, run_id=run_id).fetch_history()
        link = Link()
        for event in history.events:
            link.signals += event.HasField("workflow_execution_signaled_event_attributes")
            link.accepted += event.HasField("workflow_execution_update_accepted_event_attributes")
            link.completed += event.HasField("workflow_execution_update_completed_event_attributes")
        links.append(link)
        last = history.events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
    return links


def again(said: list[str]) -> dict[str, Any]:
    """The last message once more."""
    return {"text": "again", "message_id": said[-1]}


async def updated(run: Run, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a `say`; what the server asks to be sent again is sent again."""
    for _ in range(TRIES):
        try:
            return await run.update("say", body)
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            continue
        except RPCError as error:
            if error.status not in AGAIN:
                raise
    raise AssertionError(f"not taken in {TRIES} tries: {body}")


async def side_by_side(run: Run, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers to updates, IN_FLIGHT at once."""
    left = iter(bodies)

    async def send() -> list[dict[str, Any]]:
        return [await updated(run, body) for body in left]

    return [answer for answers in await asyncio.gather(*(send() for _ in range(IN_FLIGHT))) for answer in answers]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("settings", SUGGESTING.values(), ids=SUGGESTING)
async def test_more_messages_than_a_run_may_have(settings: dict[str, str], tmp_path: Path) -> None:
    """10,500 signals and 2,100 updates to one waiting approval: none is turned away, each counts once, in order."""

    @tool(effect="write", approval=True)
    def pay(n: int) -> str:
        return f"paid {n}"

    agent = Agent("payer", scripted(calls("pay", n=1), reply("done")), tools=[pay])
    store = FileStore(tmp_path / "blobs")
    with EmbeddedServer(tmp_path / "server", headless=True, dynamic_config=settings) as server:
        client = await Client.connect(server.address, data_converter=data_converter(store))
        async with laboratory(client, tmp_path, agent) as lab:
            run = await lab.start(agent)
            await run.asks()
            said: list[str] = []
            for wave in range(WAVES):
                for n in range(COUNTED):
                    said.append(f"signal {wave}.{n}")
                    await run.send("say", {"text": said[-1], "message_id": said[-1]})
                useless = [again(said) if n % 2 else {"text": n} for n in range(SIGNALS - COUNTED)]
                await asyncio.gather(*(run.send("say", body) for body in useless))
                assert (await run.status())["said"] == len(said)
            for wave in range(WAVES):
                said.append(f"update {wave}")
                assert (await updated(run, {"text": said[-1], "message_id": said[-1]}))["queued"] == len(said)
                answers = await side_by_side(run, [again(said)] * (UPDATES - 1))
                assert answers == [{"queued": len(said), "duplicate": True}] * (UPDATES - 1)
                assert (await run.status())["said"] == len(said)
            await run.update("approve", {"call_id": "c1"})
            assert (await run.result())["outcome"] == "success"
            assert [words_of(m) for m in await run.messages() if m["role"] == "user"] == ["Go.", *said]
            chain = await chain_of(client, run)
            assert len(chain) >= 3
            assert max(link.signals for link in chain) < 9_000
            assert max(link.accepted for link in chain) < 1_750
            assert sum(link.signals for link in chain) == WAVES * SIGNALS
            assert sum(link.completed for link in chain) >= WAVES * UPDATES + 1
            assert [link.accepted for link in chain] == [link.completed for link in chain]


@pytest.fixture(scope="module")
def eager_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that suggests to continue as new after 30 events."""
    settings = {"limit.historyCount.suggestContinueAsNew": "30"}
    with EmbeddedServer(tmp_path_factory.mktemp("eager"), headless=True, dynamic_config=settings) as server:
        yield server


async def test_updates_of_a_run_that_is_full_at_once(eager_server: EmbeddedServer, tmp_path: Path) -> None:
    """A reset run of a chain finds all its messages in its first task; it takes the updates too before it goes on."""
    working, go = threading.Event(), threading.Event()

    @tool(effect="read")
    def look(n: int) -> int:
        return n

    @tool(effect="read")
    def hold() -> str:
        working.set()
        assert go.wait(60)
        return "held"

    script = [*(calls("look", n=n) for n in range(4)), calls("hold"), reply("done")]
    agent = Agent("holder", scripted(*script, reply("really done"), repeat=True), tools=[look, hold])
    client = await Client.connect(eager_server.address, data_converter=data_converter(FileStore(tmp_path / "blobs")))
    async with laboratory(client, tmp_path, agent) as lab:
        run = await lab.start(agent)
        await asyncio.to_thread(working.wait, 60)
        held = (await run.handle.describe()).run_id
        assert held != run.handle.first_execution_run_id
        said = []
        for n in range(40):
            said.append(f"said {n}")
            await (run.update if n % 10 == 9 else run.send)("say", {"text": said[-1], "message_id": said[-1]})
        await client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=held),
                reason="again from its beginning",
                request_id="reset",
                workflow_task_finish_event_id=4,
            )
        )
        go.set()
        reset = Run(client.get_workflow_handle(run.id))
        assert (await reset.result())["outcome"] == "success"
        taken = [words_of(m) for m in await reset.messages() if m["role"] == "user"]
        assert sorted(taken) == sorted(["Go.", *said])
