"""Limits of one run: it finishes or pauses at each, people extend them, and resets and continuations forget nothing."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, Limits, Price, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import Step, calls, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import fake_chat
from tests.lab import Lab, Run, eventually, laboratory
from tests.processes import Cli

PRICE = Price(input=Decimal(1), output=Decimal(1))
USED = {"usage": {"input_tokens": 400, "output_tokens": 100}}
DAY = timedelta(days=1)


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


@tool(effect="read")
async def nap(n: int) -> str:
    """Take half a second."""
    await asyncio.sleep(0.5)
    return "awake"


def looking(count: int = 1, name: str = "look") -> list[Step]:
    """A script that looks so often and answers then."""
    return [*({**calls(name, n=n), **reply(f"I look {n}."), **USED} for n in range(count)), {**reply("done"), **USED}]


def made(*script: Step, **options: Any) -> Agent:
    """An agent with a script."""
    return Agent("spender", scripted(*script, price=PRICE), tools=[look, nap], **options)


LIMITED: list[tuple[str, list[Step], Limits, dict[str, Any], str]] = [
    ("steps", looking(), Limits(steps=1), {"steps": 1}, "max_steps"),
    ("tool_calls", looking(2), Limits(tool_calls=1), {"tool_calls": 1}, "max_tool_calls"),
    ("tokens", looking(), Limits(tokens=501), {"tokens": 2_000}, "max_tokens"),
    ("cost", looking(), Limits(cost_usd=Decimal("0.0005")), {"cost_usd": "0.01"}, "max_cost"),
    ("deadline", looking(1, "nap"), Limits(deadline=0.3), {"deadline": "1h"}, "deadline"),
]
IDS = [case[0] for case in LIMITED]


@pytest.mark.parametrize(("script", "limits", "reason"), [(c[1], c[2], c[4]) for c in LIMITED], ids=IDS)
async def test_a_run_finishes_at_a_limit(serve: Serve, script: list[Step], limits: Limits, reason: str) -> None:
    """By itself it ends with what there is."""
    agent = made(*script, limits=limits)
    lab = await serve(agent)
    result = await lab.run(agent)
    outcome = "timeout" if reason == "deadline" else "budget_exceeded"
    assert (result["outcome"], result["reason"]) == (outcome, reason)
    assert result["output"].startswith("I look")


@pytest.mark.parametrize("form", ["signal", "update"])
@pytest.mark.parametrize(("script", "limits", "more", "reason"), [c[1:] for c in LIMITED], ids=IDS)
async def test_a_run_pauses_at_a_limit(
    serve: Serve, script: list[Step], limits: Limits, more: dict[str, Any], reason: str, form: str
) -> None:
    """With `on_limit="pause"` it waits for `extend`, says so everywhere, and goes on where it was."""
    agent = made(*script, limits=limits, on_limit="pause")
    lab = await serve(agent)
    run = await lab.start(agent)
    [noted] = await run.seen("limit_reached")
    assert (noted["reason"], noted["paused"]) == (reason, True)
    status = await run.status()
    assert (status["state"], status["paused"]) == ("waiting_limit", reason)
    left = datetime.fromisoformat(status["paused_until"]) - datetime.fromisoformat(noted["at"])
    assert left == DAY
    await shown_as(run, "waiting_limit")
    await (run.send if form == "signal" else run.update)("extend", more)
    result = await run.result()
    assert (result["outcome"], result["output"]) == ("success", "done")
    [extended] = await run.events("limits_extended")
    assert set(more) <= set(extended)
    await shown_as(run, "closed")
    assert (await run.status())["paused"] is None


async def shown_as(run: Run, state: str) -> None:
    """Wait until a listing says so."""
    key = SearchAttributeKey.for_keyword("PerdureState")

    async def there() -> bool:
        return (await run.handle.describe()).typed_search_attributes.get(key) == state

    await eventually(there)


BAD: list[tuple[str, list[Any], str]] = [
    ("nothing", [{}], "say by how much"),
    ("no_payload", [], "the payload is an object"),
    ("zero", [{"steps": 0}], "steps"),
    ("negative", [{"tokens": -5}], "tokens"),
    ("words", [{"steps": "many"}], "steps"),
    ("unknown", [{"stepz": 1}], "stepz"),
    ("no_such_limit", [{"cost_usd": "1"}], "cost_usd: the run has no such limit"),
    ("too_many", [{"steps": 99_999}], "steps: Input should be less than or equal to 10000"),
    ("too_long", [{"deadline": "3650d"}], "deadline"),
    ("too_large", [{"tokens": 10**13}], "tokens"),
    ("not_a_number", [{"cost_usd": "NaN"}], "cost_usd"),
]


async def test_bad_extensions(serve: Serve) -> None:
    """Each is refused with the field, as a signal recorded, and changes nothing."""
    agent = made(*looking(), limits=Limits(steps=1), on_limit="pause")
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("limit_reached")
    before = (await run.status())["limits"]
    for name, payloads, shown in BAD:
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await run.update("extend", *payloads)
        assert shown in str(refusal.value.cause), name
        await run.send("extend", *payloads)
    refused = await run.seen("message_refused", len(BAD))
    assert [shown in event["reason"] for event, (_, _, shown) in zip(refused, BAD, strict=True)] == [True] * len(BAD)
    status = await run.status()
    assert (status["state"], status["limits"]) == ("waiting_limit", before)
    answer = await run.update("extend", {"steps": 2})
    assert answer["limits"]["steps"] == 3
    assert (await run.result())["output"] == "done"


async def test_an_extension_that_is_not_enough(serve: Serve) -> None:
    """The run pauses again, for a day from then on."""
    agent = made(*looking(3), limits=Limits(steps=1), on_limit="pause")
    lab = await serve(agent)
    run = await lab.start(agent)
    for count in range(1, 4):
        noted = await run.seen("limit_reached", count)
        assert len(noted) == count
        await run.update("extend", {"steps": 1})
    assert (await run.result())["steps"] == 4


async def test_another_limit_does_not_help(serve: Serve) -> None:
    """Raised tokens are no steps: it is looked at again, and waited on."""
    agent = made(*looking(), limits=Limits(steps=1), on_limit="pause")
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("limit_reached")
    await run.update("extend", {"tokens": 10})
    await run.seen("limit_reached", 2)
    assert await run.state() == "waiting_limit"
    await run.update("extend", {"steps": 1})
    assert (await run.result())["outcome"] == "success"


async def test_an_extension_in_advance(serve: Serve) -> None:
    """Limits that are raised before they are reached are not reached."""
    goes = threading.Event()

    @tool(effect="read")
    def wait() -> str:
        return "ok" if goes.wait(30) else "late"

    agent = Agent("early", scripted(calls("wait"), reply("done")), tools=[wait], limits=Limits(steps=1))
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("tool_start")
    await run.update("extend", {"steps": 1})
    goes.set()
    assert (await run.result())["output"] == "done"
    assert await run.events("limit_reached") == []


async def test_stop_while_paused(serve: Serve) -> None:
    """It ends at once as stopped, with what there is."""
    agent = made(*looking(), limits=Limits(steps=1), on_limit="pause")
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("limit_reached")
    await run.send("stop", {"reason": "enough"})
    result = await run.result()
    assert (result["outcome"], result["reason"], result["output"]) == ("no_solution", "stopped", "I look 0.")


async def test_stop_while_paused_with_calls_in_the_air(serve: Serve) -> None:
    """Calls for which there was no room are answered, and the run ends as stopped too."""
    agent = made(*looking(2), limits=Limits(tool_calls=1), on_limit="pause")
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("limit_reached")
    await run.send("stop", {})
    result = await run.result()
    assert (result["outcome"], result["reason"]) == ("no_solution", "stopped")
    assert "the limit of 1 tool calls is reached" in (await run.results())["c2"]


async def test_cancel_while_paused(serve: Serve) -> None:
    """It ends as cancelled."""
    agent = made(*looking(), limits=Limits(steps=1), on_limit="pause")
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("limit_reached")
    await run.handle.cancel()
    ended = await run.ended()
    assert (ended["state"], ended["outcome"], ended["paused"]) == ("closed", "cancelled", None)


# --- time -----------------------------------------------------------------------------------------------------------


async def test_the_clock_stands_still_while_it_is_paused(skipping: WorkflowEnvironment, data_dir: Path) -> None:
    """Hours of waiting for an extension are no part of the deadline, and are not counted."""
    agent = made(*looking(), limits=Limits(steps=1, deadline="1h"), on_limit="pause")
    async with laboratory(skipping.client, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.seen("limit_reached")
        await skipping.sleep(timedelta(hours=5))
        await run.update("extend", {"steps": 1})
        assert (await run.result())["outcome"] == "success"
        assert (await run.handle.query("usage"))["active_seconds"] < 600


async def test_a_pause_expires(skipping: WorkflowEnvironment, data_dir: Path) -> None:
    """Where nobody extends a limit for a day, the run ends at it."""
    agent = made(*looking(), limits=Limits(steps=1), on_limit="pause")
    async with laboratory(skipping.client, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.seen("limit_reached")
        await skipping.sleep(DAY - timedelta(minutes=5))
        assert await run.state() == "waiting_limit"
        await skipping.sleep(timedelta(minutes=10))
        result = await run.result()
        assert (result["outcome"], result["reason"]) == ("budget_exceeded", "max_steps")
        assert len(await run.events("extension_expired")) == 1


# --- continue-as-new and reset --------------------------------------------------------------------------------------


async def test_a_pause_is_carried(store: FileStore, data_dir: Path, tmp_path: Path) -> None:
    """Extended limits, spend and a pause with its deadline go on in the next runs of the chain."""
    settings = {"limit.historyCount.suggestContinueAsNew": "30"}
    with EmbeddedServer(tmp_path, headless=True, dynamic_config=settings) as server:
        client = await Client.connect(server.address, data_converter=data_converter(store))
        agent = made(*looking(12), limits=Limits(steps=6), on_limit="pause")
        async with laboratory(client, data_dir, agent) as lab:
            run = await lab.start(agent)
            [noted] = await run.seen("limit_reached")
            await run.seen("continued")
            status = await run.status()
            assert (status["state"], status["paused_until"]) == ("waiting_limit", noted["deadline"])
            await run.update("extend", {"steps": 5})
            assert len(await run.seen("limit_reached", 2)) == 2
            assert (await run.status())["limits"]["steps"] == 11
            await run.update("extend", {"steps": 5})
            result = await run.result()
            assert (result["outcome"], result["steps"]) == ("success", 13)
            assert result["usage"]["input_tokens"] == 13 * 400
            assert len(await run.events("limit_reached")) == 2


async def decided_before(lab: Lab, run: Run, nth: int) -> int:
    """The workflow task that has scheduled the n-th model call of the run's latest."""
    count = 0
    async for event in lab.client.get_workflow_handle(run.id).fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        count += scheduled.activity_type.name == "call_model"
        if count == nth:
            return int(scheduled.workflow_task_completed_event_id)
    raise AssertionError(f"no {nth} model calls")


