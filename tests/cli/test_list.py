"""Lists of runs: by state, page by page, and those that are stuck."""

from __future__ import annotations

import asyncio
import json
import secrets

import pytest
from temporalio.client import Client as TemporalClient

from perdure.contracts import AGENT_WORKFLOW
from perdure.embedded import EmbeddedServer
from tests.broken_worker import BUG, broken_worker
from tests.cli.command_line import CommandLine, until
from tests.processes import Cli

pytestmark = pytest.mark.slow


def ids(perdure: CommandLine, *arguments: str) -> list[str]:
    """The ids of a list."""
    return [run["id"] for run in perdure.json("list", *arguments)]


def test_pages(perdure: CommandLine) -> None:
    """A list that is cut says how it goes on; the pages together are all, each run once. A wrong mark is named."""
    user = f"u-{secrets.token_hex(4)}"
    for _ in range(5):
        perdure("run", "reader", "x", "--user", user)
    mine = ["--query", f"PerdureUser='{user}'"]
    whole = until(lambda: len(found := ids(perdure, *mine, "--all")) == 5 and found)
    seen: list[str] = []
    mark: list[str] = []
    first = ""
    for size in (2, 2, 1):
        done = perdure("list", *mine, "--limit", "2", *mark, "--json")
        seen += (page := [run["id"] for run in json.loads(done.stdout)])
        assert len(page) == size
        words = done.stderr.split()
        mark = ["--page", words[words.index("--page") + 1].rstrip(",")] if "--page" in words else []
        first = first or mark[1]
    assert mark == []
    assert seen == whole
    for wrong in ("zzz", "no mark!", "", first[:-4], first[1:], first.swapcase()):
        refused = perdure("list", "--page", wrong, code=2).stderr
        assert refused == (
            f"perdure: --page: {wrong[:40]!r} is no mark that a list has printed; leave --page out to begin with the "
            "newest runs\n"
        )


def test_states(perdure: CommandLine, new_id: str) -> None:
    """A run that has not said anything yet is found as running; one that waits is not."""
    perdure("run", "reader", "x", "--id", new_id, "--no-follow", code=1, PERDURE_TASK_QUEUE="deserted-list")
    perdure("run", "payer", "x", "--id", f"{new_id}-pay", "--no-follow")
    until(lambda: f"{new_id}-pay" in ids(perdure, "--state", "waiting_approval", "--all"))
    running = until(lambda: new_id in (found := ids(perdure, "--state", "running", "--all")) and found)
    assert f"{new_id}-pay" not in running
    assert new_id not in ids(perdure, "--state", "closed", "--all")
    assert f"{new_id}-pay" in ids(perdure, "--agent", "payer", "--all")
    perdure("cancel", f"{new_id}-pay")
    ended = Cli(perdure.environment["TEMPORAL_ADDRESS"]).run("workflow", "terminate", "-w", new_id)
    assert ended.returncode == 0


async def test_stuck_runs(perdure: CommandLine, cli_server: EmbeddedServer, new_id: str) -> None:
    """A run whose workflow task fails is marked, found by `--stuck`, explained by `show` and counted by `doctor`."""

    def look() -> None:
        until(lambda: new_id in ids(perdure, "--stuck"))
        done = perdure("list", "--stuck")
        assert "stuck" in next(line for line in done.stdout.splitlines() if line.startswith(new_id))
        assert f"`perdure show {new_id}` says why" in done.stderr
        shown = perdure("show", new_id).stdout
        assert "its workflow task fails, attempt" in shown
        assert f"{BUG} (workflow worker unhandled failure); a corrected worker lets it go on" in shown
        (found,) = [c for c in perdure.json("doctor", code=1) if c["name"] == "stuck runs"]
        assert found["level"] == "fail"
        assert new_id in found["text"]

    client = await TemporalClient.connect(cli_server.address)
    async with broken_worker(client) as queue:
        handle = await client.start_workflow(AGENT_WORKFLOW, {}, id=new_id, task_queue=queue)
        try:
            await asyncio.to_thread(look)
        finally:
            await handle.terminate()
    await asyncio.to_thread(until, lambda: new_id not in ids(perdure, "--stuck"))
