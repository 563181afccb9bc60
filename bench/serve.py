"""A worker of one side as a process of its own, which answers on standard output what it is asked on standard input.

python -m bench.serve SIDE ADDRESS FOLDER CACHED

`cpu` seconds used so far, `rss` KiB of memory, `evict [RUN_ID, ...]` puts runs aside; the end of the input ends it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from bench.sides import SIDES


def used_memory() -> int:
    """KiB that the process has in memory."""
    gc.collect()
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0])


def answer(worker: Worker, command: str, argument: str) -> Any:
    """What the measurement asked for."""
    if command == "cpu":
        return time.process_time()
    if command == "evict":
        for run_id in json.loads(argument):
            worker._bridge_worker.request_workflow_eviction(run_id)  # the SDK has no public name for it
    return used_memory()


async def main(side_name: str, address: str, folder: Path, cached: int) -> None:
    """Serve until the input ends."""
    side = next(side for side in SIDES if side.name == side_name)
    client = await Client.connect(address, data_converter=side.converter(folder), identity="bench")
    async with side.serve(client, folder, cached) as worker:
        print("null", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            command, _, argument = line.strip().partition(" ")
            print(json.dumps(answer(worker, command, argument)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
    os._exit(0)  # a process that ran a Worker may abort while the interpreter shuts down
