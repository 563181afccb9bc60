"""The client against a real server and worker: starting, ending, asking, telling, and what Temporal knows better."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import client as temporal
from temporalio import workflow
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import perdure
from activities.converter import data_converter
from activities.registry import Registry
from activities.stores.files import FileStore
from perdure import (
    Agent,
    AlreadyStarted,
    Approval,
    Client,
    ConfigError,
    InvalidInput,
    Limits,
    MessageRefused,
    Model,
    NoAnswer,
    NoSuchRun,
    PerdureError,
    RunCancelled,
    RunFailed,
    Unreachable,
    tool,
)
from perdure.connection import translate
from perdure.embedded import EmbeddedServer
from perdure.handle import Handle
from perdure.worker_settings import WorkerSettings
from worker import serving


@tool(effect="write", approval=Approval(timeout="10m"))
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


def scripted(name: str, *script: dict[str, Any], tools: tuple[Any, ...] = ()) -> Agent:
    """An agent whose model follows a script."""
    return Agent(name, Model(provider="scripted", params={"script": list(script)}), tools=tools)


PAY = {"calls": [{"tool": "pay", "arguments": {"to": "bob"}}]}
echo = scripted("echo", {"text": "you said {{user}}"})
payer = scripted("payer", PAY, {"text": "{{last_tool_text}}"}, tools=(pay,))
boss = scripted(
    "boss",
    {"calls": [{"tool": "payer", "arguments": {"prompt": "pay"}}]},
    {"text": "{{last_tool_text}}"},
    tools=(payer,),
)
broken = scripted("broken", {"error": {"kind": "invalid_request", "message": "no such thing"}})


@pytest.fixture
async def runs(client: temporal.Client, tmp_path: Path) -> AsyncIterator[Client]:
    """A client whose queue a worker serves."""
    registry = Registry()
    for agent in (echo, boss, broken):
        registry.add(agent)
    queue = f"client-{uuid.uuid4().hex[:8]}"
    async with serving(client, registry, WorkerSettings(task_queue=queue, data_dir=tmp_path)):
        yield Client(await temporal.Client.connect(client.service_client.config.target_host), task_queue=queue)


@pytest.fixture
async def deserted(temporal_server: EmbeddedServer) -> Client:
    """A client whose queue nobody polls."""
    queue = f"deserted-{uuid.uuid4().hex[:8]}"
    return await Client.connect(address=temporal_server.address, task_queue=queue, answer_wait=0.5)


async def until(look: Callable[[], Awaitable[Any]], seconds: float = 30) -> Any:
    """What `look` returns as soon as it is something."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, "it has not come"
        await asyncio.sleep(0.02)
    return found


async def waiting(runs: Client, **fields: Any) -> Handle:
    """A run that waits for an approval."""
    handle = await runs.start(payer, "pay", **fields)
    await until(handle.approvals)
    return handle


def test_the_package_stays_light() -> None:
    """What talks to the outside is loaded when it is named, and an unknown name is an ordinary error."""
    assert perdure.Client is Client
    assert perdure.local.__module__ == "perdure.local_process"
    assert {"Client", "local"} <= set(perdure.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        perdure.nonsense  # noqa: B018


async def test_run(runs: Client) -> None:
    """An agent by object, name or data runs to a typed result; ids are readable and differ."""
    for agent in (
        echo,
        "echo",
        {"name": "echo", "model": {"provider": "scripted", "params": {"script": [{"text": "you said {{user}}"}]}}},
    ):
        assert (await runs.run(agent, "hi", limits=Limits(steps=3), metadata={"k": "v"})).output == "you said hi"
    one, other = await runs.start(echo, "a"), await runs.start("echo", messages=[{"role": "user", "content": "b"}])
    assert one.id.startswith("echo-")
    assert one.id != other.id
    assert (await other.result()).output == "you said b"
    assert (await one.temporal.describe()).task_queue == runs.task_queue
    assert await (await one.temporal.describe()).static_summary() == "echo: a"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "limits": {"steps": 0}}, r"limits\.steps"),
        ({"prompt": "x", "metadata": {"k": 1}}, r"metadata\.k"),
        ({"prompt": "x", "data": object()}, r"data: must be JSON \(Unable to serialize"),
        ({"prompt": b""}, "prompt: must not be bytes"),
        ({"prompt": "x", "tenant": ""}, "tenant"),
        ({"prompt": "x" * 2_000_000}, "input: is larger than 2 MB"),
    ],
)
async def test_bad_input(deserted: Client, fields: dict[str, Any], said: str) -> None:
    """Input that breaks the contract is refused before anything starts, with the field named."""
    with pytest.raises(InvalidInput, match=said):
        await deserted.start("echo", **fields)


