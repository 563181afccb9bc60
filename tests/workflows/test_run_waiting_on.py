"""Continue-as-new while people are waited for: everything goes on, nothing is asked twice, run twice or lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.converter import data_converter
from activities.stores.base import StoreDown
from activities.stores.files import FileStore
from perdure import Agent, Approval, Escalation, Limits, ask_human, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import call, calls, reply, scripted
from tests.fake_chat import fake_chat
from tests.lab import Run, eventually, laboratory


@pytest.fixture(scope="module")
def hasty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that suggests to continue as new after 40 events."""
    settings = {"limit.historyCount.suggestContinueAsNew": "40"}
    with EmbeddedServer(tmp_path_factory.mktemp("hasty"), headless=True, dynamic_config=settings) as server:
        yield server


@pytest.fixture
async def hasty(hasty_server: EmbeddedServer, store: FileStore) -> Client:
    """A client of it."""
    return await Client.connect(hasty_server.address, data_converter=data_converter(store))


async def continuations(run: Run) -> int:
    """How often the run was continued as new."""
    return len(await run.events("continued"))


async def pushed(run: Run, times: int = 1) -> None:
    """Send messages until the run was continued so many times more."""
    wanted = await continuations(run) + times

    async def enough() -> bool:
        await run.send("event_that_nobody_knows")
        return await continuations(run) >= wanted

    await eventually(enough)


async def asked_once(run: Run) -> list[str]:
    """The calls that were asked for; each once."""
    found = [e["call_id"] for e in await run.events("approval_requested")]
    assert len(set(found)) == len(found)
    return found


