"""Following a run: what happens in it as it happens."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from perdure.cli import offers
from perdure.cli.asking import Asker
from perdure.cli.events import CallBook, in_words, spent, style_of
from perdure.cli.output import clean, counted
from perdure.cli.screen import Screen
from perdure.client import Client
from perdure.errors import NoAnswer, Unreachable
from perdure.handle import Handle
from perdure.status import RunEvent, StreamEvent
from perdure.streaming import watch

SERVER_WAIT = 300.0
"""Seconds that the server may be away; a worker may stay away for ever, for people end that by Ctrl-C."""


class Follower:
    """Shows what happens in a run until its end."""

    def __init__(self, handle: Handle, screen: Screen) -> None:
        self._handle = handle
        self._screen = screen
        self._book = CallBook()
        self.answer = ""
        """The text of the last reply, where it was shown as it came."""

    async def follow(self, client: Client, *, ask: bool, quiet: bool) -> None:
        """Show the run until its end; with `ask` what it waits for is asked here, with `quiet` only troubles show."""
        asker = Asker(self._handle, self._screen) if ask else None
        asking = asyncio.create_task(asker.ask()) if asker else None
        try:
            async for event in watch(client.temporal, self._handle, server=SERVER_WAIT, worker=math.inf):
                if not quiet or event.type in TROUBLES:
                    await self._show(event)
                if asker is not None:
                    asker.hear(event)
                if (hint := self._hint(event, asks=ask)) is not None:
                    print(clean(hint), file=sys.stderr if quiet else sys.stdout, flush=True)
                if asking is not None and asking.done():
                    asking.result()
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.wait([asking])

    def _hint(self, event: StreamEvent, *, asks: bool) -> str | None:
        """The command for what the event asks of a person, where that is not asked here."""
        id, fields = self._handle.id, event.model_extra or {}
        match event.type:
            case "approval_requested" if not asks:
                return f"     {offers.approve(id, fields['call_id'])}"
            case "question" if not asks:
                return f"     {offers.answer(id, fields['question_id'])}"
            case "limit_reached" if fields.get("paused"):
                return f"     {offers.extend(id, fields['reason'])}"
        return None

    async def _show(self, event: StreamEvent) -> None:
        if show_live(self._screen, event):
            return
        recorded = as_recorded(event)
        if event.type in {"tool_start", "tool_end", "approval_requested", "child_started"}:
            with suppress(NoAnswer, Unreachable):  # then the call is shown without its arguments
                self._book.read(await self._handle.conversation(self._book.messages))
        if event.type == "reply":
            self.answer = self._screen.take_text()
        if event.type == "reply" and self.answer:
            self._screen.line(f"  {spent(recorded)}", "dim")
        else:
            self._screen.line(in_words(recorded, self._book), style_of(recorded))


def show_live(screen: Screen, event: StreamEvent) -> bool:
    """Show what only a stream tells; False for an event of the log."""
    told = _LIVE.get(event.type)
    if told is not None:
        told(screen, event)
    return told is not None


TROUBLES = {"retrying", "silent"}
WAITING = "still waiting, and Ctrl-C leaves the run as it is"

_LIVE: Mapping[str, Callable[[Screen, StreamEvent], None]] = {
    "text": lambda s, e: s.write(e.text or "", f"step {e.step}: "),
    "reset": lambda s, e: s.reset(e.attempt),
    "retrying": lambda s, e: s.note(e.text),
    "silent": lambda s, e: s.note(f"{e.text}; {WAITING}"),
    "rewound": lambda s, e: s.note(f"the run was reset: events above {_extra(e, 'after')} no longer count"),
    "truncated": lambda s, e: s.note(
        f"no longer kept by the run: {counted(_extra(e, 'missing'), 'older event')}; "
        "Temporal's history of the run still has them"
    ),
}


def as_recorded(event: StreamEvent) -> RunEvent:
    """The event as it stands in the log; an end that the run could not record has number 0."""
    return RunEvent.model_validate({"n": 0, **event.model_dump(exclude_unset=True)})


def on_terminal() -> bool:
    """True where somebody can answer questions."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _extra(event: StreamEvent, name: str) -> Any:
    return (event.model_extra or {}).get(name)
