"""Workers and their server killed at random moments: nothing twice, nothing lost, and every outcome true."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Any

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.conftest import Stage, call
from tests.chaos.server import Server
from tests.chaos.test_lost_workers import TOLD

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("CHAOS_KILLS", "26"))
"""`make chaos` sets 200."""
SEED = int(os.environ.get("CHAOS_SEED", "20261130"))


@pytest.mark.timeout(600 + 10 * KILLS)
async def test_nothing_twice_nothing_lost(own_stage: Stage, server: Server) -> None:
    """Runs with writes, approvals, questions and children, while workers and server die: the ledger agrees with all."""
    report = await Campaign(own_stage, server, KILLS, SEED).fight()
    print(f"\n{report.table()}\n")
    assert report.twice == []
    assert report.untrue == []
    assert set(report.outcomes) == {"success"}
    assert report.killed == KILLS


@pytest.mark.timeout(600 + 10 * KILLS)
async def test_an_unknown_outcome_is_told(own_stage: Stage) -> None:
    """A worker dies in the middle of writes while another one is well: every run learns that the outcome is unknown."""
    told: list[float] = []
    workers = [own_stage.launch().await_serving() for _ in range(2)]
    for _ in range(max(2, KILLS // 10)):
        runs = [await own_stage.start(call("pay", to="bob", amount=1, pause_ms=15_000), TOLD) for _ in range(4)]
        lines = [(await own_stage.begun(run=run.id, tool="pay"))[0] for run in runs]
        victim = next(worker for worker in workers if worker.pid == lines[0]["pid"])
        victim.kill()
        died = time.time()
        workers[workers.index(victim)] = own_stage.launch().await_serving()
        for run, line in zip(runs, lines, strict=True):
            output = await own_stage.output(run)
            assert ("outcome unknown" in output) == (line["pid"] == victim.pid)
            told += [moment(event) - died for event in await own_stage.events(run, "tool_unknown")]
    assert len({line["key"] for line in own_stage.ledger(tool="pay")}) == len(own_stage.ledger(tool="pay"))
    middle, latest = sorted(told)[len(told) // 2], max(told)
    print(f"\n{len(told)} unknown outcomes, told {middle:.1f} s after the death (median), {latest:.1f} s (latest)\n")


def moment(event: dict[str, Any]) -> float:
    """When an event was noted, in seconds since the epoch."""
    return datetime.fromisoformat(event["at"]).timestamp()