@pytest.mark.parametrize("id", ["", " ", 5, None])
async def test_a_handle_needs_an_id(deserted: Client, id: Any) -> None:
    """An id that is none, or a cursor or patience that is none, is refused before anything is asked."""
    with pytest.raises(InvalidInput, match=r"^id: must be a text"):
        deserted.handle(id)
    wrong: list[dict[str, Any]] = [{"after": "x"}, {"after": -1}, {"patience": -1}, {"patience": "x"}]
    for fields in wrong:
        with pytest.raises(InvalidInput, match=f"^{next(iter(fields))}: must be"):
            deserted.handle("x").stream(**fields)


async def test_an_id_counts_once(runs: Client) -> None:
    """A second start of an id is refused, during the run and after it, or attached to where that is asked."""
    handle = await waiting(runs, id=f"once-{uuid.uuid4()}")
    with pytest.raises(AlreadyStarted) as caught:
        await runs.start(echo, "x", id=handle.id)
    assert caught.value.state == "running"
    attached = await runs.start(payer, "pay", id=handle.id, if_exists="attach")
    await attached.approve()
    assert (await handle.result()).output == "paid bob"
    with pytest.raises(AlreadyStarted) as caught:
        await runs.start(payer, "pay", id=handle.id)
    assert caught.value.state == "completed"
    assert (await runs.run(payer, "pay", id=handle.id, if_exists="attach")).output == "paid bob"
    with pytest.raises(AlreadyStarted, match="is of agent 'payer' and is completed; give another id"):
        await runs.run(echo, "hi", id=handle.id, if_exists="attach")


async def test_failed_runs(runs: Client) -> None:
    """A failed run raises with its result; input that only the worker can judge does too."""
    with pytest.raises(RunFailed, match="no such thing") as caught:
        await runs.run(broken, "x")
    assert (caught.value.result["outcome"], caught.value.result["agent"]) == ("failed", "broken")
    with pytest.raises(RunFailed, match="no agent 'nobody'") as caught:
        await runs.run("nobody", "x")
    assert caught.value.result["outcome"] == "invalid_input"


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_ended_from_outside(runs: Client, how: str) -> None:
    """A cancelled or terminated run raises with its last status, and is closed in every view."""
    handle = await waiting(runs)
    if how == "cancel":
        await handle.cancel()
    else:
        await handle.temporal.terminate(reason="we said so")
    with pytest.raises(RunCancelled, match="cancelled" if how == "cancel" else "terminated: we said so") as caught:
        await handle.result()
    assert caught.value.status["step"] == 1
    status = await handle.status()
    assert (status.state, status.pending, status.step) == ("closed", [], 1)
    assert (status.outcome, status.temporal) == (("cancelled", "canceled") if how == "cancel" else (None, "terminated"))
    assert (how == "cancel") == (status.message is None)
    for message in (handle.cancel(), handle.say("x"), handle.stop(), handle.approve(wait=False)):
        with pytest.raises(MessageRefused, match="has ended"):
            await message


