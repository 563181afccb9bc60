"""What a turn costs in history: bytes and events, as the slope between two lengths of run.

python bench/history.py            prints the table
python bench/history.py --check    exits with 1 where a figure is above its bound
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.agents import AGENTS, REPLY, RESULT
from bench.lab import Bench, lab, size_of
from bench.rows import Figure, Row
from bench.sides import LOOP, ORDINARY, PERDURE, POLICY, QUICK

SHORT, LONG = 80, 320
"""Turns of the two runs whose difference is the slope."""
LONG_POLICY = 300
"""With a policy the longer run has so many: it would be continued as new otherwise."""


@dataclass(frozen=True)
class Bound:
    """The most that a turn may take; the fixed part besides the spec."""

    bytes: float
    events: float
    fixed_bytes: float = 8 * 1024
    fixed_events: float = 25


BOUNDS = {ORDINARY: Bound(2_330, 12), QUICK: Bound(2_060, 7), POLICY: Bound(2_760, 13)}
"""A little above what was measured last, so that growth is noticed; the figures to reach are those below."""

REACH = {ORDINARY: Bound(2_500, 12), QUICK: Bound(2_150, 7), POLICY: Bound(3_000, 13)}
"""What the design asks for; of a policy only that it takes at most one event."""
NAMES = {ORDINARY: "ordinary tool", QUICK: "quick tool", POLICY: "ordinary tool, with a policy"}


@dataclass(frozen=True)
class Measured:
    """Slope and fixed part of one kind of run."""

    bytes: float
    events: float
    fixed_bytes: float
    fixed_events: float

    def keeps(self, bound: Bound) -> bool:
        """Whether nothing is above its bound."""
        pairs = (
            (self.bytes, bound.bytes),
            (self.events, bound.events),
            (self.fixed_bytes, bound.fixed_bytes),
            (self.fixed_events, bound.fixed_events),
        )
        return all(got <= most for got, most in pairs)


async def measure(bench: Bench, kind: str, short: int = SHORT, long: int | None = None) -> Measured:
    """Run both lengths and take the slope; the fixed part is what is left besides the recorded spec."""
    n0, n1 = short, long or (LONG_POLICY if kind == POLICY else LONG)
    (bytes0, events0), (bytes1, events1) = [await size_of(await bench.run(kind, turns)) for turns in (n0, n1)]
    slope, events = (bytes1 - bytes0) / (n1 - n0), (events1 - events0) / (n1 - n0)
    spec = len(AGENTS[kind].spec().model_dump_json().encode()) if bench.side is PERDURE else 0
    return Measured(slope, events, bytes0 - slope * n0 - spec, events0 - events * n0)


async def rows(*, quick: bool) -> list[Row]:
    """The rows of the table."""
    lengths = (5, 15) if quick else (SHORT, None)
    found: dict[tuple[str, str], Measured] = {}
    async with lab() as (_, benches):
        for kind in (ORDINARY, QUICK, POLICY):
            able = [bench for bench in benches if kind in bench.side.kinds]
            # Side by side: what is counted is not changed by that.
            measured = await asyncio.gather(*(measure(bench, kind, *lengths) for bench in able))
            found |= {(bench.side.name, kind): one for bench, one in zip(able, measured, strict=True)}
    made: list[Row] = []
    for kind, reach in REACH.items():
        own, other = found[PERDURE.name, kind], found.get((LOOP.name, kind))
        # One figure only where the design has one: what a policy's bytes are is shown.
        most = None if kind == POLICY else Figure(reach.bytes, of="perdure")
        name = NAMES[kind]
        made += [
            Row(
                f"history_bytes_{kind}",
                f"history a turn, {name}",
                "bytes",
                own.bytes,
                other.bytes if other else None,
                most,
            ),
            Row(
                f"history_events_{kind}",
                f"events a turn, {name}",
                "events",
                own.events,
                other.events if other else None,
                Figure(reach.events, of="perdure"),
            ),
        ]
    fixed, loop_fixed = found[PERDURE.name, ORDINARY], found[LOOP.name, ORDINARY]
    bytes_, events = Figure(REACH[ORDINARY].fixed_bytes, of="perdure"), Figure(25, of="perdure")
    return [
        *made,
        Row(
            "history_fixed_bytes",
            "history besides turns and spec",
            "bytes",
            fixed.fixed_bytes,
            loop_fixed.fixed_bytes,
            bytes_,
        ),
        Row(
            "history_fixed_events",
            "events besides turns",
            "events",
            fixed.fixed_events,
            loop_fixed.fixed_events,
            events,
        ),
    ]


async def measure_all() -> dict[str, Measured]:
    """All kinds of Perdure's runs, one after the other."""
    async with lab((PERDURE,)) as (_, [bench]):
        return {kind: await measure(bench, kind) for kind in BOUNDS}


def report(measured: dict[str, Measured]) -> bool:
    """Print the table; True where every figure keeps its bound."""
    print(f"history a turn: slope between {SHORT} and {LONG} turns, {RESULT}-byte results, {REPLY}-character replies")
    print(f"{'':30}{'bytes':>8} {'bound':>7} {'events':>7} {'bound':>6} {'fixed bytes':>12} {'fixed events':>13}")
    for kind, got in measured.items():
        bound = BOUNDS[kind]
        print(
            f"{NAMES[kind]:30}{got.bytes:8.0f} {bound.bytes:7.0f} {got.events:7.2f} {bound.events:6.0f} "
            f"{got.fixed_bytes:12.0f} {got.fixed_events:13.1f}{'' if got.keeps(bound) else '   ABOVE ITS BOUND'}"
        )
    return all(got.keeps(BOUNDS[kind]) for kind, got in measured.items())


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a figure is above its bound")
    options = parser.parse_args(arguments)
    kept = report(asyncio.run(measure_all()))
    return 0 if kept or not options.check else 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
