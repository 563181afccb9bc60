"""What a turn takes of the worker's CPU and of the clock, with a model that answers at once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

from bench.lab import Bench, lab, middle
from bench.rows import Figure, Row
from bench.sides import LOOP, ORDINARY, PERDURE, QUICK

CPU = Figure(1.15)
"""12 ms beside a loop that takes 10.4."""
WALL, WALL_QUICK = Figure(1.1), Figure(0.75)


async def sample(bench: Bench, kind: str, turns: int) -> tuple[float, float]:
    """Milliseconds of CPU and of the clock that a turn takes."""
    cpu, clock = await bench.cpu(), time.perf_counter()
    await bench.run(kind, turns)
    wall = time.perf_counter() - clock
    return (await bench.cpu() - cpu) / turns * 1_000, wall / turns * 1_000


async def measure(turns: int, rounds: int) -> Mapping[tuple[str, str], tuple[float, float]]:
    """Medians of CPU and clock by side and kind, the sides taking turns."""
    samples: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    async with lab() as (_, benches):
        for bench in benches:  # the first runs load what later ones have
            for kind in (ORDINARY, QUICK):
                await bench.run(kind, 5)
        for _ in range(rounds):
            for kind in (ORDINARY, QUICK):
                for bench in benches:
                    samples[bench.side.name, kind].append(await sample(bench, kind, turns))
    return {key: (middle(cpu for cpu, _ in found), middle(wall for _, wall in found)) for key, found in samples.items()}


async def rows(*, quick: bool) -> list[Row]:
    """The rows of the table. Quick tools are compared with the loop's ordinary ones, as the figure means it."""
    found = await measure(*((10, 1) if quick else (100, 5)))
    own, own_quick = found[PERDURE.name, ORDINARY], found[PERDURE.name, QUICK]
    other, other_quick = found[LOOP.name, ORDINARY], found[LOOP.name, QUICK]
    return [
        Row("cpu_turn", "worker CPU a turn, ordinary tool", "ms", own[0], other[0], CPU),
        Row("cpu_turn_quick", "worker CPU a turn, both quick", "ms", own_quick[0], other_quick[0]),
        Row("wall_turn", "wall time a turn, ordinary tool", "ms", own[1], other[1], WALL),
        Row(
            "wall_turn_quick",
            "wall time a turn, quick tool beside ordinary loop",
            "ms",
            own_quick[1],
            other[1],
            WALL_QUICK,
        ),
        Row("wall_turn_both_quick", "wall time a turn, both quick", "ms", own_quick[1], other_quick[1]),
    ]