async def test_what_a_run_says(runs: Client) -> None:
    """Status, events from a cursor, conversation, usage and spec are typed, open and closed."""
    handle = await waiting(runs, user="ann", data={"n": 1})
    status = await handle.status()
    assert (status.state, status.temporal, status.agent, status.stuck) == ("waiting_approval", "running", "payer", None)
    assert [(c.run, c.call_id, c.tool, c.arguments) for c in status.pending] == [
        (handle.id, "c1", "pay", {"to": "bob"})
    ]
    await handle.decide("c1", True, by="ann", digest=status.pending[0].digest)
    await handle.result()
    page = await handle.events()
    assert [event.type for event in page.events][-2:] == ["reply", "run_ended"]
    assert [event.n for event in (await handle.events(page.last - 1)).events] == [page.last]
    conversation = await handle.conversation()
    assert [message.role for message in conversation] == ["user", "user", "assistant", "tool", "assistant"]
    assert await handle.conversation(3) == conversation[3:]
    assert (await handle.usage()).steps == 2
    spec = await handle.spec()
    assert spec is not None
    assert (spec.spec.name, spec.user, spec.data) == ("payer", "ann", {"n": 1})
    status = await handle.status()
    assert (status.state, status.outcome, status.output) == ("closed", "success", "paid bob")


async def test_refused_messages(runs: Client) -> None:
    """What a run refuses is an error with its reason; sent as a signal it is recorded instead."""
    handle = await waiting(runs)
    for message, said in (
        (handle.approve("c9"), "no call 'c9' waits"),
        (handle.deny(arguments={"to": "eve"}), "only an approval can change them"),
        (handle.answer("q", "x"), "no question 'q' is open"),
        (handle.say(""), "text"),
    ):
        with pytest.raises(MessageRefused, match=said):
            await message
    assert await handle.approve("c9", wait=False) == {}
    events = await until(lambda: _events_of(handle, "message_refused"))
    assert "no call 'c9' waits" in events[0].reason
    assert (await handle.say("hello", message_id="m"))["queued"] == 1
    assert (await handle.say("hello", message_id="m"))["duplicate"] is True
    assert (await handle.stop())["stopping"] is True
    assert (await handle.result()).reason == "stopped"


async def _events_of(handle: Handle, kind: str) -> list[Any]:
    return [event for event in (await handle.events()).events if event.type == kind]


async def test_the_inbox(runs: Client) -> None:
    """Every call that waits is found, a child's under its own run; those under one run can be asked for alone."""
    handle = await runs.start(boss, "pay")
    other = await waiting(runs)
    (call,) = await until(lambda: runs.approvals(under=handle.id))
    assert call.run.startswith(f"{handle.id}/c1-")
    inbox = await until(lambda: _both(runs, call.run, other.id))
    assert {found.tool for found in inbox if found.run in {call.run, other.id}} == {"pay"}
    await runs.handle(call.run).approve()
    assert "paid bob" in (await handle.result()).output
    await other.cancel()


async def test_the_inbox_without_search_attributes(tmp_path: Path) -> None:
    """A run that began before its state could be indexed is found, before that is possible and afterwards."""
    registry = Registry()
    registry.add(payer)
    async with EmbeddedServer(tmp_path / "server", headless=True) as server:
        converter = data_converter(FileStore(tmp_path / "blobs"))
        connection = await temporal.Client.connect(server.address, data_converter=converter)
        await connection.operator_service.remove_search_attributes(
            RemoveSearchAttributesRequest(namespace="default", search_attributes=["PerdureState"])
        )
        async with serving(connection, registry, WorkerSettings(task_queue="q", data_dir=tmp_path)):
            runs = Client(connection, task_queue="q")
            handle = await waiting(runs)
            assert [call.run for call in await until(runs.approvals)] == [handle.id]
            await connection.operator_service.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace="default",
                    search_attributes={"PerdureState": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD},
                )
            )
            await until(lambda: _accepted(runs, "PerdureState IS NULL"))
            assert [call.run for call in await runs.approvals()] == [handle.id]
            (listed,) = await runs.list()
            assert listed.state == "open"


async def _accepted(runs: Client, query: str) -> bool:
    try:
        return bool(await runs.list(query))
    except InvalidInput:
        return False


