"""What a run shows of itself: queries, search attributes, the status board in Temporal Web, the result."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from perdure.approval import Pending
from perdure.canonical import canonical_json, digest
from perdure.contracts import OUTPUT_LIMIT, STRUCTURED_LIMIT
from perdure.excerpt import excerpt
from perdure.messages import AssistantMessage, Message, Whole, text_of
from perdure.outcomes import Ending, RunResult
from perdure.plain import Plain
from workflows.state import RunState

PAGE_BYTES = 1_000_000
"""A page of a query's answer; the server allows 2 MiB."""

KEYWORDS = {
    name: SearchAttributeKey.for_keyword(name)
    for name in ("PerdureAgent", "PerdureState", "PerdureOutcome", "PerdureTenant", "PerdureUser", "PerdureModel")
}
INTS = {name: SearchAttributeKey.for_int(name) for name in ("PerdureSteps", "PerdureTokens")}
COST = SearchAttributeKey.for_float("PerdureCostUsd")


def status(run: RunState) -> Plain:
    """Answer of the `status` query."""
    return Plain(
        state=run.state,
        agent=run.context.spec.name if run.context else _asked_agent(run),
        activity=run.activity,
        step=run.account.steps,
        tool_calls=run.account.tool_calls,
        outcome=run.ending.outcome if run.ending else None,
        reason=run.ending.reason if run.ending else None,
        message=run.ending.message if run.ending else None,
        output=run.ending.output[:2_000] if run.ending else None,
        usage=run.account.usage.model_dump(),
        cost_usd=money(run),
        unpriced_calls=run.counters["unpriced"],
        limits=run.limits.model_dump(mode="json"),
        pending=approvals(run),
        questions=[q.model_dump(mode="json") for q in run.questions.open.values()],
        paused=run.paused.reason if run.paused else None,
        paused_until=run.paused_until.isoformat() if run.paused_until else None,
        said=len(run.said),
        stopping=run.stop_reason,
    )


def approvals(run: RunState) -> list[dict[str, Any]]:
    """Open requests for approval; many and large ones with excerpts of their arguments."""
    room = PAGE_BYTES // max(1, len(run.approvals.open))
    return [_shown(request.pending, room) for request in run.approvals.open.values()]


def usage(run: RunState) -> Plain:
    """Answer of the `usage` query."""
    return Plain(
        usage=run.account.usage.model_dump(),
        cost_usd=money(run),
        unpriced_calls=run.counters["unpriced"],
        steps=run.account.steps,
        tool_calls=run.account.tool_calls,
        active_seconds=round(run.account.active, 3),
        unconfirmed={**run.account.unconfirmed.model_dump(), "cost_usd": plain_money(run.account.unconfirmed_cost)},
        children=run.account.children.model_dump(include={"steps", "tool_calls"}),
    )


def conversation(run: RunState, want: Any) -> Plain:
    """A page of the conversation from message `after` on; `next` is where the following page begins."""
    after = _number(want, "after")
    page: list[dict[str, Any]] = []
    size = 0
    for message in run.messages[after:]:
        dumped = message.model_dump(mode="json", exclude_defaults=True)
        size += _weight(message)
        if page and size > PAGE_BYTES:
            break
        page.append(dumped)
    following = after + len(page)
    more = following if following < len(run.messages) else None
    return Plain(messages=page, next=more, total=len(run.messages))


def events(run: RunState, want: Any) -> Plain:
    """Events with a number above `after`; `truncated` where older ones have made room."""
    after = _number(want, "after")
    kept = [event for event in run.events if event["n"] > after]
    first = run.events[0]["n"] if run.events else 1
    return Plain(events=kept, last=run.event_count, truncated=after + 1 < first)


def spec(run: RunState) -> Plain:
    """The frozen spec and what workers must know beside it."""
    return Plain(run.context.model_dump(mode="json", exclude_defaults=True) if run.context else {})


def result(run: RunState, ending: Ending) -> Plain:
    """The result of the run; its output bounded, for it never leaves history."""
    output = ending.output or (last_text(run) if ending.outcome != "success" else "")
    if len(output) > OUTPUT_LIMIT:
        output = f"{output[:OUTPUT_LIMIT]}\n[cut: {len(output)} characters in all]"
    structured = ending.structured
    if structured is not None and len(json.dumps(structured)) > STRUCTURED_LIMIT:
        structured = None
        output = output or f"[the structured answer is larger than {STRUCTURED_LIMIT} bytes: see `conversation`]"
    made = RunResult(
        outcome=ending.outcome,
        output=output,
        structured=structured,
        reason=ending.reason,
        steps=run.account.steps,
        tool_calls=run.account.tool_calls,
        usage=run.account.usage,
        cost_usd=money(run),
        agent=run.context.spec.name if run.context else _asked_agent(run),
        spec_digest=run.context.digest if run.context else "",
    )
    spent = run.account.children
    below = {"children": spent.model_dump(include={"steps", "tool_calls"})} if spent.steps or spent.tool_calls else {}
    return Plain(**made.model_dump(mode="json"), **below)


