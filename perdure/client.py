"""The client: starts runs, finds them, and shows what waits for a person. Typed and async."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python
from temporalio import client as temporal
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.agent import Agent
from perdure.connection import connect, rpc_errors
from perdure.contracts import AGENT_WORKFLOW, TASK_QUEUE
from perdure.diagnosis import PROBLEMS
from perdure.errors import AlreadyStarted, InvalidInput, NoAnswer, NoSuchRun
from perdure.handle import ANSWER_WAIT, Handle, check_id
from perdure.outcomes import RunResult
from perdure.redact import secrets_of
from perdure.run_input import RunInput
from perdure.settings import problems_of
from perdure.shared_store import check_size, converter_for
from perdure.sinks import EventSinks, OnEvent
from perdure.status import PendingCall, RunSummary, StreamEvent

AgentLike = str | Agent | Mapping[str, Any]

RUNS = f"WorkflowType='{AGENT_WORKFLOW}'"
OPEN = "ExecutionStatus='Running'"
SIDE_BY_SIDE = 8
"""Queries at once."""
SUMMARY_CHARS = 200
_FIELDS = {
    "PerdureAgent": "agent",
    "PerdureState": "state",
    "PerdureOutcome": "outcome",
    "PerdureModel": "model",
    "PerdureTenant": "tenant",
    "PerdureUser": "user",
    "PerdureSteps": "steps",
    "PerdureTokens": "tokens",
    "PerdureCostUsd": "cost_usd",
    PROBLEMS: "problems",
}
"""Search attributes, and the field of a summary that shows each."""

# `Client.list` hides the built-in name inside the class.
Calls = list[PendingCall]
Ids = list[str]

_log = logging.getLogger(__name__)


def _log_silent(_: str, error: NoAnswer) -> None:
    _log.warning("%s", error)


class Client:
    """Runs of a namespace. Every method raises Unreachable where the server does not answer."""

    def __init__(
        self,
        client: temporal.Client,
        *,
        task_queue: str = TASK_QUEUE,
        answer_wait: float = ANSWER_WAIT,
        sinks: EventSinks | None = None,
    ) -> None:
        self.temporal = client
        """Temporal's own client."""
        self.task_queue = task_queue
        self._answer_wait = answer_wait
        self._sinks = sinks

    @classmethod
    async def connect(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        task_queue: str = TASK_QUEUE,
        answer_wait: float = ANSWER_WAIT,
        events_file: Path | str | None = None,
        on_event: OnEvent = None,
    ) -> Self:
        """A client; what is not given comes from Temporal's environment variables and profile.

        With `PERDURE_BLOB_STORE` large values go to the store of the workers, so that inputs may be larger than 2 MB.
        `answer_wait` is how many seconds a worker may take to answer. Every event that streams of this client see is
        appended to `events_file`, a line of JSON each, and given to `on_event`, which may be async; both get it
        redacted. Raises Unreachable, or ConfigError for a broken profile.
        """
        client = await connect(converter_for(os.environ), address=address, namespace=namespace)
        secrets, loop = secrets_of(os.environ), asyncio.get_running_loop()
        sinks = EventSinks(events_file=events_file, on_event=on_event, secrets=secrets, loop=loop)
        return cls(client, task_queue=task_queue, answer_wait=answer_wait, sinks=sinks)

    async def start(
        self,
        agent: AgentLike,
        prompt: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        id: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        data: Any = None,
        output_schema: Mapping[str, Any] | None = None,
        tenant: str | None = None,
        user: str | None = None,
        limits: BaseModel | Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        continue_from: str | None = None,
        task_queue: str | None = None,
        if_exists: Literal["fail", "attach"] = "fail",
    ) -> Handle:
        """Start a run of an agent (its name, the Agent, or an agent as data) and return its handle.

        The fields are those of the run's input. Raises InvalidInput that names the field; AlreadyStarted where a run
        of this id exists, running or closed, which `if_exists="attach"` returns instead where it is of the same agent.
        """
        fields = {
            "agent": agent.name if isinstance(agent, Agent) else agent,
            "prompt": prompt,
            "messages": messages,
            "data": data,
            "output_schema": output_schema,
            "tenant": tenant,
            "user": user,
            "limits": limits.model_dump(exclude_unset=True) if isinstance(limits, BaseModel) else limits,
            "metadata": metadata,
            "continue_from": continue_from,
        }
        if if_exists not in ("fail", "attach"):
            raise InvalidInput(f"if_exists: must be 'fail' or 'attach', not {if_exists!r}")
        if id is not None:
            check_id("id", id)
        given, checked = _checked({name: value for name, value in fields.items() if value is not None})
        check_size(self.temporal, given, "input")
        name = checked.agent if isinstance(checked.agent, str) else str(checked.agent.get("name", "agent"))
        workflow_id = id or f"{_slug(name)}-{secrets.token_hex(4)}"
        try:
            with rpc_errors(self.temporal, workflow_id):
                await self.temporal.start_workflow(
                    AGENT_WORKFLOW,
                    given,
                    id=workflow_id,
                    task_queue=task_queue or self.task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    static_summary=_summary(name, checked),
                    memo={"agent": name},
                )
        except WorkflowAlreadyStartedError as error:
            handle = self.handle(workflow_id)
            described = await handle.describe()
            state = described.status.name.lower() if described.status else "there"
            if if_exists == "fail":
                raise AlreadyStarted(workflow_id, described.run_id, state) from error
            found = await described.memo_value("agent", name, type_hint=str)
            if found != name:
                raise AlreadyStarted(workflow_id, described.run_id, state, agent=found) from error
            return handle
        return self.handle(workflow_id)

    async def run(self, agent: AgentLike, prompt: str | None = None, **fields: Any) -> RunResult:
        """Start a run and wait for its result; fields and errors of `start` and `Handle.result`."""
        handle = await self.start(agent, prompt, **fields)
        return await handle.result()

    async def stream(
        self, agent: AgentLike, prompt: str | None = None, **fields: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        """Start a run and tell what happens in it; fields and errors of `start` and `Handle.stream`."""
        handle = await self.start(agent, prompt, **fields)
        async for event in handle.stream():
            yield event

    def handle(self, id: str, run_id: str | None = None) -> Handle:
        """The run of a workflow id; nothing is asked yet. Raises InvalidInput for an id that is none."""
        return Handle(self.temporal, id, run_id, answer_wait=self._answer_wait, sinks=self._sinks)

    async def list(self, query: str | None = None, limit: int = 50) -> list[RunSummary]:
        """The newest runs, at most `limit`; `query` is a visibility query, a bad one raises InvalidInput."""
        with rpc_errors(self.temporal):
            return [
                await summarise(found)
                async for found in self.temporal.list_workflows(f"{RUNS} AND ({query})" if query else RUNS, limit=limit)
            ]

    async def approvals(
        self, *, under: str | None = None, on_silent: Callable[[str, NoAnswer], None] = _log_silent
    ) -> Calls:
        """All calls that wait for a decision, children's included; `under` keeps those of one run and its children.

        `on_silent` is told the id of each run that could not be asked, and why; without it that is logged.
        """
        tree = f" AND RootWorkflowId='{quoted(under)}'" if under is not None else ""
        query = f"{RUNS} AND {OPEN}{tree}"
        try:
            # A run that began before the attribute was registered never gets it.
            ids = await self._ids(f"{query} AND (PerdureState='waiting_approval' OR PerdureState IS NULL)")
        except InvalidInput:  # the attribute is not registered, so every open run is asked
            ids = await self._ids(query)
        slots = asyncio.Semaphore(SIDE_BY_SIDE)

        async def ask(id: str) -> Calls:
            async with slots:
                try:
                    return await self.handle(id).approvals()
                except NoSuchRun:
                    return []
                except NoAnswer as error:
                    on_silent(id, error)
                    return []

        # What waits in a child run is shown by its parent too, there with a path.
        found = [call for calls in await asyncio.gather(*map(ask, ids)) for call in calls if "/" not in call.call_id]
        return sorted(found, key=lambda call: str(call.requested_at))

    async def _ids(self, query: str) -> Ids:
        with rpc_errors(self.temporal):
            return [found.id async for found in self.temporal.list_workflows(query)]


def quoted(value: str) -> str:
    """A value as it stands between single quotes of a visibility query."""
    return value.replace("\\", "\\\\").replace("'", "\\'")


def _checked(fields: dict[str, Any]) -> tuple[dict[str, Any], RunInput]:
    """The fields as JSON, and as the run will read them."""
    given = {name: _jsonable(name, value) for name, value in fields.items()}
    try:
        return given, RunInput.model_validate(given)
    except ValidationError as error:
        raise InvalidInput(f"input: {problems_of(error)}") from None


def _jsonable(name: str, value: Any) -> Any:
    if isinstance(value, bytes | bytearray) and name != "data":
        raise InvalidInput(f"input: {name}: must not be bytes; decode them to a text first")
    try:
        return to_jsonable_python(value)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"input: {name}: must be JSON ({error!s:.200})") from None


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:64] or "run"


def _summary(name: str, given: RunInput) -> str:
    parts = given.prompt or (given.messages[-1].content if given.messages else [])
    text = next((part.text for part in parts if part.type == "text"), "")
    return " ".join(f"{name}: {text}".split())[:SUMMARY_CHARS]


async def summarise(found: temporal.WorkflowExecution) -> RunSummary:
    """One run of a list."""
    status = found.status or temporal.WorkflowExecutionStatus.RUNNING
    indexed: dict[str, Any] = {
        field: pair.value for pair in found.typed_search_attributes if (field := _FIELDS.get(pair.key.name))
    }
    running = status is temporal.WorkflowExecutionStatus.RUNNING
    indexed["state"] = indexed.get("state", "open") if running else "closed"
    if status is temporal.WorkflowExecutionStatus.CANCELED:
        indexed["outcome"] = "cancelled"
    memo = await found.memo()
    indexed.setdefault("agent", memo.get("agent"))
    return RunSummary(
        id=found.id,
        run_id=found.run_id,
        temporal=status.name.lower(),
        started=found.start_time,
        closed=found.close_time,
        prompt=memo.get("prompt"),
        **indexed,
    )
