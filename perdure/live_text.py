"""What a viewer has shown of the reply that is being written, and what it still has to show of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.canonical import REPLACEMENT, clean_text
from perdure.messages import AssistantMessage, BlobPart, TextPart

Told = tuple[str, dict[str, Any]]
"""The type of an event and its fields."""


@dataclass(frozen=True)
class Window:
    """The end of what an attempt of a model call has said so far."""

    call: str
    """Which model call; the same in every attempt."""
    attempt: int
    offset: int
    """Characters that were said before `text`."""
    text: str

    @property
    def end(self) -> int:
        """Characters that were said with it."""
        return self.offset + len(self.text)


class LiveText:
    """The text of one reply after the other, each shown exactly as it is recorded at last.

    What is shown is always a beginning of what an attempt has said. Windows may come late, twice or with a gap, which
    is filled when the reply is recorded. What turns out to be void is followed by a `reset`.
    """

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._length = 0
        self._call = ""
        self._attempt = 1

    @property
    def length(self) -> int:
        """Characters of the reply that are shown."""
        return self._length

    def begin(self, call: str, attempt: int) -> Iterator[Told]:
        """Events for an attempt that has begun: what another one has said is void."""
        if call != self._call or attempt > self._attempt:
            yield from self.void(attempt)
            self._call, self._attempt = call, attempt

    def see(self, window: Window) -> Iterator[Told]:
        """Events for what a window brings that was not shown yet."""
        yield from self.begin(window.call, window.attempt)
        if window.attempt < self._attempt or not window.offset <= self._length < window.end:
            return
        # Half of a pair of surrogates ends as a replacement character until its other half has come.
        text = clean_text(window.text).rstrip(REPLACEMENT)[self._length - window.offset :]
        if text:
            yield self._show(text)

    def record(self, message: AssistantMessage | None, otherwise: str = "") -> Iterator[Told]:
        """Events for what is missing of a recorded reply; `otherwise` is its text where the message is not there."""
        text, whole = _recorded(message) if message is not None else (otherwise, len(otherwise))
        shown = "".join(self._shown)
        kept = whole != len(text)
        """Whether the conversation only has a preview of it."""
        if not (kept and self._length == whole) and shown != text:
            if kept or not text.startswith(shown):
                attempt = self._attempt
                yield from self.void(attempt)
                self._attempt = attempt
            if self._length < len(text):
                yield self._show(text[self._length :])
        self._forget()

    def void(self, attempt: int | None = None) -> Iterator[Told]:
        """Events for what was shown of a reply that will never be recorded so; `attempt` is the one that comes."""
        if self._length:
            yield "reset", {"attempt": attempt or self._attempt}
        self._forget()

    def _show(self, text: str) -> Told:
        offset = self._length
        self._shown.append(text)
        self._length += len(text)
        return "text", {"text": text, "attempt": self._attempt, "offset": offset}

    def _forget(self) -> None:
        self._shown, self._length, self._call, self._attempt = [], 0, "", 1


def _recorded(message: AssistantMessage) -> tuple[str, int]:
    """The text of a reply as the conversation has it, and how many characters it has in truth."""
    parts: Sequence[TextPart | BlobPart] = [p for p in message.parts if isinstance(p, TextPart | BlobPart)]
    text = "".join(p.text if isinstance(p, TextPart) else p.preview for p in parts)
    return text, sum(len(p.text) if isinstance(p, TextPart) else p.size for p in parts)