async def test_what_resets_throw_away_is_still_spent(serve: Serve, temporal_server: EmbeddedServer) -> None:
    """Every model call ever made is counted once, however often the run was reset, and limits count it."""
    agent = made(*looking(), limits=Limits(tokens=100_000))
    lab = await serve(agent)
    cli = Cli(temporal_server.address)
    run = await lab.start(agent)
    assert (await run.result())["usage"]["input_tokens"] == 800
    made_calls = 2
    for nth, again in ((2, 1), (2, 1), (1, 2), (2, 1)):
        event = await decided_before(lab, run, nth)
        arguments = ["workflow", "reset", "-w", run.id, "--event-id", str(event), "--reason", "test"]
        done = await asyncio.to_thread(cli.run, *arguments)
        assert done.returncode == 0, done.stderr
        made_calls += again
        latest = Run(lab.client.get_workflow_handle(run.id))
        result = await latest.result()
        assert (result["outcome"], result["usage"]["input_tokens"]) == ("success", 400 * made_calls)
        assert Decimal(result["cost_usd"]) == Decimal("0.0005") * made_calls
        assert (await latest.status())["limits"]["tokens"] == 100_000


async def test_a_limit_that_only_resets_reach(serve: Serve, temporal_server: EmbeddedServer) -> None:
    """What was thrown away counts: a run that had enough the first time has not the second time."""
    agent = made(*looking(2), limits=Limits(tokens=2_600))
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["outcome"] == "success"
    event = await decided_before(lab, run, 1)
    arguments = ["workflow", "reset", "-w", run.id, "--event-id", str(event), "--reason", "test"]
    done = await asyncio.to_thread(Cli(temporal_server.address).run, *arguments)
    assert done.returncode == 0, done.stderr
    result = await Run(lab.client.get_workflow_handle(run.id)).result()
    assert (result["outcome"], result["reason"]) == ("budget_exceeded", "max_tokens")


