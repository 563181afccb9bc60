"""Runs whose large values lie in a bucket, and what becomes of values that are not there."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest, StartWorkflowExecutionRequest
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.converter import JSONProtoPayloadConverter
from temporalio.worker import Replayer

import perdure
from activities.converter import data_converter
from activities.export import inlined, payloads
from activities.stores.base import BlobMissing, digest_of
from activities.stores.choice import choose_store
from activities.stores.driver import UNDECODABLE
from activities.stores.files import FileStore
from perdure import Agent, InvalidInput, Limits, tool
from perdure.contracts import OFFLOAD_CHARS
from perdure.embedded import EmbeddedServer
from perdure.testing import calls, reply, scripted
from perdure.worker_settings import WorkerSettings
from tests.activities.s3_server import S3Server
from tests.conftest import Serve
from tests.lab import Run, eventually, laboratory
from workflows.interceptor import RunInterceptor
from workflows.runner import WORKFLOWS, make_runner

pytestmark = pytest.mark.slow

MANY = Limits(tokens=1_000_000_000)


@tool(effect="read", max_result_chars=4_000_000)
def fetch(size: int) -> str:
    """A text of that many characters."""
    return "y" * size


@tool(effect="write", approval=True)
def store_text(text: str) -> str:
    """Store a text."""
    return f"stored {len(text)}"


@tool(effect="write")
def measure(text: str) -> str:
    """The length of a text."""
    return str(len(text))


BIG = Agent(
    "big",
    scripted(calls("fetch", size=300_000), calls("store_text", text="{{tool:c1}}{{user}}"), reply("{{tool:c2}}")),
    tools=[fetch, store_text],
    limits=MANY,
)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server of buckets, which this process's environment leads to."""
    with S3Server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


async def connected(address: str) -> Client:
    """A client with the store of this process's environment."""
    store = choose_store(WorkerSettings.parse(os.environ), os.environ)
    return await Client.connect(address, data_converter=data_converter(store))


async def test_a_run_with_a_bucket(temporal_server: EmbeddedServer, bucket: S3Server, tmp_path: Path) -> None:
    """A prompt, a result and arguments that are too large for history lie in the bucket; no file is written."""
    client, data = await connected(temporal_server.address), tmp_path / "data"
    location = bucket.environment["PERDURE_BLOB_STORE"]
    async with laboratory(client, data, BIG, blob_store=location) as lab:
        outside = await perdure.Client.connect(address=temporal_server.address, task_queue=lab.queue)
        handle = await outside.start("big", "p" * 3_000_000)
        run = Run(client.get_workflow_handle(handle.id))
        await run.asks()
    async with laboratory(client, data, BIG, queue=lab.queue, blob_store=location):
        await handle.approve("c2")
        assert (await handle.result()).output == "stored 3300000"
    history = await run.handle.fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 60_000
    assert not (data / "blobs").exists()


async def test_without_a_store_a_large_input_is_refused(temporal_server: EmbeddedServer) -> None:
    """A client that reaches no store says what would help."""
    outside = await perdure.Client.connect(address=temporal_server.address)
    with pytest.raises(InvalidInput, match="input: is larger than 2 MB; set PERDURE_BLOB_STORE"):
        await outside.start("big", "p" * 3_000_000)
    with pytest.raises(InvalidInput, match="decide: is larger than 2 MB"):
        await outside.handle("any").approve("c1", arguments={"text": "p" * 3_000_000})


async def test_a_deed_outlives_its_store(temporal_server: EmbeddedServer, bucket: S3Server, tmp_path: Path) -> None:
    """A write that was done while the store is away is done: its result is cut, and the run goes on."""

    @tool(effect="write", max_result_chars=1_000_000)
    def work() -> str:
        bucket.stop()
        return "w" * 200_000

    agent = Agent("deed", scripted(calls("work"), calls("measure", text="{{tool:c1}}"), reply("{{tool:c2}}")),
                  tools=[work, measure], limits=MANY)  # fmt: skip
    client = await connected(temporal_server.address)
    async with laboratory(client, tmp_path, agent, blob_store=bucket.environment["PERDURE_BLOB_STORE"]) as lab:
        run = await lab.start(agent)
        assert 30_000 < int((await run.result())["output"]) < OFFLOAD_CHARS
        assert (await run.results())["c1"].endswith("[the rest was lost: it could not be stored]")


async def test_a_run_waits_for_its_store(temporal_server: EmbeddedServer, tmp_path: Path) -> None:
    """While the store is away nothing fails and nothing is lost; the run goes on when it is back."""
    folder = tmp_path / "blobs"
    client = await Client.connect(temporal_server.address, data_converter=data_converter(FileStore(folder)))
    async with laboratory(client, tmp_path, BIG) as lab:
        run = await lab.start(BIG, "p" * 100_000)
        await run.asks()
    async with laboratory(client, tmp_path, BIG, queue=lab.queue):
        folder.rename(tmp_path / "away")
        folder.touch()
        await run.send("approve", {})
        assert await eventually(lambda: failed_tasks(run))
        folder.unlink()
        (tmp_path / "away").rename(folder)
        assert (await run.result())["output"] == "stored 400000"


# --- references to nothing --------------------------------------------------------------------------------------------


