"""Traces: spans of runs, calls and attempts, each made when it has ended, from what is told of it then.

Nothing is open while a run waits, and nothing has to be remembered: ids and times come from the run itself, so it does
not matter which worker began what. See docs/adr/0009-traces-from-events.md.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities import genai_attributes as attributes
from activities.otlp import is_wanted, otlp_outlet, service_of
from activities.span import Moment, Span, nanoseconds
from activities.transcript import Contexts, Transcripts, chain_of
from perdure.announcement import Announcement, Ended
from perdure.contracts import ModelInput, ModelOutput, RunContext, ToolInput, ToolOutput
from perdure.messages import Message
from perdure.outlets import JsonLines, Outlet, close_all
from perdure.redact import Redactor
from perdure.spans import model_call, part_of, place_of

CANCELLED = "cancelled"
MOMENTS = 128
"""Events of a run that its span shows, the newest."""
SPANS = frozenset({"run_started", "reply", "tool_start", "tool_end", "child_started", "child_ended", "run_ended"})
"""Events that are no moments of a run's span: spans tell of them."""
MOST_CHARS = 64 * 1024
"""Characters of one attribute."""
KNOWN = 10_000
"""Spans of which a second telling is noticed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of an activity, as it has ended."""

    task: ModelInput | ToolInput
    result: Any
    error: BaseException | None
    context: RunContext
    first_run: str
    workflow_id: str
    run_id: str
    number: int
    start: int
    end: int
    messages: tuple[Message, ...] | None = None
    """What the model was told, where content is wanted."""


class Traces:
    """Takes what has ended and hands spans to the exporters that the environment asks for."""

    def __init__(self, outlets: list[Outlet[Span]], redactor: Redactor, *, content: bool) -> None:
        """With `content` spans hold prompts, arguments and results too."""
        self._outlets = outlets
        self._redactor = redactor
        self.content = content
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._making: Outlet[Announcement | Attempt] = Outlet("traces", self._make)

    def listen(self, told: Announcement) -> None:
        """Take an announcement; only what ends something is of interest."""
        if told.ended is not None or told.since is not None:
            self._making.put(told)

    def take(self, attempt: Attempt) -> None:
        """Take an attempt that has ended."""
        self._making.put(attempt)

    def close(self) -> None:
        """Let the rest go out, for a bounded time; blocks for as long."""
        close_all([self._making, *self._outlets])

    def _make(self, batch: list[Announcement | Attempt], dropped: int) -> None:
        for ended in batch:
            span = self._span(ended)
            if span is None or self._is_known((ended.run_id, span.span_id)):
                continue
            clean = span.cleaned(self._clean)
            for outlet in self._outlets:
                outlet.put(clean)

    def _span(self, ended: Announcement | Attempt) -> Span | None:
        if isinstance(ended, Attempt):
            return _of_attempt(ended, content=self.content)
        return _of_announcement(ended, content=self.content)

    def _clean(self, value: Any) -> Any:
        """Redacted first and cut then, so that nothing is cut out of recognition."""
        clean = self._redactor.value(value)
        if isinstance(clean, dict):
            return {name: _cut(inner) for name, inner in clean.items()}
        return _cut(clean)

    def _is_known(self, key: tuple[str, str]) -> bool:
        known = key in self._known
        self._known[key] = None
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        return known


class Attempts(Interceptor):
    """Tells the traces of every attempt of a model or tool call on this worker."""

    def __init__(self, traces: Traces, contexts: Contexts, transcripts: Transcripts) -> None:
        self.traces = traces
        self.contexts = contexts
        self.transcripts = transcripts

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _Watched(next, self)


class _Watched(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, attempts: Attempts) -> None:
        super().__init__(next)
        self._attempts = attempts

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        begun = time.monotonic_ns()
        try:
            result = await super().execute_activity(input)
        except BaseException as error:
            self._tell(input, begun, None, error)
            raise
        self._tell(input, begun, result, None)
        return result

    def _tell(self, input: ExecuteActivityInput, begun: int, result: Any, error: BaseException | None) -> None:
        task, context = input.args[0] if input.args else None, self._attempts.contexts.known()
        if not isinstance(task, ModelInput | ToolInput) or context is None:
            return
        info, traces = activity.info(), self._attempts.traces
        first_run = chain_of(task.conversation.run if isinstance(task, ModelInput) else task.run)
        start = nanoseconds(info.started_time.isoformat())  # the server's clock, as all times of a run
        with_messages = traces.content and isinstance(task, ModelInput)
        traces.take(
            Attempt(
                task=task,
                result=result,
                error=error,
                context=context,
                first_run=first_run,
                workflow_id=info.workflow_id or "",
                run_id=info.workflow_run_id or "",
                number=info.attempt,
                start=start,
                end=start + time.monotonic_ns() - begun,
                messages=tuple(self._attempts.transcripts.known(first_run)) if with_messages else None,
            )
        )


