"""Runs whose model answers in the background: its reply outlives connections and workers, and is paid once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from perdure import Agent, Client, Price
from perdure.embedded import EmbeddedServer
from tests.conftest import Serve
from tests.fake_responses import Answer, FakeResponses, fake_responses
from tests.lab import Lab, Run, eventually, laboratory
from tests.processes import WorkerProcess
from tests.viewing import Viewing

PRICE = Price(input=Decimal(1), output=Decimal(10))
WORDS = [f"word{number} " for number in range(400)]
ONCE = "POST /v1/responses"
AGAIN = "GET /v1/responses/resp_1?stream=true"
CANCEL = "POST /v1/responses/resp_1/cancel"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers have a key."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def talker(fake: FakeResponses, **fields: Any) -> Agent:
    """An agent that answers in the background."""
    return Agent("talker", fake.model(price=PRICE, **fields))


async def paid(run: Run) -> tuple[str, int]:
    """How much a run has cost, and how many tokens of it were lost."""
    usage = await run.handle.query("usage")
    lost = usage["unconfirmed"]
    return (await run.status())["cost_usd"], lost["input_tokens"] + lost["output_tokens"]


PAID_ONCE = ("0.00006", 0)

BREAKS: dict[str, tuple[Answer, list[str]]] = {
    "never": ({}, [ONCE]),
    "once": ({"cuts": [5]}, [ONCE, f"{AGAIN}&starting_after=4"]),
    "before the first word": ({"cuts": [1]}, [ONCE, f"{AGAIN}&starting_after=0"]),
    "before the end": ({"cuts": [401]}, [ONCE, f"{AGAIN}&starting_after=400"]),
    "often, with something new each time": (
        {"cuts": [5, 9, 13, 17, 21, 25]},
        [ONCE, *(f"{AGAIN}&starting_after={at}" for at in (4, 8, 12, 16, 20, 24))],
    ),
}


@pytest.mark.parametrize("case", BREAKS)
async def test_a_connection_that_breaks(serve: Serve, case: str) -> None:
    """The reply goes on where it broke off: asked for once, paid once, shown without a break."""
    answer, asked = BREAKS[case]
    async with fake_responses({"text": WORDS, **answer}) as fake:
        agent = talker(fake)
        lab = await serve(agent)
        run = await lab.start(agent)
        seen = await Viewing().follow(Client(lab.client).handle(run.id).stream())
    assert (await run.result())["output"] == "".join(WORDS)
    assert fake.asked == asked
    assert fake.bodies[0]["store"] is True
    assert await paid(run) == PAID_ONCE
    assert seen.replies == {1: "".join(WORDS)}
    assert "reset" not in seen.live


async def test_a_connection_that_falls_silent(serve: Serve) -> None:
    """It is given up, and the reply goes on over another one."""
    never = asyncio.Event()
    async with fake_responses({"text": WORDS, "hold_at": {5: never}}) as fake:
        agent = talker(fake)
        lab = await serve(agent, idle_between=0.3)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "".join(WORDS)
        assert await paid(run) == PAID_ONCE
        never.set()
    assert fake.asked == [ONCE, f"{AGAIN}&starting_after=4"]


async def test_an_own_path_is_that_of_new_replies(serve: Serve) -> None:
    """What is asked for again lies where the format says."""
    async with fake_responses({"text": WORDS, "cuts": [5]}) as fake:
        agent = talker(fake, path="/team/responses")
        lab = await serve(agent)
        assert (await lab.run(agent))["outcome"] == "success"
    assert fake.asked == ["POST /v1/team/responses", f"{AGAIN}&starting_after=4"]


LOST: dict[str, tuple[Answer, list[str]]] = {
    "the reply is gone": (
        {"text": WORDS, "cuts": [5], "gone": True}, [ONCE, f"{AGAIN}&starting_after=4", ONCE]
    ),
    "the reply has failed": (
        {"text": WORDS, "fails": {"code": "server_error", "message": "oops"}}, [ONCE, ONCE]
    ),
    "it is not in the background": ({"text": WORDS, "cuts": [5]}, [ONCE, ONCE]),
}  # fmt: skip


@pytest.mark.parametrize("case", LOST)
async def test_a_reply_that_nobody_has_any_more(serve: Serve, case: str) -> None:
    """It is asked for anew, and what the first has used is lost."""
    first, asked = LOST[case]
    async with fake_responses(first, {"text": ["Whole."]}) as fake:
        agent = talker(fake, params={"background": False} if "not in" in case else {})
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "Whole."
    assert fake.asked == asked
    assert (await paid(run))[1] > 0


async def test_a_run_that_is_cancelled(serve: Serve) -> None:
    """Its provider is told to stop, and what was said is counted."""
    never = asyncio.Event()
    async with fake_responses({"text": WORDS, "hold_at": {200: never}}) as fake:
        agent = talker(fake)
        lab = await serve(agent)
        run = await lab.start(agent)
        await Viewing().until(Client(lab.client).handle(run.id).stream(), "text")
        await run.handle.cancel()
        with suppress(asyncio.CancelledError):
            await run.result()
        await eventually(lambda: len(fake.asked) == 2)
        never.set()
    assert fake.asked == [ONCE, CANCEL]


@pytest.mark.slow
async def test_a_worker_that_stops(client: TemporalClient, data_dir: Path) -> None:
    """The next one takes over the reply from its beginning."""
    never = asyncio.Event()
    async with fake_responses({"text": WORDS, "hold_at": {200: never}}) as fake:
        agent = talker(fake)
        async with laboratory(client, data_dir, agent) as lab:
            run = await lab.start(agent)
            await Viewing().until(Client(lab.client).handle(run.id).stream(), "text")
        async with laboratory(client, data_dir, agent, queue=lab.queue):
            assert (await run.result())["output"] == "".join(WORDS)
            assert await paid(run) == PAID_ONCE
        never.set()
    assert fake.asked == [ONCE, AGAIN]


AGENTS = """
from perdure import Agent, Model, Price

