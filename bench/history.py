"""What a turn costs in history: bytes and events, as the slope between two lengths of run.

python bench/history.py            prints the table
python bench/history.py --check    exits with 1 where a figure is above its bound
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from temporalio.client import Client

import worker
from activities.converter import data_converter
from activities.registry import Registry
from activities.stores.files import FileStore
from perdure import Agent, Limits, Model, Price, allow, tool
from perdure.embedded import EmbeddedServer
from perdure.worker_settings import WorkerSettings

SHORT, LONG = 80, 320
"""Turns of the two runs whose difference is the slope; with a policy the longer one is 300, below continue-as-new."""
RESULT, REPLY = 400, 100
"""Characters of a tool's result and of a reply."""


@dataclass(frozen=True)
class Bound:
    """The most that a turn may take; the fixed part besides the spec."""

    bytes: float
    events: float
    fixed_bytes: float = 8 * 1024
    fixed_events: float = 25


BOUNDS = {
    "ordinary": Bound(2_330, 12),
    "quick": Bound(2_060, 7),
    "ordinary, with a policy": Bound(2_760, 13),
}
"""A little above what was measured last, so that growth is noticed; the design asks for 2.5 KB and 2.15 KB."""


@tool(effect="read")
def lookup(i: int) -> str:
    """Look something up."""
    return f"{i}:".ljust(RESULT, "x")


@tool(effect="read", quick=True)
def lookup_quick(i: int) -> str:
    """Look something up at once."""
    return f"{i}:".ljust(RESULT, "x")


def make_agent(name: str, used: str, turns: int, **extra: object) -> Agent:
    """An agent whose scripted model calls one tool in each of `turns` replies; its spec has the same size for all."""
    step = {
        "text": "y" * REPLY,
        "calls": [{"tool": used, "arguments": {"i": "{{step}}"}}],
        "usage": {"input_tokens": 1_000, "output_tokens": 50},
        "repeat": True,
    }
    price = Price(input=Decimal("0.25"), output=Decimal(2))
    model = Model(provider="scripted", params={"script": [step]}, price=price)
    limits = Limits(steps=turns, tool_calls=1_000, tokens=100_000_000)
    return Agent(name=f"{name}_{turns}", model=model, tools=[lookup, lookup_quick], limits=limits, **extra)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Measured:
    """Slope and fixed part of one kind of run."""

    bytes: float
    events: float
    fixed_bytes: float
    fixed_events: float


async def measure(client: Client, kind: str, short: Agent, long: Agent) -> Measured:
    """Run both agents and take the slope; the fixed part is what is left besides the recorded spec."""
    sizes = []
    for agent in (short, long):
        turns = agent.limits.steps
        handle = await client.start_workflow(
            "AgentWorkflow",
            {"agent": agent.name, "prompt": "hello"},
            id=f"bench-{kind.replace(', ', '-').replace(' ', '-')}-{turns}",
            task_queue="perdure",
        )
        await handle.result()
        info = (await handle.describe()).raw_description.workflow_execution_info
        sizes.append((turns, info.history_size_bytes, info.history_length))
    (n0, bytes0, events0), (n1, bytes1, events1) = sizes
    slope, events = (bytes1 - bytes0) / (n1 - n0), (events1 - events0) / (n1 - n0)
    spec = len(short.spec().model_dump_json().encode())
    return Measured(slope, events, bytes0 - slope * n0 - spec, events0 - events * n0)


async def measure_all(folder: Path) -> dict[str, Measured]:
    """All kinds, one after the other, on one embedded server and one worker."""
    kinds = {
        "ordinary": ("lookup", {}),
        "quick": ("lookup_quick", {}),
        "ordinary, with a policy": ("lookup", {"policy": lambda call: allow()}),
    }
    agents = {
        kind: tuple(make_agent(f"a{number}", used, turns, **extra) for turns in (SHORT, 300 if extra else LONG))
        for number, (kind, (used, extra)) in enumerate(kinds.items())
    }
    registry = Registry()
    for short, long in agents.values():
        registry.add(short)
        registry.add(long)
    with EmbeddedServer(folder, headless=True) as server:
        client = await Client.connect(
            server.address, data_converter=data_converter(FileStore(folder / "blobs")), identity="bench"
        )
        async with worker.serving(client, registry, WorkerSettings(data_dir=folder)):
            return {kind: await measure(client, kind, *pair) for kind, pair in agents.items()}


def report(measured: dict[str, Measured]) -> bool:
    """Print the table; True where every figure keeps its bound."""
    print(f"history a turn: slope between {SHORT} and {LONG} turns, {RESULT}-byte results, {REPLY}-character replies")
    print(f"{'':26}{'bytes':>8} {'bound':>7} {'events':>7} {'bound':>6} {'fixed bytes':>12} {'fixed events':>13}")
    kept = True
    for kind, got in measured.items():
        bound = BOUNDS[kind]
        within = (
            got.bytes <= bound.bytes
            and got.events <= bound.events
            and got.fixed_bytes <= bound.fixed_bytes
            and got.fixed_events <= bound.fixed_events
        )
        kept &= within
        print(
            f"{kind:26}{got.bytes:8.0f} {bound.bytes:7.0f} {got.events:7.2f} {bound.events:6.0f} "
            f"{got.fixed_bytes:12.0f} {got.fixed_events:13.1f}{'' if within else '   ABOVE ITS BOUND'}"
        )
    return kept


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a figure is above its bound")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        kept = report(asyncio.run(measure_all(Path(folder))))
    return 0 if kept or not options.check else 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
