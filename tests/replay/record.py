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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from temporalio.client import Client

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure.embedded import EmbeddedServer
from tests.lab import laboratory, skipping_time
from tests.replay import budgets, models
from tests.replay.people import CONTINUED_WAITING, PAUSED_AND_EXPIRED, PUBLIC, continued_waiting, paused_and_expired
from tests.replay.scenarios import AGENTS, CONTINUED, SCENARIOS, Scenario, continued

HISTORIES = Path(__file__).parent / "histories"
AT_ONCE = 8
_ = budgets, models  # their scenarios are in the table once they are loaded
IDENTITY = "recorder"
Server = Callable[[Path], AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def ordinary(data_dir: Path, **config: str) -> AsyncIterator[Client]:
    """A client of a new server with some dynamic configuration."""
    converter = data_converter(FileStore(data_dir / "blobs"))
    with EmbeddedServer(data_dir / f"temporal{len(config)}", headless=True, dynamic_config=config) as server:
        yield await Client.connect(server.address, data_converter=converter, identity=IDENTITY)


def hasty(data_dir: Path) -> AbstractAsyncContextManager[Client]:
    """A client of a new server that suggests to continue as new after 30 events."""
    return ordinary(data_dir, **{"limit.historyCount.suggestContinueAsNew": "30"})


@asynccontextmanager
async def skipping(data_dir: Path) -> AsyncIterator[Client]:
    """A client of a new server on which a day passes while somebody waits for a run's end."""
    async with skipping_time(FileStore(data_dir / "blobs"), identity=IDENTITY) as environment:
        yield environment.client


SERVERS: Sequence[tuple[Server, Mapping[str, Scenario]]] = (
    (ordinary, SCENARIOS),
    (hasty, {CONTINUED: continued, CONTINUED_WAITING: continued_waiting}),
    (skipping, {PAUSED_AND_EXPIRED: paused_and_expired}),
)
"""The scenarios by the server that each needs."""
KNOWN = {name for _, scenarios in SERVERS for name in scenarios}


async def main(names: Sequence[str]) -> None:
    """Record these scenarios, or all of them; files of scenarios that no longer exist are removed."""
    if unknown := sorted(set(names) - KNOWN):
        raise SystemExit(f"no scenario is named {', '.join(unknown)}; there are {', '.join(sorted(KNOWN))}")
    HISTORIES.mkdir(exist_ok=True)
    if not names:
        for old in HISTORIES.glob("*.json"):
            old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for server, scenarios in SERVERS:
            chosen = {name: play for name, play in scenarios.items() if not names or name in names}
            if chosen:
                async with server(Path(folder)) as client:
                    await record(client, Path(folder), chosen)


async def record(client: Client, data_dir: Path, scenarios: Mapping[str, Scenario]) -> None:
    """Play scenarios on a server and write their histories."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def play(name: str, scenario: Scenario) -> None:
        async with slots:
            handles = await scenario(replace(lab, run_id=name))
        for number, handle in enumerate(handles, 1):
            history = await handle.fetch_history()
            file = HISTORIES / (f"{name}.json" if len(handles) == 1 else f"{name}_{number}.json")
            file.write_text(
                json.dumps(portable(json.loads(history.to_json())), ensure_ascii=False, separators=(",", ":")) + "\n"
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
