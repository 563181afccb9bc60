"""A campaign of kills: runs come and go while workers and their server die at random, and everything is counted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from tests.chaos.conftest import Handle, Stage, call
from tests.chaos.server import Server
from tests.processes import WorkerProcess

T = TypeVar("T")

OPEN_RUNS = 12
"""How many runs are kept open while there is killing."""
WORKERS = 2
SERVER_EVERY = 25
"""After so many killed workers the server is killed, or frozen for a while, in turn."""
FROZEN = 4.0
"""Seconds: longer than the heartbeat timeout of the tools, 2 s."""
PATIENCE = 300.0
"""Seconds in which the last runs must end once nobody is killed any more."""
WRITES = frozenset({"pay", "pay_approved", "pay_ask", "wipe"})


@dataclass
class Report:
    """What was done to the runs, and what became of them."""

    killed: int = 0
    server_killed: int = 0
    server_frozen: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    deeds: int = 0
    twice: list[Any] = field(default_factory=list)
    unknown: int = 0
    untrue: list[str] = field(default_factory=list)
    told_after: list[float] = field(default_factory=list)
    """Seconds from the death of a worker to the record that the outcome of its write is unknown."""
    seconds: float = 0.0

    def table(self) -> str:
        """The report as Markdown."""
        late = sorted(self.told_after) or [0.0]
        rows = {
            "workers killed (SIGKILL)": self.killed,
            "server killed (SIGKILL) and restarted": self.server_killed,
            f"server frozen (SIGSTOP) for {FROZEN:g} s": self.server_frozen,
            "runs": f"{sum(self.outcomes.values())}: {', '.join(f'{n} {o}' for o, n in self.outcomes.items())}",
            "effects of write and dangerous tools": self.deeds,
            "effects that happened twice": len(self.twice),
            "runs lost, or with an outcome that is not true": len(self.untrue),
            "writes whose outcome is unknown": self.unknown,
            "... told after the worker's death": f"{late[len(late) // 2]:.1f} s (median), {late[-1]:.1f} s (latest)",
            "time": f"{self.seconds:.0f} s",
        }
        return "\n".join(
            ["| what | how many |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
        )


class Campaign:
    """Kills `kills` workers while it starts runs, decides what they ask, and answers what is unknown by the ledger."""

    def __init__(self, stage: Stage, server: Server, kills: int, seed: int) -> None:
        self._stage = stage
        self._server = server
        self._kills = kills
        self._chance = random.Random(seed)
        self._report = Report()
        self._deaths: dict[int, float] = {}
        """When each killed worker died."""
        self._runs: dict[str, tuple[Handle, asyncio.Task[dict[str, Any]]]] = {}
        self._over = False

    async def fight(self) -> Report:
        """The report, when all runs have ended."""
        began = time.monotonic()
        for gate in ("child", "later", "verify"):
            self._stage.open(gate)
        serving = [asyncio.create_task(work()) for work in (self._feed, self._decide)]
        try:
            await self._kill_on()
            self._over = True
            await asyncio.wait_for(self._all_ended(), PATIENCE)
            await self._count()
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
        for task in serving:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        self._report.seconds = time.monotonic() - began
        return self._report

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        while not self._over:
            open_now = sum(1 for _, result in self._runs.values() if not result.done())
            if open_now < OPEN_RUNS:
                handle = await patiently(lambda: self._start(len(self._runs)))
                result = asyncio.create_task(patiently(handle.result, 3_600))
                self._runs[handle.id] = (handle, result)
            await asyncio.sleep(0.05)

    async def _start(self, number: int) -> Handle:
        """Every fifth run has a child; the others write three times, once approved, and ask at the end."""
        if number % 5 == 0:
            return await self._stage.start(agent="boss")
        to = {"to": f"p{number}"}
        slow = {"pause_ms": self._chance.randrange(200, 1_500)}
        return await self._stage.start(
            call("pay", **to, **slow, amount=1),
            call("look", name=f"n{number}"),
            call("pay_approved", **to, **slow, amount=2),
            call("wipe" if number % 3 == 0 else "pay_ask", **to, **slow, amount=3),
            {"text": "{{tool:c1}} | {{tool:c3}} | {{tool:c4}}"},
        )

    async def _all_ended(self) -> None:
        await asyncio.gather(*(result for _, result in self._runs.values()))

    # --- people -------------------------------------------------------------------------------------------------------

    async def _decide(self) -> None:
        """Approve what waits, and answer what is unknown with what the ledger says."""
        waiting = f"TaskQueue='{self._stage.queue}' AND ExecutionStatus='Running' AND PerdureState='{{}}'"
        while True:
            with contextlib.suppress(RPCError):
                async for found in self._stage.client.list_workflows(waiting.format("waiting_approval")):
                    await self._stage.client.get_workflow_handle(found.id).signal("approve", {})
                async for found in self._stage.client.list_workflows(waiting.format("waiting_answer")):
                    await self._answer(found.id)
            await asyncio.sleep(0.4)

    async def _answer(self, run: str) -> None:
        handle = self._stage.client.get_workflow_handle(run)
        status = await handle.query("status")
        for question in status["questions"]:
            call_id = question["question_id"].rpartition("q-")[2]
            done = bool(self._stage.ledger(run=run, call=call_id))
            answer = {"question_id": question["question_id"], "text": "done" if done else "retry"}
            with contextlib.suppress(WorkflowUpdateFailedError):  # it was answered by the round before
                await handle.execute_update("answer", answer)

    # --- deaths -------------------------------------------------------------------------------------------------------

    async def _kill_on(self) -> None:
        workers = [self._stage.launch() for _ in range(WORKERS)]
        while self._report.killed < self._kills:
            victim = self._chance.randrange(WORKERS)
            workers[victim] = await self._serving(workers[victim])
            await asyncio.sleep(self._chance.uniform(0.05, 1.2))
            workers[victim].kill()
            self._deaths[workers[victim].pid] = time.time()
            self._report.killed += 1
            workers[victim] = self._stage.launch()
            if self._report.killed % SERVER_EVERY == 0:
                await self._strike_server(self._report.killed // SERVER_EVERY)
        for number in range(WORKERS):
            workers[number] = await self._serving(workers[number])

    async def _serving(self, worker: WorkerProcess) -> WorkerProcess:
        """The worker, or one in its place where it ended because it found no server."""
        while True:
            if not worker.alive:
                worker = self._stage.launch()
            elif worker.serving:
                return worker
            await asyncio.sleep(0.05)

    async def _strike_server(self, number: int) -> None:
        if number % 2:
            await asyncio.to_thread(self._server.kill)
            await asyncio.to_thread(self._server.restart)
            self._report.server_killed += 1
        else:
            self._server.freeze()
            await asyncio.sleep(FROZEN)  # the outage itself
            self._server.thaw()
            self._report.server_frozen += 1

    # --- the count ----------------------------------------------------------------------------------------------------

    async def _count(self) -> None:
        report, ledger = self._report, [line for line in self._stage.ledger() if line["tool"] in WRITES]
        report.deeds = len(ledger)
        keys = Counter(line["key"] for line in ledger)
        report.twice = [key for key, count in keys.items() if count > 1]
        deeds = Counter((line["run"], line["call"]) for line in ledger)
        for handle, result in self._runs.values():
            ended = result.result()
            report.outcomes[ended["outcome"]] += 1
            unknown = await patiently(partial(self._stage.events, handle, "tool_unknown"))
            report.unknown += len(unknown)
            if ended["outcome"] != "success" or not is_true(handle.id, ended["output"], unknown, deeds):
                report.untrue.append(f"{handle.id}: {ended}, {unknown}")
                history = await self._stage.client.get_workflow_handle(handle.id).fetch_history()
                (self._stage.folder / f"{handle.id}.json").write_text(history.to_json())  # to look at
            report.told_after += self._delays(handle.id, unknown, ledger)

    def _delays(self, run: str, unknown: list[dict[str, Any]], ledger: list[dict[str, Any]]) -> list[float]:
        told = {event["call_id"]: datetime.fromisoformat(event["at"]).timestamp() for event in unknown}
        deaths = [
            (told[line["call"]], self._deaths[line["pid"]])
            for line in ledger
            if line["run"] == run and line["call"] in told and line["pid"] in self._deaths
        ]
        return [at - death for at, death in deaths if at > death]


def is_true(run: str, output: str, unknown: list[dict[str, Any]], deeds: Counter[tuple[str, str]]) -> bool:
    """Whether what a run says of its writes is what the ledger says."""
    unsure = {event["call_id"] for event in unknown}
    if "helped" in output:
        return sum(count for (owner, _), count in deeds.items() if owner.startswith(f"{run}/")) <= 1
    for part, call_id in zip(output.split(" | "), ("c1", "c3", "c4"), strict=False):
        done = deeds[(run, call_id)] == 1
        if call_id not in unsure and not (done and part.startswith(("paid p", "wiped p"))):
            return False
        if call_id in unsure and call_id != "c4" and "outcome unknown" not in part:
            return False
        if (
            call_id in unsure and call_id == "c4" and not done
        ):  # a person looked, and had it tried again where it was not
            return False
    return True


async def patiently(work: Callable[[], Awaitable[T]], within: float = 120.0) -> T:
    """Do it again while the server is away."""
    deadline = time.monotonic() + within
    while True:
        try:
            return await work()
        except RPCError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