async def test_the_inbox_tells_of_the_silent(deserted: Client) -> None:
    """A run that cannot be asked is told of, with the reason, instead of being passed over."""
    handle = await deserted.start("echo", "x")
    silent: dict[str, NoAnswer] = {}

    async def told() -> bool:
        await deserted.approvals(under=handle.id, on_silent=silent.__setitem__)
        return handle.id in silent

    await until(told)
    assert f"no worker is polling queue '{deserted.task_queue}'" in str(silent[handle.id])
    await handle.temporal.terminate()


@pytest.mark.parametrize("status", list(RPCStatusCode))
def test_what_the_server_answers_for_a_run(client: temporal.Client, status: RPCStatusCode) -> None:
    """Each status is one kind of error; what may be over in a moment is no answer, which nothing else is hidden by."""
    kinds: dict[RPCStatusCode, type[PerdureError]] = {
        RPCStatusCode.NOT_FOUND: NoSuchRun,
        RPCStatusCode.INVALID_ARGUMENT: InvalidInput,
        **dict.fromkeys([RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED], Unreachable),
        RPCStatusCode.UNAVAILABLE: Unreachable,
        **dict.fromkeys([RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED], NoAnswer),
        **dict.fromkeys([RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.RESOURCE_EXHAUSTED], NoAnswer),
    }
    found = translate(RPCError("why", status, b""), client, "r1")
    assert type(found) is kinds.get(status, PerdureError)
    assert "r1" in str(found) or "why" in str(found)


@pytest.mark.slow
async def test_the_inbox_goes_on_where_a_run_is_asked_too_much(
    client: temporal.Client, runs: Client, tmp_path: Path
) -> None:
    """The run that is asked too much at once is told of; what waits in others is there."""
    other = await waiting(runs)
    registry = Registry()
    registry.add(payer)
    busy = Client(runs.temporal, task_queue=f"busy-{uuid.uuid4().hex[:8]}", answer_wait=5)
    async with serving(client, registry, WorkerSettings(task_queue=busy.task_queue, data_dir=tmp_path)):
        handle = await waiting(busy)
        await until(lambda: _both(busy, other.id, handle.id))
    await handle.say("x", wait=False)  # a task that nobody takes: queries wait behind it, and only few may
    silent: dict[str, NoAnswer] = {}

    async def refused() -> bool:
        found = await busy.approvals(on_silent=silent.__setitem__)
        assert other.id in {call.run for call in found}
        cause = silent[handle.id].__cause__
        return isinstance(cause, RPCError) and cause.status is RPCStatusCode.RESOURCE_EXHAUSTED

    async with asyncio.TaskGroup() as group:
        askers = [group.create_task(_ask_on(handle)) for _ in range(8)]
        await until(refused, 120)  # the server is asked again and again before it is believed
        for asker in askers:
            asker.cancel()
    await handle.temporal.terminate()
    await other.temporal.terminate()


async def _ask_on(handle: Handle) -> None:
    while True:
        with contextlib.suppress(RPCError):
            await handle.temporal.query("status")


async def _both(runs: Client, *ids: str) -> list[Any]:
    found = await runs.approvals()
    return found if set(ids) <= {call.run for call in found} else []


async def test_lists(runs: Client) -> None:
    """Runs are listed with what is indexed of them; a bad query is refused."""
    handle = await runs.start(echo, "hello", tenant="acme")
    await handle.result()
    (found,) = await until(lambda: runs.list(f"WorkflowId='{handle.id}' AND ExecutionStatus='Completed'"))
    assert (found.agent, found.state, found.outcome, found.tenant) == ("echo", "closed", "success", "acme")
    assert (found.steps, found.prompt) == (1, "hello")
    assert len(await runs.list(limit=1)) == 1
    with pytest.raises(InvalidInput, match="invalid query"):
        await runs.list("nonsense (")


