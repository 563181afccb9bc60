"""How many runs one worker process ends in a second, all of them started at once."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

from bench.lab import Bench, lab, middle
from bench.rows import Figure, Row
from bench.sides import LOOP, ORDINARY, PERDURE, QUICK

RUNS, TURNS = 100, 5
ORDINARY_REACH, QUICK_REACH = Figure(0.85, least=True), Figure(1.2, least=True)


async def sample(bench: Bench, kind: str, runs: int) -> float:
    """Runs a second."""
    begun = time.perf_counter()
    handles = await asyncio.gather(*(bench.start(kind, TURNS) for _ in range(runs)))
    await asyncio.gather(*(handle.result() for handle in handles))
    return runs / (time.perf_counter() - begun)


async def rows(*, quick: bool) -> list[Row]:
    """The rows of the table. Quick tools are compared with the loop's ordinary ones, as the figure means it."""
    runs, rounds = (10, 1) if quick else (RUNS, 3)
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    async with lab() as (_, benches):
        for bench in benches:
            await sample(bench, ORDINARY, 10)
        for _ in range(rounds):
            for kind in (ORDINARY, QUICK):
                for bench in benches:
                    found[bench.side.name, kind].append(await sample(bench, kind, runs))
    medians = {key: middle(values) for key, values in found.items()}
    own, own_quick = medians[PERDURE.name, ORDINARY], medians[PERDURE.name, QUICK]
    other, other_quick = medians[LOOP.name, ORDINARY], medians[LOOP.name, QUICK]
    what = f"{runs} runs x {TURNS} turns, one worker"
    return [
        Row("throughput", f"{what}, ordinary tool", "runs/s", own, other, ORDINARY_REACH),
        Row("throughput_quick", f"{what}, quick beside ordinary loop", "runs/s", own_quick, other, QUICK_REACH),
        Row("throughput_both_quick", f"{what}, both quick", "runs/s", own_quick, other_quick),
    ]
