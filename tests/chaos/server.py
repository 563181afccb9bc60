"""A Temporal server that is killed, frozen and started again at the same address."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from perdure.embedded import EmbeddedServer


class Server:
    """A server whose process can be killed; it comes back on the same file and port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = EmbeddedServer(folder, headless=True)
        self._server.open()
        self.address = self._server.address

    def kill(self) -> None:
        """End it at once."""
        os.kill(self._server.pid, signal.SIGKILL)
        self._server.close()

    def restart(self) -> None:
        """Start it on the same file and port."""
        self._server = EmbeddedServer(self._folder, port=int(self.address.rsplit(":", 1)[1]), headless=True)
        self._server.open()

    def freeze(self) -> None:
        """Let it answer nothing, as behind a broken network."""
        os.kill(self._server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self._server.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop it."""
        self._server.close()
