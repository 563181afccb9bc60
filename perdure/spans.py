"""Names of the things that are watched: ids of traces and spans, which follow from a run's own identity.

The same thing has the same id on every worker, in every replay and after a restart; nothing has to be remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where a run stands: its own span, its trace, and the span of the call that started it."""

    trace_id: str
    """32 hex digits; the same for a run and all runs below it."""
    span_id: str
    """16 hex digits."""
    parent_id: str | None
    """16 hex digits; None for a run that no other run has started."""


def place_of(first_run: str, key_prefix: str) -> Place:
    """The place of a run by its first execution's run id and the prefix of its idempotency keys.

    The prefix is `run/call/digest/` for each run above, the topmost first.
    """
    above = key_prefix.strip("/").split("/") if key_prefix else []
    root = above[0] if above else first_run
    parent = part_of(run_span(above[-3]), above[-2]) if len(above) >= 3 else None
    return Place(_hash("trace", root, 32), run_span(first_run), parent)


def run_span(first_run: str) -> str:
    """The span of a run."""
    return _hash("run", first_run, 16)


def part_of(span: str, part: str) -> str:
    """The span of something inside another: of a call in a run, of an attempt in a call."""
    return _hash(span, part, 16)


def model_call(messages: int) -> str:
    """How a model call is named inside its run: by the number of messages before it."""
    return f"m{messages}"


def part_named(event: Mapping[str, Any], messages: int) -> str | None:
    """Which part of a run an event is about; None for the run as a whole.

    `messages` is how many there were before the last model call.
    """
    if event["type"] in {"reply", "text", "reset"}:
        return model_call(messages)
    call = event.get("call_id") or str(event.get("question_id", "")).removeprefix("q-")
    return str(call).partition("/")[0] or None


def _hash(space: str, name: str, length: int) -> str:
    return sha256(f"{space}:{name}".encode()).hexdigest()[:length]