# --- what is not known ----------------------------------------------------------------------------------------------


async def test_an_unknown_price(serve: Serve) -> None:
    """With a limit on cost nothing is sent; without one the calls are counted as unpriced."""
    async with fake_chat({"text": "hi"}) as fake:
        poor = Agent("poor", fake.model("no-such-model-anywhere"), limits=Limits(cost_usd=Decimal(1)))
        rich = Agent("rich", fake.model("no-such-model-anywhere"))
        lab = await serve(poor, rich)
        result = await lab.run(poor)
        assert (result["outcome"], result["reason"], len(fake.requests)) == ("failed", "unknown_price", 0)
        run = await lab.start(rich)
        assert ((await run.result())["cost_usd"], len(fake.requests)) == ("0", 1)
        assert (await run.handle.query("usage"))["unpriced_calls"] == 1


async def test_an_unknown_usage(serve: Serve) -> None:
    """Where a provider counts nothing, four characters are a token, and that is priced and limited."""
    words = "x" * 4_000
    async with fake_chat({"text": words, "usage": None}) as fake:
        agent = Agent("silent", fake.model(price=PRICE), "y" * 400)
        lab = await serve(agent)
        result = await lab.run(agent)
    usage = result["usage"]
    assert 100 <= usage["input_tokens"] <= 110
    assert usage["output_tokens"] == 1_001
    assert Decimal(result["cost_usd"]) == Decimal(usage["input_tokens"] + 1_001) / 1_000_000
