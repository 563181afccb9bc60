"""A span as it is written down: something that has ended, with its times and its place in a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened inside a span."""

    name: str
    at: int
    """Nanoseconds since 1970."""
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that has ended; times in nanoseconds since 1970."""

    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits."""
    parent_id: str | None
    name: str
    start: int
    end: int
    attributes: Mapping[str, Any]
    kind: Literal["internal", "client"] = "internal"
    error: str | None = None
    """Why it counts as failed."""
    moments: tuple[Moment, ...] = ()

    def as_json(self, service: str) -> dict[str, Any]:
        """The span as a line of a file."""
        return {
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "parent_id": self.parent_id,
            "service": service,
            "name": self.name,
            "kind": self.kind,
            "start": iso(self.start),
            "end": iso(self.end),
            "seconds": round((self.end - self.start) / 1e9, 6),
            "error": self.error,
            "attributes": dict(self.attributes),
            "events": [{"name": m.name, "at": iso(m.at), "attributes": dict(m.attributes)} for m in self.moments],
        }

    def cleaned(self, clean: Callable[[Any], Any]) -> Span:
        """The span with every text of it passed through a function."""
        return replace(
            self,
            name=clean(self.name),
            attributes=clean(self.attributes),
            error=clean(self.error),
            moments=tuple(replace(moment, attributes=clean(moment.attributes)) for moment in self.moments),
        )


def iso(nanoseconds: int) -> str:
    """A time as text, to the microsecond."""
    return (EPOCH + timedelta(microseconds=nanoseconds // 1_000)).isoformat(timespec="microseconds")


def nanoseconds(text: str) -> int:
    """A time in ISO 8601 as nanoseconds since 1970."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1) * 1_000
