"""Rows of the table: what was measured of each side, and whether the figure is reached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A figure to reach: `value` is judged, of the ratio where `of` is "ratio", else of what Perdure takes."""

    value: float
    least: bool = False
    of: str = "ratio"

    def kept(self, measured: float) -> bool:
        """Whether what was measured reaches it."""
        return measured >= self.value if self.least else measured <= self.value

    def __str__(self) -> str:
        unit = "x" if self.of == "ratio" else ""
        return f"{'at least' if self.least else 'at most'} {self.value:g}{unit}"


@dataclass(frozen=True)
class Row:
    """One measurement: `loop` is None where the loop has no such thing; without a figure nothing is judged."""

    key: str
    what: str
    unit: str
    perdure: float
    loop: float | None = None
    figure: Figure | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Perdure in relation to the loop; None where the loop has nothing that could be compared."""
        return self.perdure / self.loop if self.loop and self.loop > 0 else None

    @property
    def ok(self) -> bool | None:
        """Whether the figure is reached; None without one."""
        if self.figure is None:
            return None
        measured = self.ratio if self.figure.of == "ratio" else self.perdure
        return measured is not None and self.figure.kept(measured)

    def as_json(self) -> dict[str, Any]:
        """The row with what follows from it."""
        return {
            "key": self.key,
            "what": self.what,
            "unit": self.unit,
            "perdure": round(self.perdure, 4),
            "loop": None if self.loop is None else round(self.loop, 4),
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "reach": None if self.figure is None else str(self.figure),
            "ok": self.ok,
            "note": self.note,
        }


COLUMNS: Sequence[tuple[str, int, Callable[[Row], str]]] = (
    ("what", -58, lambda row: row.what),
    ("unit", -7, lambda row: row.unit),
    ("Perdure", 9, lambda row: number(row.perdure)),
    ("loop", 9, lambda row: number(row.loop)),
    ("ratio", 6, lambda row: "-" if row.ratio is None else f"{row.ratio:.2f}"),
    ("to reach", 15, lambda row: str(row.figure or "-")),
    ("", -6, lambda row: {True: "ok", False: "NOT OK", None: ""}[row.ok]),
)


def number(value: float | None) -> str:
    """A figure in at most six characters or so."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def table(rows: Iterable[Row]) -> str:
    """All rows as text."""
    lines = ["  ".join(_cell(title, width) for title, width, _ in COLUMNS)]
    lines += ["  ".join(_cell(shown(row), width) for _, width, shown in COLUMNS) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def as_json(rows: Iterable[Row], *, quick: bool) -> str:
    """All rows as JSON text."""
    return json.dumps({"quick": quick, "rows": [row.as_json() for row in rows]}, indent=2) + "\n"


def _cell(text: str, width: int) -> str:
    return text.ljust(-width) if width < 0 else text.rjust(width)
