"""What the commands print: text of strangers made harmless, tables, one JSON document."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from pydantic_core import to_jsonable_python
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 200
"""Columns of a table that goes to a file or a pipe, where 80 would fold it."""

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
"""Characters that move the cursor, change colours or turn the direction of text."""
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(value: object) -> str:
    """Text that a terminal shows as it is."""
    return _SURROGATES.sub("\ufffd", _HIDDEN.sub("", str(value)))


def line(value: object, most: int = 400) -> str:
    """Clean text on one line, cut after `most` characters."""
    text = " ".join(clean(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def show(value: object = "", style: str = "") -> None:
    """Print text on standard output; it is never read as markup."""
    _console().print(Text(clean(value), style=style), soft_wrap=True)


def note(value: object) -> None:
    """Print one line for people on standard error."""
    print(f"perdure: {line(value, 2_000)}", file=sys.stderr, flush=True)


def note_json(value: Any) -> None:
    """Print one JSON object for programs on standard error."""
    print(_SURROGATES.sub("\ufffd", json.dumps(value)), file=sys.stderr, flush=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; long cells are folded, never cut."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else clean(cell)) for cell in row))
    _console().print(table)


def show_rich(drawing: RenderableType) -> None:
    """Print what rich draws; its texts must be clean."""
    _console().print(drawing)


def show_json(value: Any) -> None:
    """Print one JSON document on one line."""
    plain = to_jsonable_python(value, fallback=str)
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    print(_SURROGATES.sub("\ufffd", json.dumps(plain, ensure_ascii=ascii_only)), flush=True)


def counted(count: float, noun: str) -> str:
    """A number of things: 1 step, 2 steps, 1.5 days."""
    return f"{count:.12g} {noun}{'' if count == 1 else 's'}"


def short_json(value: Any) -> str:
    """A value as compact JSON for a cell."""
    return json.dumps(value, ensure_ascii=False, default=str)


def moment(at: datetime | None) -> str:
    """A time as people here read it, to the second, with its zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z") if at else ""


def _console() -> Console:
    # Made for each use: the stream may have been replaced, and its width may have changed.
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, highlight=False, emoji=False, markup=False, width=width)
