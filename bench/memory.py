"""What a worker keeps in memory of runs that wait for a person, and what is left when it puts them aside."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from bench.lab import Bench, at_once, idle, lab
from bench.rows import Figure, Row
from bench.sides import APPROVAL, LOOP, PERDURE

RUNS, WARM = 1_000, 20
HELD = Figure(160, of="perdure")
"""KB a run, as the README says it."""


@dataclass(frozen=True)
class Kept:
    """KB a run: while it is held, and after it was put aside."""

    held: float
    aside: float


async def bring_to_wait(bench: Bench, runs: int) -> list[str]:
    """Start runs and wait until all wait for their approval; their run ids."""
    handles = [await bench.start(APPROVAL, 5) for _ in range(runs)]
    await at_once(idle(handle) for handle in handles)
    return [handle.first_execution_run_id or "" for handle in handles]


async def measure(bench: Bench, runs: int) -> Kept:
    """The growth of the worker's memory beyond what the first runs have loaded."""
    first = await bring_to_wait(bench, WARM)
    before = await bench.memory()
    waiting = await bring_to_wait(bench, runs)
    held = await bench.memory() - before
    await bench.worker.ask(f"evict {json.dumps([*first, *waiting])}")
    after = await bench.memory()
    while True:  # what is put aside goes one by one
        await asyncio.sleep(1)
        now = await bench.memory()
        if now >= after:
            return Kept(held / runs, (now - before) / runs)
        after = now


async def rows(*, quick: bool) -> list[Row]:
    """The rows of the table."""
    runs = 30 if quick else RUNS
    async with lab(cached=2 * RUNS) as (_, benches):
        found = {bench.side.name: await measure(bench, runs) for bench in benches}
    own, other = found[PERDURE.name], found[LOOP.name]
    return [
        Row("memory_held", f"memory of a waiting run, {runs:,} held by a worker", "KB", own.held, other.held, HELD),
        Row("memory_aside", "of that left after they were put aside", "KB", own.aside, other.aside),
    ]
