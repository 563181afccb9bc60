"""Following a run: its events as they come, and its approvals asked in the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from perdure.cli.events import CallBook, in_words, style_of
from perdure.cli.output import line, note, short_json, show
from perdure.cli.session import who
from perdure.cli.terminal import Keyboard
from perdure.client import Client
from perdure.errors import MessageRefused, NoAnswer
from perdure.handle import Handle
from perdure.outcomes import RunResult
from perdure.status import PendingCall, RunEvent

POLL = 0.25
"""Seconds between two looks at a run."""
LOOKS_UNDER = 8
"""Every how many of them the approvals of its children are looked for."""


class Asker:
    """Asks for the decisions that a run waits for, one at a time."""

    def __init__(self, client: Client, run: str) -> None:
        self._client = client
        self._run = run
        self._keyboard = Keyboard()
        self._asking: PendingCall | None = None
        self._verdict: bool | None = None
        self._decided: set[tuple[str, str, str]] = set()
        self._ended = False

    async def look(self, *, children: bool) -> None:
        """Read what was typed, and ask for the first call that waits."""
        waiting = await self._waiting(children)
        if self._asking is not None and all(_key(call) != _key(self._asking) for call in waiting):
            show("  (no longer asked)")
            self._asking = None
        for typed in self._keyboard.take():
            if typed is None:
                self._ended = True
            elif self._asking is not None:
                await self._take(self._asking, typed.strip())
        open_calls = [call for call in waiting if _key(call) not in self._decided]
        if self._asking is None and open_calls and not self._ended:
            self._ask(open_calls[0])

    async def _waiting(self, children: bool) -> list[PendingCall]:
        own = await self._client.handle(self._run).approvals()
        if not children:
            return own or ([self._asking] if self._asking and self._asking.run != self._run else [])
        return own or await self._client.approvals(under=self._run)

    def _ask(self, call: PendingCall) -> None:
        self._asking, self._verdict = call, None
        show(f"  {call.run}: {call.tool} {line(short_json(call.arguments), 1_000)}", "yellow")
        show("  approve? y or n", "yellow")

    async def _take(self, call: PendingCall, typed: str) -> None:
        if self._verdict is None:
            if typed.lower() not in {"y", "yes", "n", "no"}:
                show("  y or n")
                return
            self._verdict = typed.lower().startswith("y")
            if not self._verdict:
                show("  why? (may be empty)")
                return
        reason = None if self._verdict else typed or None
        self._asking = None
        self._decided.add(_key(call))
        try:
            handle = self._client.handle(call.run)
            await handle.decide(call.call_id, self._verdict, by=who(None), reason=reason, digest=call.digest)
        except MessageRefused as refusal:
            note(refusal)

    def close(self) -> None:
        """Stop reading the keyboard."""
        self._keyboard.close()


class Follower:
    """Shows what happens in a run until its end."""

    def __init__(self, client: Client, handle: Handle, show_event: Callable[[RunEvent, CallBook], None]) -> None:
        self._client = client
        self._handle = handle
        self._show_event = show_event
        self._book = CallBook()
        self._after = 0
        self._children = False
        self._told = ""

    async def follow(self, *, ask: bool) -> RunResult:
        """The result at the end, or RunFailed or RunCancelled; with `ask` approvals are asked on the terminal."""
        result = asyncio.create_task(self._handle.result())
        asker = Asker(self._client, self._handle.id) if ask else None
        looks = 0
        try:
            while not result.done():
                looks += 1
                await self._look(asker, children=self._children and looks % LOOKS_UNDER == 0)
                await asyncio.wait([result], timeout=POLL)
            await self._look(None, children=False)
            return await result
        finally:
            result.cancel()
            if asker is not None:
                asker.close()

    async def _look(self, asker: Asker | None, *, children: bool) -> None:
        try:
            await self.show_new()
            if asker is not None:
                await asker.look(children=children)
        except NoAnswer as error:  # said once; the run may go on when a worker comes
            if str(error) != self._told:
                note(f"{error}; still waiting, and Ctrl-C leaves the run as it is")
            self._told = str(error)

    async def show_new(self) -> None:
        """Show the events since the last look."""
        page = await self._handle.events(self._after)
        if page.truncated:
            note("older events have made room; Temporal's history of the run still has them")
        if any(event.type in {"reply", "tool_end", "child_started"} for event in page.events):
            self._book.read(await self._handle.conversation(self._book.messages))
        for event in page.events:
            self._children = self._children or event.type == "child_started"
            self._show_event(event, self._book)
        self._after = page.last
        self._told = ""


def show_event(event: RunEvent, book: CallBook) -> None:
    """Print an event as a line for people."""
    show(in_words(event, book), style_of(event))


def on_terminal() -> bool:
    """True where somebody can answer questions."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def how_to_approve(event: RunEvent, run: str) -> str | None:
    """The command that decides what the event asks for."""
    call = (event.model_extra or {}).get("call_id")
    return f"     perdure approve {run} {call}" if event.type == "approval_requested" else None


def _key(call: PendingCall) -> tuple[str, str, str]:
    return call.run, call.call_id, call.digest
