"""A reader's place in a run's event log, kept also where the run is set back to an earlier point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.status import EventPage, RunEvent


@dataclass(frozen=True)
class Fresh:
    """What a page of the log has brought."""

    events: Sequence[RunEvent]
    rewound: int | None
    """The run was set back: what was read above this number no longer counts."""
    missing: int
    """Events before these that have made room unread."""


class EventLog:
    """What was read of a log, and what of a further page is new.

    Each page begins with the event that was read last. Where that is another one now, a reset of the run has thrown it
    away, and the whole log must be read.
    """

    def __init__(self, after: int) -> None:
        """`after` is the number of the last event that the reader knows from before."""
        self._after = after
        self._marks: dict[int, int] = {}
        self._last: RunEvent | None = None

    @property
    def last(self) -> int:
        """Number of the event that was read last."""
        return self._last.n if self._last else 0

    @property
    def cursor(self) -> int:
        """What to ask the log for: what comes after this number."""
        return max(0, self.last - 1)

    @property
    def ended(self) -> bool:
        """Whether the log itself says how the run has ended."""
        return self._last is not None and self._last.type == "run_ended"

    def continues(self, page: EventPage) -> bool:
        """Whether a page from `cursor` on begins where the last one has ended."""
        return self._last is None or (page.last >= self._last.n and self._agree(page.events[0]))

    def take(self, page: EventPage) -> Fresh:
        """What is new in a page from `cursor` on that continues the log, or in the whole log."""
        last = self.last
        known = last or self._after
        kept = next((event.n - 1 for event in page.events if event.n <= last and not self._agree(event)), known)
        kept = min(kept, page.last if last else kept)
        if not last and page.last < self._after:  # it was read before the run was set back
            kept = 0
        rewound = kept if kept < known else None
        events = [event for event in page.events if event.n > (kept if last else 0)]
        self._marks = {n: mark for n, mark in self._marks.items() if n <= kept}
        self._marks |= {event.n: _mark(event) for event in events}
        self._last = page.events[-1] if page.events else None
        first = events[0].n if events else kept + 1
        return Fresh(events, rewound, max(0, first - kept - 1))

    def _agree(self, event: RunEvent) -> bool:
        return self._marks.get(event.n, _mark(event)) == _mark(event)


def _mark(event: RunEvent) -> int:
    return hash(event.model_dump_json(exclude={"at"}))
