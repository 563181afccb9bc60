"""Sinks: every event that a worker or a client sees, redacted, in a file of JSON lines or given to a function.

Each sink has a thread and a bounded queue of its own. One that raises, blocks or is slow is logged once; what it does
not take is lost, and no run and no other sink notices.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from inspect import isawaitable
from typing import Any, TypeVar

from pydantic import BaseModel

from perdure.announcement import Announcement
from perdure.errors import ConfigError
from perdure.event import Event
from perdure.events import parse_event
from perdure.outlets import CLOSE_WAIT, JsonLines, Outlet, close_all
from perdure.redact import Flow, Redactor

Function = Callable[[Event], Awaitable[object] | object]
OnEvent = Function | None
"""Takes an event, as its type; may be async. None where nobody wants them."""
Seen = Announcement | Mapping[str, Any]
"""What a worker is told, or an event that a client has seen."""
E = TypeVar("E", bound=BaseModel)
FLOWS = 1_000
"""Texts that are being written at once."""


def check_sinks(events_file: object, on_event: object) -> None:
    """Raise ConfigError that names what is no file or function."""
    check_path("events_file", events_file)
    if on_event is not None and not callable(on_event):
        raise ConfigError(f"on_event: must be a function that takes an event, not {on_event!r:.80}")


def check_path(name: str, path: object) -> None:
    """Raise ConfigError that names what is no path."""
    if not isinstance(path, str | os.PathLike | None):
        raise ConfigError(f"{name}: must be a path, not {path!r:.80}")


class EventSinks:
    """The sinks of one worker or client."""

    def __init__(
        self,
        *,
        events_file: os.PathLike[str] | str | None = None,
        on_event: OnEvent = None,
        secrets: Iterable[str] = (),
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`secrets` are taken out by heart. `loop` is where an async `on_event` runs; without one it has its own.

        Raises ConfigError where one is none, or `events_file` is in no folder.
        """
        check_sinks(events_file, on_event)
        redactor = Redactor(secrets)
        self._outlets: list[Outlet[Seen]] = []
        if events_file is not None:
            self._outlets.append(_file_outlet(events_file, redactor))
        if on_event is not None:
            self._outlets.append(_function_outlet(on_event, redactor, loop))
        if self._outlets:
            atexit.register(self.close)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._outlets)

    def put(self, seen: Seen) -> None:
        """Give an event to every sink; returns at once, in any thread."""
        for outlet in self._outlets:
            outlet.put(seen)

    async def tap(self, run: str, events: AsyncGenerator[E, None]) -> AsyncGenerator[E, None]:
        """The same events of a run; each goes to the sinks too when it is taken."""
        async with aclosing(events):
            async for event in events:
                self.put({"run": run, **event.model_dump(mode="json", exclude_unset=True, exclude_none=True)})
                yield event

    def close(self, within: float = CLOSE_WAIT) -> None:
        """Let the rest go out, for a bounded time; blocks for as long. Done at the exit of the process at last."""
        atexit.unregister(self.close)
        close_all(self._outlets, within)


class Clean:
    """Makes redacted events of what was seen; a text that is being written is given on some words later."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._flows: dict[tuple[Any, ...], _Writing] = {}

    def events(self, batch: Iterable[Seen], dropped: int) -> Iterator[dict[str, Any]]:
        """The events of a batch, a marker before them where some were dropped."""
        if dropped:
            yield {"type": "dropped", "at": datetime.now(UTC).isoformat(), "count": dropped}
        for seen in batch:
            event = seen.as_event() if isinstance(seen, Announcement) else dict(seen)
            yield from self._event(event)

    def _event(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        kind, key = event["type"], (event.get("run", ""), event.get("span_id", ""))
        if kind == "text":
            yield from self._flow(key, event).feed(event)
            return
        if kind in {"reset", "reply", "run_ended"}:
            ended = [k for k in self._flows if (k == key if kind != "run_ended" else k[0] == key[0])]
            for writing in [self._flows.pop(k) for k in ended]:
                if kind != "reset":
                    yield from writing.rest()
        yield self._redactor.value(event)

    def _flow(self, key: tuple[Any, ...], event: dict[str, Any]) -> _Writing:
        known = self._flows.get(key)
        if known is None or known.attempt != event.get("attempt"):
            known = self._flows[key] = _Writing(self._redactor, event)
            if len(self._flows) > FLOWS:
                self._flows.pop(next(iter(self._flows)))
        return known


class _Writing:
    """The text of one attempt of a model call; offsets count what was shown of it."""

    def __init__(self, redactor: Redactor, event: Mapping[str, Any]) -> None:
        self.attempt = event.get("attempt")
        self._redactor = redactor
        self._flow = Flow(redactor)
        self._offset = event.get("offset") or 0
        self._last: Mapping[str, Any] = event

    def feed(self, event: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The text that may be shown by now, as an event."""
        self._last = event
        yield from self._shown(self._flow.feed(event.get("text") or ""))

    def rest(self) -> Iterator[dict[str, Any]]:
        """The rest of it."""
        yield from self._shown(self._flow.rest())

    def _shown(self, text: str) -> Iterator[dict[str, Any]]:
        if text:
            about = self._redactor.value({k: v for k, v in self._last.items() if k != "text"})
            yield {**about, "text": text, "offset": self._offset}
            self._offset += len(text)


def _file_outlet(path: os.PathLike[str] | str, redactor: Redactor) -> Outlet[Seen]:
    lines, clean = JsonLines(path, "PERDURE_EVENTS_FILE (events_file=)"), Clean(redactor)

    def take(batch: list[Seen], dropped: int) -> None:
        lines.write(clean.events(batch, dropped))

    return Outlet(f"events file {os.fspath(path)!r}", take, lines.close)


def _function_outlet(function: Function, redactor: Redactor, loop: asyncio.AbstractEventLoop | None) -> Outlet[Seen]:
    clean, runner = Clean(redactor), asyncio.Runner()

    async def finish(result: Awaitable[object]) -> None:
        await result

    def call(event: Event) -> None:
        if loop is not None and not loop.is_running():
            raise RuntimeError("its event loop does not run any more")
        result = function(event)
        if not isawaitable(result):
            return
        if loop is None:
            runner.run(finish(result))
        else:
            asyncio.run_coroutine_threadsafe(finish(result), loop).result()

    def take(batch: list[Seen], dropped: int) -> None:
        for event in clean.events(batch, dropped):
            try:
                call(parse_event(event))
            except Exception as error:  # the next event may be taken
                outlet.complain(f"{type(error).__name__}: {error}")

    outlet: Outlet[Seen] = Outlet("on_event", take, runner.close)
    return outlet
