"""Workers killed in the middle of writes: nothing twice, nothing lost, and how soon an unknown outcome is told.

Each kill cuts many writes at once, every one of them in a run of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bench.agents import HEARTBEAT, cut_short
from bench.lab import PATIENCE, Bench, lab, placed
from bench.rows import Figure, Row
from bench.sides import PERDURE, Handle
from perdure.contracts import AGENT_WORKFLOW
from worker import STICKY

WRITES, AT_ONCE = 200, 20
REPORTED = Figure(HEARTBEAT.total_seconds() + STICKY.total_seconds() + 2, of="perdure")
"""Seconds: the heartbeat timeout, the sticky timeout, and two."""
NONE = Figure(0, of="perdure")


@dataclass
class Found:
    """What became of all runs."""

    twice: int = 0
    lost: int = 0
    reported: list[float] = field(default_factory=list)
    """Seconds from a kill until its run knew."""


async def begun(ledger: Path, count: int) -> Counter[str]:
    """Wait until so many writes have begun; how often that of each run did."""
    async with asyncio.timeout(PATIENCE):
        while True:
            runs = ledger.read_text().split()  # noqa: ASYNC240  nobody else waits
            if len(runs) >= count:
                return Counter(runs)
            await asyncio.sleep(0.02)


async def knows_at(handle: Handle) -> datetime | None:
    """When a run has learned that its write's outcome is unknown; None where it ended otherwise."""
    async with asyncio.timeout(PATIENCE):
        result = await handle.result()
        events = (await handle.query("events"))["events"]
    told = [datetime.fromisoformat(event["at"]) for event in events if event["type"] == "tool_unknown"]
    return told[0] if told and result["outcome"] == "success" else None


async def strike(bench: Bench, stack: AsyncExitStack, folder: Path, found: Found, number: int, runs: int) -> Bench:
    """Cut so many writes by one kill; the bench with the worker that has taken over."""
    ledger = folder / f"ledger-{number}"
    ledger.touch()
    asked = {"agent": cut_short.name, "prompt": str(ledger)}
    handles = [
        await bench.client.start_workflow(AGENT_WORKFLOW, asked, id=f"cut-{number}-{n}", task_queue=PERDURE.name)
        for n in range(runs)
    ]
    await begun(ledger, runs)
    successor = await placed(stack, PERDURE, bench.client.service_client.config.target_host, folder)
    killed = time.time()
    bench.worker.kill()
    told = await asyncio.gather(*(knows_at(handle) for handle in handles), return_exceptions=True)
    found.lost += sum(not isinstance(at, datetime) for at in told)
    found.reported += [at.timestamp() - killed for at in told if isinstance(at, datetime)]
    found.twice += sum(times > 1 for times in (await begun(ledger, runs)).values())
    return successor


async def rows(*, quick: bool) -> list[Row]:
    """The rows of the table. The loop has none: its tools are repeated, or their runs fail."""
    writes, at_once = (4, 4) if quick else (WRITES, AT_ONCE)
    found = Found()
    async with AsyncExitStack() as stack:
        folder, [bench] = await stack.enter_async_context(lab((PERDURE,)))
        for number in range(writes // at_once):
            bench = await strike(bench, stack, folder, found, number, at_once)
    what = f"kill -9 during a write, {writes} writes:"
    latest = max(found.reported, default=PATIENCE)
    return [
        Row("kills_twice", f"{what} effects twice", "effects", found.twice, None, NONE),
        Row("kills_lost", f"{what} runs lost", "runs", found.lost, None, NONE),
        Row("kills_reported", f"{what} unknown told after at most", "s", latest, None, REPORTED),
    ]
