"""Continue-as-new loses nothing: forced every few turns on a server that suggests it after 30 events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, Limits, ToolContext, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import calls, reply, scripted
from tests.fake_chat import fake_chat
from tests.lab import Lab, Run, laboratory, words_of


@pytest.fixture(scope="module")
def impatient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that suggests to continue as new after 30 events."""
    settings = {"limit.historyCount.suggestContinueAsNew": "30"}
    with EmbeddedServer(tmp_path_factory.mktemp("impatient"), headless=True, dynamic_config=settings) as server:
        yield server


@pytest.fixture
async def impatient(impatient_server: EmbeddedServer, store: FileStore) -> Client:
    """A client of it."""
    return await Client.connect(impatient_server.address, data_converter=data_converter(store))


async def chain_of(lab: Lab, run: Run) -> list[str]:
    """The run ids of the chain, the first one first."""
    handle: WorkflowHandle[Any, Any] = run.handle
    found: list[str] = []
    run_id = handle.first_execution_run_id
    while run_id:
        found.append(run_id)
        history = await lab.client.get_workflow_handle(run.id, run_id=run_id).fetch_history()
        last = history.events[-1]
        assert len(history.events) < 120
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
    return found


async def test_nothing_is_lost(impatient: Client, data_dir: Path) -> None:
    """Over 30 turns in many runs: messages are taken once and in order, ids, keys, events, limits and spend go on."""
    keys: list[tuple[str, str]] = []
    turns = 30
    all_said = threading.Event()

    @tool(effect="write")
    def act(n: int, ctx: ToolContext) -> str:
        keys.append((ctx.call_id, ctx.idempotency_key))
        assert n < turns - 1 or all_said.wait(30)
        return f"did {n}"

    used = {"usage": {"input_tokens": 10, "output_tokens": 1}}
    script = [*({**calls("act", n=n), **used} for n in range(turns)), {**reply("end"), **used}]
    agent = Agent("long", scripted(*script, {**reply("really the end"), **used}, repeat=True), tools=[act],
                  limits=Limits(steps=100))  # fmt: skip
    async with laboratory(impatient, data_dir, agent) as lab:
        run = await lab.start(agent, tenant="acme", user="ann", metadata={"m": "x"})
        sent = 0
        while len(keys) < turns - 2:
            await run.send("say", {"text": f"said {sent}", "message_id": str(sent)})
            sent += 1
            await asyncio.sleep(0.02)
        await run.send("say", {"text": "again", "message_id": "0"})
        all_said.set()
        result = await run.result()
        messages = [words_of(m) for m in await run.messages() if m["role"] == "user"]
        assert messages == ["Go.", *(f"said {n}" for n in range(sent))]
        assert result["output"] in {"end", "really the end"}
        assert [call for call, _ in keys] == [f"c{n}" for n in range(1, turns + 1)]
        chain = await chain_of(lab, run)
        assert len(chain) >= 5
        assert {key.split("/")[0] for _, key in keys} == {chain[0]}
        assert len({key for _, key in keys}) == turns
        events = await run.handle.query("events")
        assert [e["n"] for e in events["events"]] == list(range(1, events["last"] + 1))
        assert [e["text"] for e in events["events"] if e["type"] == "said"] == messages[1:]
        assert len([e for e in events["events"] if e["type"] == "continued"]) == len(chain) - 1
        assert result["tool_calls"] == turns
        assert result["usage"]["input_tokens"] == 10 * result["steps"]
        spec = await run.handle.query("spec")
        assert (spec["tenant"], spec["user"], spec["metadata"]) == ("acme", "ann", {"m": "x"})


async def test_limits_count_on(impatient: Client, data_dir: Path) -> None:
    """A limit on steps is one limit for the whole chain."""

    @tool(effect="read")
    def look(n: int) -> int:
        return n

    agent = Agent("long", scripted(*(calls("look", n=n) for n in range(40))), tools=[look], limits=Limits(steps=20))
    async with laboratory(impatient, data_dir, agent) as lab:
        run = await lab.start(agent)
        result = await run.result()
        assert (result["reason"], result["steps"]) == ("max_steps", 20)
        assert len(await chain_of(lab, run)) > 2


