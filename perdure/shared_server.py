"""One embedded server for every process that works on a folder: the first starts it, the last stops it."""

from __future__ import annotations

import os
import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from perdure.embedded import EmbeddedServer, Endpoint, FolderInUse
from perdure.errors import ConfigError

START_WAIT = 30.0
STOP_WAIT = 10.0
OWNED = "local.pid"
"""Holds the process id of a server that a user started; one that somebody else started is never stopped."""
USERS = "users.lock"


class Origin(StrEnum):
    """Who started the server that is used."""

    OWN = "own"
    """This process."""
    ORPHAN = "orphan"
    """A user that has ended without stopping it; no other uses it, so the end of this one stops it."""
    SHARED = "shared"
    """Another user, which lives; the last one stops it."""
    FOREIGN = "foreign"
    """Nobody of the users; it is never stopped."""


class SharedServer:
    """A server of a folder, whoever started it. Each user holds a lock that ends with its process, however it ends.

    The ports count where a server is started here; without any it has no web UI if `headless`.
    """

    def __init__(
        self, data_dir: Path, *, port: int | None = None, ui_port: int | None = None, headless: bool = True
    ) -> None:
        self._data_dir = data_dir
        self._new = EmbeddedServer(data_dir, port=port, ui_port=ui_port, headless=headless)
        self._server: EmbeddedServer | None = None
        self._users: BinaryIO | None = None
        self.origin = Origin.OWN
        """Known once it is open."""

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._new.log

    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._server.alive if self._server else EmbeddedServer.running(self._data_dir) is not None

    def open(self) -> Endpoint:
        """The running server, or a new one; raises ConfigError, EmbeddedServerError."""
        if os.name != "posix":
            raise ConfigError("perdure.local() needs Linux or macOS; run a server and use perdure.Client")
        import fcntl  # not on Windows

        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._users = (self._data_dir / USERS).open("ab")
        alone = True
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        fcntl.flock(self._users, fcntl.LOCK_SH)
        deadline = time.monotonic() + START_WAIT
        while (running := EmbeddedServer.running(self._data_dir)) is None:
            try:
                running = self._new.open()
            except FolderInUse:  # another process was faster, or its server is still stopping
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
                continue
            self._server = self._new
            (self._data_dir / OWNED).write_text(str(running.pid))
            return running
        if not self._owned(running):
            self.origin = Origin.FOREIGN
        else:
            self.origin = Origin.ORPHAN if alone else Origin.SHARED
        return running

    def close(self) -> bool:
        """Leave the server; the last user stops it, where a user started it. False where it is left running.

        A second call does nothing.
        """
        users, self._users = self._users, None
        if users is None:
            return True
        import fcntl

        with users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return not self.alive()
            if self._server is not None:
                self._server.close()
                return True
            return self._stop_orphan()

    def _stop_orphan(self) -> bool:
        """Stop a server that a user started which has ended since."""
        running = EmbeddedServer.running(self._data_dir)
        if running is None:
            return True
        if not self._owned(running):
            return False
        os.kill(running.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_WAIT
        while EmbeddedServer.running(self._data_dir) is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        return True

    def _owned(self, running: Endpoint) -> bool:
        owned = self._data_dir / OWNED
        return owned.is_file() and owned.read_text() == str(running.pid)
