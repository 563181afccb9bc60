"""The stage of the chaos tests: workers to kill, a ledger of what happened, a model that says what a test wants."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.worker import Replayer

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure.embedded import EmbeddedServer
from tests.chaos.server import Server
from tests.processes import Cli, WorkerProcess, eventually
from workflows.interceptor import RunInterceptor
from workflows.runner import WORKFLOWS, make_runner

AGENTS = Path(__file__).with_name("agents_of_chaos.py")
Handle = WorkflowHandle[Any, Any]
REPLAY_SECONDS = 30
STATE = SearchAttributeKey.for_keyword("PerdureState")


class FakeModel:
    """A Chat Completions endpoint on loopback: the next reply of `replies` for each request, in order."""

    def __init__(self) -> None:
        self.replies: deque[dict[str, Any]] = deque()
        self.requests: list[dict[str, Any]] = []
        """Bodies in the order in which they came."""
        self.hold: dict[int, threading.Event] = {}
        """Requests, counted from 1, whose answer waits."""
        fake = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                fake.requests.append(body)
                number, message = len(fake.requests), fake.replies.popleft()
                if (event := fake.hold.get(number)) is not None:
                    event.wait(90)
                answer = json.dumps(completion(message)).encode()
                with suppress(OSError):  # who asked may be dead by now
                    self.send_response(200)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """What a client takes as base URL."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def held(self, number: int) -> threading.Event:
        """Let the answer to a request, counted from 1, wait for the event."""
        return self.hold.setdefault(number, threading.Event())

    def close(self) -> None:
        """Stop answering."""
        for event in self.hold.values():
            event.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def completion(message: dict[str, Any]) -> dict[str, Any]:
    """`{"text": ...}` or `{"calls": [...]}` as a Chat Completions response."""
    calls = [
        {
            "id": f"p{number}",
            "type": "function",
            "function": {"name": call["tool"], "arguments": json.dumps(call["arguments"])},
        }
        for number, call in enumerate(message.get("calls", ()))
    ]
    said: dict[str, Any] = {"role": "assistant", "content": message.get("text")}
    if calls:
        said["tool_calls"] = calls
    return {
        "id": uuid4().hex,
        "object": "chat.completion",
        "model": "fake",
        "choices": [{"index": 0, "message": said, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10},
    }


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """A reply of a script with one tool call."""
    return {"calls": [{"tool": tool, "arguments": arguments}]}


class Stage:
    """One queue with its workers, ledger and runs."""

    def __init__(self, client: Client, folder: Path, model: FakeModel) -> None:
        self.client = client
        self.folder = folder
        self.model = model
        self.address = client.service_client.config.target_host
        self.cli = Cli(self.address)
        self.queue = f"chaos-{uuid4().hex[:8]}"
        self.workers: list[WorkerProcess] = []

    def launch(self, address: str | None = None) -> WorkerProcess:
        """Start one more worker without waiting for it; `address` is another way to the server."""
        worker = WorkerProcess(
            AGENTS,
            address=address or self.address,
            queue=self.queue,
            data_dir=self.folder,
            log=self.folder / f"worker-{len(self.workers) + 1}.log",
            environment={"CHAOS_FOLDER": str(self.folder), "COMPATIBLE_BASE_URL": self.model.address},
        )
        self.workers.append(worker)
        return worker

    async def serve(self, address: str | None = None) -> WorkerProcess:
        """Start one more worker and wait until it serves."""
        worker = self.launch(address)

        async def serving() -> bool:
            return worker.serving

        await eventually(serving, "the worker serves")
        return worker

    async def start(self, *script: dict[str, Any], agent: str = "payer") -> Handle:
        """Start a run of an agent, with a script in place of its model where one is given."""
        who: Any = agent
        if script:
            model = {"provider": "scripted", "params": {"script": list(script)}}
            calls = [c["tool"] for step in script for c in step.get("calls", ())]
            who = {"name": "adhoc", "model": model, "tools": sorted(set(calls))}
        return await self.client.start_workflow(
            "AgentWorkflow", {"agent": who, "prompt": "go"}, id=f"run-{uuid4().hex[:12]}", task_queue=self.queue
        )

    def open(self, gate: str) -> None:
        """Let everybody through a gate from now on."""
        (self.folder / f"gate-{gate}").touch()

    def ledger(self, phase: str = "begin", **fields: Any) -> list[dict[str, Any]]:
        """Lines of the ledger that have these fields."""
        path = self.folder / "ledger"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["phase"] == phase and fields.items() <= line.items()]

    async def begun(
        self, count: int = 1, phase: str = "begin", within: float = 45, **fields: Any
    ) -> list[dict[str, Any]]:
        """Wait for lines in the ledger."""

        async def found() -> list[dict[str, Any]]:
            lines = self.ledger(phase, **fields)
            return lines if len(lines) >= count else []

        return await eventually(found, f"{count} lines with {phase} {fields}", within)

    async def state(self, handle: Handle, state: str) -> dict[str, Any]:
        """Wait until history says that the run is in a state, and return its status."""
        latest = self.client.get_workflow_handle(handle.id)

        async def there() -> bool:
            described = await latest.describe()
            return described.typed_search_attributes.get(STATE) == state

        await eventually(there, f"state {state}", within=40)
        found: dict[str, Any] = await latest.query("status")
        return found

    async def result(self, handle: Handle, within: float = 60) -> dict[str, Any]:
        """The result of a run, its current one after a reset."""
        latest = self.client.get_workflow_handle(handle.id)
        async with asyncio.timeout(within):
            found: dict[str, Any] = await latest.result()
        return found

    async def output(self, handle: Handle, within: float = 60) -> str:
        """The answer of a run that succeeded."""
        result = await self.result(handle, within)
        assert result["outcome"] == "success", result
        return str(result["output"])

    async def events(self, handle: Handle, kind: str) -> list[dict[str, Any]]:
        """Entries of the run's event log."""
        found = await self.client.get_workflow_handle(handle.id).query("events")
        return [event for event in found["events"] if event["type"] == kind]

    async def reset(self, handle: Handle, event_id: int) -> None:
        """Reset the run's latest to an event by Temporal's command line."""
        arguments = ["workflow", "reset", "-w", handle.id, "--event-id", str(event_id), "--reason", "test"]
        done = await asyncio.to_thread(self.cli.run, *arguments)
        assert done.returncode == 0, done.stderr

    async def decided_before(self, handle: Handle, activity: str, nth: int = 1) -> int:
        """The event of the workflow task that scheduled the n-th activity of a kind."""
        latest = self.client.get_workflow_handle(handle.id)
        found = 0
        async for event in latest.fetch_history_events():
            scheduled = event.activity_task_scheduled_event_attributes
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                found += scheduled.activity_type.name == activity
                if found == nth:
                    return int(scheduled.workflow_task_completed_event_id)
        raise AssertionError(f"no {nth} activities {activity}")

    async def replay_all(self) -> None:
        """Every run of the queue replays, and none of its workflow tasks has failed but by a reset."""
        converter = self.client.data_converter
        replayer = Replayer(
            workflows=WORKFLOWS,
            workflow_runner=make_runner(),
            interceptors=[RunInterceptor()],
            data_converter=converter,
        )
        async for execution in self.client.list_workflows(f"TaskQueue='{self.queue}'"):
            handle = self.client.get_workflow_handle(execution.id, run_id=execution.run_id)
            history = await handle.fetch_history()
            for event in history.events:
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                    failed = event.workflow_task_failed_event_attributes
                    assert failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW, failed
            (self.folder / f"{execution.run_id}.json").write_text(history.to_json())  # to look at where it does not
            await asyncio.wait_for(replayer.replay_workflow(history), REPLAY_SECONDS)

    def close(self) -> None:
        """End the workers and show what they said."""
        for worker in self.workers:
            worker.close()
            print(f"--- worker {worker.pid}\n{worker.log.read_text(errors='replace')[-3_000:]}")


@pytest.fixture
def fake_model() -> Iterator[FakeModel]:
    """A model endpoint on loopback."""
    model = FakeModel()
    yield model
    model.close()


@asynccontextmanager
async def staged(address: str, folder: Path, model: FakeModel) -> AsyncIterator[Stage]:
    """A stage on a server; afterwards every run on it must replay."""
    client = await Client.connect(address, data_converter=data_converter(FileStore(folder / "blobs")))
    made = Stage(client, folder, model)
    try:
        yield made
        await made.replay_all()
    finally:
        made.close()


@pytest.fixture
async def stage(temporal_server: EmbeddedServer, tmp_path: Path, fake_model: FakeModel) -> AsyncIterator[Stage]:
    """A stage on the shared server."""
    async with staged(temporal_server.address, tmp_path, fake_model) as made:
        yield made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own."""
    made = Server(tmp_path / "server")
    yield made
    made.close()


@pytest.fixture
async def own_stage(server: Server, tmp_path: Path, fake_model: FakeModel) -> AsyncIterator[Stage]:
    """A stage on it."""
    async with staged(server.address, tmp_path, fake_model) as made:
        yield made
