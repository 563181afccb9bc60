"""Tells the worker process what a run has just noted, for whoever watches there.

Nothing comes back and nothing is recorded. Where nobody listens (a replay, a replayer, another worker) nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from temporalio import workflow

from perdure.announcement import Announcement, Ended
from perdure.run_input import RunInput

if TYPE_CHECKING:
    from workflows.state import RunState

HOOK = "__perdure_announce"
"""Name under which the worker's function reaches workflow code."""

BEGINS = {"tool_end": "tool_start"}
"""Events that end something, and the event that began it."""


def announce(run: RunState, event: dict[str, Any]) -> None:
    """Hand a fresh event to the worker; whatever goes wrong there is no matter of the run."""
    hook: Callable[[Announcement], None] | None = workflow.extern_functions().get(HOOK)
    if hook is None or workflow.unsafe.is_replaying():
        return
    try:
        hook(_announcement(run, event))
    except Exception as error:
        workflow.logger.warning("an event could not be shown to those who watch: %s", error)


def _announcement(run: RunState, event: dict[str, Any]) -> Announcement:
    info, about = workflow.info(), run.context or run.input
    return Announcement(
        workflow_id=info.workflow_id,
        run_id=info.run_id,
        first_run=info.first_execution_run_id,
        key_prefix=run.key_prefix,
        agent=_agent(run),
        tenant=about.tenant if about else None,
        event=dict(event),
        metadata=about.metadata if about else {},
        messages=run.sent,
        since=_since(run, event),
        ended=_ended(run) if event["type"] == "run_ended" else None,
    )


def _agent(run: RunState) -> str:
    if run.context is not None:
        return run.context.spec.name
    return run.input.agent if run.input is not None and isinstance(run.input.agent, str) else ""


def _since(run: RunState, event: dict[str, Any]) -> str | None:
    begins = BEGINS.get(event["type"])
    if begins is None:
        return None
    same = (e for e in reversed(run.events) if e["type"] == begins and e["call_id"] == event["call_id"])
    found: dict[str, Any] = next(same, {})
    return found.get("at")


def _asked(given: RunInput) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if given.prompt is not None:
        return (("user", tuple(given.prompt)),)
    return tuple((message.role, tuple(message.content)) for message in given.messages or ())


def _ended(run: RunState) -> Ended:
    given = run.input
    return Ended(
        began=(run.began or workflow.info().workflow_start_time).isoformat(),
        model=run.context.spec.models[0].name if run.context else "",
        steps=run.account.steps,
        usage=run.account.usage,
        cost_usd=str(run.account.cost_usd),
        log=tuple(run.events),
        asked=_asked(given) if given else (),
        output=run.ending.output if run.ending else "",
    )
