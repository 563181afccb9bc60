"""Loops in disguise in whole runs: they end, they are carried along, and who waits for something is left alone."""

from __future__ import annotations

import itertools
from pathlib import Path

from temporalio.client import Client

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, ToolLoop, tool
from perdure.embedded import EmbeddedServer
from perdure.strategies.tool_loop import IDLE
from perdure.testing import calls, reply, scripted
from tests.conftest import Serve
from tests.lab import laboratory


@tool(effect="read")
def search(words: str) -> str:
    """Find nothing."""
    return "no results"


SEARCHING = [calls("search", words=f"query {n}") for n in range(60)]


async def test_a_run_that_gets_nowhere(serve: Serve) -> None:
    """The model is told after the first 12 idle replies; after 12 more the run ends, all its calls answered."""
    agent = Agent("stuck", scripted(*SEARCHING), tools=[search])
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.result()
    assert (result["outcome"], result["reason"], result["steps"]) == ("no_solution", "loop", 25)
    assert [text for role, text in await run.words() if role == "user"] == ["Go.", IDLE]
    assert len(await run.results()) == 25
    assert (await run.status())["message"] == "24 replies in a row brought nothing new"
    [told] = await run.events("correction")
    assert told["about"] == "idle"


async def test_the_patience_is_the_agents(serve: Serve) -> None:
    """`max_idle` says how long."""
    agent = Agent("brisk", scripted(*SEARCHING), tools=[search], strategy=ToolLoop(max_idle=2))
    lab = await serve(agent)
    assert (await lab.run(agent))["steps"] == 5


async def test_a_word_of_the_user_begins_anew(serve: Serve) -> None:
    """What the user says is a new turn: nothing in it is a repetition of what was before."""
    agent = Agent("asked", scripted(*SEARCHING[:6], reply("done"), *SEARCHING[:6], reply("done")), tools=[search],
                  strategy=ToolLoop(max_idle=4))  # fmt: skip
    lab = await serve(agent)
    first = await lab.start(agent)
    assert (await first.result())["outcome"] == "success"
    assert len(await first.events("correction")) == 1


async def test_polling(serve: Serve) -> None:
    """The same call with the same arguments goes on for as long as its result changes, and then `max_repeats` times."""
    percent = itertools.count(step=10)

    @tool(effect="read")
    def check_status() -> str:
        return f"{min(next(percent), 100)} %"

    agent = Agent("waiting", scripted(calls("check_status"), repeat=True), tools=[check_status])
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.result()
    assert (result["reason"], result["tool_calls"]) == ("loop", 13)
    assert list((await run.results()).values())[:13] == [*(f"{n * 10} %" for n in range(11)), "100 %", "100 %"]


async def test_writes_are_not_polled(serve: Serve) -> None:
    """The same write is refused after three times, whatever it says."""
    number = itertools.count()

    @tool(effect="write")
    def post() -> str:
        return f"posted {next(number)}"

    agent = Agent("writing", scripted(calls("post"), repeat=True), tools=[post])
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["reason"], result["tool_calls"]) == ("loop", 3)


async def test_it_is_carried(store: FileStore, data_dir: Path, tmp_path: Path) -> None:
    """What was seen and counted goes on in the next runs of the chain."""
    settings = {"limit.historyCount.suggestContinueAsNew": "30"}
    with EmbeddedServer(tmp_path, headless=True, dynamic_config=settings) as server:
        client = await Client.connect(server.address, data_converter=data_converter(store))
        agent = Agent("stuck", scripted(*SEARCHING), tools=[search])
        async with laboratory(client, data_dir, agent) as lab:
            run = await lab.start(agent)
            result = await run.result()
            assert (result["reason"], result["steps"]) == ("loop", 25)
            assert len(await run.events("continued")) >= 3
