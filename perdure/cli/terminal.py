"""Lines from the keyboard, awaited beside other work: a question can be withdrawn while it is being answered."""

from __future__ import annotations

import asyncio
import os
import sys


class Keyboard:
    """Standard input of a terminal, line by line."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._file = sys.stdin.fileno()
        self._loop.add_reader(self._file, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._file, 4096)
        except OSError:  # the terminal has been closed
            data = b""
        if not data:  # the end of input: nobody will answer any more
            self._loop.remove_reader(self._file)
            self._lines.put_nowait(None)
        for text in data.decode(errors="replace").splitlines():
            self._lines.put_nowait(text)

    def take(self) -> list[str | None]:
        """The lines that have come since; None at the end of input."""
        lines = []
        while not self._lines.empty():
            lines.append(self._lines.get_nowait())
        return lines

    def close(self) -> None:
        """Leave standard input alone."""
        self._loop.remove_reader(self._file)
