"""What the tests of whole runs share: a worker for some agents on a queue of its own, and ways to ask its runs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import sysconfig
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from activities.bus import Bus
from activities.converter import data_converter
from activities.registry import Registry
from activities.stores.files import FileStore
from perdure import Agent
from perdure.contracts import AGENT_WORKFLOW
from perdure.sinks import OnEvent
from perdure.tools import Tool
from perdure.worker_settings import WorkerSettings
from worker import serving

PATIENCE = 30.0
"""Seconds after which something that should have happened never will."""


async def eventually(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Poll until the condition is truthy and return what it gave; a TimeoutError after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        found = condition()
        if isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"this did not become true within {patience:g} s: {condition}")
        await asyncio.sleep(0.02)


class Failed(Exception):
    """The run failed: its type, its message and the result that the failure carries."""

    def __init__(self, kind: str, message: str, result: dict[str, Any]) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.result = kind, message, result


@dataclass(frozen=True)
class Run:
    """One started run."""

    handle: WorkflowHandle[Any, Any]

    @property
    def id(self) -> str:
        """The workflow id."""
        return self.handle.id

    async def result(self) -> dict[str, Any]:
        """The result; raises Failed, or CancelledError for a cancelled run."""
        try:
            async with asyncio.timeout(PATIENCE * 2):
                found: dict[str, Any] = await self.handle.result()
            return found
        except WorkflowFailureError as error:
            cause = error.cause
            if isinstance(cause, CancelledError):
                raise asyncio.CancelledError from None
            assert isinstance(cause, ApplicationError), cause
            assert cause.type is not None
            raise Failed(cause.type, cause.message, cause.details[0] if cause.details else {}) from None

    async def ended(self) -> dict[str, Any]:
        """The result, of a failed run too; `message` is added for a failure. A cancelled run gives its status."""
        try:
            return await self.result()
        except Failed as failed:
            return {**failed.result, "message": failed.message}
        except asyncio.CancelledError:
            return await self.status()

    async def status(self) -> dict[str, Any]:
        """Answer of the `status` query."""
        answer: dict[str, Any] = await self.handle.query("status")
        return answer

    async def state(self) -> str:
        """The run's state."""
        return str((await self.status())["state"])

    async def pending(self) -> list[dict[str, Any]]:
        """The calls that wait for approval."""
        answer: dict[str, Any] = await self.handle.query("approvals")
        found: list[dict[str, Any]] = answer["pending"]
        return found

    async def asks(self, count: int = 1) -> list[dict[str, Any]]:
        """The pending calls, as soon as there are `count`."""

        async def enough() -> list[dict[str, Any]] | None:
            pending = await self.pending()
            return pending if len(pending) >= count else None

        found: list[dict[str, Any]] = await eventually(enough)
        return found

    async def messages(self) -> list[dict[str, Any]]:
        """The whole conversation."""
        messages: list[dict[str, Any]] = []
        following: int | None = 0
        while following is not None:
            page: dict[str, Any] = await self.handle.query("conversation", {"after": following})
            messages += page["messages"]
            following = page["next"]
        return messages

    async def words(self) -> list[tuple[str, str]]:
        """The conversation as pairs of role and text; calls are shown as `tool(id)`."""
        return [(m["role"], words_of(m)) for m in await self.messages()]

    async def results(self) -> dict[str, str]:
        """Texts of the tool results by call id."""
        return {m["call"]: words_of(m) for m in await self.messages() if m["role"] == "tool"}

    async def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The event log, or its events of one type."""
        answer: dict[str, Any] = await self.handle.query("events")
        return [event for event in answer["events"] if kind in {None, event["type"]}]

    async def seen(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Events of one type, as soon as there are `count`; a child run is told of before it is there."""

        async def enough() -> list[dict[str, Any]] | None:
            try:
                found = await self.events(kind)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                return None
            return found if len(found) >= count else None

        found: list[dict[str, Any]] = await eventually(enough)
        return found

    async def send(self, name: str, *payloads: Any) -> None:
        """Send a signal."""
        await self.handle.signal(name, args=list(payloads))

    async def update(self, name: str, *payloads: Any) -> dict[str, Any]:
        """Send an update and return its answer; raises WorkflowUpdateFailedError where it is refused."""
        answer: dict[str, Any] = await self.handle.execute_update(name, args=list(payloads))
        return answer


@dataclass
class Lab:
    """A worker for some agents on a queue of its own."""

    client: Client
    queue: str
    registry: Registry
    agents: list[Agent] = field(default_factory=list)
    run_id: str | None = None
    """The workflow id of runs, where it is to be the same every time."""

    async def start(self, agent: Agent | str | dict[str, Any], prompt: Any = "Go.", **fields: Any) -> Run:
        """Start a run; `id` may be given, everything else is part of the input."""
        workflow_id = fields.pop("id", None)
        name = agent.name if isinstance(agent, Agent) else agent
        asked = {"agent": name, **({} if prompt is None else {"prompt": prompt}), **fields}
        return await self.begin(asked, id=workflow_id)

    async def begin(self, *payloads: Any, id: str | None = None) -> Run:
        """Start a run with exactly these inputs."""
        handle = await self.client.start_workflow(
            AGENT_WORKFLOW,
            args=list(payloads),
            id=id or self.run_id or f"t-{secrets.token_hex(6)}",
            task_queue=self.queue,
        )
        return Run(handle)

    async def run(self, agent: Agent | str | dict[str, Any], prompt: Any = "Go.", **fields: Any) -> dict[str, Any]:
        """Start a run and return how it ended."""
        return await (await self.start(agent, prompt, **fields)).ended()


@asynccontextmanager
async def laboratory(
    client: Client,
    data_dir: Path,
    *agents: Agent,
    tools: tuple[Tool, ...] = (),
    lifespan: Any = None,
    queue: str | None = None,
    bus: Bus | None = None,
    on_event: OnEvent = None,
    **settings: Any,
) -> AsyncIterator[Lab]:
    """Serve agents while the block runs."""
    registry = Registry()
    for agent in agents:
        registry.add(agent)
    for tool in tools:
        registry.add_tool(tool)
    if lifespan is not None:
        registry.add_lifespan(lifespan, set(registry.agents))
    name = queue or f"q-{secrets.token_hex(6)}"
    chosen = WorkerSettings(task_queue=name, data_dir=data_dir, **settings)
    async with serving(client, registry, chosen, bus=bus, on_event=on_event):
        yield Lab(client, name, registry, list(agents))


@asynccontextmanager
async def skipping_time(store: FileStore, **options: Any) -> AsyncIterator[WorkflowEnvironment]:
    """A server on which time passes at once while a result is awaited; needs a worker for what falls due meanwhile."""
    binary = shutil.which("temporal-test-server", path=sysconfig.get_path("scripts"))
    assert binary, "temporal-test-server is not installed"
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=binary, data_converter=data_converter(store), **options
    ) as environment:
        yield environment


def words_of(message: dict[str, Any]) -> str:
    """The text of a message as the `conversation` query gives it; calls are shown as `tool(id)`."""
    shown = []
    for part in message.get("parts", ()):
        if part["type"] == "call":
            shown.append(f"{part['tool']}({part['id']})")
        else:
            shown.append(part.get("text") or part.get("preview", ""))
    return " ".join(shown)


async def closed(run: Run) -> None:
    """Wait until a run has ended, however it did."""
    with contextlib.suppress(Failed, asyncio.CancelledError):
        await run.result()
