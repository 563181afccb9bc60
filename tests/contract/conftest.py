"""What the contract tests share: one worker a test process, and Temporal's command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload

from perdure.embedded import EmbeddedServer
from tests.processes import Cli, WorkerProcess, given, wait_for

AGENTS = Path(__file__).with_name("agents_of_contract.py")
_numbers = count(1)

GARBAGE = {
    "broken JSON": Payload(metadata={"encoding": b"json/plain"}, data=b'{"agent": "echo", '),
    "bytes that are no text": Payload(metadata={"encoding": b"json/plain"}, data=b"\xff\xfe\x00"),
    "very deep JSON": Payload(metadata={"encoding": b"json/plain"}, data=b"[" * 100_000),
    "unknown encoding": Payload(metadata={"encoding": b"binary/encrypted"}, data=b"\x00"),
    "no encoding": Payload(data=b"x"),
    "plain bytes": Payload(metadata={"encoding": b"binary/plain"}, data=b"x"),
    "a foreign protobuf": Payload(metadata={"encoding": b"json/protobuf", "messageType": b"no.Such"}, data=b"{}"),
    "a reference to nothing": Payload(
        metadata={
            "encoding": b"json/protobuf",
            "messageType": b"temporal.api.sdk.v1.ExternalStorageReference",
        },
        data=b'{"driverName":"nobody","claimData":{"digest":"x"}}',
    ),
}
"""Payloads that no converter of ours makes sense of."""


@dataclass(frozen=True)
class Desk:
    """An operator's desk: nothing but Temporal's command line."""

    cli: Cli
    address: str
    queue: str

    def start(self, *inputs: str, flags: tuple[str, ...] = (), workflow_id: str = "") -> str:
        """Start an AgentWorkflow with these inputs (JSON texts) and return its id."""
        workflow_id = workflow_id or f"run-{next(_numbers)}"
        self.cli.json(*self.starting(workflow_id, *inputs), *flags)
        return workflow_id

    def starting(self, workflow_id: str, *inputs: str) -> list[str]:
        """The arguments of a start."""
        command = ["workflow", "start", "--type", "AgentWorkflow", "--task-queue", self.queue]
        return [*command, "--workflow-id", workflow_id, *given(inputs)]

    def run(self, agent: str, **fields: Any) -> str:
        """Start a run of an agent."""
        return self.start(json.dumps({"agent": agent, "prompt": "go", **fields}))

    def closed(self, workflow_id: str, within: float = 20.0) -> dict[str, Any]:
        """How the run ended, as `temporal workflow result -o json` prints it."""
        done = self.cli.run("workflow", "result", "-w", workflow_id, "-o", "json", within=within)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def result(self, workflow_id: str) -> Any:
        """The result of a completed run."""
        ended = self.closed(workflow_id)
        assert ended["status"] == "COMPLETED", ended
        return ended["result"]

    def failure(self, workflow_id: str) -> dict[str, Any]:
        """The failure of a failed run."""
        ended = self.closed(workflow_id)
        assert ended["status"] == "FAILED", ended
        found: dict[str, Any] = ended["closeEvent"]["workflowExecutionFailedEventAttributes"]["failure"]
        return found

    def waiting(self, workflow_id: str, calls: int = 1) -> list[dict[str, Any]]:
        """The calls that wait for approval, once there are as many."""

        def pending() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self.cli.query(workflow_id, "status")["pending"] or []
            return found if len(found) == calls else []

        return wait_for(pending, f"{calls} calls wait for approval")

    def send(self, workflow_id: str, name: str, *inputs: str) -> None:
        """Send a signal."""
        done = self.cli.run("workflow", "signal", "-w", workflow_id, "--name", name, *given(inputs))
        assert done.returncode == 0, done.stderr

    def update(self, workflow_id: str, name: str, *inputs: str) -> tuple[int, str]:
        """Exit code of an update, and its result or what was wrong."""
        done = self.cli.run("workflow", "update", "execute", "-w", workflow_id, "--name", name, *given(inputs))
        return done.returncode, done.stdout + done.stderr

    def events(self, workflow_id: str, kind: str) -> list[dict[str, Any]]:
        """Entries of a kind in the run's own event log."""
        return [e for e in self.cli.query(workflow_id, "events")["events"] or [] if e["type"] == kind]

    def history(self, workflow_id: str) -> list[str]:
        """Types of the events of the run's history."""
        shown = self.cli.json("workflow", "show", "-w", workflow_id)
        return [event["eventType"].removeprefix("EVENT_TYPE_") for event in shown["events"]]

    def assert_never_stuck(self, workflow_id: str) -> None:
        """No workflow task of the run has ever failed."""
        assert not {"WORKFLOW_TASK_FAILED", "WORKFLOW_TASK_TIMED_OUT"} & set(self.history(workflow_id))


@pytest.fixture(scope="session")
def desk(temporal_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A served queue and the command line."""
    folder = tmp_path_factory.mktemp("contract")
    queue = f"contract-{uuid4().hex[:8]}"
    worker = WorkerProcess(
        AGENTS, address=temporal_server.address, queue=queue, data_dir=folder, log=folder / "worker.log"
    )
    try:
        worker.await_serving()
        yield Desk(Cli(temporal_server.address), temporal_server.address, queue)
    finally:
        worker.close()
