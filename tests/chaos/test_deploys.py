"""Deploys under running runs: workers of new code go on with runs of old code, and a run keeps what it began with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import Handle, Stage, call
from tests.cli.command_line import make
from tests.processes import WorkerProcess, eventually

pytestmark = pytest.mark.slow

GRACE = 30.0
PAYMENT = {"to": "bob", "amount": 100}
CODE = '''
import os
from pathlib import Path
from perdure import Agent, Approval, Limits, tool

@tool(effect={effect!r}, approval={approval}, timeout={timeout!r})
def {name}(to: str, amount: {type}) -> str:
    """{description}"""
    with Path(os.environ["CHAOS_FOLDER"], "ledger").open("a") as ledger:
        ledger.write('{{"phase": "begin", "code": "{code}", "to": "' + to + '"}}\\n')
    return f"paid {{to}} {{amount}} by {code}"

{agent} = Agent({agent!r}, {model!r}, {instructions!r}, tools=[{name}], limits=Limits(steps={steps}))
'''
OLD: dict[str, Any] = {
    "code": "old",
    "agent": "clerk",
    "model": "compatible:old-model",
    "instructions": "You are the old clerk.",
    "steps": 5,
    "name": "pay",
    "type": "int",
    "description": "Pay somebody.",
    "effect": "write",
    "approval": 'Approval(timeout="5m")',
    "timeout": "20s",
}
NEW = {**OLD, "code": "new", "model": "compatible:new-model", "instructions": "You are the new clerk."}


async def serve(stage: Stage, code: dict[str, Any], **environment: str) -> WorkerProcess:
    """A worker for one state of the agents file."""
    folder = stage.folder / f"code{len(stage.workers)}"
    folder.mkdir()
    agents = folder / "my_agents.py"
    agents.write_text(CODE.format(**code))
    worker = WorkerProcess(
        agents,
        address=stage.address,
        queue=stage.queue,
        data_dir=stage.folder,
        log=folder / "log",
        environment={"CHAOS_FOLDER": str(stage.folder), "COMPATIBLE_BASE_URL": stage.model.address, **environment},
    )
    stage.workers.append(worker)

    async def serving() -> bool:
        return worker.serving

    await eventually(serving, "the worker serves")
    return worker


async def stop(worker: WorkerProcess) -> None:
    """Stop a worker as a deploy does."""
    worker.terminate()
    assert await asyncio.to_thread(worker.wait, GRACE) == 0


async def redeploy(stage: Stage, code: dict[str, Any], *replies: dict[str, Any]) -> Handle:
    """A run of the old code that waits for the approval of its payment, on a worker of other code."""
    stage.model.replies.extend([call("pay", **PAYMENT), *replies])
    old = await serve(stage, OLD)
    handle = await stage.start(agent="clerk")
    await stage.state(handle, "waiting_approval")
    await stop(old)
    await serve(stage, code)
    return handle


def result_of_call(request: dict[str, Any]) -> str:
    """What the model was told about its call."""
    [message] = [m for m in request["messages"] if m["role"] == "tool"]
    return str(message["content"])


def system_of(request: dict[str, Any]) -> str:
    """The instructions of a request."""
    return str(request["messages"][0]["content"])


async def test_a_renamed_tool_and_a_changed_agent(stage: Stage) -> None:
    """A run keeps prompt and model, its approved call of a tool that is gone does nothing; new runs have new code."""
    renamed = {**NEW, "name": "send_money", "approval": None, "steps": 2}
    handle = await redeploy(stage, renamed, {"text": "I could not pay."})
    await handle.signal("approve", {})
    assert await stage.output(handle) == "I could not pay."
    first, second = stage.model.requests
    assert (second["model"], system_of(second)) == ("old-model", system_of(first))
    assert "You are the old clerk." in system_of(second)
    assert [t["function"]["name"] for t in second["tools"]] == ["pay"]
    assert "not executed: tool 'pay' no longer exists" in result_of_call(second)
    assert stage.ledger() == []
    stage.model.replies.extend([call("send_money", **PAYMENT), {"text": "Sent."}])
    fresh = await stage.start(agent="clerk")
    assert await stage.output(fresh) == "Sent."
    third = stage.model.requests[2]
    assert third["model"] == "new-model"
    assert "You are the new clerk." in system_of(third)
    assert [line["code"] for line in stage.ledger()] == ["new"]


@pytest.mark.parametrize(
    "change", [{"type": "float"}, {"description": "Pay somebody, with a fee."}, {"effect": "dangerous"}]
)
async def test_a_changed_definition_voids_the_approval(stage: Stage, change: dict[str, Any]) -> None:
    """Whoever approved saw another tool, so the call does nothing, and the model may ask for it anew."""
    handle = await redeploy(stage, {**NEW, **change}, call("pay", **PAYMENT), {"text": "Done."})
    await handle.signal("approve", {})
    await stage.state(handle, "waiting_approval")

    async def asked_again() -> bool:
        answer: dict[str, Any] = await handle.query("approvals")
        return [pending["call_id"] for pending in answer["pending"]] == ["c2"]

    await eventually(asked_again, "the model's second call waits")
    assert "pay on this worker is another tool than" in result_of_call(stage.model.requests[1])
    assert stage.ledger() == []
    await handle.signal("deny", {"call_id": "c2"})
    assert await stage.output(handle) == "Done."
    assert stage.ledger() == []


async def test_changed_code_of_a_tool(stage: Stage) -> None:
    """Another body runs under the old approval, which is for the call, not the code; its options are the old ones."""
    changed = {**NEW, "timeout": "30s", "approval": 'Approval(timeout="1m", approvers=("ann",))'}
    handle = await redeploy(stage, changed, {"text": "Paid."})
    await handle.execute_update("approve", {"by": "joe"})
    assert await stage.output(handle) == "Paid."
    assert result_of_call(stage.model.requests[1]) == "paid bob 100 by new"
    spec: dict[str, Any] = await handle.query("spec")
    [tool] = [tool for tool in spec["spec"]["tools"] if tool["name"] == "pay"]
    assert tool["timeout"] in {"PT20S", 20}


async def test_changed_limits(stage: Stage) -> None:
    """A run keeps the limits that it began with, whatever new runs get."""
    handle = await redeploy(stage, {**NEW, "steps": 1}, {"text": "Paid."})
    await handle.signal("approve", {})
    assert await stage.output(handle) == "Paid."
    status: dict[str, Any] = await handle.query("status")
    assert (status["limits"]["steps"], status["step"]) == (5, 2)
    stage.model.replies.append(call("pay", **PAYMENT))
    fresh = await stage.start(agent="clerk")
    await stage.state(fresh, "waiting_approval")
    await fresh.signal("approve", {})
    assert (await stage.result(fresh))["reason"] == "max_steps"


async def test_a_removed_agent(stage: Stage) -> None:
    """A run goes on without its agent, with tools of that name of another; only new runs of it are refused."""
    handle = await redeploy(stage, {**NEW, "agent": "bursar"}, {"text": "Paid."})
    await handle.signal("approve", {})
    assert await stage.output(handle) == "Paid."
    assert [line["code"] for line in stage.ledger()] == ["new"]
    fresh = await stage.start(agent="clerk")
    await eventually(lambda: _failed(fresh), "the new run is refused")


async def _failed(handle: Handle) -> bool:
    described = await handle.describe()
    return described.status is not None and described.status.name == "FAILED"


async def test_old_and_new_workers_side_by_side(stage: Stage) -> None:
    """While both serve one queue each run ends, and each payment is made once or said not to be made."""
    await serve(stage, {**OLD, "approval": None})
    await serve(stage, {**NEW, "approval": None, "name": "send_money"})
    for _ in range(10):
        stage.model.replies.extend([call("pay", **PAYMENT), {"text": "Done."}])
        assert await stage.output(await stage.start(agent="clerk")) == "Done."
    told = [result_of_call(request) for request in stage.model.requests[1::2]]
    expected = {
        "paid bob 100 by old",
        "not executed: tool 'pay' no longer exists on this worker",
        "there is no tool 'pay'; you have send_money",
    }
    assert set(told) <= expected
    assert [line["code"] for line in stage.ledger()] == ["old"] * told.count("paid bob 100 by old")


async def test_versioned_workers(stage: Stage) -> None:
    """With worker versions a run stays with the old code while workers of it live; new runs get the new code."""
    stage.model.replies.extend([call("pay", **PAYMENT)])
    await serve(stage, OLD, PERDURE_WORKER_VERSION=f"{stage.queue}.v1")
    await current(stage, "v1")
    handle = await stage.start(agent="clerk")
    await stage.state(handle, "waiting_approval")
    await serve(stage, {**NEW, "name": "send_money", "approval": None}, PERDURE_WORKER_VERSION=f"{stage.queue}.v2")
    await current(stage, "v2")
    stage.model.replies.extend([{"text": "Paid."}])
    await handle.execute_update("approve", {})
    assert await stage.output(handle) == "Paid."
    stage.model.replies.extend([call("send_money", **PAYMENT), {"text": "Sent."}])
    fresh = await stage.start(agent="clerk")
    assert await stage.output(fresh) == "Sent."
    assert [line["code"] for line in stage.ledger()] == ["old", "new"]


async def current(stage: Stage, build: str) -> None:
    """Send new runs to workers of a build, as soon as the server knows it."""
    command = (
        "worker",
        "deployment",
        "set-current-version",
        "--deployment-name",
        stage.queue,
        "--build-id",
        build,
        "-y",
    )

    async def done() -> bool:
        return (await asyncio.to_thread(stage.cli.run, *command)).returncode == 0

    await eventually(done, f"{build} is current")


async def test_the_gate_finds_what_would_stick(stage: Stage, tmp_path: Path) -> None:
    """`perdure replay` of the open runs is clean for changed agents; they are no part of what it replays."""
    handle = await redeploy(stage, {**NEW, "name": "send_money"}, {"text": "Never mind."})
    found = make(tmp_path, stage.address, stage.queue).json("replay", "--query", f"TaskQueue='{stage.queue}'")
    assert [(one["run"], one["result"]) for one in found] == [(handle.id, "fine")]
    await handle.signal("deny", {})
    assert await stage.output(handle) == "Never mind."


def test_refused_versions(tmp_path: Path) -> None:
    """A version without a dot is refused at the start, in one line."""
    agents = tmp_path / "a.py"
    agents.write_text(json.dumps(""))
    done = make(tmp_path, "127.0.0.1:1", "q")("worker", str(agents), code=2, PERDURE_WORKER_VERSION="v2")
    assert "PERDURE_WORKER_VERSION: must be the names of a deployment and a build" in done.stderr
