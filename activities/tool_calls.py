"""The activity that runs one tool call: everything that can fail happens before the deed or is part of its result."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.blobs import BRIEF, patiently, resolve_arguments, shrink_parts
from activities.earlier import recorded
from activities.policies import Policies
from activities.registry import Registry
from activities.rendering import jsonable, render_error, render_parts, trim
from activities.shutdown import until_stopping
from activities.stores.base import BlobStore, StoreDown
from activities.tool_threads import Outcome, TimedOut, ToolThreads
from activities.transcript import Contexts, Transcripts, chain_of
from perdure.arguments import ArgumentError
from perdure.canonical import digest
from perdure.contracts import OFFLOAD_CHARS, RunContext, ToolInput, ToolOutput
from perdure.errors import RetryTool
from perdure.media import too_large
from perdure.messages import TextPart, ToolMessage, UserPart, text
from perdure.tools import REPEATABLE, Tool, ToolContext, ToolSpec

_CHANGED = (
    "on this worker is another tool than the one that was approved: it has changed since this run began. "
    "Further approved calls of it in this run do nothing either; a new run sees the new tool"
)


@dataclass(frozen=True)
class Ready:
    """A call that may begin."""

    spec: ToolSpec
    tool: Tool
    context: RunContext
    arguments: Mapping[str, Any]


class ToolActivities:
    """Runs the tools of this worker's registry."""

    def __init__(
        self,
        client: Client,
        registry: Registry,
        threads: ToolThreads,
        transcripts: Transcripts,
        contexts: Contexts,
        store: BlobStore,
        policies: Policies,
    ) -> None:
        self._client = client
        self._registry = registry
        self._threads = threads
        self._transcripts = transcripts
        self._contexts = contexts
        self._store = store
        self._policies = policies

    @activity.defn(name="call_tool")
    async def call_tool(self, task: ToolInput) -> ToolOutput:
        """One attempt of one call."""
        details = list(activity.info().heartbeat_details)
        beating = None if activity.info().is_local else asyncio.create_task(_beat_on(details))
        try:
            ready = await self._prepare(task)
            return ready if isinstance(ready, ToolOutput) else await self._perform(task, ready, details)
        finally:
            if beating is not None:
                beating.cancel()

    async def _prepare(self, task: ToolInput) -> Ready | ToolOutput:
        """Everything that can fail before the deed; what fails here has provably not begun."""
        try:
            context = await self._contexts.get(self._client)
            given = await patiently(lambda: resolve_arguments(task.arguments, task.whole, self._store), BRIEF)
            spec = context.spec.tool(task.tool)
            tool = self._registry.tools.get(task.tool)
            if spec is None or tool is None:
                return await self._refuse(task, f"tool {task.tool!r} no longer exists on this worker")
            if task.definition is not None and task.definition != self._definition(context, tool):
                return await self._refuse(task, f"{task.tool} {_CHANGED}")
            if task.approved_at_step is not None and context.spec.policy:
                now = await self._policies.judge(context, task.approved_at_step, task.call, task.tool, given)
                if now.action == "deny":
                    return await self._refuse(task, f"approved, but denied by policy meanwhile: {now.reason}")
            if task.earlier is not None and (found := await self._earlier(task)) is not None:
                return found
            if spec.effect not in REPEATABLE and activity.is_worker_shutdown():
                return ToolOutput(status="not_started", why="the worker was stopping")
            arguments = tool.schema.bind(given) if tool.schema else {}
        except ArgumentError as error:
            return await self._refuse(task, f"arguments of {task.tool}: {error}")
        except Exception as error:
            raise ApplicationError(f"before {task.tool} began: {render_error(error)}", type="NotStarted") from error
        return Ready(spec, tool, context, arguments)

    async def _perform(self, task: ToolInput, ready: Ready, details: list[Any]) -> ToolOutput:
        spec, tool, arguments = ready.spec, ready.tool, dict(ready.arguments)
        if tool.schema is not None and tool.schema.context_parameter is not None:
            arguments[tool.schema.context_parameter] = self._context(task, ready.context, details)
        try:
            outcome = await self._run_or_yield(tool, spec, arguments)
        except TimedOut:
            return await self._timed_out(task, spec)
        except asyncio.CancelledError:
            return await self._cancelled(task, spec)
        return await self._settle(task, spec, outcome)

    def _context(self, task: ToolInput, context: RunContext, details: list[Any]) -> ToolContext:
        info = activity.info()
        loop = asyncio.get_running_loop()

        def beat(*reported: Any) -> None:
            """Called by the tool from whatever thread it runs in."""
            if reported:
                details[:] = reported
            if not info.is_local:
                loop.call_soon_threadsafe(lambda: activity.heartbeat(*details))

        return ToolContext(
            run_id=info.workflow_id or "",
            call_id=task.call,
            tool=task.tool,
            idempotency_key=f"{context.key_prefix}{chain_of(task.run)}/{task.call}/{_digest(task)[7:23]}",
            attempt=info.attempt,
            agent=context.spec.name,
            tenant=context.tenant,
            user=context.user,
            data=context.data,
            metadata=context.metadata,
            state=self._threads.state_of(self._registry.home_of(context.spec.name)),
            heartbeat=beat,
            heartbeat_details=tuple(details),
        )

    async def _run_or_yield(self, tool: Tool, spec: ToolSpec, arguments: Mapping[str, Any]) -> Outcome:
        """Run the tool; when the worker stops, repeatable work is given up after a short grace."""
        assert tool.function is not None
        running = self._threads.run(tool.function, arguments, spec.timeout.total_seconds())
        if spec.effect not in REPEATABLE or activity.info().is_local:
            return await running
        return await until_stopping(running)

    async def _settle(self, task: ToolInput, spec: ToolSpec, outcome: Outcome) -> ToolOutput:
        error = outcome.error
        if error is None:
            parts = render_parts(outcome.value, spec.max_result_chars)
            if (problem := too_large(parts)) is not None:
                return await self._fail(task, f"{task.tool} was executed, but what it returned is too large: {problem}")
            return await self._finish(task, parts, structured=jsonable(outcome.value) if spec.final else None)
        if isinstance(error, RetryTool) and spec.effect in REPEATABLE and activity.info().attempt < spec.attempts:
            raise ApplicationError(
                render_error(error), type="RetryTool", next_retry_delay=timedelta(seconds=max(0.001, error.delay))
            ) from None
        return await self._fail(task, trim(render_error(error), spec.max_result_chars))

    async def _timed_out(self, task: ToolInput, spec: ToolSpec) -> ToolOutput:
        why = f"{task.tool} did not end within {spec.timeout.total_seconds():g} s"
        if spec.effect in REPEATABLE:
            return await self._fail(task, why)
        return ToolOutput(status="unknown", why=why)

    async def _cancelled(self, task: ToolInput, spec: ToolSpec) -> ToolOutput:
        """A stopping worker cancels what it cannot wait for; that is no cancellation of the run."""
        details = activity.cancellation_details()
        if details is None or not details.worker_shutdown:
            raise asyncio.CancelledError
        if spec.effect in REPEATABLE:
            raise ApplicationError("the worker stopped", type="WorkerStopped")
        return ToolOutput(status="unknown", why="its worker was stopped while it ran")

    async def _refuse(self, task: ToolInput, why: str) -> ToolOutput:
        return await self._fail(task, f"not executed: {why}")

    async def _fail(self, task: ToolInput, why: str) -> ToolOutput:
        return await self._finish(task, text(why), error=True)

    async def _finish(
        self, task: ToolInput, parts: tuple[UserPart, ...], *, error: bool = False, structured: Any = None
    ) -> ToolOutput:
        parts = _after(task.note or "", parts)
        try:
            parts = await shrink_parts(parts, self._store)
        except StoreDown as problem:  # a full disk must not hide that the deed was done
            activity.logger.error("the result of %s is cut, for it cannot be kept: %s", task.tool, problem)
            parts = tuple(_cut(part) for part in parts)
        message = ToolMessage(role="tool", call=task.call, parts=parts, error=error, id=secrets.token_urlsafe(6))
        self._transcripts.remember(chain_of(task.run), message)
        return ToolOutput(message=message, structured=structured)

    async def _earlier(self, task: ToolInput) -> ToolOutput | None:
        info = activity.info()
        assert info.workflow_id is not None
        assert info.workflow_run_id is not None
        found = await recorded(self._client, info.workflow_id, info.workflow_run_id, task)
        if found is None or found.message is None:
            return found
        message = found.message.model_copy(update={"call": task.call, "id": secrets.token_urlsafe(6)})
        self._transcripts.remember(chain_of(task.run), message)
        return found.model_copy(update={"message": message})

    def _definition(self, context: RunContext, tool: Tool) -> str:
        """What the tool is on this worker today, as an approver would see it."""
        agent = self._registry.agents.get(context.spec.name)
        own = agent.tool_defaults if agent else None
        defaults = own.over(self._registry.defaults) if own else self._registry.defaults
        return digest(tool.with_defaults(defaults).definition)


def _after(note: str, parts: tuple[UserPart, ...]) -> tuple[UserPart, ...]:
    """The parts with the note before their text."""
    if parts and isinstance(first := parts[0], TextPart):
        return (*text(f"{note}{first.text}"), *parts[1:])
    return (*text(note), *parts)


def _cut(part: UserPart) -> UserPart:
    """What is left of a part that cannot be kept."""
    if not isinstance(part, TextPart) or len(part.text) < OFFLOAD_CHARS:
        return part
    shorter = f"{trim(part.text, OFFLOAD_CHARS // 2)}\n[the rest was lost: it could not be stored]"
    return TextPart(type="text", text=shorter)


def _digest(task: ToolInput) -> str:
    """Of the arguments, all of them."""
    return digest(task.arguments) if task.whole is None else task.whole.digest


async def _beat_on(details: list[Any]) -> None:
    """Beat from the worker's own loop: a tool that blocks its thread or loop stays alive all the same."""
    limit = activity.info().heartbeat_timeout
    pause = min(2.0, limit.total_seconds() / 4) if limit else 2.0
    while True:
        await asyncio.sleep(pause)  # first: most calls have ended by then, and a beat costs as much as a call
        activity.heartbeat(*details)
