"""Case D 67 and its like: nothing is lost over continue-as-new, whatever is sent, and whoever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure.embedded import EmbeddedServer
from tests.lab import Run, eventually
from tests.processes import WorkerProcess

pytestmark = pytest.mark.slow

MESSAGES = 200
AGENTS = """
from pathlib import Path
from perdure import Agent, Limits, Model, tool

LEDGER = Path(__file__).with_name("ledger.txt")

@tool(effect="idempotent", heartbeat="1s", attempts=5)
def act(n: int) -> str:
    return f"did {n}"

@tool(effect="write", approval=True, heartbeat="1s")
def pay(n: int) -> str:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{n}\\n")
    return f"paid {n}"

def step(n):
    return {"calls": [{"tool": "pay" if n % 10 == 9 else "act", "arguments": {"n": n}}]}

agent = Agent("busy", Model(provider="scripted", params={"script": [step(n) for n in range(600)]}),
              tools=[act, pay], limits=Limits(steps=1000, tool_calls=1000))
"""


@pytest.fixture(scope="module")
def eager_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that suggests to continue as new after every turn."""
    settings = {"limit.historyCount.suggestContinueAsNew": "12"}
    with EmbeddedServer(tmp_path_factory.mktemp("eager"), headless=True, dynamic_config=settings) as server:
        yield server


@pytest.mark.timeout(420)
async def test_case_67_messages_approvals_and_killed_workers(eager_server: EmbeddedServer, tmp_path: Path) -> None:
    """200 messages every 5 ms, approvals and a stop, while workers are killed: all taken once, in order; stop wins."""
    file = tmp_path / "agents.py"
    file.write_text(textwrap.dedent(AGENTS))
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    client = await Client.connect(eager_server.address, data_converter=data_converter(FileStore(data_dir / "blobs")))
    chance = random.Random(67)
    number = 0

    def begin() -> WorkerProcess:
        nonlocal number
        number += 1
        return WorkerProcess(
            file, address=eager_server.address, queue="case67", data_dir=data_dir, log=tmp_path / f"worker{number}.log"
        )

    worker = begin()
    over = asyncio.Event()
    decided: Counter[str] = Counter()
    try:
        handle = await client.start_workflow(
            "AgentWorkflow", {"agent": "busy", "prompt": "Go."}, id="case67", task_queue="case67"
        )
        run = Run(handle)

        async def approve() -> None:
            while not over.is_set():
                with contextlib.suppress(RPCError, WorkflowUpdateFailedError):
                    for pending in await run.pending():
                        await run.send("approve", {"call_id": pending["call_id"], "by": "ann"})
                        decided[pending["call_id"]] += 1
                await asyncio.sleep(0.05)

        async def kill() -> None:
            nonlocal worker
            await asyncio.sleep(chance.random() / 5)
            worker.kill()
            worker = begin()
            await asyncio.to_thread(worker.await_serving)

        async def all_taken() -> bool:
            with contextlib.suppress(RPCError):
                return bool((await run.status())["said"] == 0)
            return False

        approving = asyncio.create_task(approve())
        for burst in range(0, MESSAGES, 20):
            killing = asyncio.create_task(kill()) if burst in {40, 100, 160} else None
            for n in range(burst, burst + 20):
                await run.send("say", {"text": f"said {n}", "message_id": str(n)})
                if n % 7 == 0:
                    await run.send("say", {"text": f"said {n}", "message_id": str(n)})
                await asyncio.sleep(0.005)
            if killing is not None:
                await killing
            await eventually(all_taken, 120)
        await run.send("stop", {"reason": "enough"})
        async with asyncio.timeout(120):
            result: dict[str, Any] = await handle.result()
        over.set()
        await approving
        assert result["reason"] == "stopped"
        taken = [m["parts"][0]["text"] for m in await run.messages() if m["role"] == "user"]
        assert taken == ["Go.", *(f"said {n}" for n in range(MESSAGES))]
        paid = (tmp_path / "ledger.txt").read_text().split() if (tmp_path / "ledger.txt").exists() else []
        assert len(set(paid)) == len(paid)
        assert len(paid) <= len(decided)
        lengths = []
        run_id: str | None = handle.first_execution_run_id
        while run_id:
            history = await client.get_workflow_handle(run.id, run_id=run_id).fetch_history()
            lengths.append(len(history.events))
            last = history.events[-1]
            run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
        assert len(lengths) > 5
        assert max(lengths) < 1_500
    finally:
        over.set()
        worker.close()
