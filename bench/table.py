"""The figures of Perdure beside a hand-written loop, measured in one go: `make bench`.

python -m bench.table                 all of it, some minutes on two cores
python -m bench.table --quick         a smoke run in about a minute: its figures say nothing
python -m bench.table --only turns    some measurements, by the names of their modules
python -m bench.table --json FILE     writes the rows to a file too

Ratios and slopes are judged, times are only shown: they are those of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bench import decisions, history, kills, memory, replays, streams, throughput, turns
from bench.rows import Row, as_json, table


class Measurement(Protocol):
    """What a module offers."""

    def __call__(self, *, quick: bool) -> Awaitable[list[Row]]:
        """Measure."""
        ...


MEASUREMENTS: Mapping[str, Measurement] = {
    "history": history.rows,
    "turns": turns.rows,
    "replays": replays.rows,
    "throughput": throughput.rows,
    "streams": streams.rows,
    "kills": kills.rows,
    "memory": memory.rows,
    "decisions": decisions.rows,
}


async def measure(names: Sequence[str], *, quick: bool) -> list[Row]:
    """The rows of these measurements, one after the other: they would disturb each other."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # the server must not be left behind
    rows: list[Row] = []
    for name in names:
        begun = time.perf_counter()
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        rows += await MEASUREMENTS[name](quick=quick)
        print(f"{time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    return rows


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command: 1 where a figure is not reached; a quick run judges nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run with small numbers")
    parser.add_argument("--only", action="append", choices=[*MEASUREMENTS], help="measure this; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file too")
    options = parser.parse_args(arguments)
    try:
        rows = asyncio.run(measure(options.only or [*MEASUREMENTS], quick=options.quick))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    if options.json:
        options.json.write_text(as_json(rows, quick=options.quick))
    print(table(rows))
    for note in dict.fromkeys(row.note for row in rows if row.note):
        print(f"- {note}")
    missed = [row.key for row in rows if row.ok is False]
    return 1 if missed and not options.quick else 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
