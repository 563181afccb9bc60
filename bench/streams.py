"""What a streamed answer with viewers adds to the history of a run, beside the same answer unstreamed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from temporalio.api.enums.v1 import EventType
from temporalio.contrib.workflow_streams import WorkflowStreamClient

from bench.agents import ANSWER, TOKENS
from bench.lab import Bench, lab
from bench.rows import Figure, Row
from bench.sides import LOOP, PERDURE, STREAMED, TOLD, Handle
from perdure.client import Client as PerdureClient

VIEWERS = 3
COUNTED = {
    "updates": EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    "signals": EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
}


async def texts_of(bench: Bench, handle: Handle) -> AsyncIterator[str]:
    """What a viewer gets to see, piece by piece, to the end of the run."""
    if bench.side is PERDURE:
        async for event in PerdureClient(bench.client, task_queue=PERDURE.name).handle(handle.id).stream():
            if event.type == "text":
                yield event.text or ""
    else:
        stream = WorkflowStreamClient.create(bench.client, handle.id)
        async for item in stream.subscribe(["tokens", "end"], result_type=str):
            if item.topic == "end":
                return
            yield item.data


async def view(bench: Bench, handle: Handle) -> int:
    """Watch to the end; how many pieces came. Raises where they are not the answer."""
    pieces = [piece async for piece in texts_of(bench, handle)]
    if "".join(pieces) != ANSWER:
        raise RuntimeError(f"a viewer of {bench.side.name} has seen another answer")
    return len(pieces)


async def count(handle: Handle) -> Counter[str]:
    """Events, updates and signals of a run."""
    kinds = [event.event_type async for event in handle.fetch_history_events()]
    return Counter({"events": len(kinds)} | {name: kinds.count(kind) for name, kind in COUNTED.items()})


async def added(bench: Bench) -> tuple[Counter[str], int]:
    """What streaming has added, and how many pieces the viewer got that got the most."""
    plain = await count(await bench.run(TOLD, 1))
    handle = await bench.start(STREAMED, 1)
    seen = await asyncio.gather(*(view(bench, handle) for _ in range(VIEWERS)))
    await handle.result()
    live = await count(handle)
    live.subtract(plain)
    return live, max(seen)


async def rows(*, quick: bool) -> list[Row]:
    """The rows of the table; a quick run does all of it."""
    async with lab() as (_, benches):
        found = {bench.side.name: await added(bench) for bench in benches}
    (own, pieces), (other, _) = found[PERDURE.name], found[LOOP.name]
    what = f"{TOKENS:,} streamed tokens, {VIEWERS} viewers: further"
    none = Figure(0, of="perdure")
    note = f"each viewer of Perdure got the answer in up to {pieces} pieces; the loop uses the SDK's workflow stream"
    return [
        Row(f"stream_{name}", f"{what} {name}", name, own[name], other[name], none, note)
        for name in ("events", "updates", "signals")
    ]