async def test_nobody_answers(deserted: Client) -> None:
    """Without a worker a run says through Temporal what it waits for; terminated it is still told apart."""
    handle = await deserted.start("echo", "x")
    status = await handle.status()
    assert status.state == "running"
    assert status.stuck is not None
    assert f"no worker is polling queue '{deserted.task_queue}'" in status.stuck
    with pytest.raises(NoAnswer, match="no worker is polling queue"):
        await handle.say("x")
    await handle.temporal.terminate(reason="enough")
    status = await handle.status()
    assert (status.state, status.temporal, status.message) == ("closed", "terminated", "enough")
    with pytest.raises(RunCancelled, match="terminated: enough"):
        await handle.result()
    with pytest.raises(NoSuchRun, match="no run 'nope'"):
        await deserted.handle("nope").status()
    with pytest.raises(NoSuchRun, match="no run 'nope'"):
        await deserted.handle("nope").result()


@workflow.defn(name="AgentWorkflow")
class BadDeploy:
    """A deploy whose code fails on every run."""

    @workflow.run
    async def run(self, payload: Any) -> None:
        """Fail the workflow task."""
        raise RuntimeError("a bad deploy")


async def test_a_failing_workflow_task(client: temporal.Client, deserted: Client) -> None:
    """A run whose code fails says so as stuck, with the cause; a corrected deploy would let it go on."""
    handle = await deserted.start("echo", "x")
    async with Worker(
        client, task_queue=deserted.task_queue, workflows=[BadDeploy], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        status = await until(lambda: _stuck(handle, "attempt"))
    assert "a bad deploy" in status.stuck
    await handle.temporal.terminate()


async def _stuck(handle: Handle, word: str) -> Any:
    status = await handle.status()
    return status if word in (status.stuck or "") else None


async def test_a_workflow_timeout(client: temporal.Client, deserted: Client) -> None:
    """A run that exceeds a timeout of its starter has failed, and says with what."""
    started = await client.start_workflow(
        "AgentWorkflow",
        {"agent": "echo", "prompt": "x"},
        id=f"late-{uuid.uuid4()}",
        task_queue=deserted.task_queue,
        execution_timeout=timedelta(seconds=1),
    )
    with pytest.raises(RunFailed, match="exceeded the timeout") as caught:
        await deserted.handle(started.id).result()
    assert (caught.value.result["outcome"], caught.value.result["reason"]) == ("failed", "workflow_timeout")
    assert (await deserted.handle(started.id).status()).temporal == "timed_out"


async def test_no_server(monkeypatch: pytest.MonkeyPatch, temporal_server: EmbeddedServer, tmp_path: Path) -> None:
    """An address without a server, a namespace that does not exist, and broken settings are told apart."""
    with pytest.raises(Unreachable, match=r"no Temporal server answers at 127\.0\.0\.1:1;"):
        await Client.connect(address="127.0.0.1:1")
    for address in ("not an address", "", "localhost", "http://localhost:7233", "localhost:x", "localhost:0", ":7233"):
        with pytest.raises(ConfigError, match=r"address: .* is no address of a Temporal server; write host:port"):
            await Client.connect(address=address)
        if address:  # an empty variable is none
            monkeypatch.setenv("TEMPORAL_ADDRESS", address)
            with pytest.raises(ConfigError, match=r"TEMPORAL_ADDRESS: .* write host:port"):
                await Client.connect()
    elsewhere = await Client.connect(address=temporal_server.address, namespace="elsewhere")
    with pytest.raises(Unreachable, match="no namespace 'elsewhere'"):
        await elsewhere.start("echo", "x")
    profile = tmp_path / "temporal.toml"
    profile.write_text("[profile")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(profile))
    with pytest.raises(ConfigError, match="configuration cannot be read"):
        await Client.connect()
    profile.write_text('[profile.mine]\naddress = "http://x:1"')
    monkeypatch.delenv("TEMPORAL_ADDRESS")
    monkeypatch.setenv("TEMPORAL_PROFILE", "mine")
    with pytest.raises(ConfigError, match=f"^address of profile 'mine' in {profile}: 'http://x:1' is no address"):
        await Client.connect()
