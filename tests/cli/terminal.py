"""`perdure` on a terminal of its own, as a person sees it and types."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from types import TracebackType
from typing import Self

from tests.cli.command_line import CommandLine


class Terminal:
    """A command that runs on a pseudo-terminal; `seen` is all that it has shown."""

    def __init__(self, perdure: CommandLine, *arguments: str, columns: int = 80, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.seen = ""
        self._bytes = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perdure", *arguments],
            env={"TERM": "xterm", **perdure.environment, **environment},
            cwd=perdure.folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            # Its own session, with this terminal as the one whose keys send signals.
            start_new_session=True,
        )
        os.close(slave)

    def until(self, text: str, count: int = 1, within: float = 30) -> str:
        """Wait until it has shown a text so many times."""
        deadline = time.monotonic() + within
        while self.seen.count(text) < count:
            assert time.monotonic() < deadline, f"{text!r} has not come:\n{self.seen}"
            assert self._read(0.1) or self.process.poll() is None, f"it ended without {text!r}:\n{self.seen}"
        return self.seen

    def press(self, text: str) -> None:
        """Press these keys."""
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def finish(self, within: float = 60) -> int:
        """Its exit code, when all that it has shown is read."""
        deadline = time.monotonic() + within
        while self._read(0.1) or self.process.poll() is None:
            assert time.monotonic() < deadline, f"it goes on:\n{self.seen}"
        assert "Traceback" not in self.seen
        return self.process.wait()

    def hang_up(self) -> None:
        """Close the terminal's window."""
        os.close(self._master)
        self._master = -1
        self.process.send_signal(signal.SIGHUP)

    def _read(self, wait: float) -> bool:
        if not select.select([self._master], [], [], wait)[0]:
            return False
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the end of a terminal whose process has gone
            return False
        self._bytes += data
        self.seen = self._bytes.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)
