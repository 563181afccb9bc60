"""AgentWorkflow: one run of an agent, from its input to its result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, is_cancelled_exception

from perdure.approval import Refused
from perdure.canonical import canonical_json, clean
from perdure.contracts import AGENT_WORKFLOW, OFFLOAD_CHARS, RESOLVE, ResolveInput, ResolveOutput, RunAbout, RunContext
from perdure.family import ChildOrigin
from perdure.limits import LimitReached
from perdure.messages import AssistantMessage, Message, SystemMessage, UserMessage, text, text_of
from perdure.outcomes import FAILING, Ending, Outcome, RunFault
from perdure.plain import Plain
from perdure.run_input import RunInput
from perdure.settings import problems_of
from perdure.strategies.runners import run_strategy
from perdure.undecodable import Undecodable
from workflows import options, views
from workflows.family import Family
from workflows.inbox import Inbox
from workflows.notices import Notices
from workflows.runtime import Stopped, WorkflowRuntime, limit_ending
from workflows.state import Carried, RunState
from workflows.steps import execute

ABOUT_BYTES = 1_000
"""What a run is about is recorded once more up to this size, so that its worker need not ask for it."""


@workflow.defn(name=AGENT_WORKFLOW)
class AgentWorkflow:
    """Resolve the agent, run its strategy, end with one of the outcomes."""

    def __init__(self) -> None:
        self._run = RunState()
        self._board = views.Board()
        self._family = Family(self._run, self._board)
        self._inbox = Inbox(self._run, self._board, self._family)
        self._runtime = WorkflowRuntime(self._run, self._board, Notices(self._run), self._family)
        self._early: list[tuple[str, Sequence[RawValue]]] = []
        """Signals that came before this run of a chain knew what the earlier one has carried."""
        self._ready = workflow.info().continued_run_id is None

    @workflow.run
    async def run(self, payload: Any = None, inner: Any = None) -> Plain:
        """The result of the run. `inner` is what only a parent or an earlier run of the chain can give."""
        try:
            ending = await self._within_deadline(self._main(payload, inner))
        except RunFault as fault:
            ending = fault.ending
        except LimitReached as reached:
            self._run.note("limit_reached", reason=reached.reason)
            ending = limit_ending(reached.reason)
        except Stopped as stopped:
            ending = Ending(outcome=Outcome.NO_SOLUTION, reason="stopped", message=str(stopped))
        except (asyncio.CancelledError, CancelledError, ActivityError) as error:
            if not is_cancelled_exception(error):
                raise
            self._close(Ending(outcome=Outcome.CANCELLED, reason="cancelled"))
            raise
        await self._settle(ending)
        return self._close(ending)

    async def _main(self, payload: Any, inner: Any) -> Ending:
        if workflow.info().continued_run_id is not None and inner is not None:
            self._run.take_over(Carried.model_validate(inner))
            self._run.note("continued")
            self._take_early()
        else:
            self._take_early()
            await self._begin(payload, ChildOrigin.model_validate(inner) if inner is not None else None)
        assert self._run.context is not None
        if self._run.parent is not None:
            continued = workflow.info().continued_run_id is not None
            self._reporting = asyncio.create_task(self._family.report(continued))
        return await run_strategy(self._runtime, self._run.context.spec.strategy)

    def _take_early(self) -> None:
        """From now on messages are taken as they come."""
        self._ready = True
        for name, args in self._early:
            self._inbox.receive(name, args)
        self._early.clear()

    async def _begin(self, payload: Any, origin: ChildOrigin | None) -> None:
        run = self._run
        run.input = read_input(payload)
        run.tick()
        beginning = list(opening(run.input))
        large = tuple(m for m in beginning if len(text_of(m)) >= OFFLOAD_CHARS)
        about = RunAbout(
            tenant=run.input.tenant,
            user=run.input.user,
            data=run.input.data,
            metadata=run.input.metadata,
            key_prefix=f"{origin.key_prefix}/" if origin else "",
        )
        run.key_prefix = about.key_prefix
        resolved = await self._resolve(run.input, large, about)
        run.context = RunContext(
            spec=resolved.spec, digest=resolved.digest, keys=resolved.keys, most=resolved.most, **dict(about)
        )
        run.limits = resolved.spec.limits
        run.attributes = resolved.attributes
        run.parent = origin.parent if origin else None
        run.know()
        smaller = iter(resolved.large)
        run.messages = [
            *resolved.earlier,
            *((next(smaller) if m in large else m).model_copy(update={"id": run.mint()}) for m in beginning),
        ]
        run.next_call = 1 + max((call_number(m) for m in resolved.earlier), default=0)
        run.sent = max(0, len(run.messages) - 4)
        run.note(
            "run_started", agent=resolved.spec.name, model=resolved.spec.models[0].label, spec_digest=resolved.digest
        )
        prompt = next((text_of(m) for m in reversed(beginning) if isinstance(m, UserMessage)), "")
        workflow.upsert_memo({"agent": resolved.spec.name, "prompt": prompt[:200]})
        self._board.changed(run, "started")

    async def _resolve(self, given: RunInput, large: tuple[Message, ...], about: RunAbout) -> ResolveOutput:
        name = given.agent if isinstance(given.agent, str) else given.agent.get("name", "")
        asked = ResolveInput(
            agent=given.agent,
            limits=given.limits,
            output_schema=given.output_schema,
            continue_from=given.continue_from,
            large=large,
            about=about if len(about.model_dump_json(exclude_defaults=True)) <= ABOUT_BYTES else None,
        )
        try:
            return await execute(RESOLVE, asked, options.RESOLVE, f"resolve {name}"[:100])
        except ActivityError as error:
            cause = error.cause
            if not isinstance(cause, ApplicationError):
                if is_cancelled_exception(error):
                    raise
                raise RunFault(Outcome.FAILED, "resolve", str(cause or error)[:2_000]) from error
            outcome = Outcome.INVALID_INPUT if cause.type == Outcome.INVALID_INPUT else Outcome.FAILED
            raise RunFault(outcome, str(cause.type or "resolve"), cause.message[:2_000]) from error

    async def _within_deadline(self, main: Coroutine[Any, Any, Ending]) -> Ending:
        """Run `main` while there is time; the clock stands still in the waiting states."""
        run = self._run
        task = asyncio.create_task(main)
        try:
            while not task.done():
                if not self._is_timed():  # the resolve step says what the deadline is
                    await workflow.wait_condition(lambda: task.done() or self._is_timed())
                    continue
                if run.seconds_left() <= 0:
                    raise LimitReached("deadline")
                try:
                    await workflow.wait_condition(
                        lambda: task.done() or not run.counting,
                        timeout=run.time_left(),
                        timeout_summary="deadline",
                    )
                except TimeoutError:
                    run.tick()
            return task.result()
        except (Exception, asyncio.CancelledError):  # not finally: a worker that puts the run aside must do nothing
            task.cancel()
            await workflow.wait([task])
            raise

    def _is_timed(self) -> bool:
        """Whether time passes that ends the run; one that pauses at limits finishes its step before it does."""
        run = self._run
        if run.context is None or not run.counting:
            return False
        return run.context.spec.on_limit == "finish" or run.seconds_left() > 0

    async def _settle(self, ending: Ending) -> None:
        """Let the last notices go out; nothing that they do, and nothing that comes meanwhile, changes the ending."""
        self._seal(ending)
        if self._run.sending:
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                await workflow.wait_condition(
                    lambda: self._run.sending == 0, timeout=options.NOTICES_WAIT, timeout_summary="last notices"
                )

    def _seal(self, ending: Ending) -> None:
        """Nothing waits any more, and messages are refused: nobody would take them in."""
        run = self._run
        for call_id in list(run.approvals.open):
            run.approvals.close(call_id)
        run.questions.open.clear()
        run.paused = run.paused_until = None
        run.tick()
        run.ending = ending
        run.tick()

    def _close(self, ending: Ending) -> Plain:
        run = self._run
        self._seal(ending)
        run.note("run_ended", outcome=ending.outcome.value, reason=ending.reason, message=ending.message)
        self._board.changed(run, "ended")
        made = views.result(run, ending)
        if ending.outcome in FAILING:
            raise ApplicationError(
                ending.message or ending.reason or "failed", made, type=ending.outcome.value, non_retryable=True
            )
        return made

    # --- messages and queries -----------------------------------------------------------------------------------------

    @workflow.signal(dynamic=True, description="decide, approve, deny, say, answer, extend, stop")
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Take a message; a bad one is recorded and changes nothing."""
        self._run.received += 1
        if self._ready:
            self._inbox.receive(name, args)
        else:
            self._early.append((name, args))

    @workflow.update(dynamic=True, description="decide, approve, deny, say, answer, extend, stop")
    async def on_update(self, name: str, args: Sequence[RawValue]) -> Plain:
        """Take a message and answer; the validator has refused a bad one."""
        self._run.received += 1
        self._run.updates += 1
        if not self._ready:
            await workflow.wait_condition(lambda: self._ready)
        try:
            return Plain(self._inbox.take(name, args))
        except Refused as refusal:
            raise refused(refusal) from None

    @on_update.validator
    def check_update(self, name: str, args: Sequence[RawValue]) -> None:
        """Refuse a bad message with the reason; leaves no trace in history."""
        if not self._ready:  # then its handler refuses it
            return
        try:
            self._inbox.check(name, args)
        except Refused as refusal:
            raise refused(refusal) from None

    @workflow.query
    def status(self) -> Plain:
        """State, spend, limits, and what waits for a person."""
        return views.status(self._run)

    @workflow.query
    def approvals(self) -> Plain:
        """Calls that wait for approval, under `pending`."""
        return Plain(pending=views.approvals(self._run))

    @workflow.query
    def conversation(self, want: Any = None) -> Plain:
        """A page of the conversation: `{"after": n}`."""
        return views.conversation(self._run, want)

    @workflow.query
    def events(self, want: Any = None) -> Plain:
        """The event log: `{"after": n}`."""
        return views.events(self._run, want)

    @workflow.query
    def usage(self) -> Plain:
        """Tokens, cost, steps."""
        return views.usage(self._run)

    @workflow.query
    def spec(self) -> Plain:
        """The agent as it was frozen into this run."""
        return views.spec(self._run)