async def test_the_guard_against_repetition_counts_on(impatient: Client, data_dir: Path) -> None:
    """Identical calls are counted over the runs of a chain."""

    @tool(effect="read")
    def look(n: int) -> int:
        return n

    script = []
    for n in range(40):
        script += [calls("look", n=n), calls("look", n=-1)]
    agent = Agent("long", scripted(*script), tools=[look])
    async with laboratory(impatient, data_dir, agent) as lab:
        result = await lab.run(agent)
        assert (result["outcome"], result["reason"]) == ("no_solution", "loop")


async def test_approvals_and_stop_in_a_later_run(impatient: Client, data_dir: Path) -> None:
    """In a later run of the chain an approval works, an old call stays decided, and `stop` is heard."""
    paid: list[str] = []

    @tool(effect="read")
    def look(n: int) -> int:
        return n

    @tool(effect="write", approval=True)
    def pay(to: str) -> str:
        paid.append(to)
        return to

    script = [
        calls("pay", to="a"),
        *(calls("look", n=n) for n in range(12)),
        calls("pay", to="b"),
        calls("pay", to="c"),
    ]
    agent = Agent("payer", scripted(*script), tools=[look, pay])
    async with laboratory(impatient, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.seen("approval_requested", 1)
        await run.update("approve", {"call_id": "c1"})
        await run.seen("approval_requested", 2)
        await run.send("approve", {"call_id": "c1"})
        assert "already decided: approved" in (await run.seen("message_refused"))[0]["reason"]
        await run.update("approve", {"call_id": "c14"})
        await run.seen("approval_requested", 3)
        await run.send("stop", {"reason": "enough"})
        result = await run.result()
        assert (result["reason"], paid) == ("stopped", ["a", "b"])
        assert len(await chain_of(lab, run)) > 1


async def test_children_of_a_later_run(impatient: Client, data_dir: Path) -> None:
    """Children have ids from the first run of the chain and their calls, so none is started twice."""

    @tool(effect="read")
    def look(n: int) -> int:
        return n

    child = Agent("child", scripted(reply("grown")))
    script = [*(calls("look", n=n) for n in range(12)), calls("child", prompt="p"), reply("{{last_tool_text}}")]
    agent = Agent("parent", scripted(*script), tools=[look, child])
    async with laboratory(impatient, data_dir, agent) as lab:
        run = await lab.start(agent)
        assert "grown" in (await run.result())["output"]
        chain = await chain_of(lab, run)
        [started] = await run.events("child_started")
        assert started["workflow_id"] == f"{run.id}/c13-{chain[0][:8]}"


@pytest.mark.parametrize("cached", [1, 100])
async def test_what_the_model_sees_is_the_same_after_a_continuation(
    impatient: Client, client: Client, data_dir: Path, cached: int
) -> None:
    """Request for request the model is sent the same as in a run that never continued."""

    @tool(effect="read")
    def look(n: int) -> str:
        return "x" * 2_000 + str(n)

    seen = []
    for connected in (client, impatient):
        script = [{"calls": [{"tool": "look", "arguments": {"n": n}}]} for n in range(20)]
        async with fake_chat(*script, {"text": "ok"}) as fake:
            agent = Agent("long", fake.model(), tools=[look])
            async with laboratory(connected, data_dir, agent, max_cached_runs=cached) as lab:
                assert (await lab.run(agent))["output"] == "ok"
            seen.append(fake.requests)
    assert seen[0] == seen[1]


async def test_a_run_full_of_signals(impatient: Client, data_dir: Path) -> None:
    """200 messages sent while the run works and continues are all there, in order."""
    go = threading.Event()

    @tool(effect="read")
    def wait(n: int) -> int:
        assert go.wait(30)
        return n

    agent = Agent("listener", scripted(*(calls("wait", n=n) for n in range(6)), reply("ok"), repeat=True), tools=[wait])
    async with laboratory(impatient, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.seen("tool_start")
        await asyncio.gather(*(run.send("say", {"text": "x", "message_id": f"early {n}"}) for n in range(50)))
        go.set()
        with contextlib.suppress(RPCError):  # the run ends in the middle of it
            for n in range(150):
                await run.send("say", {"text": f"late {n}", "message_id": str(n)})
        await run.result()
        said = [words_of(m) for m in await run.messages() if m["role"] == "user"][1:]
        late = [text for text in said if text != "x"]
        assert said.count("x") == 50
        assert late == [f"late {n}" for n in range(len(late))]
