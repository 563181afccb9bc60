"""Following a run: what happens in it as it happens, and its approvals asked in the terminal."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from perdure.cli.events import CallBook, in_words, spent, style_of
from perdure.cli.output import clean, line, short_json
from perdure.cli.screen import Screen
from perdure.cli.session import who
from perdure.cli.terminal import Keyboard
from perdure.client import Client
from perdure.errors import MessageRefused, NoAnswer, PerdureError, Unreachable
from perdure.handle import Handle
from perdure.status import PendingCall, RunEvent, StreamEvent
from perdure.streaming import watch

SERVER_WAIT = 300.0
"""Seconds that the server may be away; a worker may stay away for ever, for people end that by Ctrl-C."""
KEYS = 0.1
"""Seconds between two looks at the keyboard."""


class Asker:
    """Asks for the decisions that a run waits for, one at a time."""

    def __init__(self, handle: Handle, screen: Screen) -> None:
        self._handle = handle
        self._screen = screen
        self._keyboard = Keyboard()
        self._waiting: list[PendingCall] = []
        self._asking: PendingCall | None = None
        self._verdict: bool | None = None
        self._decided: set[tuple[str, str]] = set()
        self._stale = asyncio.Event()
        self._ended = False

    def hear(self, event: StreamEvent) -> None:
        """Learn that other calls may wait now."""
        if event.type == "rewound":
            self._decided.clear()
        if event.type.startswith("approval_") or event.type == "rewound":
            self._stale.set()
        if event.type == "run_ended" and self._asking is not None:  # somebody else was faster than the next look
            self._withdraw()

    async def ask(self) -> None:
        """Read what is typed, and ask for the first call that waits, until it is cancelled."""
        try:
            while True:
                if self._stale.is_set():
                    await self._look()
                for typed in self._keyboard.take():
                    await self._read(typed)
                open_calls = [call for call in self._waiting if _key(call) not in self._decided]
                if self._asking is None and open_calls and not self._ended:
                    self._ask(open_calls[0])
                await asyncio.sleep(KEYS)
        finally:
            self._keyboard.close()

    async def _look(self) -> None:
        self._stale.clear()
        try:
            self._waiting = await self._handle.approvals()
        except PerdureError:  # the stream says so; it is asked again
            self._stale.set()
            return
        if self._asking is not None and all(_key(call) != _key(self._asking) for call in self._waiting):
            self._withdraw()

    def _withdraw(self) -> None:
        self._screen.line("  (no longer asked)")
        self._asking = None

    def _ask(self, call: PendingCall) -> None:
        self._asking, self._verdict = call, None
        self._screen.line(f"  {call.run}: {call.tool} {line(short_json(call.arguments), 1_000)}", "yellow")
        self._screen.line("  approve? y or n", "yellow")

    async def _read(self, typed: str | None) -> None:
        if typed is None:
            self._ended = True
            self._screen.note(f"no more answers come from here; decide with `perdure approve {self._handle.id}`")
        elif self._asking is not None:
            await self._take(self._asking, typed.strip())

    async def _take(self, call: PendingCall, typed: str) -> None:
        if self._verdict is None:
            if typed.lower() not in {"y", "yes", "n", "no"}:
                self._screen.line("  y or n")
                return
            self._verdict = typed.lower().startswith("y")
            if not self._verdict:
                self._screen.line("  why? (may be empty)")
                return
        reason = None if self._verdict else typed or None
        try:
            await self._handle.decide(call.call_id, self._verdict, by=who(None), reason=reason, digest=call.digest)
        except MessageRefused as refusal:
            self._screen.note(refusal)
        except PerdureError as error:
            self._screen.note(f"{error}; not decided")
            self._asking = None
            return
        self._asking = None
        self._decided.add(_key(call))


class Follower:
    """Shows what happens in a run until its end."""

    def __init__(self, handle: Handle, screen: Screen) -> None:
        self._handle = handle
        self._screen = screen
        self._book = CallBook()
        self.answer = ""
        """The text of the last reply, where it was shown as it came."""

    async def follow(self, client: Client, *, ask: bool, quiet: bool) -> None:
        """Show the run until its end: with `ask` approvals are asked here, with `quiet` only troubles are shown."""
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
        command = _COMMANDS.get(event.type)
        if command is None or (asks and event.type == "approval_requested"):
            return None
        return "     " + command.format_map({**(event.model_extra or {}), "run": self._handle.id})

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

_COMMANDS = {
    "approval_requested": "perdure approve {run} {call_id}",
    "question": "perdure answer {run} {question_id} TEXT",
}

_LIVE: Mapping[str, Callable[[Screen, StreamEvent], None]] = {
    "text": lambda s, e: s.write(e.text or "", f"step {e.step}: "),
    "reset": lambda s, e: s.reset(e.attempt),
    "retrying": lambda s, e: s.note(e.text),
    "silent": lambda s, e: s.note(f"{e.text}; {WAITING}"),
    "rewound": lambda s, e: s.note(f"the run was reset: events above {_extra(e, 'after')} no longer count"),
    "truncated": lambda s, e: s.note(
        f"{_extra(e, 'missing')} older events have made room; Temporal's history of the run still has them"
    ),
}


def as_recorded(event: StreamEvent) -> RunEvent:
    """The event as it stands in the log; an end that the run could not record has number 0."""
    return RunEvent.model_validate({"n": 0, **event.model_dump(exclude_unset=True)})


def on_terminal() -> bool:
    """True where somebody can answer questions."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _extra(event: StreamEvent, name: str) -> object:
    return (event.model_extra or {}).get(name)


def _key(call: PendingCall) -> tuple[str, str]:
    return call.call_id, call.digest
