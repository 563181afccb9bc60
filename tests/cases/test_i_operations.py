"""Cases I: nobody works, code is missing, runs are stuck, workers stop; what the operator is told, and what goes on."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from perdure import Agent, Approval, tool
from perdure.client import Client
from perdure.contracts import AGENT_WORKFLOW
from perdure.embedded import EmbeddedServer, find_binary
from perdure.testing import calls, reply, scripted
from tests.broken_worker import BUG, broken_worker
from tests.chaos.conftest import Stage, call, fake_model, stage
from tests.chaos.test_lost_workers import TOLD, model_call_runs
from tests.chaos.test_stopping_workers import GRACE
from tests.cli.command_line import CommandLine, make, pending, until
from tests.conftest import Serve
from tests.fake_chat import fake_chat
from tests.lab import eventually, laboratory

__all__ = ["fake_model", "stage"]

AGENTS = """
import time
from pathlib import Path
from perdure import Agent, Approval, Model, tool

@tool(effect="write", approval=Approval(timeout="10m"))
def pay(to: str) -> str:
    "Pay."
    return f"paid {to}"

@tool(effect="write")
def slow() -> str:
    "Take a minute."
    Path("slow-began").touch()
    time.sleep(60)
    return "done"

def calling(name, tool, **arguments):
    script = [{"calls": [{"tool": tool.spec.name, "arguments": arguments}]}, {"text": "{{last_tool_text}}"}]
    return Agent(name, Model(provider="scripted", params={"script": script}), tools=[tool])

payer = calling("payer", pay, to="bob")
sleeper = calling("sleeper", slow)
"""


@pytest.fixture
def new_id() -> str:
    """A workflow id that no other test uses."""
    return f"i-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def agents(tmp_path: Path) -> str:
    """An agents file."""
    path = tmp_path / "my_agents.py"
    path.write_text(textwrap.dedent(AGENTS))
    return str(path)


@pytest.fixture
def perdure(temporal_server: EmbeddedServer, tmp_path: Path) -> Iterator[CommandLine]:
    """The command line on a queue that nobody polls."""
    made = make(tmp_path, temporal_server.address, f"i-{uuid.uuid4().hex[:8]}")
    yield made
    made.close()


@pytest.fixture
def plain(client: TemporalClient) -> Client:
    """A client as users have it."""
    return Client(client, answer_wait=2.0)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def approved(perdure: CommandLine, id: str) -> bool:
    """Whether an approval has been taken; a worker that has just come back may not answer yet."""
    asked = perdure.start("approve", id)
    asked.communicate(timeout=60)
    return asked.returncode == 0


# --- 132: nobody is working -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_132_no_server(perdure: CommandLine) -> None:
    """(a) The address is named, and the exit code is 3."""
    said = perdure("run", "payer", "x", code=3, TEMPORAL_ADDRESS="127.0.0.1:1").stderr
    assert "no Temporal server answers at 127.0.0.1:1" in said


@pytest.mark.slow
@pytest.mark.parametrize("where", ["no worker", "another queue", "another namespace"])
def test_132_no_worker(perdure: CommandLine, agents: str, new_id: str, where: str) -> None:
    """(b, c, d) Address and queue are named, as the server knows them; without waiting the exit code is not 0."""
    address = perdure.environment["TEMPORAL_ADDRESS"]
    elsewhere = {}
    if where == "another namespace":
        elsewhere = {"TEMPORAL_NAMESPACE": f"n-{new_id}"}
        made = [str(find_binary()), "operator", "namespace", "create", "--namespace", f"n-{new_id}"]
        assert subprocess.run([*made, "--address", address], capture_output=True, check=False).returncode == 0
    if where != "no worker":
        given = elsewhere or {"PERDURE_TASK_QUEUE": f"q-{new_id}"}
        elsewhere_worker = perdure.start("worker", agents)
        assert elsewhere_worker.stdout is not None
        assert "serving" in elsewhere_worker.stdout.readline()
        elsewhere = given
    queue = {**perdure.environment, **elsewhere}["PERDURE_TASK_QUEUE"]
    said = f"no worker is polling queue '{queue}' at {address}"
    done = until(lambda: perdure("run", "payer", "x", "--no-follow", "--id", f"{new_id}-1", code=1, **elsewhere))
    assert said in done.stderr
    following = perdure.start("run", "payer", "x", "--id", f"{new_id}-2", **elsewhere)
    assert following.stderr is not None
    assert said in following.stderr.readline()
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=60)
    assert following.returncode == 130


@pytest.mark.slow
def test_132_a_restarted_server(tmp_path: Path, agents: str, new_id: str) -> None:
    """(e) Worker, run and whoever follows it go on by themselves when the server is back."""
    port = free_port()
    with EmbeddedServer(tmp_path / "server", port=port, headless=True) as server:
        perdure = make(tmp_path, server.address, "restarted")
        worker = perdure.start("worker", agents)
        assert worker.stdout is not None
        assert "serving" in worker.stdout.readline()
        following = perdure.start("run", "payer", "x", "--id", new_id, "--json")
        until(lambda: pending(perdure, new_id))
    with EmbeddedServer(tmp_path / "server", port=port, headless=True):
        until(lambda: approved(perdure, new_id))
        out, _ = following.communicate(timeout=90)
        assert following.returncode == 0
        assert '"output": "paid bob"' in out
        perdure.close()


# --- 133: activity not registered -------------------------------------------------------------------------------------


@tool(effect="write", approval=Approval(timeout="10m"))
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


async def test_133_a_tool_that_is_not_there_at_the_start(serve: Serve) -> None:
    """An agent that names a tool which the worker lacks is refused at once, with the tool's name."""
    lab = await serve(Agent("a", scripted(reply("x"))))
    asked = {"name": "adhoc", "model": "scripted:x", "tools": ["pay_by_fax"]}
    result = await lab.run(asked)
    assert result["outcome"] == "invalid_input"
    assert "this worker has no tool 'pay_by_fax'" in result["message"]


