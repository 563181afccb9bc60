"""Ways out for what is watched: a bounded queue with a thread of its own, and a file of JSON lines.

Whoever puts something in never waits and never sees an error; what the other end cannot take is lost.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from perdure.errors import ConfigError

T = TypeVar("T")

MOST = 10_000
"""Things that wait for a slow end; then the oldest are dropped."""
BATCH = 500
"""Things that are handed on at once."""
CLOSE_WAIT = 3.0
"""Seconds that closing waits for the rest to go out."""

_log = logging.getLogger("perdure.watching")


class Outlet(Generic[T]):
    """Hands things to a function, in order and in batches, in a thread of its own."""

    def __init__(
        self,
        name: str,
        take: Callable[[list[T], int], None],
        done: Callable[[], object] = lambda: None,
        *,
        most: int = MOST,
        linger: float = 0.0,
    ) -> None:
        """`take` gets a batch, and how many were dropped before it; what it raises is logged once.

        `done` is called at the end, in the same thread. `linger` is how many seconds a batch may wait to grow.
        """
        self._name = name
        self._take = take
        self._done = done
        self._most = most
        self._linger = linger
        self._waiting: deque[T] = deque()
        self._dropped = 0
        self._complained: set[str] = set()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"perdure-{name}", daemon=True)
        self._thread.start()

    def put(self, thing: T) -> None:
        """Leave something to be handed on."""
        with self._changed:
            if self._closing:
                return
            if len(self._waiting) >= self._most:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(thing)
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """How many things wait."""
        return len(self._waiting)

    def close(self, within: float) -> bool:
        """Hand on what is left, for a bounded time; False where that was not enough."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(within)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._hand_on()
        finally:
            with suppress(Exception):
                self._done()

    def _hand_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if self._linger and not self._closing:
                    self._changed.wait_for(lambda: self._closing or len(self._waiting) >= BATCH, self._linger)
                if not self._waiting:
                    return
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self.complain("is too slow; events are dropped")
            try:
                self._take(batch, dropped)
            except Exception as error:
                self.complain(f"{type(error).__name__}: {error}")

    def complain(self, why: str) -> None:
        """Log what is wrong, once for each kind of trouble."""
        kind = why.partition(":")[0]
        if kind not in self._complained:
            self._complained.add(kind)
            _log.warning("%s %s; runs go on, and this is said only once", self._name, why)


def close_all(outlets: Sequence[Outlet[Any]], within: float = CLOSE_WAIT) -> None:
    """Close one after the other, all in a bounded time; blocks for as long."""
    until = time.monotonic() + within
    for outlet in outlets:
        outlet.close(max(0.0, until - time.monotonic()))


class JsonLines:
    """Appends values to a file, a line of JSON each. Only its owner may read it; several may append to it."""

    def __init__(self, path: os.PathLike[str] | str, setting: str) -> None:
        """`setting` is what names the file to users; raises ConfigError that names it where there is no folder for it.

        The folder is never made: a mistyped one would go unnoticed.
        """
        self._path = os.path.abspath(path)
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise ConfigError(f"{setting}: there is no folder {folder!r}; make it, or correct the path {self._path!r}")
        self._file: int | None = None
        self._torn = False

    def write(self, values: Iterable[Mapping[str, Any]]) -> None:
        """Append and flush; raises OSError, after which the next line begins on its own again."""
        text = "".join(f"{json.dumps(value, ensure_ascii=False, default=str)}\n" for value in values)
        begin = "\n" if self._torn else ""
        rest = memoryview(f"{begin}{text}".encode(errors="replace"))
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            while rest:
                written = os.write(self._file, rest)
                self._torn = True
                rest = rest[written:]
        except OSError:
            self.close()
            raise
        self._torn = False

    def close(self) -> None:
        """Close the file; it is opened again where something is written later."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
