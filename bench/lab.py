"""Where measurements take place: one server, a worker process of each side, a client of each side."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from temporalio.client import Client

from bench.sides import SIDES, Handle, Side
from perdure.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent
CACHED = 1_000
PATIENCE = 300.0
"""Seconds after which a run that should wait never will."""
LINE = 2**20
"""Bytes of a line of another process."""


class Process:
    """A Python module of this folder in a process of its own, asked by lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *arguments: object) -> Self:
        """Start `python -m MODULE` and wait until it says that it is ready."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "PERDURE_"))}
        started = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=kept,
            limit=LINE,
        )
        process = cls(started)
        await process._answer()
        return process

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def ask(self, command: str) -> Any:
        """The answer to a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        await self._process.stdin.drain()
        return await self._answer()

    async def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the measurement ended with {await self._process.wait()}")
        return json.loads(line)

    def kill(self) -> None:
        """End it at once."""
        if self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """End it and wait for its end."""
        self.kill()
        await self._process.wait()


@dataclass
class Bench:
    """One side in place: its worker process and a client."""

    side: Side
    client: Client
    worker: Process
    _count: int = field(default=0)

    async def start(self, kind: str, turns: int) -> Handle:
        """Start a run with an id of its own; all ids are of about the same length."""
        self._count += 1
        return await self.side.start(self.client, kind, turns, f"{self.side.name}-{kind}-{self._count:05}")

    async def run(self, kind: str, turns: int) -> Handle:
        """Run to the end."""
        handle = await self.start(kind, turns)
        await handle.result()
        return handle

    async def cpu(self) -> float:
        """Seconds of CPU that the worker has used."""
        return float(await self.worker.ask("cpu"))

    async def memory(self) -> int:
        """KiB that the worker uses."""
        return int(await self.worker.ask("rss"))


@asynccontextmanager
async def lab(sides: Sequence[Side] = SIDES, cached: int = CACHED) -> AsyncIterator[tuple[Path, list[Bench]]]:
    """A folder, and the sides in place on one server that is new."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        server = await stack.enter_async_context(EmbeddedServer(folder, headless=True))
        benches = [await placed(stack, side, server.address, folder, cached) for side in sides]
        yield folder, benches


async def placed(stack: AsyncExitStack, side: Side, address: str, folder: Path, cached: int = CACHED) -> Bench:
    """A side with a worker process that ends with the stack."""
    process = await Process.start("bench.serve", side.name, address, folder, cached)
    stack.push_async_callback(process.close)
    client = await Client.connect(address, data_converter=side.converter(folder), identity="bench")
    return Bench(side, client, process)


async def size_of(handle: Handle) -> tuple[int, int]:
    """Bytes and events of a run's history."""
    info = (await handle.describe()).raw_description.workflow_execution_info
    return info.history_size_bytes, info.history_length


async def idle(handle: Handle) -> None:
    """Wait until a run waits for a message or a timer: no task of it is pending any more."""
    async with asyncio.timeout(PATIENCE):
        while True:
            described = (await handle.describe()).raw_description
            if not described.pending_activities and not described.HasField("pending_workflow_task"):
                return
            await asyncio.sleep(0.02)


async def at_once(work: Iterable[Coroutine[Any, Any, None]], most: int = 50) -> None:
    """Do all of it, so many at once."""
    slots = asyncio.Semaphore(most)

    async def one(part: Coroutine[Any, Any, None]) -> None:
        async with slots:
            await part

    await asyncio.gather(*(one(part) for part in work))


def middle(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(values)
