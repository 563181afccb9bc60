"""Record the golden histories anew: `python -m tests.replay.record [names]`.

Do it after a change of the workflow that is meant to change its commands, or for a new feature; a history of a release
is kept beside the new one for as long as runs of that release may be alive.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from temporalio.client import Client

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure.embedded import EmbeddedServer
from tests.lab import laboratory
from tests.replay import budgets
from tests.replay.people import CONTINUED_WAITING, PUBLIC, continued_waiting
from tests.replay.scenarios import AGENTS, CONTINUED, SCENARIOS, Scenario, continued

HISTORIES = Path(__file__).parent / "histories"
AT_ONCE = 8
_ = budgets  # its scenarios are in the table once it is loaded
CHAINS = {CONTINUED: continued, CONTINUED_WAITING: continued_waiting}


async def main(names: Sequence[str]) -> None:
    """Record these scenarios, or all of them; files of scenarios that no longer exist are removed."""
    known = {*SCENARIOS, *CHAINS}
    if unknown := sorted(set(names) - known):
        raise SystemExit(f"no scenario is named {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    chosen = set(names) or known
    HISTORIES.mkdir(exist_ok=True)
    if not names:
        for old in HISTORIES.glob("*.json"):
            old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder)
        ordinary = {name: play for name, play in SCENARIOS.items() if name in chosen}
        if ordinary:
            await record(data_dir, {}, ordinary)
        if chains := {name: play for name, play in CHAINS.items() if name in chosen}:
            settings = {"limit.historyCount.suggestContinueAsNew": "30"}
            await record(data_dir, settings, chains)


async def record(data_dir: Path, settings: Mapping[str, str], scenarios: Mapping[str, Scenario]) -> None:
    """Play scenarios on a server of their own and write their histories."""
    slots = asyncio.Semaphore(AT_ONCE)
    converter = data_converter(FileStore(data_dir / "blobs"))
    with EmbeddedServer(data_dir / f"temporal{len(settings)}", headless=True, dynamic_config=settings) as server:
        client = await Client.connect(server.address, data_converter=converter, identity="recorder")

        async def play(name: str, scenario: Scenario) -> None:
            async with slots:
                handles = await scenario(replace(lab, run_id=name))
            for number, handle in enumerate(handles, 1):
                history = await handle.fetch_history()
                file = HISTORIES / (f"{name}.json" if len(handles) == 1 else f"{name}_{number}.json")
                file.write_text(
                    json.dumps(portable(json.loads(history.to_json())), ensure_ascii=False, separators=(",", ":"))
                    + "\n"
                )
                print(f"{file.name}: {len(history.events)} events, {file.stat().st_size} bytes")

        async with laboratory(client, data_dir, *AGENTS.values(), queue="golden", decision_keys=(PUBLIC,)) as lab:
            await asyncio.gather(*(play(name, scenario) for name, scenario in scenarios.items()))


def portable(value: Any) -> Any:
    """A history without stack traces: they hold paths of the machine, and replay does not read them."""
    if isinstance(value, dict):
        return {name: portable(item) for name, item in value.items() if name != "stackTrace"}
    return [portable(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    begin = time.monotonic()
    asyncio.run(main(sys.argv[1:]))
    print(f"recorded in {time.monotonic() - begin:.1f} s")
    sys.stdout.flush()
    os._exit(0)  # a process that ran a Worker may abort while the interpreter shuts down