async def test_133_a_tool_that_is_gone_later(client: TemporalClient, data_dir: Path) -> None:
    """A run whose tool a later worker lacks is told so once, and goes on."""
    script = scripted(calls("pay", to="bob"), reply("{{last_tool_text}}"))
    async with laboratory(client, data_dir, Agent("payer", script, tools=[pay])) as lab:
        run = await lab.start("payer")
        await run.asks()
    async with laboratory(client, data_dir, Agent("payer", script), queue=lab.queue):
        await run.update("approve", {"call_id": "c1"})
        result = await run.result()
        assert result["output"] == "not executed: tool 'pay' no longer exists on this worker"
        assert len(await run.events("tool_start")) == 1


@workflow.defn(name=AGENT_WORKFLOW, sandboxed=False)
class Newer:
    """A run of a release that has one more activity."""

    @workflow.run
    async def run(self, given: Any = None) -> None:
        """Call it."""
        retry = RetryPolicy(maximum_attempts=5, initial_interval=timedelta(seconds=20))
        await workflow.execute_activity(
            "of_tomorrow", start_to_close_timeout=timedelta(seconds=5), retry_policy=retry, activity_id="one"
        )

    @workflow.query
    def status(self) -> dict[str, Any]:
        """As a run answers."""
        return {"state": "running"}


async def _never() -> None: ...


async def test_133_an_activity_of_another_release(client: TemporalClient, plain: Client, new_id: str) -> None:
    """`status` names the activity, its attempt, its next try and the queue whose worker does not know it."""
    from temporalio import activity

    known = activity.defn(name="of_today")(_never)
    async with Worker(client, task_queue=new_id, workflows=[Newer], activities=[known]):
        handle = await client.start_workflow(AGENT_WORKFLOW, {}, id=new_id, task_queue=new_id)

        async def retried() -> list[str]:
            return (await plain.handle(new_id).status()).retrying

        (line,) = await eventually(retried)
        assert re.match(
            r"of_tomorrow one: attempt 2 of 5, next in \d+ s, after: .*of_tomorrow.* is not registered", line
        )
        assert line.endswith(
            f"; a worker of queue '{new_id}' does not know it: all workers of a queue must run the same release"
        )
        await handle.terminate()


# --- 137: RUNNING, but dead -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_137_a_failing_workflow_task(client: TemporalClient, data_dir: Path, plain: Client, new_id: str) -> None:
    """`status` has attempts and cause, the server counts such runs, and a corrected worker lets the run go on."""
    asked = {"agent": "mended", "prompt": "go"}
    async with broken_worker(client) as queue:
        await client.start_workflow(AGENT_WORKFLOW, asked, id=new_id, task_queue=queue)

        async def cause() -> str:
            return (await plain.handle(new_id).status()).stuck or ""

        async def told() -> str | None:
            found = await cause()
            return found if BUG in found else None

        stuck = await eventually(told)
        assert re.match(r"its workflow task fails, attempt \d+: ", stuck)
        assert stuck.endswith("; a corrected worker lets it go on")
        problem = f"TemporalReportedProblems IS NOT NULL AND WorkflowId='{new_id}'"

        async def counted(number: int) -> bool:
            return (await client.count_workflows(problem)).count == number

        await eventually(lambda: counted(1))
        (listed,) = await plain.list(problem)
        assert listed.problems
    async with laboratory(client, data_dir, Agent("mended", scripted(reply("alive"))), queue=queue):
        assert (await plain.handle(new_id).result()).output == "alive"
    await eventually(lambda: counted(0))


