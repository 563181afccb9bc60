"""Cases D, what must replay elsewhere: nothing that a worker happens to hold, imports or warns of steers a run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.testing import calls, reply, scripted
from tests.checkout import ROOT
from tests.cli.command_line import make
from tests.conftest import Serve
from tests.lab import Run

pytestmark = pytest.mark.slow

NETWORK = ("httpx2", "httpcore2", "ssl", "genai_prices", "activities.http", "activities.exchange")
"""What belongs to activities."""


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


@tool(effect="write", approval=True)
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


def clerk() -> Agent:
    """An agent that looks, asks, and answers."""
    return Agent("clerk", scripted(calls("look", n=1), calls("pay", to="bob"), reply("ok")), tools=[look, pay])


async def replayed(folder: Path, *runs: Run) -> list[str]:
    """The results of `perdure replay` for runs, in one new process."""
    files = [folder / f"{number}-{run.id}.json" for number, run in enumerate(runs)]
    for file, run in zip(files, runs, strict=True):
        file.write_text((await run.handle.fetch_history()).to_json())
    command_line = make(folder, "127.0.0.1:1", "nobody")
    found: list[dict[str, Any]] = await asyncio.to_thread(
        command_line.json, "replay", "--jobs", "1", "--history", *map(str, files), PYTHONHASHSEED="11"
    )
    return [one["result"] for one in found]


@pytest.mark.parametrize("cached", [1, 100])
async def test_case_55_runs_that_share_a_worker(serve: Serve, tmp_path: Path, cached: int) -> None:
    """Interleaved runs on a warm worker, or on one that forgets each of them, record the same and replay anywhere."""
    agent = clerk()
    lab = await serve(agent, max_cached_runs=cached)
    runs = [await lab.start(agent) for _ in range(3)]
    for run in runs:
        await run.asks()
    for run in reversed(runs):
        await run.update("approve", {})
        await run.result()
    kinds = [
        [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for event in (await run.handle.fetch_history()).events
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
        for run in runs
    ]
    expected = ["resolve_agent", "call_model", "call_tool", "call_model", "call_tool", "call_model"]
    assert kinds == [expected] * 3
    assert await replayed(tmp_path, *runs) == ["fine"] * 3
    assert await replayed(tmp_path, *reversed(runs)) == ["fine"] * 3


async def test_case_55_tools_that_changed_meanwhile(serve: Serve, tmp_path: Path) -> None:
    """A run that has resolved its tools replays with those that were recorded, whatever is served by now."""
    lab = await serve(clerk())
    run = await lab.start("clerk")
    await run.asks()

    @tool(effect="read")
    def look_elsewhere() -> str:
        """Look."""
        return ""

    changed = Agent("clerk", scripted(reply("new")), tools=[look_elsewhere])
    other = await serve(changed)
    assert (await other.run("clerk"))["output"] == "new"
    assert await replayed(tmp_path, run) == ["fine"]
    await run.update("approve", {})
    await run.result()
    assert await replayed(tmp_path, run) == ["fine"]


def test_case_70_workflows_load_no_network(tmp_path: Path) -> None:
    """The workflows and all that they import load with warnings as errors, without what belongs to activities."""
    code = f"import sys, workflows.runner; print([name for name in {NETWORK!r} if name in sys.modules])"
    bare = subprocess.run(
        [sys.executable, "-c", "import temporalio.worker, sys; print([n for n in ('ssl',) if n in sys.modules])"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(json.loads(done.stdout.replace("'", '"'))) <= set(json.loads(bare.stdout.replace("'", '"')))
    assert done.stderr == ""


async def test_case_70_a_replay_imports_nothing_late(serve: Serve, tmp_path: Path) -> None:
    """In a process where warnings are errors a run replays to its end."""
    agent = clerk()
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.asks()
    await run.update("approve", {})
    await run.result()
    file = tmp_path / "run.json"
    file.write_text((await run.handle.fetch_history()).to_json())
    command = [sys.executable, "-W", "error", "-m", "tests.replay.replay", str(file)]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {"run.json": None}
    assert "Warning" not in done.stderr