def refused(refusal: Refused) -> ApplicationError:
    """The failure of an update that changes nothing."""
    return ApplicationError(str(refusal), type="refused", non_retryable=True)


def read_input(payload: Any) -> RunInput:
    """The run's input; raises RunFault that names the field."""
    if isinstance(payload, Undecodable):
        raise RunFault(Outcome.INVALID_INPUT, "invalid_input", f"input: cannot be read: {payload.reason}")
    if not isinstance(payload, dict):
        shown = "nothing" if payload is None else type(payload).__name__
        raise RunFault(
            Outcome.INVALID_INPUT,
            "invalid_input",
            f'input: must be one JSON object such as {{"agent":"clerk","prompt":"..."}}, not {shown}',
        )
    try:
        return RunInput.model_validate(clean(payload))
    except ValidationError as error:
        raise RunFault(Outcome.INVALID_INPUT, "invalid_input", f"input: {problems_of(error)}") from None


def opening(given: RunInput) -> list[Message]:
    """The messages that a run begins with; `data` follows the last of the user, as JSON."""
    made: list[Message] = []
    for message in given.messages or ():
        parts = tuple(message.content)
        if message.role == "assistant":
            body = "".join(p.text for p in parts if p.type == "text")
            made.append(AssistantMessage(role="assistant", parts=text(body)))
        else:
            made.append((SystemMessage if message.role == "system" else UserMessage)(role=message.role, parts=parts))
    if given.prompt is not None:
        made.append(UserMessage(role="user", parts=tuple(given.prompt)))
    if given.data is not None:
        body = f"Data of this run, as JSON:\n{canonical_json(given.data)}"
        made.append(UserMessage(role="user", parts=text(body)))
    return made


def call_number(message: Message) -> int:
    """The highest number among the ids of a message's calls."""
    return max((int(c.id[1:]) for c in message.calls), default=0) if isinstance(message, AssistantMessage) else 0