async def test_137_an_activity_that_fails_again_and_again(serve: Serve, plain: Client) -> None:
    """`status` names the activity, its attempt, its last error and its next try."""
    async with fake_chat({"status": 503, "body": {"error": {"message": "on holiday"}}}) as chat:
        lab = await serve(Agent("a", chat.model()))
        run = await lab.start("a")

        async def retried() -> list[str]:
            return (await plain.handle(run.id).status()).retrying

        (line,) = await eventually(retried)
        assert re.match(
            r"call_model \S+: attempt \d of 6, (running|next (at once|in \d+ s)), after: .*on holiday", line
        )
        await run.handle.cancel()


# --- 140: rolling restart ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("end", ["terminate", "kill"])
async def test_140_rolling_restart(stage: Stage, end: str) -> None:
    """A model call, a read, a write and an approval outlive their worker; the write is made once, no run cancelled."""
    stage.model.replies.extend([{"text": "late"}, {"text": "said"}])
    hold = stage.model.held(1)
    first = await stage.serve()
    model = await stage.start(agent="payer")
    await model_call_runs(stage, model.id)
    read = await stage.start(call("look", name="it", gate="read"), TOLD)
    write = await stage.start(call("pay", to="bob", amount=1, gate="write"), TOLD)
    approval = await stage.start(call("pay_approved", to="ann", amount=2), TOLD)
    await stage.begun(tool="look")
    await stage.begun(tool="pay")
    await stage.state(approval, "waiting_approval")

    getattr(first, end)()
    await stage.serve()
    await stage.begun(2, tool="look")
    stage.open("read")
    stage.open("write")
    await approval.execute_update("approve", {"by": "ann"})
    assert await stage.output(read) == "it seen in attempt 2"
    assert await stage.output(approval) == "paid ann 2"
    assert await stage.output(model, 90) == "said"
    told = "paid bob 1" if end == "terminate" else "outcome unknown: its worker was lost"
    assert told in await stage.output(write)
    assert len(stage.ledger(tool="pay")) == 1
    hold.set()
    if end == "terminate":
        assert await asyncio.to_thread(first.wait, GRACE + 2) == 0
    for handle in (model, read, write, approval):
        assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


@pytest.mark.slow
async def test_140_a_read_that_blocks_holds_nobody_up(stage: Stage) -> None:
    """A read that would block its thread for a minute is made elsewhere, and its worker exits within its grace."""
    first = await stage.serve()
    read = await stage.start(call("look", name="it", gate="read"), TOLD)
    await stage.begun(tool="look")
    first.terminate()
    await stage.serve()
    assert await asyncio.to_thread(first.wait, GRACE + 2) == 0
    assert not stage.ledger("end", tool="look")
    stage.open("read")
    assert await stage.output(read) == "it seen in attempt 2"


@pytest.mark.slow
async def test_140_a_second_signal_ends_a_worker_at_once(stage: Stage) -> None:
    """The worker is gone though its write is not over; the run is told that nobody knows, and goes on elsewhere."""
    first = await stage.serve()
    write = await stage.start(call("pay", to="bob", amount=1, gate="never"), TOLD)
    await stage.begun(tool="pay")
    first.terminate()
    await eventually(lambda: "stopping" in first.log.read_text())
    assert first.alive
    first.terminate()
    assert await asyncio.to_thread(first.wait, 30) == 128 + signal.SIGTERM
    assert "ended at once" in first.log.read_text()
    await stage.serve()
    assert "outcome unknown" in await stage.output(write)
    assert len(stage.ledger(tool="pay")) == 1


@pytest.mark.slow
def test_140_ctrl_c_twice_ends_dev(tmp_path: Path, agents: str) -> None:
    """The first lets a write end that goes on; the second stops worker and server at once."""
    perdure = make(tmp_path, f"127.0.0.1:{(port := free_port())}", "dev")
    dev = perdure.start("dev", agents, "--port", str(port))
    assert dev.stdout is not None
    while "Ctrl-C" not in (line := dev.stdout.readline()):
        assert line, "it has ended"
    perdure("run", "sleeper", "x", "--no-follow")
    until(lambda: (tmp_path / "slow-began").exists())
    dev.send_signal(signal.SIGINT)
    assert "Ctrl-C again ends it at once" in dev.stdout.readline()
    assert dev.poll() is None
    dev.send_signal(signal.SIGINT)
    dev.communicate(timeout=30)
    assert dev.returncode == 130
    assert EmbeddedServer.running(tmp_path / "data") is None