def make_traces(
    environment: Mapping[str, str], traces_file: os.PathLike[str] | None, redactor: Redactor, *, content: bool
) -> Traces | None:
    """The traces that are asked for; None where none are."""
    outlets = [_file_outlet(traces_file, service_of(environment))] if traces_file is not None else []
    if is_wanted(environment) and (otlp := otlp_outlet(environment)) is not None:
        outlets.append(otlp)
    return Traces(outlets, redactor, content=content) if outlets else None


def _file_outlet(path: os.PathLike[str], service: str) -> Outlet[Span]:
    lines = JsonLines(path, "PERDURE_TRACES_FILE")

    def take(batch: list[Span], dropped: int) -> None:
        lines.write(span.as_json(service) for span in batch)

    return Outlet(f"traces file {os.fspath(path)!r}", take, lines.close)


def _of_announcement(told: Announcement, *, content: bool) -> Span | None:
    """The span of a run or a tool call that has ended."""
    if told.ended is not None:
        return _of_run(told, told.ended, content=content)
    place, call = told.place, told.event["call_id"]
    assert told.since is not None
    return Span(
        trace_id=place.trace_id,
        span_id=part_of(place.span_id, call),
        parent_id=place.span_id,
        name=f"execute_tool {told.event['tool']}",
        start=nanoseconds(told.since),
        end=nanoseconds(told.event["at"]),
        attributes=attributes.of_tool_call(told),
        error=attributes.tool_error(told),
    )


def _of_run(told: Announcement, ended: Ended, *, content: bool) -> Span:
    place, event = told.place, told.event
    shown = [one for one in ended.log if one["type"] not in SPANS][-MOMENTS:]
    why = str(event.get("message") or event.get("reason") or event.get("outcome"))
    return Span(
        trace_id=place.trace_id,
        span_id=place.span_id,
        parent_id=place.parent_id,
        name=f"invoke_agent {told.agent}".strip(),
        start=nanoseconds(ended.began),
        end=nanoseconds(event["at"]),
        attributes=attributes.of_run(told, ended, content=content),
        error=why if attributes.is_failure(told) else None,
        moments=tuple(Moment(one["type"], nanoseconds(one["at"]), attributes.of_event(one)) for one in shown),
    )


def _of_attempt(done: Attempt, *, content: bool) -> Span | None:
    """The span of an attempt; the attempt of a model call that succeeds is the call."""
    place = place_of(done.first_run, done.context.key_prefix)
    failed = _why(done.error) if done.error is not None else None
    if isinstance(done.task, ToolInput):
        call = part_of(place.span_id, done.task.call)
        output = done.result if isinstance(done.result, ToolOutput) else None
        made = attributes.of_tool_attempt(done.task, output, done.number, content=content)
        return _span(done, place.trace_id, part_of(call, f"{done.run_id}/{done.number}"), call, made, failed)
    reply = done.result if isinstance(done.result, ModelOutput) else None
    if reply is not None and reply.over:
        return None  # nothing was sent
    if reply is not None and not reply.message.id:  # it was given up, and only says what it has cost
        reply, failed = None, CANCELLED
    part = model_call(done.task.conversation.count)
    span = part_of(place.span_id, part if reply else f"{part}.{done.number}")
    made = attributes.of_model_call(done.context.spec, done.workflow_id, reply, done.number, done.messages)
    return _span(done, place.trace_id, span, place.span_id, made, failed)


def _span(done: Attempt, trace: str, span: str, parent: str, made: dict[str, Any], failed: str | None) -> Span:
    tool = done.task.tool if isinstance(done.task, ToolInput) else None
    model = done.context.spec.model_named(done.result.model if isinstance(done.result, ModelOutput) else None)
    return Span(
        trace_id=trace,
        span_id=span,
        parent_id=parent,
        name=f"attempt {tool}" if tool else f"chat {model.name or model.provider}",
        kind="internal" if tool else "client",
        start=done.start,
        end=done.end,
        attributes={**made, **({"error.type": _kind(done.error)} if failed else {})},
        error=failed,
    )


def _cut(value: Any) -> Any:
    return value[:MOST_CHARS] if isinstance(value, str) else value


def _kind(error: BaseException | None) -> str:
    if error is None or isinstance(error, asyncio.CancelledError):
        return CANCELLED
    return (error.type if isinstance(error, ApplicationError) else None) or type(error).__name__


def _why(error: BaseException) -> str:
    return (str(error) or _kind(error))[:500]
