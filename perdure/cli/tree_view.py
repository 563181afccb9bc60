"""A tree of a run as a terminal shows it."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text
from rich.tree import Tree

from perdure.cli import offers
from perdure.cli.events import CallBook, in_words, style_of
from perdure.cli.output import clean, counted, line, short_json
from perdure.cli.tree import CallNode, RunNode, StepNode
from perdure.status import RunEvent, RunStatus

STATUS_STYLES = {
    "done": "green",
    "waiting_approval": "yellow",
    "planned": "dim",
    "running": "cyan",
}
"""Every other status is bad news."""


def draw(node: RunNode, label: str | None = None) -> Tree:
    """The run with everything below it."""
    tree = Tree(_text(label or _headline(node), "bold"), guide_style="dim")
    if node.truncated:
        tree.add(_text("(older events have made room; Temporal's history of the run still has them)"))
    book = CallBook()
    for event in node.before:
        tree.add(_event(event, book))
    for step in node.steps:
        _draw_step(tree.add(_step(step)), step, book)
    return tree


def _draw_step(branch: Tree, step: StepNode, book: CallBook) -> None:
    for call in step.calls:
        book.tools[call.call_id] = call.tool
        book.arguments[call.call_id] = call.arguments
    for call in step.calls:
        _draw_call(branch.add(_call(call)), call, book)
    for event in step.events:
        branch.add(_event(event, book))
    if step.error:
        branch.add(_text(f"an attempt failed: {line(step.error)}", "red"))


def _draw_call(branch: Tree, call: CallNode, book: CallBook) -> None:
    for event in call.events:
        branch.add(_event(event, book))
    if call.error:
        branch.add(_text(f"an attempt failed: {line(call.error)}", "red"))
    if call.run is not None:
        below = branch.add(draw(call.run))
        if (paused := call.run.status.paused) is not None:
            below.add(_text(f"paused on {paused}: {offers.extend(call.run.status.id, paused)}", "yellow"))
    elif call.not_shown:
        branch.add(_text(f"child run {call.child} is not shown: {call.not_shown}", "dim"))
    if call.result:
        branch.add(_text(f"= {line(call.result, 200)}"))


def _headline(node: RunNode) -> str:
    status = node.status
    state = (status.outcome or status.temporal) if status.state == "closed" else status.state
    parts = [f"{status.agent or 'run'} {status.id}: {state}"]
    if node.model:
        parts.append(node.model)
    if "usage" in status.model_fields_set:
        parts += [work_of(status), f"${status.cost_usd}"]
    if node.seconds is not None:
        parts.append(duration(node.seconds))
    if status.stuck:
        parts.append(f"stuck: {status.stuck}")
    elif status.silent:
        parts.append(f"from history alone: {status.silent}")
    return ", ".join(parts)


def work_of(status: RunStatus) -> str:
    """What a run has done so far, counted."""
    done = (status.step, "step"), (status.tool_calls, "tool call"), (status.usage.total, "token")
    return ", ".join(counted(count, noun) for count, noun in done)


def _step(step: StepNode) -> Text:
    facts = [
        counted(step.tokens, "token") if step.tokens is not None else "",
        f"${step.cost_usd}" if step.cost_usd is not None else "",
        _took(step.seconds, step.attempts),
        clock(step.ended),
    ]
    running = step.ended is None
    said = "the model is being called" if running else step.text or "(no text)"
    return _text(f"step {step.step}: {line(said)}  {_brackets(facts)}".rstrip(), "cyan" if running else "bold")


def _call(call: CallNode) -> Text:
    arguments = line(short_json(call.arguments), 200) if call.arguments else ""
    took = _took(call.seconds, call.attempts)
    known = Text(clean(f"-> {call.call_id} {call.tool} {arguments}".rstrip()))
    known.append(f"  {call.status.replace('_', ' ')}", STATUS_STYLES.get(call.status, "red"))
    return known.append(f"  {_brackets([took, clock(call.started)])}".rstrip())


def _took(seconds: float | None, attempts: int | None) -> str:
    tries = counted(attempts, "attempt") if attempts is not None and attempts > 1 else ""
    return ", ".join(part for part in (duration(seconds) if seconds is not None else "", tries) if part)


def _event(event: RunEvent, book: CallBook) -> Text:
    return _text(f"{in_words(event, book).strip()}  {_brackets([clock(event.at)])}", style_of(event))


def _brackets(facts: list[str]) -> str:
    shown = ", ".join(fact for fact in facts if fact)
    return f"[{shown}]" if shown else ""


def _text(words: str, style: str = "") -> Text:
    return Text(clean(words), style=style)


def clock(at: datetime | None) -> str:
    """The time of day as people here read it."""
    return at.astimezone().strftime("%H:%M:%S") if at else ""


def duration(seconds: float) -> str:
    """Seconds in words: 0.3 s, 12 s, 3m 05s, 2h 10m."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
