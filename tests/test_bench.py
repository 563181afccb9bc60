"""The table of figures: a smoke run measures every row, and rows are judged by what the design asks for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.rows import Figure, Row, table

ROOT = Path(__file__).resolve().parents[1]
JUDGED = {
    "history_bytes_ordinary": "at most 2500",
    "history_bytes_quick": "at most 2150",
    "history_events_ordinary": "at most 12",
    "history_events_quick": "at most 7",
    "history_events_policy": "at most 13",
    "history_fixed_bytes": "at most 8192",
    "history_fixed_events": "at most 25",
    "cpu_turn": "at most 1.15x",
    "replay": "at most 1.05x",
    "wall_turn": "at most 1.1x",
    "wall_turn_quick": "at most 0.75x",
    "throughput": "at least 0.85x",
    "throughput_quick": "at least 1.2x",
    "stream_events": "at most 0",
    "stream_updates": "at most 0",
    "stream_signals": "at most 0",
    "kills_twice": "at most 0",
    "kills_lost": "at most 0",
    "kills_reported": "at most 7",
    "memory_held": "at most 160",
}
"""What the design asks for, by the key of its row."""
SHOWN = {
    "history_bytes_policy",
    "cpu_turn_quick",
    "wall_turn_both_quick",
    "throughput_both_quick",
    "memory_aside",
    "decision_update",
    "decision_signal",
}
"""Rows without a figure to reach."""
COUNTED = {key for key in JUDGED if key.startswith(("history_events", "stream", "kills_twice", "kills_lost"))}
"""What even a smoke run on a busy machine must reach: it is counted, not timed."""


def row(perdure: float, loop: float | None, figure: Figure | None) -> Row:
    """A row of these measurements."""
    return Row("key", "something", "ms", perdure, loop, figure)


def test_a_ratio_is_judged_by_both_sides() -> None:
    """A figure of a ratio looks at Perdure beside the loop, and is missed where there is nothing beside it."""
    assert row(11, 10, Figure(1.1)).ok is True
    assert row(12, 10, Figure(1.1)).ok is False
    assert row(12, 10, Figure(1.2, least=True)).ok is True
    assert row(12, None, Figure(1.1)).ok is False
    assert row(12, 0, Figure(1.1)).ok is False


def test_an_amount_is_judged_alone() -> None:
    """A figure of an amount looks at Perdure only, and a row without a figure is not judged."""
    assert row(12, 1, Figure(12, of="perdure")).ok is True
    assert row(13, 100, Figure(12, of="perdure")).ok is False
    assert row(13, 100, None).ok is None


def test_the_table_names_what_is_missed() -> None:
    """Each row has its figures, what to reach, and whether it is."""
    shown = table([row(11, 10, Figure(1.1)), row(12, 10, Figure(1.1)), row(12, None, None)]).splitlines()
    assert shown[0].split() == ["what", "unit", "Perdure", "loop", "ratio", "to", "reach"]
    assert shown[1].split() == ["something", "ms", "11", "10", "1.10", "at", "most", "1.1x", "ok"]
    assert shown[2].endswith("NOT OK")
    assert shown[3].split() == ["something", "ms", "12", "-", "-", "-"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_smoke_run_measures_every_row(tmp_path: Path) -> None:
    """`--quick --json` ends well, has every row of the design with its figure, and keeps what is counted."""
    file = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.table", "--quick", "--json", str(file)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(file.read_text())
    rows: dict[str, dict[str, Any]] = {found["key"]: found for found in written["rows"]}
    assert written["quick"] is True
    assert {key: found["reach"] for key, found in rows.items() if found["reach"]} == JUDGED
    assert rows.keys() == JUDGED.keys() | SHOWN
    for found in rows.values():
        assert list(found) == ["key", "what", "unit", "perdure", "loop", "ratio", "reach", "ok", "note"]
        assert found["what"] in done.stdout
    assert {key for key in COUNTED if not rows[key]["ok"]} == set()
