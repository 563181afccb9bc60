"""How long it takes from a person's decision to the start of the tool that waited for it."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from bench.lab import Bench, idle, lab, middle
from bench.rows import Row
from bench.sides import APPROVAL, LOOP, PERDURE

WAYS = {"update": True, "signal": False}


async def sample(bench: Bench, *, wait: bool) -> float:
    """Milliseconds from sending the decision to the tool's own start."""
    handle = await bench.start(APPROVAL, 5)
    await idle(handle)
    sent = time.monotonic()
    await bench.side.decide(handle, wait=wait)
    result: Any = await handle.result()
    begun = float(result["output"] if bench.side is PERDURE else result)
    return (begun - sent) * 1_000


async def rows(*, quick: bool) -> list[Row]:
    """The rows of the table."""
    rounds = 2 if quick else 15
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    async with lab() as (_, benches):
        for bench in benches:
            await sample(bench, wait=True)
        for _ in range(rounds):
            for way, wait in WAYS.items():
                for bench in benches:
                    found[bench.side.name, way].append(await sample(bench, wait=wait))
    return [
        Row(
            f"decision_{way}",
            f"approval by {way} to the tool's start",
            "ms",
            middle(found[PERDURE.name, way]),
            middle(found[LOOP.name, way]),
        )
        for way in WAYS
    ]
