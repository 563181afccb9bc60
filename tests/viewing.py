"""A viewer as users write one: it puts the texts of replies together from what a stream tells."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from perdure.status import StreamEvent
from tests.lab import Run


@dataclass
class Viewing:
    """What was told so far; `replies` are the texts of the recorded ones, by step."""

    replies: dict[int, str] = field(default_factory=dict)
    types: list[str] = field(default_factory=list)
    """Types of the recorded events."""
    live: list[str] = field(default_factory=list)
    """Types of the others."""
    cursor: int = 0
    text: str = ""
    deltas: int = 0
    ending: dict[str, Any] = field(default_factory=dict)

    def take(self, event: StreamEvent) -> None:
        """Take in an event as the contract says."""
        fields = event.model_dump(exclude_unset=True)
        if event.type == "text":
            assert event.offset == len(self.text)
            assert event.attempt is not None
            self.text += event.text or ""
            self.deltas += 1
        elif event.type == "reset":
            self.text = ""
        elif event.type == "reply":
            assert event.step is not None
            self.replies[event.step] = self.text
            self.text = ""
        elif event.type == "run_ended":
            self.ending = fields
        (self.live if event.n is None else self.types).append(event.type)
        if event.n is not None:
            assert event.n == self.cursor + 1 or self.cursor == 0 or "rewound" in self.live
            self.cursor = event.n

    async def follow(self, stream: AsyncIterator[StreamEvent]) -> Viewing:
        """Take in a whole stream."""
        async for event in stream:
            self.take(event)
        return self

    async def until(self, stream: AsyncIterator[StreamEvent], kind: str, count: int = 1) -> None:
        """Take in so much of a stream that so many events of a type have come."""
        async for event in stream:
            self.take(event)
            count -= event.type == kind
            if not count:
                return


async def recorded(run: Run) -> dict[int, str]:
    """The texts of a run's replies by step, as its conversation has them."""
    said = [m for m in await run.messages() if m["role"] == "assistant"]
    texts = ["".join(p.get("text") or p.get("preview", "") for p in m["parts"] if p["type"] != "call") for m in said]
    return dict(enumerate(texts, 1))