def last_text(run: RunState) -> str:
    """The last thing the model said in words: what there is of an answer."""
    texts = (text_of(m) for m in reversed(run.messages) if isinstance(m, AssistantMessage))
    return next((found for found in texts if found.strip()), "")


def money(run: RunState) -> str:
    """Cost as a plain decimal string."""
    return plain_money(run.account.cost_usd)


def plain_money(amount: Decimal) -> str:
    """An amount without exponent and trailing zeros."""
    return format(amount.normalize(), "f")


class Board:
    """Writes search attributes when they change, and the status board."""

    def __init__(self) -> None:
        self._written: dict[str, str | int | float] = {}

    def changed(self, run: RunState, activity: str) -> None:
        """The run does something else from now on: settle its clock and show it."""
        run.activity = activity
        run.tick()
        self.publish(run)

    def publish(self, run: RunState) -> None:
        """Bring Temporal's view of the run up to date: one event where the state changed, none otherwise."""
        workflow.set_current_details(board(run))
        first = not self._written
        if run.state == self._written.get("PerdureState"):
            return
        values = self._values(run, first)
        changed = {n: v for n, v in values.items() if n in run.attributes and v != self._written.get(n)}
        self._written |= values
        updates: list[SearchAttributeUpdate[Any]] = [
            *(KEYWORDS[n].value_set(str(v)) for n, v in changed.items() if n in KEYWORDS),
            *(INTS[n].value_set(int(v)) for n, v in changed.items() if n in INTS),
            *(COST.value_set(float(v)) for n, v in changed.items() if n == COST.name),
        ]
        if updates:
            workflow.upsert_search_attributes(updates)

    def _values(self, run: RunState, first: bool) -> dict[str, str | int | float]:
        values: dict[str, str | int | float] = {"PerdureState": run.state}
        if first and run.context:
            values["PerdureAgent"] = run.context.spec.name
            values["PerdureModel"] = run.context.spec.models[0].label
            values |= {"PerdureTenant": run.context.tenant or "", "PerdureUser": run.context.user or ""}
        if run.ending:
            values["PerdureOutcome"] = run.ending.outcome.value
            values |= {"PerdureSteps": run.account.steps, "PerdureTokens": run.account.usage.total}
            values["PerdureCostUsd"] = float(run.account.cost_usd)
        return {n: v[:200] if isinstance(v, str) else v for n, v in values.items() if v != ""}


def board(run: RunState) -> str:
    """The status board as Markdown."""
    total = run.account.usage.total
    lines = [f"**{run.state}** · {run.activity}", f"step {run.account.steps} · {total} tokens · ${money(run)}"]
    for pending in (request.pending for request in run.approvals.open.values()):
        lines.append(
            f"- `{pending.call_id}` **{pending.tool}** waits for approval until {pending.deadline.isoformat()}"
        )
    for question in run.questions.open.values():
        lines.append(f"- `{question.question_id}`: {question.text[:500]}")
    if run.ending:
        lines.append(f"**{run.ending.outcome}** {run.ending.reason or ''} {(run.ending.message or '')[:500]}".rstrip())
    return "\n\n".join(lines)


def _asked_agent(run: RunState) -> str:
    asked = run.input.agent if run.input else ""
    return asked if isinstance(asked, str) else str(asked.get("name", ""))


def _number(want: Any, field: str) -> int:
    if want is None:
        return 0
    value = want.get(field, 0) if isinstance(want, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f'this query takes {{"{field}": n}} with a whole number from 0 on')
    return value


def _shown(pending: Pending, room: int) -> dict[str, Any]:
    dumped = pending.model_dump(mode="json", exclude_none=True)
    for decision in dumped["decisions"]:
        decision["reason"] = (decision.get("reason") or "")[:1_000] or None
    if len(json.dumps(pending.arguments)) <= room:
        return dumped
    text = canonical_json(pending.arguments)
    whole = pending.whole or Whole(digest=digest(pending.arguments), size=len(text.encode()))
    return {**dumped, "arguments": excerpt(pending.arguments), "whole": whole.model_dump()}


def _weight(message: Message) -> int:
    return len(message.model_dump_json(exclude_defaults=True))