price = Price(input=1, output=10)
given = {"provider": "openai", "base_url": "{url}", "params": {"background": True}, "price": price}
talker = Agent("talker", [Model(name=name, **given) for name in "{names}"])
"""

KILLED: dict[str, tuple[str, Mapping[str, Any], list[str]]] = {
    "the reply goes on": ("a", {}, [ONCE, AGAIN]),
    "the reply goes on, and breaks off again": (
        "a", {"cuts": [-1, 300]}, [ONCE, AGAIN, f"{AGAIN}&starting_after=299"]
    ),
    "the reply is gone": ("a", {"gone": True}, [ONCE, AGAIN, ONCE]),
    "another model of the chain has its turn": ("ab", {}, [ONCE, CANCEL, ONCE]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", KILLED)
async def test_a_worker_that_is_killed(
    client: TemporalClient, temporal_server: EmbeddedServer, tmp_path: Path, case: str
) -> None:
    """The next one takes over the reply, or asks anew where it cannot; everybody rebuilds what was said."""
    names, more, asked = KILLED[case]
    never = asyncio.Event()
    first = {"text": WORDS, "hold_at": {200: never}, **more}
    async with fake_responses(first, {"text": WORDS}) as fake:
        agents = tmp_path / "agents_of_background.py"
        agents.write_text(AGENTS.replace("{url}", fake.base_url).replace("{names}", names))
        queue = f"q-{tmp_path.name}"

        def launch(number: int) -> WorkerProcess:
            return WorkerProcess(agents, address=temporal_server.address, queue=queue, data_dir=tmp_path,
                                 log=tmp_path / f"{number}.log")  # fmt: skip

        worker = launch(1)
        try:
            await eventually(lambda: worker.serving)
            run = await Lab(client, queue, None).start("talker")  # type: ignore[arg-type]
            seen = Viewing()
            stream = Client(client).handle(run.id).stream()
            await seen.until(stream, "text")

            async def held() -> bool:
                pending = (await run.handle.describe()).raw_description.pending_activities
                return any("resp_1" in str(activity.heartbeat_details) for activity in pending)

            await eventually(held)
        finally:
            worker.close()
        worker = launch(2)
        try:
            await asyncio.wait_for(seen.follow(stream), 150)
            spent = await paid(run)
        finally:
            never.set()
            worker.close()
    assert (await run.result())["output"] == "".join(WORDS)
    assert fake.asked == asked
    assert seen.replies == {1: "".join(WORDS)}
    assert seen.live.count("reset") == 1
    if asked.count(ONCE) == 1:
        assert spent == PAID_ONCE
    else:
        assert spent[1] > 0
