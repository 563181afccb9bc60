"""Processes that replay side by side: measured, a history costs 15 ms of Python and a process 0.6 s to start.

A replay holds the interpreter from its beginning to its end, so threads gain nothing. A process that has not answered
in time is killed, for a loop in a workflow cannot be stopped otherwise, and the next history gets a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from temporalio.api.history.v1 import History
from temporalio.client import WorkflowHistory

import perdure
from perdure.cli.histories import Candidate, NotReplayable, lost_value
from perdure.errors import PerdureError

_ROOT = str(Path(perdure.__file__).resolve().parent.parent)
START = 60.0
"""Seconds to load the code in."""
_ANSWER = 1 << 20
"""Bytes of one answer at most."""

Found = dict[str, Any]
"""What came of one replay: `result`, and what belongs to it."""


class Replayer:
    """One process, started when it is needed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: Process | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`

    async def replay(self, history: WorkflowHistory) -> Found:
        """Replay one history within the time; raises PerdureError where the code cannot even be loaded."""
        process = self._process or await self._start()
        data = History(events=history.events).SerializeToString()
        assert process.stdin is not None
        try:
            async with asyncio.timeout(self._seconds):
                with contextlib.suppress(ConnectionError):  # it has died: the answer says so
                    process.stdin.write(json.dumps({"workflow_id": history.workflow_id, "bytes": len(data)}).encode())
                    process.stdin.write(b"\n" + data)
                    await process.stdin.drain()
                answer = await self._answer(process)
        except TimeoutError:
            await self._end()
            return {
                "result": "timeout",
                "message": f"did not end within {self._seconds:g} s: the code loops, blocks, or needs more --timeout",
            }
        if answer is None:
            said = self._last_words()
            await self._end()
            return {"result": "failed", "message": f"the replaying process died: {said or 'without a word'}"}
        return answer

    async def _start(self) -> Process:
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "perdure.cli.replay_process"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._log,
            limit=_ANSWER,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))},
            start_new_session=True,  # Ctrl-C is for the command, which ends its processes
        )
        try:
            async with asyncio.timeout(START):
                ready = await self._answer(process)
        except TimeoutError:
            raise PerdureError(f"this code could not be loaded within {START:g} s") from None
        if ready is None:
            raise PerdureError(f"this code cannot be loaded: {self._last_words()}")
        return process

    async def _answer(self, process: Process) -> Found | None:
        assert process.stdout is not None
        line = await process.stdout.readline()
        found: Found | None = json.loads(line) if line.endswith(b"\n") else None
        return found

    def _last_words(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4_000))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            # Not process.kill(), which looks whether it has ended, and takes that from the one who waits for it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()

    async def close(self) -> None:
        """End the process."""
        await self._end()
        self._log.close()


async def replay_all(
    candidates: AsyncIterator[Candidate], *, jobs: int, seconds: float, told: Callable[[Found], None]
) -> list[Found]:
    """Replay all, `jobs` at once, and return what was found in their order; `told` hears of each as it ends."""
    lock = asyncio.Lock()
    found: dict[int, Found] = {}
    given = 0

    async def work() -> None:
        nonlocal given
        replayer = Replayer(seconds)
        try:
            while True:
                async with lock:
                    candidate = await anext(candidates, None)
                    number, given = given, given + 1
                if candidate is None:
                    return
                found[number] = await _one(candidate, replayer)
                told(found[number])
        finally:
            await replayer.close()

    workers = [asyncio.create_task(work()) for _ in range(jobs)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [found[number] for number in sorted(found)]


async def _one(candidate: Candidate, replayer: Replayer) -> Found:
    about: Found = {"run": candidate.name, "run_id": candidate.run_id, "events": None}
    try:
        history = await candidate.read()
    except NotReplayable as problem:
        return {**about, "result": problem.result, "message": str(problem)}
    about |= {"run_id": candidate.run_id or history.run_id, "events": len(history.events)}
    if not any(event.HasField("workflow_task_completed_event_attributes") for event in history.events):
        return {**about, "result": "fine"}  # it has decided nothing yet, and a replay would wait for it
    found = await replayer.replay(history)
    lost = lost_value(history) if found["result"] == "differs" else None
    if lost is not None:
        message = f"event {lost} refers to a value that is not in the store, so the replay says nothing"
        return {**about, "result": "no_store", "message": message}
    return {**about, **found}
