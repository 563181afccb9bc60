"""Where a followed run is shown: lines, and between them the text that a model is writing just now."""

from __future__ import annotations

import sys

from perdure.cli.output import clean, note, show


class Screen:
    """Standard output. On a terminal text appears as it comes; a file or pipe gets lines of what is recorded."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self.text = ""
        """What was shown of the reply that is being written; only on a terminal."""
        self._open = False
        """Whether the last line is not ended yet."""

    def line(self, text: str = "", style: str = "") -> None:
        """Show a line of its own."""
        self._end_line()
        show(text, style)

    def note(self, text: object) -> None:
        """Tell people about it, on standard error."""
        self._end_line()
        note(text)

    def write(self, delta: str, head: str) -> None:
        """Show what the model has said further; `head` stands before the beginning."""
        if not self.live:
            return
        shown = clean(delta)
        if shown:
            self._print(shown if self.text else f"{head}{shown}")
        self.text += delta

    def reset(self, attempt: int | None) -> None:
        """Say that the text shown so far is void."""
        if self.text:
            self.line(f"  (attempt {attempt or ''} begins anew; the text above does not count)", "red")
        self.text = ""

    def take_text(self) -> str:
        """The text that was shown of the reply which is complete now."""
        text, self.text = self.text, ""
        self._end_line()
        return text

    def _print(self, text: str) -> None:
        print(text, end="", flush=True)
        self._open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._open:
            self._print("\n")
