"""The bus of a worker: who listens gets everything of its runs, and nobody who listens harms one."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

from activities.bus import Bus, Subscription
from perdure import Agent, tool
from perdure.announcement import Announcement, Ended
from perdure.messages import Usage
from perdure.testing import calls, failure, reply, scripted
from tests.conftest import Serve


def told(number: int, kind: str = "said", run: str = "r", **fields: Any) -> Announcement:
    """An announcement of a run."""
    event = {"n": number, "at": f"2026-01-01T00:00:{number % 60:02}+00:00", "type": kind, **fields}
    return Announcement(run, f"{run}-1", f"{run}-1", "", "clerk", None, event)


async def taken(subscription: Subscription, count: int) -> list[dict[str, Any]]:
    """The next `count` events."""
    async with asyncio.timeout(30):
        return [await anext(subscription) for _ in range(count)]


async def test_a_subscriber_gets_what_comes_after_it_has_subscribed() -> None:
    """In order, with the envelope; what was told before is not told again."""
    bus = Bus()
    bus.announce(told(1))
    subscription = bus.subscribe()
    bus.announce(told(2, text="hello"))
    bus.announce(told(3, "run_ended", outcome="success"))
    first, second = await taken(subscription, 2)
    assert (first["n"], first["type"], first["text"], first["run"]) == (2, "said", "hello", "r")
    assert (second["n"], second["outcome"], second["agent"]) == (3, "success", "clerk")
    assert len(first["trace_id"]) == 32
    assert len(first["span_id"]) == 16


async def test_a_subscriber_may_follow_one_run() -> None:
    """Events of other runs do not reach it."""
    bus = Bus()
    subscription = bus.subscribe("b")
    for run in ("a", "b", "c"):
        bus.announce(told(1, run=run))
    bus.close()
    assert [event["run"] async for event in subscription] == ["b"]


async def test_a_slow_subscriber_is_told_how_much_was_dropped() -> None:
    """The oldest events make room, a marker stands for them, and another subscriber has them all."""
    bus = Bus()
    slow, quick = bus.subscribe(most=3), bus.subscribe()
    for number in range(1, 11):
        bus.announce(told(number))
    bus.close()
    seen = [event async for event in slow]
    assert (seen[0]["type"], seen[0]["count"]) == ("dropped", 7)
    assert [event["n"] for event in seen[1:]] == [8, 9, 10]
    assert [event["n"] async for event in quick] == list(range(1, 11))


async def test_an_event_that_is_told_again_is_told_once() -> None:
    """A workflow task that is done again tells the same events later; another event of that number is told."""
    bus = Bus()
    subscription = bus.subscribe()
    again = told(1, text="a")
    again.event["at"] = "2026-01-01T00:01:00+00:00"
    for announcement in (told(1, text="a"), again, told(1, text="b")):
        bus.announce(announcement)
    bus.close()
    assert [event["text"] async for event in subscription] == ["a", "b"]


async def test_listeners_that_raise_harm_nobody() -> None:
    """The others are told all the same."""

    def broken(_: Announcement) -> None:
        raise RuntimeError("no")

    bus = Bus()
    bus.listen(broken)
    subscription = bus.subscribe()
    bus.announce(told(1))
    assert [event["n"] for event in await taken(subscription, 1)] == [1]


async def test_a_subscriber_waits_for_what_other_threads_tell() -> None:
    """Workflow tasks run in threads of their own; nothing is lost between them and the subscriber's loop."""
    bus = Bus()
    subscription = bus.subscribe()
    waiting = asyncio.create_task(taken(subscription, 400))
    await asyncio.sleep(0)

    def tell(run: str) -> None:
        for number in range(100):
            bus.announce(told(number, run=run))

    threads = [threading.Thread(target=tell, args=(f"r{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    seen = await waiting
    for thread in threads:
        thread.join()
    for index in range(4):
        assert [event["n"] for event in seen if event["run"] == f"r{index}"] == list(range(100))


async def test_a_closed_subscription_ends() -> None:
    """Leaving the block ends the iteration, also of one that waits, and nothing more is kept for it."""
    bus = Bus()
    with bus.subscribe() as subscription:
        waiting = asyncio.create_task(anext(subscription, None))
        await asyncio.sleep(0)
    assert await waiting is None
    bus.announce(told(1))
    assert await anext(subscription, None) is None
    bus.close()
    assert await anext(bus.subscribe(), None) is None


async def test_the_end_of_a_run_is_told_when_it_is_recorded() -> None:
    """Where a message was taken first, the run goes on and ends later; what is left at the close is told then."""
    bus = Bus()
    subscription = bus.subscribe()
    ended = Ended(began="2026-01-01T00:00:00+00:00", model="m", steps=1, usage=Usage(), cost_usd="0", log=())
    for number, (run, recorded) in enumerate([("a", False), ("a", True), ("b", True), ("c", None)], 1):
        bus.announce(replace(told(number, "run_ended", run=run), ended=ended))
        if recorded is not None:
            bus.left(f"{run}-1", recorded)
    bus.left("a-1", True)
    bus.close()
    assert [(event["run"], event["n"]) async for event in subscription] == [("a", 2), ("b", 3), ("c", 4)]


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


async def test_runs_of_a_worker_are_told_as_they_are_recorded(serve: Serve) -> None:
    """A subscriber sees exactly the run's event log, and the text of each reply with attempt and offset."""
    bus = Bus()
    model = scripted({**calls("look", n=1), "text": "Let me look."}, reply("It is there."))
    lab = await serve(Agent(name="clerk", model=model, tools=[look]), bus=bus)
    subscription = bus.subscribe()
    run = await lab.start("clerk", metadata={"team": "x"}, tenant="acme")
    await run.result()
    bus.close()
    seen = [event async for event in subscription]
    recorded = [event for event in seen if "n" in event]
    log = await run.events()
    assert [{name: event[name] for name in entry} for event, entry in zip(recorded, log, strict=True)] == log
    assert {(e["run"], e["agent"], e["tenant"], e["metadata"]["team"]) for e in seen} == {
        (run.id, "clerk", "acme", "x")
    }
    texts = [event for event in seen if event["type"] == "text"]
    first = [event for event in texts if event["activity_id"] == texts[0]["activity_id"]]
    assert "".join(event["text"] for event in first) == "Let me look."
    assert [event["offset"] for event in first] == [
        sum(len(e["text"]) for e in first[:index]) for index in range(len(first))
    ]
    assert {event["attempt"] for event in texts} == {1}
    replies = [event["span_id"] for event in recorded if event["type"] == "reply"]
    assert replies == list(dict.fromkeys(event["span_id"] for event in texts))


async def test_a_new_attempt_of_a_model_call_is_told_as_a_reset(serve: Serve) -> None:
    """What the first attempt has said is void."""
    bus = Bus()
    model = scripted(failure("overloaded", times=1, then=reply("Done.")))
    lab = await serve(Agent(name="clerk", model=model), bus=bus)
    subscription = bus.subscribe()
    assert (await lab.run("clerk"))["output"] == "Done."
    bus.close()
    kinds = [(e["type"], e.get("attempt")) async for e in subscription if e["type"] in {"text", "reset"}]
    assert kinds[0] == ("reset", 2)
    assert {attempt for _, attempt in kinds} == {2}
