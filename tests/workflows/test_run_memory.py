"""What workers remember of conversations is only a hint: whichever worker runs a step, the model sees the same."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.transcript import Transcripts
from perdure import Agent, tool
from perdure.contracts import ConversationRef
from perdure.messages import MESSAGES, AssistantMessage, Message, text, text_of
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import FakeChat, fake_chat
from tests.lab import Lab, laboratory

TURNS = 8


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n} " + "x" * (3_000 if n % 2 else 3)


@tool(effect="read", quick=True)
def glance(n: int) -> str:
    """Look quickly."""
    return f"glanced {n}"


def answers(body: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request, by how far its conversation has come."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    if turn == TURNS:
        return {"text": "ok"}
    return {"text": f"Turn {turn}.", "calls": [call("look", n=turn), call("glance", n=turn), call("nothing", n=turn)]}


def agent_of(fake: FakeChat) -> Agent:
    """The agent of these tests."""
    return Agent("rememberer", fake.model(), "Look around.", tools=[look, glance])


async def expected(client: Client, data_dir: Path) -> list[dict[str, Any]]:
    """What the model sees from a run on one worker."""
    async with fake_chat(answers) as fake, laboratory(client, data_dir, agent_of(fake)) as lab:
        assert (await lab.run("rememberer"))["output"] == "ok"
        return fake.requests


@pytest.mark.parametrize(("workers", "cached"), [(2, 100), (3, 1), (1, 1)])
async def test_any_number_of_workers(client: Client, data_dir: Path, workers: int, cached: int) -> None:
    """Several workers on one queue, which forget runs all the time, send the model the same as a single one."""
    wanted = await expected(client, data_dir)
    async with fake_chat(answers) as fake, AsyncExitStack() as stack:
        agent = agent_of(fake)
        lab: Lab = await stack.enter_async_context(laboratory(client, data_dir, agent, max_cached_runs=cached))
        for _ in range(workers - 1):  # of one connection a queue has one worker only
            other = await Client.connect(client.service_client.config.target_host, data_converter=client.data_converter)
            await stack.enter_async_context(laboratory(other, data_dir, agent, queue=lab.queue, max_cached_runs=cached))
        results = await asyncio.gather(*(lab.run(agent) for _ in range(3)))
        assert [result["output"] for result in results] == ["ok"] * 3
    assert sorted(map(repr, fake.requests)) == sorted(map(repr, wanted * 3))


async def test_a_worker_that_comes_later(client: Client, data_dir: Path) -> None:
    """A worker that has never seen a run goes on with it as the first one would have."""

    @tool(effect="read", approval=True)
    def gate() -> str:
        return "open"

    script = [calls("look", n=1), calls(call("glance", n=1), call("gate")), reply("{{tool:c1}}{{tool:c2}}{{tool:c3}}")]
    agent = Agent("mover", scripted(*script), tools=[look, glance, gate])
    async with laboratory(client, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.asks()
    async with laboratory(client, data_dir, agent, queue=lab.queue):
        await run.update("approve", {})
        assert (await run.result())["output"] == f"{look(1)}{glance(1)}open"


async def test_a_late_attempt_never_stands_for_the_recorded_one(serve: Serve) -> None:
    """What a lost attempt has made is remembered under another id, so it is never part of a conversation."""
    agent = Agent("two", scripted(calls("look", n=2), reply("the recorded words")), tools=[look])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.result()
    recorded = MESSAGES.validate_python(await run.messages())
    described = await run.handle.describe()
    late = AssistantMessage(role="assistant", parts=text("late words"), id="late")

    async def load(transcripts: Transcripts, ref: ConversationRef) -> list[Message]:
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, workflow_id=run.id, workflow_run_id=described.run_id)
        return list(await environment.run(transcripts.load, ref, lab.client, described.run_id))

    transcripts = Transcripts()
    transcripts.remember(described.run_id, late)
    whole = ConversationRef(count=4, tail=tuple(m.id for m in recorded))
    assert await load(transcripts, whole) == recorded
    assert transcripts.queries == 1
    assert await load(transcripts, ConversationRef(count=4, base=recorded[3].id)) == recorded
    assert transcripts.queries == 1

    forgetful = Transcripts()
    stale = ConversationRef(count=3, tail=(*recorded[:2], late))
    assert text_of((await load(forgetful, stale))[-1]) == "late words"
    assert await load(forgetful, ConversationRef(count=4, base=recorded[2].id, tail=(recorded[3].id,))) == recorded
    assert forgetful.queries == 1
