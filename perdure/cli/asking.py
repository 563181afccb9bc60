"""What a followed run waits for, asked in the terminal: approvals and questions, one at a time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from perdure.approval import GROUP
from perdure.cli import offers
from perdure.cli.output import line, short_json
from perdure.cli.screen import Screen
from perdure.cli.session import who
from perdure.cli.terminal import Keyboard
from perdure.errors import MessageRefused, PerdureError
from perdure.handle import Handle
from perdure.status import OpenQuestion, PendingCall, StreamEvent

KEYS = 0.1
"""Seconds between two looks at the keyboard."""
MOST_CHARS = 4_000
"""Characters of one thing that is asked."""

_CHANGES = frozenset({"question", "answered", "question_expired", "child_ended", "rewound"})
"""Events after which something else may wait, beside those of approvals."""


class Prompt(ABC):
    """One thing that a run waits for, as it is asked here."""

    def __init__(self, handle: Handle, screen: Screen) -> None:
        self._handle = handle
        self._screen = screen

    @property
    @abstractmethod
    def key(self) -> tuple[object, ...]:
        """The same as long as the same thing waits."""

    @property
    @abstractmethod
    def command(self) -> str:
        """What is typed elsewhere instead."""

    def not_for_me(self) -> str | None:
        """Who may decide, where whoever sits here may not."""
        return None

    @abstractmethod
    def show(self) -> None:
        """Ask."""

    @abstractmethod
    def take(self, typed: str) -> bool:
        """Take a line that was typed; True where all is said."""

    @abstractmethod
    async def send(self) -> None:
        """Tell the run; raises MessageRefused."""


class _Approval(Prompt):
    def __init__(self, handle: Handle, screen: Screen, call: PendingCall) -> None:
        super().__init__(handle, screen)
        self._call = call
        self._verdict: bool | None = None
        self._reason: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        return self._call.call_id, self._call.digest, self._call.stage

    @property
    def command(self) -> str:
        return offers.approve(self._handle.id, self._call.call_id)

    def not_for_me(self) -> str | None:
        approvers = self._call.approvers
        # Who is in a group the run knows alone: it refuses who is not.
        if not approvers or who(None) in approvers or any(name.startswith(GROUP) for name in approvers):
            return None
        return f"{self._call.call_id} is not asked here: only {' or '.join(approvers)} may decide it"

    def show(self) -> None:
        call = self._call
        asked = f"  {call.run}: {call.tool} {line(short_json(call.arguments), MOST_CHARS)}"
        self._screen.line(asked, "yellow")
        self._screen.line("  approve? y or n", "yellow")

    def take(self, typed: str) -> bool:
        if self._verdict is not None:
            self._reason = typed or None
            return True
        if typed.lower() not in {"y", "yes", "n", "no"}:
            self._screen.line("  y or n")
            return False
        self._verdict = typed.lower().startswith("y")
        if not self._verdict:
            self._screen.line("  why? (may be empty)")
        return self._verdict

    async def send(self) -> None:
        call = self._call
        await self._handle.decide(
            call.call_id, bool(self._verdict), by=who(None), reason=self._reason, digest=call.digest
        )


class _Question(Prompt):
    def __init__(self, handle: Handle, screen: Screen, question: OpenQuestion) -> None:
        super().__init__(handle, screen)
        self._question = question
        self._text = ""

    @property
    def key(self) -> tuple[object, ...]:
        return self._question.question_id, self._question.text, self._question.deadline

    @property
    def command(self) -> str:
        return offers.answer(self._handle.id, self._question.question_id, self._question.options)

    def show(self) -> None:
        self._screen.line(f"  {self._handle.id} asks: {line(self._question.text, MOST_CHARS)}", "yellow")
        self._hint()

    def _hint(self) -> None:
        options = " | ".join(self._question.options)
        self._screen.line(f"  answer? one of: {options}" if options else "  answer?", "yellow")

    def take(self, typed: str) -> bool:
        if not typed or (self._question.options and typed not in self._question.options):
            self._hint()
            return False
        self._text = typed
        return True

    async def send(self) -> None:
        await self._handle.answer(self._question.question_id, self._text, by=who(None))


class Asker:
    """Asks for what a run waits for, and says how it is done elsewhere where it is not asked here."""

    def __init__(self, handle: Handle, screen: Screen) -> None:
        self._handle = handle
        self._screen = screen
        self._keyboard = Keyboard()
        self._waiting: list[Prompt] = []
        self._asking: Prompt | None = None
        self._done: set[tuple[object, ...]] = set()
        """Keys of what was answered, or is left to others."""
        self._stale = asyncio.Event()
        self._ended = False

    def hear(self, event: StreamEvent) -> None:
        """Learn that something else may wait now."""
        if event.type == "rewound":
            self._done.clear()
        if event.type.startswith("approval_") or event.type in _CHANGES:
            self._stale.set()
        if event.type == "run_ended" and self._asking is not None:  # somebody else was faster than the next look
            self._withdraw()

    async def ask(self) -> None:
        """Read what is typed, and ask for the first thing that waits, until it is cancelled."""
        try:
            while True:
                if self._stale.is_set():
                    await self._look()
                for typed in self._keyboard.take():
                    await self._read(typed)
                self._go_on()
                await asyncio.sleep(KEYS)
        finally:
            self._keyboard.close()

    async def _look(self) -> None:
        self._stale.clear()
        try:
            calls, questions = await self._handle.approvals(), await self._handle.questions()
        except PerdureError:  # the stream says so; it is asked again
            self._stale.set()
            return
        about = (self._handle, self._screen)
        self._waiting = [*(_Approval(*about, call) for call in calls), *(_Question(*about, one) for one in questions)]
        if self._asking is not None and all(one.key != self._asking.key for one in self._waiting):
            self._withdraw()

    def _withdraw(self) -> None:
        self._screen.line("  (no longer asked)")
        self._asking = None

    def _go_on(self) -> None:
        """Ask for the next thing that whoever sits here may answer, and leave the others to others."""
        for prompt in self._waiting:
            if prompt.key in self._done:
                continue
            others = prompt.not_for_me()
            if others is not None or self._ended:
                self._leave(prompt, others)
            elif self._asking is None:
                self._asking = prompt
                prompt.show()

    def _leave(self, prompt: Prompt, why: str | None) -> None:
        self._done.add(prompt.key)
        if why is not None:
            self._screen.line(f"  {why}", "yellow")
        self._screen.line(f"     {prompt.command}")

    async def _read(self, typed: str | None) -> None:
        if typed is None:
            self._ended = True
            self._screen.note("nothing more is asked here; what waits stays open, and is answered by its command")
            if self._asking is not None:
                self._leave(self._asking, None)
                self._asking = None
        elif self._asking is not None and self._asking.take(typed.strip()):
            await self._send(self._asking)

    async def _send(self, prompt: Prompt) -> None:
        self._asking = None
        try:
            await prompt.send()
        except MessageRefused as refusal:
            self._screen.note(refusal)
        except PerdureError as error:  # it is asked again
            self._screen.note(f"{error}; not told to the run")
            return
        self._done.add(prompt.key)
