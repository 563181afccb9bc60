"""Two things at once, in both orders and within one workflow task: one outcome always. Days pass by skipping time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, Approval, Escalation, Limits, RetryTool, ask_human, human, tool
from perdure.testing import calls, reply, scripted
from tests.lab import Run, closed, eventually, laboratory
from workflows.interceptor import RunInterceptor
from workflows.runner import WORKFLOWS, make_runner

pytestmark = pytest.mark.slow

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MOMENT = timedelta(seconds=1)
"""The timeout of what is decided at its end."""


@dataclass
class Scene:
    """A server, and a worker that can be stopped."""

    client: Client
    pass_time: Callable[[timedelta], Awaitable[None]]
    data_dir: Path
    store: FileStore
    ledger: list[str] = field(default_factory=list)
    queue: str = field(default_factory=lambda: f"q-{secrets.token_hex(6)}")

    async def start(self, agent: Agent, until: str, count: int = 1) -> Run:
        """A run that has come as far as an event of a type, and no worker any more."""
        async with self.serving(agent) as lab:
            run: Run = await lab.start(agent)
            await run.seen(until, count)
        return run

    def serving(self, agent: Agent) -> Any:
        """A worker while the block runs; it remembers nothing of those before it."""
        return laboratory(self.client, self.data_dir, agent, queue=self.queue)

    async def end(self, agent: Agent, run: Run) -> dict[str, Any]:
        """How the run ends with a new worker; its history replays."""
        async with self.serving(agent):
            return await self.ended(run)

    async def ended(self, run: Run) -> dict[str, Any]:
        """How the run ends with the worker that is there; its history replays."""
        result = await run.ended()
        self.events = await run.events()
        history = await run.handle.fetch_history()
        replayer = Replayer(workflows=WORKFLOWS, workflow_runner=make_runner(), interceptors=[RunInterceptor()],
                            data_converter=data_converter(self.store))  # fmt: skip
        await asyncio.wait_for(replayer.replay_workflow(history), 30)
        return result

    def count(self, kind: str) -> int:
        """How many events of a type the run has at its end."""
        return sum(1 for event in self.events if event["type"] == kind)

    def payer(self, rule: Approval | bool = True, **options: Any) -> Agent:
        """An agent whose payment waits."""

        @tool(effect="write", approval=rule)
        def pay(to: str) -> str:
            self.ledger.append(to)
            return f"paid {to}"

        return Agent("payer", scripted(calls("pay", to="bob"), reply("{{last_tool_text}}")), tools=[pay], **options)


@pytest.fixture
async def scene(client: Client, data_dir: Path, store: FileStore) -> Scene:
    """A scene in which time passes as it does, so that no worker need be there while it passes."""

    async def pass_time(time: timedelta) -> None:
        await asyncio.sleep(time.total_seconds())

    return Scene(client, pass_time, data_dir, store)


@pytest.fixture
async def skipped(skipping: WorkflowEnvironment, data_dir: Path, store: FileStore) -> Scene:
    """A scene in which days pass at once."""
    return Scene(skipping.client, skipping.sleep, data_dir, store)


Step = Callable[[Scene, Run], Awaitable[None]]


def sends(name: str, **payload: Any) -> Step:
    """A signal."""

    async def step(scene: Scene, run: Run) -> None:
        await run.send(name, payload)

    return step


def passes(time: timedelta) -> Step:
    """Time that passes."""

    async def time_passes(scene: Scene, run: Run) -> None:
        await scene.pass_time(time)

    return time_passes


async def cancels(scene: Scene, run: Run) -> None:
    """A cancel."""
    await run.handle.cancel()


YES, NO = sends("approve", call_id="c1", by="ann"), sends("deny", call_id="c1", by="joe")
STOP, LATE = sends("stop"), passes(1.5 * MOMENT)

RACES: list[tuple[str, Step, Step, set[str], set[str]]] = [
    ("decision_timeout", YES, LATE, {"paid", "expired"}, set()),
    ("denial_timeout", NO, LATE, {"denied", "expired"}, set()),
    ("two_decisions", YES, NO, {"paid", "denied"}, set()),
    ("same_decision_twice", YES, YES, {"paid"}, set()),
    ("decision_cancel", YES, cancels, {"paid", "cancelled"}, set()),
    ("decision_stop", YES, STOP, {"paid and stopped", "stopped"}, {"paid"}),
    ("stop_timeout", STOP, LATE, {"stopped", "expired"}, set()),
    ("stop_cancel", STOP, cancels, {"stopped", "cancelled"}, set()),
    ("timeout_cancel", LATE, cancels, {"expired", "cancelled"}, set()),
]  # fmt: skip
"""Two steps, the outcomes that are right, and those that are too where the first may end the run before the second."""


def told(result: dict[str, Any], ledger: list[str]) -> str:
    """How the run ended, in words."""
    if result.get("outcome") == "cancelled":
        assert ledger in ([], ["bob"])
        return "cancelled"
    paid = "paid" if ledger == ["bob"] else ""
    if result.get("reason") == "stopped":
        return " and ".join(filter(None, [paid, "stopped"]))
    return paid or ("expired" if "expired" in result["output"] else "denied")


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
@pytest.mark.parametrize("turned", [False, True], ids=["forth", "back"])
@pytest.mark.parametrize(("first", "second", "outcomes", "early"), [r[1:] for r in RACES], ids=[r[0] for r in RACES])
async def test_one_of_two(
    scene: Scene, first: Step, second: Step, outcomes: set[str], early: set[str], turned: bool, together: bool
) -> None:
    """Whichever comes first counts, or neither harms; the ledger and the log say the same as the result."""
    waits = MOMENT if LATE in (first, second) else HOUR
    agent = scene.payer(Approval(timeout=waits))
    steps = [second, first] if turned else [first, second]
    run = await _play(scene, agent, "approval_requested", steps, together)
    result = await scene.end(agent, run)
    outcome = told(result, scene.ledger)
    settled = scene.count("approval_decided") + scene.count("approval_expired")
    assert settled <= 1
    approved = any(e.get("approve") for e in scene.events if e["type"] == "approval_decided")
    if outcome != "cancelled":
        assert scene.ledger == (["bob"] if approved and "paid" in outcome else [])
    assert len(scene.ledger) <= approved
    assert outcome in (outcomes if together or turned else outcomes | early)
    assert scene.count("run_ended") == 1


async def test_days(skipped: Scene) -> None:
    """Stages of days, with reminders every twelve hours, end when they should, and cost no more events than that."""
    rule = Approval(timeout="2d", remind_every="12h", escalate=(Escalation(timeout="5d"),))
    agent = skipped.payer(rule)
    async with skipped.serving(agent) as lab:
        run = await lab.start(agent)
        await run.seen("approval_requested")
        await skipped.pass_time(8 * DAY)
        result = await skipped.ended(run)
    assert "expired" in result["output"]
    assert (skipped.count("approval_reminder"), skipped.count("approval_escalated")) == (3 + 9, 1)
    [asked] = [e for e in skipped.events if e["type"] == "approval_requested"]
    [ended] = [e for e in skipped.events if e["type"] == "approval_expired"]
    passed = datetime.fromisoformat(ended["at"]) - datetime.fromisoformat(asked["at"])
    assert 7 * DAY <= passed < 7 * DAY + HOUR
    assert (await run.handle.describe()).history_length < 150


async def test_an_outage(scene: Scene) -> None:
    """What was due while no worker was there is done once: one reminder, and the next stage in full."""
    boss = Escalation(timeout="1h", approvers=("boss",))
    agent = scene.payer(Approval(timeout=2 * MOMENT, remind_every=0.2, escalate=(boss,)))
    run = await scene.start(agent, "approval_requested")
    reminded = len(await _history_reminders(scene, agent, run))
    await scene.pass_time(2.5 * MOMENT)
    async with scene.serving(agent):
        await run.seen("approval_escalated")
        with pytest.raises(WorkflowUpdateFailedError):
            await run.update("approve", {"by": "ann"})
        await run.update("approve", {"by": "boss"})
    await scene.end(agent, run)
    assert (scene.ledger, scene.count("approval_escalated"), scene.count("approval_expired")) == (["bob"], 1, 0)
    assert scene.count("approval_reminder") <= reminded + 1


async def _history_reminders(scene: Scene, agent: Agent, run: Run) -> list[Any]:
    async with scene.serving(agent):
        return await run.events("approval_reminder")


async def test_two_days_in_a_child(skipped: Scene) -> None:
    """A child's approval waits two days though its parent has ten minutes; the parent's clock stands still."""

    @tool(effect="write", approval=Approval(timeout="3d"))
    def pay(to: str) -> str:
        skipped.ledger.append(to)
        return to

    child = Agent("child", scripted(calls("pay", to="bob"), reply("ok")), tools=[pay], limits=Limits(deadline="10m"))
    parent = Agent("payer", scripted(calls("child", prompt="p"), reply("end")), tools=[child],
                   limits=Limits(deadline="10m"))  # fmt: skip
    async with skipped.serving(parent) as lab:
        run = await lab.start(parent)
        await run.asks()
        await skipped.pass_time(2 * DAY)
        await run.update("approve", {"call_id": "c1/c1"})
        assert (await skipped.ended(run))["output"] == "end"
    assert skipped.ledger == ["bob"]


@pytest.mark.parametrize("turned", [False, True], ids=["forth", "back"])
async def test_an_extension_at_the_pauses_end(skipped: Scene, turned: bool) -> None:
    """A run that is paused on its limit for a day is extended, or ends, and never both."""
    agent = Agent("payer", scripted(calls("nothing"), reply("end")), limits=Limits(steps=1), on_limit="pause")
    steps = [sends("extend", steps=5), passes(DAY + HOUR)]
    run = await _play(skipped, agent, "limit_reached", steps[::-1] if turned else steps, together=False)
    result = await skipped.end(agent, run)
    assert (result["outcome"], result["reason"]) == (("budget_exceeded", "max_steps") if turned else ("success", None))
    assert skipped.count("extension_expired") == turned
    assert skipped.count("limits_extended") == (not turned)


@pytest.mark.parametrize("turned", [False, True], ids=["forth", "back"])
@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
async def test_an_extension_at_the_deadline(scene: Scene, turned: bool, together: bool) -> None:
    """More time that comes before the deadline is noticed counts; after it the run has ended."""

    naps: list[int] = []

    @tool(effect="read", attempts=5)
    def nap() -> None:
        naps.append(1)
        while not activity.is_worker_shutdown():  # so that no worker waits for it
            time.sleep(0.01)
        raise RetryTool(delay=0.01)

    agent = Agent("payer", scripted(calls("nap"), reply("end")), tools=[nap], limits=Limits(deadline=3 * MOMENT))
    steps = [sends("extend", deadline="30m"), passes(4 * MOMENT)]
    run = await _play(scene, agent, "tool_start", steps[::-1] if turned else steps, together)
    if together or not turned:
        before = len(naps)
        async with scene.serving(agent):
            await eventually(lambda: len(naps) > before)  # so it still runs
            await run.handle.cancel()
            await closed(run)
    result = await scene.end(agent, run)
    assert result["outcome"] == ("timeout" if turned and not together else "cancelled")
    assert scene.count("run_ended") == 1


@pytest.mark.parametrize("turned", [False, True], ids=["forth", "back"])
@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
async def test_an_answer_at_the_questions_end(scene: Scene, turned: bool, together: bool) -> None:
    """The model gets the answer, or is told that nobody gave one, once."""
    asks = human("ask_human", timeout=2 * MOMENT)
    agent = Agent("payer", scripted(calls("ask_human", question="?"), reply("{{last_tool_text}}")), tools=[asks])
    steps = [sends("answer", question_id="q-c1", text="yes"), passes(3 * MOMENT)]
    run = await _play(scene, agent, "question", steps[::-1] if turned else steps, together)
    output = (await scene.end(agent, run))["output"]
    assert output in {"yes", "nobody answered in time"}
    assert output != "yes" or not (turned or together)
    assert scene.count("answered") == (output == "yes")
    assert scene.count("question_expired") == (output != "yes")


async def test_two_answers_and_a_cancel(scene: Scene) -> None:
    """The first answer counts; a cancel in the same task ends the run as cancelled."""
    agent = Agent("payer", scripted(calls("ask_human", question="?"), reply("{{last_tool_text}}")), tools=[ask_human])
    run = await scene.start(agent, "question")
    for text in ("first", "second"):
        await run.send("answer", {"question_id": "q-c1", "text": text})
    assert (await scene.end(agent, run))["output"] == "first"
    assert (scene.count("answered"), scene.count("message_refused")) == (1, 1)
    run = await scene.start(agent, "question")
    await run.send("answer", {"question_id": "q-c1", "text": "first"})
    await run.handle.cancel()
    assert (await scene.end(agent, run))["outcome"] == "cancelled"


async def _play(scene: Scene, agent: Agent, until: str, steps: list[Step], together: bool) -> Run:
    """A run to which both happen: without a worker, or each to one that has dealt with the first."""
    async with scene.serving(agent) as lab:
        run: Run = await lab.start(agent)
        await run.seen(until)
        if not together:
            done = await _tasks(run)
            await steps[0](scene, run)

            async def noticed() -> bool:
                return await _tasks(run) > done

            await eventually(noticed)
            with suppress(RPCError):  # the run may have ended
                await steps[1](scene, run)
    if together:
        for step in steps:
            await step(scene, run)
    return run


async def _tasks(run: Run) -> int:
    """How many workflow tasks are done."""
    kinds = [event.event_type for event in (await run.handle.fetch_history()).events]
    return kinds.count(EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