async def test_decisions_given_so_far_are_kept(hasty: Client, data_dir: Path) -> None:
    """One of two approvals, the stage, what is remembered, and the sibling's result survive several continuations."""
    paid: list[str] = []
    looked: list[int] = []
    rule = Approval(timeout=0.6, remind_every=0.3, escalate=(Escalation(quorum=2, timeout="1h", approvers=("a", "b")),))

    @tool(effect="write", approval=rule)
    def pay(to: str) -> str:
        paid.append(to)
        return f"paid {to}"

    @tool(effect="read")
    def look(n: int) -> str:
        looked.append(n)
        return f"seen {n}"

    script = [calls(call("look", n=1), call("pay", to="x")), calls("pay", to="x"), reply("ok")]
    agent = Agent("payer", scripted(*script), tools=[pay, look])
    async with laboratory(hasty, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.seen("approval_escalated")
        await run.update("approve", {"by": "a", "remember": True})
        [before] = await run.pending()
        await pushed(run, 3)
        assert await run.pending() == [before]
        assert await run.state() == "waiting_approval"
        await run.send("approve", {"by": "a"})
        await run.update("approve", {"by": "b", "remember": True})
        await run.result()
        assert (paid, looked) == (["x", "x"], [1])
        assert await asked_once(run) == ["c2"]
        assert [e["call_id"] for e in await run.events("approval_remembered")] == ["c3"]
        assert await run.results() == {"c1": "seen 1", "c2": "paid x", "c3": "paid x"}


async def test_time_goes_on(hasty: Client, data_dir: Path) -> None:
    """Reminders, the next stage and the end come when they should have, over continuations."""

    @tool(effect="write", approval=Approval(timeout=1.5, remind_every=0.5, escalate=(Escalation(timeout=1.5),)))
    def pay() -> None: ...

    agent = Agent("payer", scripted(calls("pay"), reply("{{last_tool_text}}")), tools=[pay])
    async with laboratory(hasty, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.asks()
        await pushed(run)
        await run.seen("approval_escalated")
        await pushed(run)
        assert "expired" in (await run.result())["output"]
        assert len(await run.events("approval_escalated")) == 1
        assert len(await run.events("approval_reminder")) <= 6


async def test_questions_and_ordered_writes(hasty: Client, data_dir: Path) -> None:
    """A question stays open, a write behind a waiting one waits on, an unknown outcome is asked about once."""
    ledger: list[str] = []

    @tool(effect="write", approval=True)
    def first() -> str:
        ledger.append("first")
        return "1"

    @tool(effect="write")
    def second() -> str:
        ledger.append("second")
        return "2"

    @tool(effect="write", timeout=0.2, on_unknown="ask")
    async def lost() -> None:
        ledger.append("lost")
        await asyncio.sleep(30)

    asks = [call("lost"), call("first"), call("second"), call("ask_human", question="Why?", options=["so"])]
    agent = Agent("worker", scripted(calls(*asks), reply("ok")), tools=[first, second, lost, ask_human])
    async with laboratory(hasty, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.seen("question", 2)
        await pushed(run, 2)
        assert ledger == ["lost"]
        assert sorted(q["question_id"] for q in (await run.status())["questions"]) == ["q-c1", "q-c4"]
        await run.update("answer", {"question_id": "q-c4", "text": "so"})
        await run.update("approve", {})
        await pushed(run)
        assert ledger == ["lost"]
        await run.update("answer", {"question_id": "q-c1", "text": "not done"})
        await run.result()
        assert ledger == ["lost", "first", "second"]
        assert [e["question_id"] for e in await run.events("question")].count("q-c1") == 1
        assert len(await run.events("question")) == 2
        starts = [e["call_id"] for e in await run.events("tool_start")]
        assert sorted(starts) == ["c1", "c2", "c3", "c4"]
        results = await run.results()
        assert (results["c2"], results["c3"], results["c4"]) == ("1", "2", "so")
        assert "was not done" in results["c1"]


async def test_a_paused_limit(hasty: Client, data_dir: Path) -> None:
    """The pause keeps its end, and an extension lets the run go on."""
    agent = Agent("payer", scripted(calls("nothing"), reply("end")), limits=Limits(steps=1), on_limit="pause")
    async with laboratory(hasty, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.seen("limit_reached")
        until = (await run.status())["paused_until"]
        await pushed(run, 2)
        status = await run.status()
        assert (status["state"], status["paused"], status["paused_until"]) == ("waiting_limit", "max_steps", until)
        await run.update("extend", {"steps": 1})
        assert (await run.result())["output"] == "end"
        assert len(await run.events("limit_reached")) == 1


async def test_a_child_that_is_continued_while_it_waits(hasty: Client, data_dir: Path) -> None:
    """Its parent goes on showing what it waits for, once, and decides it."""
    paid: list[str] = []

    @tool(effect="write", approval=True)
    def pay(to: str) -> str:
        paid.append(to)
        return to

    child = Agent("child", scripted(calls("pay", to="a"), calls("pay", to="b"), reply("ok")), tools=[pay])
    parent = Agent("parent", scripted(calls("child", prompt="p"), reply("end")), tools=[child])
    async with laboratory(hasty, data_dir, parent) as lab:
        run = await lab.start(parent)
        await run.asks()
        [started] = await run.events("child_started")
        inner = Run(lab.client.get_workflow_handle(started["workflow_id"]))
        await pushed(inner, 2)
        assert [p["call_id"] for p in await run.pending()] == ["c1/c1"]
        await run.update("approve", {})
        await run.seen("approval_requested", 2)
        await pushed(inner)
        await run.update("approve", {"call_id": "c1/c2"})
        await run.result()
        assert paid == ["a", "b"]
        assert await asked_once(run) == ["c1/c1", "c1/c2"]


class Gate(FileStore):
    """A store that is down for a while."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.shut = False
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def get(self, digest: str) -> bytes:
        """Wait for the end of the outage, and fail."""
        if self.shut:
            self.reached.set()
            await self.opened.wait()
            raise StoreDown("down for a moment")
        return await super().get(digest)


@pytest.mark.parametrize("kind", ["signal", "update"])
async def test_messages_before_a_new_run_has_begun(hasty_server: EmbeddedServer, data_dir: Path, kind: str) -> None:
    """What reaches the next run of a chain before its first task is taken like everything else."""
    paid: list[str] = []

    @tool(effect="write", approval=True)
    def pay(to: str, note: str) -> str:
        paid.append(to)
        return to

    gate = Gate(data_dir / "blobs")
    client = await Client.connect(hasty_server.address, data_converter=data_converter(gate))
    note = "x" * 80_000  # so that what is carried leaves history, and the new run cannot begin without the store
    script = calls(call("pay", to="a", note=note), call("pay", to="b", note=note), call("ask_human", question="?"))
    agent = Agent("payer", scripted(script, reply("end"), repeat=True), tools=[pay, ask_human],
                  limits=Limits(steps=5))  # fmt: skip
    messages: list[tuple[str, Any]] = [
        ("say", {"text": "one", "message_id": "1"}),
        ("approve", {"call_id": "c1", "by": "ann"}),
        ("deny", {"call_id": "c2"}),
        ("approve", {"call_id": "c9"}),
        ("answer", {"question_id": "q-c3", "text": "yes"}),
        ("extend", {"steps": 7}),
    ]
    async with laboratory(client, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.seen("question")
        await run.asks(2)
        gate.shut = True
        while not gate.reached.is_set():
            await run.send("noise")
            await asyncio.sleep(0.02)
        if kind == "signal":
            for name, payload in messages:
                await run.send(name, payload)
            gate.shut = False
            gate.opened.set()
            await run.result()
            refused = [e["reason"] for e in await run.events("message_refused") if e["message"] != "noise"]
        else:
            sent = []
            for name, payload in messages:
                sent.append(asyncio.create_task(run.update(name, payload)))
                await asyncio.sleep(0)
            await run.send("noise")
            gate.shut = False
            gate.opened.set()
            answers = await asyncio.gather(*sent, return_exceptions=True)
            refused = [str(a.__cause__) for a in answers if isinstance(a, Exception)]
            await run.result()
        assert await continuations(run) >= 1
        assert len(refused) == 1
        assert "c9" in refused[0]
        assert paid == ["a"]
        assert (await run.status())["limits"]["steps"] == 12
        assert [m["parts"][0]["text"] for m in await run.messages() if m["role"] == "user"] == ["Go.", "one"]
        assert (await run.results())["c3"] == "yes"


async def test_a_decision_in_the_task_that_continues(hasty: Client, data_dir: Path) -> None:
    """Many approvals are decided while the run is continued again and again: each call runs once."""
    paid: list[int] = []

    @tool(effect="write", approval=True)
    def pay(n: int) -> int:
        paid.append(n)
        return n

    turns, width = 6, 4
    script = [calls(*(call("pay", n=turn * width + k) for k in range(width))) for turn in range(turns)]
    agent = Agent("payer", scripted(*script, reply("ok")), tools=[pay])
    async with laboratory(hasty, data_dir, agent) as lab:
        run = await lab.start(agent)
        over = asyncio.Event()

        async def noise() -> None:
            while not over.is_set():
                await run.send("noise")
                await asyncio.sleep(0.005)

        talking = asyncio.create_task(noise())
        try:
            for turn in range(turns):
                await run.seen("approval_requested", (turn + 1) * width)
                for k in range(width):
                    await run.send("approve", {"call_id": f"c{turn * width + k + 1}"})
        finally:
            over.set()
            await asyncio.gather(talking, return_exceptions=True)
        await run.result()
        assert sorted(paid) == list(range(turns * width))
        assert await continuations(run) > 2
        for turn in range(turns):
            here = [n for n in paid if n // width == turn]
            assert here == sorted(here)


async def test_notices_are_not_sent_again(hasty: Client, data_dir: Path) -> None:
    """A continuation waits for notices that are on their way, and repeats none."""
    told: list[str] = []
    lock = threading.Lock()

    def notify(what: Any) -> None:
        with lock:
            told.append(f"{what.kind} {what.call.call_id}")

    @tool(effect="write", approval=True)
    def pay(n: int) -> int:
        return n

    agent = Agent("payer", scripted(calls(*(call("pay", n=n) for n in range(8))), reply("ok")), tools=[pay],
                  notify=notify)  # fmt: skip
    async with laboratory(hasty, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.asks(8)
        await pushed(run, 2)
        for n in range(8):
            await run.update("deny", {"call_id": f"c{n + 1}"})
        await run.result()
        assert sorted(told) == [f"requested c{n + 1}" for n in range(8)]


@pytest.mark.slow
async def test_case_145_fifty_large_calls(hasty: Client, data_dir: Path) -> None:
    """Fifty calls with all the arguments that one reply may have wait over continuations, are shown, and run."""
    sizes: list[int] = []

    @tool(effect="write", approval=True)
    def keep(n: int, body: str) -> str:
        sizes.append(len(body))
        return f"kept {n}"

    asked = {"calls": [call("keep", n=n, body=f"{n}" + "x" * 19_000) for n in range(50)]}
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(fake_chat(asked, {"text": "ok"}))
        agent = Agent("keeper", fake.model(), tools=[keep])
        lab = await stack.enter_async_context(laboratory(hasty, data_dir, agent))
        run = await lab.start(agent)
        await run.asks(50)
        await pushed(run)
        assert len(await run.pending()) == 50
        for n in range(50):
            await run.send("approve" if n % 2 else "deny", {"call_id": f"c{n + 1}"})
        await run.result()
        assert len(sizes) == 25
        assert await asked_once(run) == [f"c{n + 1}" for n in range(50)]