def forged(digest: str) -> Payload:
    """A reference as the SDK writes it."""
    claim = ExternalStorageReference(driver_name="perdure", claim_data={"digest": digest})
    made = JSONProtoPayloadConverter().to_payload(claim)
    assert made is not None
    return made


NOWHERE = forged(digest_of(b"never put"))


async def send(client: Client, run: Run, name: str, payload: Payload) -> None:
    """Send a signal with exactly this payload."""
    await client.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run.id),
            signal_name=name,
            input=Payloads(payloads=[payload]),
        )
    )


async def failed_tasks(run: Run) -> int:
    """How many workflow tasks have failed."""
    events = (await run.handle.fetch_history()).events
    return sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED for event in events)


@pytest.mark.parametrize("name", ["decide", "say", "answer", "extend", "stop"])
async def test_a_signal_that_refers_to_nothing_is_refused(client: Client, serve: Serve, name: str) -> None:
    """Whoever can reach a run cannot stick it with a reference to a blob that there is not."""
    lab = await serve(BIG)
    run = await lab.start(BIG)
    await run.asks()
    await send(client, run, name, NOWHERE)
    [refused] = await run.seen("message_refused")
    assert "cannot be read: the reference to a stored payload leads nowhere: sha256:" in refused["reason"]
    assert await failed_tasks(run) == 0
    await run.update("approve", {})
    assert (await run.result())["output"] == "stored 300003"


async def test_an_input_that_refers_to_nothing_fails_the_run(client: Client, serve: Serve) -> None:
    """A run that was started with a reference to nothing ends at once, and says so."""
    lab = await serve(BIG)
    workflow_id = f"t-{secrets.token_hex(6)}"
    await client.workflow_service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_id=workflow_id,
            workflow_type=WorkflowType(name="AgentWorkflow"),
            task_queue=TaskQueue(name=lab.queue),
            input=Payloads(payloads=[NOWHERE]),
            request_id=secrets.token_hex(8),
        )
    )
    ended = await Run(client.get_workflow_handle(workflow_id)).ended()
    assert ended["outcome"] == "invalid_input"
    assert "input: cannot be read: the reference to a stored payload leads nowhere" in ended["message"]


async def test_a_query_that_refers_to_nothing_is_refused(
    temporal_server: EmbeddedServer, client: Client, serve: Serve
) -> None:
    """A query with such an argument is answered with an error, and harms nothing."""
    lab = await serve(BIG)
    run = await lab.start(BIG)
    await run.asks()
    plain = await Client.connect(temporal_server.address)
    claim = ExternalStorageReference(driver_name="perdure", claim_data={"digest": digest_of(b"never put")})
    with pytest.raises(WorkflowQueryFailedError, match="this query takes"):
        await plain.get_workflow_handle(run.id).query("events", claim)
    assert (await run.state()) == "waiting_approval"


async def test_a_missing_value_of_the_run_itself_is_no_value(client: Client, data_dir: Path, store: FileStore) -> None:
    """What the run itself has recorded and is gone fails workflow tasks until it is back, then the run goes on."""
    agent = Agent("long", scripted(calls("store_text", text="short"), reply("end")), tools=[store_text],
                  instructions="i" * 100_000)  # fmt: skip
    async with laboratory(client, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.asks()
        history = await run.handle.fetch_history()
    digests = [digest for event in history.events for digest in references(event)]
    assert digests
    kept = {digest: await store.get(digest) for digest in digests}
    for digest in digests:
        await store.delete(digest)
    async with laboratory(client, data_dir, agent, queue=lab.queue):
        await run.send("approve", {})
        assert await eventually(lambda: failed_tasks(run))
        for data in kept.values():
            await store.put(data)
        assert (await run.result())["output"] == "end"
    with pytest.raises(BlobMissing):
        await inlined(history, FileStore(data_dir))


def references(event: Any) -> list[str]:
    """The digests that the payloads of an event refer to."""
    found = (JSONProtoPayloadConverter().from_payload(p) for p in payloads(event) if b"ExternalStorageReference" in
             p.metadata.get("messageType", b""))  # fmt: skip
    return [reference.claim_data["digest"] for reference in found]


async def test_an_exported_history_needs_no_store(client: Client, serve: Serve, store: FileStore) -> None:
    """Every reference of an exported history is replaced by the value, and one that leads nowhere by what was seen."""
    lab = await serve(BIG)
    run = await lab.start(BIG, "p" * 100_000)
    await run.asks()
    await send(client, run, "say", NOWHERE)
    await run.seen("message_refused")
    await run.update("approve", {})
    await run.result()
    history = await run.handle.fetch_history()
    whole = await inlined(history, store)
    assert [reference for event in history.events for reference in references(event)]
    assert not [reference for event in whole.events for reference in references(event)]
    unread = [p for event in whole.events for p in payloads(event) if p.metadata.get("encoding") == UNDECODABLE]
    assert len(unread) == 1
    assert sum(event.ByteSize() for event in whole.events) > 100_000
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=make_runner(), data_converter=data_converter(None),
                        interceptors=[RunInterceptor()])  # fmt: skip
    async with asyncio.timeout(60):
        await replayer.replay_workflow(whole)
