"""One embedded server for every process that works on a folder: the first starts it, the last stops it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import BinaryIO

from perdure.embedded import EmbeddedServer, Endpoint, FolderInUse
from perdure.errors import ConfigError

START_WAIT = 30.0
STOP_WAIT = 10.0
OWNED = "local.pid"
"""Holds the process id of a server that was started here; one that somebody else started is never stopped."""
USERS = "users.lock"


class SharedServer:
    """A server of a folder, whoever started it. Each user holds a lock that ends with its process, however it ends."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._server: EmbeddedServer | None = None
        self._users: BinaryIO | None = None

    def open(self) -> Endpoint:
        """The running server, or a new one; raises ConfigError, EmbeddedServerError."""
        if os.name != "posix":
            raise ConfigError("perdure.local() needs Linux or macOS; run a server and use perdure.Client")
        import fcntl  # not on Windows

        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._users = (self._data_dir / USERS).open("ab")
        fcntl.flock(self._users, fcntl.LOCK_SH)
        deadline = time.monotonic() + START_WAIT
        while (running := EmbeddedServer.running(self._data_dir)) is None:
            server = EmbeddedServer(self._data_dir, headless=True)
            try:
                running = server.open()
            except FolderInUse:  # another process was faster, or its server is still stopping
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
                continue
            self._server = server
            (self._data_dir / OWNED).write_text(str(running.pid))
            break
        return running

    def close(self) -> None:
        """Leave the server; the last user stops it, where it was started here. A second call does nothing."""
        users, self._users = self._users, None
        if users is None:
            return
        import fcntl

        with users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if self._server is not None:
                self._server.close()
            else:
                self._stop_orphan()

    def _stop_orphan(self) -> None:
        """Stop a server that a user started which has ended since."""
        running = EmbeddedServer.running(self._data_dir)
        owned = self._data_dir / OWNED
        if running is None or not owned.is_file() or owned.read_text() != str(running.pid):
            return
        os.kill(running.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_WAIT
        while EmbeddedServer.running(self._data_dir) is not None and time.monotonic() < deadline:
            time.sleep(0.02)
