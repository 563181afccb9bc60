"""Text that was told in this process, held back until it is its turn between the events of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.live_text import Window

MOST = 48 * 1024
"""Characters that are held back; what a beat does not show either is told when the reply is recorded."""


class Overheard:
    """What was heard of the reply that is being written.

    A process tells pieces of text and recorded events in the order in which they come about. So a piece belongs to the
    first reply whose number is above that of the last recorded event before it.
    """

    def __init__(self, last: int) -> None:
        """`last` is the number of the newest event of the log before listening has begun."""
        self.last = last
        """Number of the recorded event that was heard last."""
        self._window: Window | None = None

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in a recorded event, a piece of text, or the beginning of another attempt."""
        if (number := event.get("n")) is not None:
            self.last = number
            if event["type"] == "reply":
                self._window = None
        elif event["type"] in {"text", "reset"}:
            self._add(
                Window(
                    call=f"{event['run_id']}/{event['activity_id']}",
                    attempt=event["attempt"],
                    offset=event.get("offset", 0),
                    text=event.get("text", ""),
                )
            )

    def _add(self, piece: Window) -> None:
        known = self._window
        follows = known is not None and (known.call, known.attempt, known.end) == (
            piece.call,
            piece.attempt,
            piece.offset,
        )
        if known is not None and follows and len(known.text) < MOST:
            piece = Window(known.call, known.attempt, known.offset, known.text + piece.text)
        self._window = piece

    def take(self, read: int, replied: int) -> Window | None:
        """The text whose turn it is, where the log was read up to `read`, and its last reply has number `replied`."""
        return self._window if replied <= self.last <= read else None

    def told(self, length: int) -> None:
        """So many characters of the reply are shown; they need not be kept."""
        window = self._window
        if window is not None and window.offset < length <= window.end:
            self._window = Window(window.call, window.attempt, length, window.text[length - window.offset :])
