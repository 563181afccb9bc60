"""How one event of a run reads in a terminal, and as a CloudEvent."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote as url_quote

from perdure.cli.output import counted, line, moment, short_json
from perdure.messages import AssistantMessage, Message, ToolMessage, text_of
from perdure.status import RunEvent, StreamEvent


@dataclass
class CallBook:
    """What the conversation says of the calls that events only name."""

    tools: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    messages: int = 0

    def read(self, messages: list[Message]) -> None:
        """Take in further messages."""
        self.messages += len(messages)
        for message in messages:
            if isinstance(message, AssistantMessage):
                self.tools |= {call.id: call.tool for call in message.calls}
                self.arguments |= {call.id: call.arguments for call in message.calls}
            elif isinstance(message, ToolMessage):
                self.results[message.call] = text_of(message)

    def call(self, call: str | None, tool: str | None = None) -> str:
        """A call in words: id, tool and arguments."""
        arguments = self.arguments.get(call or "")
        shown = line(short_json(arguments), 200) if arguments else ""
        return f"{call} {tool or self.tools.get(call or '', '')} {shown}".rstrip()


Fields = Mapping[str, Any]

_MARKS: Mapping[str, Callable[[Fields, CallBook], str]] = {
    "run_started": lambda e, b: f"{e.get('agent')} starts with {e.get('model')}",
    "continued": lambda e, b: "goes on in a new workflow run",
    "reply": lambda e, b: f"step {e.get('step')}: {line(e.get('text') or '(no text)')}  {_spent(e)}",
    "tool_start": lambda e, b: f"  -> {b.call(e.get('call_id'), e.get('tool'))}",
    "tool_end": lambda e, b: (
        f"  <- {e.get('call_id')} {e.get('tool')} {'failed' if e.get('error') else e.get('status')}"
        f"{f': {line(result, 200)}' if (result := b.results.get(e.get('call_id', ''))) else ''}"
    ),
    "tool_refused": lambda e, b: f"  -- {e.get('call_id')} {e.get('tool')}: {line(e.get('reason'))}",
    "approval_requested": lambda e, b: (
        f"  ?  {b.call(e.get('call_id'), e.get('tool'))} waits for approval until {_time(e.get('deadline'))}"
        f"{f' ({line(reason)})' if (reason := e.get('reason')) else ''}"
    ),
    "approval_decided": lambda e, b: (
        f"  !  {e.get('call_id')} {e.get('tool')} {'approved' if e.get('approve') else 'denied'}"
        f"{f' by {by}' if (by := e.get('by')) else ''}{f': {line(why)}' if (why := e.get('reason')) else ''}"
        f"{' with changed arguments' if e.get('edited') else ''}"
        f"{f' {line(short_json(changed), 200)}' if (changed := e.get('arguments')) is not None else ''}"
    ),
    "question": lambda e, b: f"  ?  {e.get('question_id')}: {line(e.get('text'))}",
    "said": lambda e, b: f"  said: {line(e.get('text'))}",
    "correction": lambda e, b: f"  correction ({e.get('about')}): {line(e.get('text'))}",
    "child_started": lambda e, b: f"  -> {b.call(e.get('call_id'))}: child run {e.get('workflow_id')}",
    "child_ended": lambda e, b: (
        f"  <- {e.get('call_id')} child ended {e.get('outcome')} [{counted(e.get('tokens', 0), 'token')}]"
    ),
    "run_ended": lambda e, b: (
        f"{e.get('outcome')}{f' ({reason})' if (reason := e.get('reason')) else ''}"
        f"{f': {line(text)}' if (text := e.get('message')) else ''}"
    ),
}

_TIMES = {"deadline"}
"""Fields of events that are times."""

_STYLES = {
    "reply": "bold",
    "approval_requested": "yellow",
    "question": "yellow",
    "tool_refused": "red",
    "tool_unknown": "red",
    "limit_reached": "red",
    "run_ended": "bold",
    "tool_start": "cyan",
    "tool_end": "cyan",
}


def in_words(event: RunEvent, book: CallBook) -> str:
    """One line for people; what a decision has changed is taken into the book."""
    fields = event.model_extra or {}
    if event.type == "approval_decided" and fields.get("arguments") is not None:
        book.arguments[fields["call_id"]] = fields["arguments"]
    told = _MARKS.get(event.type)
    return told(fields, book) if told else f"  {event.type} {_fields(event)}".rstrip()


def spent(event: RunEvent) -> str:
    """What a reply has cost."""
    return _spent(event.model_extra or {})


def style_of(event: RunEvent) -> str:
    """The style of its line."""
    return _STYLES.get(event.type, "")


def plain(event: RunEvent) -> str:
    """One line of a log: number, time, type and all fields."""
    return f"{event.n:>4} {moment(event.at)} {event.type} {_fields(event)}".rstrip()


def as_cloud_event(event: StreamEvent | RunEvent, namespace: str, run: str) -> dict[str, Any]:
    """The event by CloudEvents 1.0; one of the log has the same id for everybody who reads it."""
    data = event.model_dump(mode="json", exclude_unset=True)
    at, kind = data.pop("at"), data.pop("type")
    return {
        "specversion": "1.0",
        # A run that was reset gives a number to another event.
        "id": f"{event.n}-{at}" if event.n is not None else f"live-{secrets.token_hex(8)}",
        "source": f"/{url_quote(namespace, '')}/{url_quote(run, '')}",
        "type": f"perdure.{kind}",
        "time": at,
        "subject": run,
        "datacontenttype": "application/json",
        "data": data,
    }


def _fields(event: RunEvent) -> str:
    return " ".join(
        f"{name}={_time(value) if name in _TIMES else line(value if isinstance(value, str) else short_json(value))}"
        for name, value in (event.model_extra or {}).items()
    )


def _spent(fields: Fields) -> str:
    return f"[{counted(fields.get('tokens', 0), 'token')}, ${fields.get('cost_usd')}]"


def _time(value: str | float | None) -> str:
    """A moment, or the seconds by which a deadline was extended."""
    if not isinstance(value, str):
        return "" if value is None else f"{value:g}s"
    return moment(datetime.fromisoformat(value)) if value else ""
