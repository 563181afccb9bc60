"""What the replay of a run takes of a worker that has never seen it.

python -m bench.replays SIDE FOLDER FILE    replays a history in this process and prints the CPU seconds
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

from temporalio.client import WorkflowHistory

from bench.lab import Process, lab, middle
from bench.rows import Figure, Row
from bench.sides import LOOP, ORDINARY, PERDURE, SIDES, Side

TURNS = 80
REPLAY = Figure(1.05)
"""350 ms beside a loop that takes 335."""


async def replay(side: Side, folder: Path, file: Path) -> float:
    """Seconds of CPU; a process replays one history, for it pays for what it loads."""
    replayer = side.replayer(folder)
    history = WorkflowHistory.from_json(file.stem, file.read_text())  # noqa: ASYNC240  nobody else waits
    begun = time.process_time()
    await replayer.replay_workflow(history)
    return time.process_time() - begun


async def replay_elsewhere(side: Side, folder: Path, file: Path) -> float:
    """The same in a process of its own."""
    process = await Process.start(__name__, side.name, folder, file)
    try:
        return float(await process.ask("go"))
    finally:
        await process.close()


async def rows(*, quick: bool) -> list[Row]:
    """The row of the table."""
    turns, rounds = (10, 1) if quick else (TURNS, 5)
    found: defaultdict[str, list[float]] = defaultdict(list)
    async with lab() as (folder, benches):
        files = {}
        for bench in benches:
            handle = await bench.run(ORDINARY, turns)
            files[bench.side.name] = folder / f"{bench.side.name}.json"
            files[bench.side.name].write_text((await handle.fetch_history()).to_json())
        for bench in benches:  # their threads would disturb
            await bench.worker.close()
        for _ in range(rounds):
            for bench in benches:
                name = bench.side.name
                found[name].append(await replay_elsewhere(bench.side, folder, files[name]) * 1_000)
    own, other = middle(found[PERDURE.name]), middle(found[LOOP.name])
    return [Row("replay", f"replay of {turns} turns, CPU in a fresh process", "ms", own, other, REPLAY)]


def main() -> None:
    """What the fresh process does."""
    name, folder, file = sys.argv[1:]
    side = next(side for side in SIDES if side.name == name)
    print("null", flush=True)
    sys.stdin.readline()
    print(json.dumps(asyncio.run(replay(side, Path(folder), Path(file)))), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # a process that ran a Worker may abort while the interpreter shuts down
