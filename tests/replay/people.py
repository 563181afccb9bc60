"""More runs whose histories are kept: those that wait for people over time, by name, with proof, and in families."""

from __future__ import annotations

from typing import Any

from perdure import Agent, Approval, Escalation, Limits, ask_human, human, tool
from perdure.decision_tokens import public_key_of, sign_decision
from perdure.testing import Step, calls, reply, scripted
from tests.lab import Lab, Run, closed, eventually
from tests.replay.scenarios import AGENTS, Handle, scenario

PRIVATE = "A" * 43
"""Signs the decision tokens of the histories, and nothing else."""
PUBLIC = public_key_of(PRIVATE)

BOSS = Escalation(approvers=("boss",), timeout="1h")
SHOWN = reply("{{last_tool_text}}")


def pays(name: str, rule: Approval | bool) -> Any:
    """A tool that pays by a rule."""

    @tool(name=name, effect="write", approval=rule)
    def pay(to: str) -> str:
        """Pay."""
        return f"paid {to}"

    return pay


PLAIN = pays("pay_if_agreed", True)


def agent(name: str, *steps: Step, **options: Any) -> Agent:
    """An agent of a scenario."""
    AGENTS[name] = Agent(name, scripted(*steps), **options)
    return AGENTS[name]


STAGES = Approval(timeout=0.5, remind_every=0.2, approvers=["ann"], escalate=(BOSS,))
agent("escalating", calls("pay_by_stages", to="bob"), SHOWN, tools=[pays("pay_by_stages", STAGES)])
agent("remembering", *(calls("pay_if_agreed", to=to) for to in ("a", "a", "b")), reply("ok"), tools=[PLAIN])
agent(
    "proving",
    calls("pay_with_proof", to="bob"),
    SHOWN,
    tools=[pays("pay_with_proof", Approval(verified=True, approvers=["ann"]))],
)
agent("asking", calls("ask_human", question="Which?", options=["red", "blue"]), SHOWN, tools=[ask_human])
agent("asking_briefly", calls("ask", question="Now?"), SHOWN, tools=[human("ask", timeout=0.3)])
agent(
    "grandchild", calls("pay_if_agreed", to="bob"), calls("ask_human", question="Why?"), SHOWN, tools=[PLAIN, ask_human]
)
agent("middle", calls("grandchild", prompt="p"), reply("ok"), tools=[AGENTS["grandchild"]])
agent("grandparent", calls("middle", prompt="p"), reply("ok"), tools=[AGENTS["middle"]])
agent(
    "pausing",
    calls("pay_freely", to="a"),
    reply("end"),
    tools=[pays("pay_freely", False)],
    limits=Limits(steps=1),
    on_limit="pause",
)
agent("telling", calls("pay_if_agreed", to="bob"), SHOWN, tools=[PLAIN], notify=lambda notice: None)


@scenario("escalated")
async def escalated(lab: Lab) -> list[Handle]:
    """Reminded, escalated, refused for the first stage's approver, approved by the second's."""
    run = await lab.start("escalating")
    await run.seen("approval_escalated")
    await run.send("approve", {"by": "ann"})
    await run.update("approve", {"by": "boss"})
    await closed(run)
    return [run.handle]


@scenario("remembered")
async def remembered(lab: Lab) -> list[Handle]:
    """The same call once more without asking; another one is asked about, and denied for the tool."""
    run = await lab.start("remembering")
    await run.seen("approval_requested")
    await run.update("approve", {"remember": True})
    await run.seen("approval_requested", 2)
    await run.update("deny", {"remember": "tool"})
    await closed(run)
    return [run.handle]


@scenario("verified_by_token")
async def verified_by_token(lab: Lab) -> list[Handle]:
    """A token of a stranger is refused, the right one is taken."""
    run = await lab.start("proving")
    [pending] = await run.asks()
    bound = {"run": run.id, "call_id": "c1", "digest": pending["digest"]}
    await run.send("approve", {"by": "ann"})
    await run.send("approve", {"token": sign_decision("B" * 42 + "A", **bound, by="ann")})
    await run.send("approve", {"token": sign_decision(PRIVATE, **bound, by="ann")})
    await closed(run)
    return [run.handle]


@scenario("human_answered")
async def human_answered(lab: Lab) -> list[Handle]:
    """By signal, after what is no option."""
    run = await lab.start("asking")
    await run.seen("question")
    await run.send("answer", {"question_id": "q-c1", "text": "green"})
    await run.send("answer", {"question_id": "q-c1", "text": " blue ", "by": "ann"})
    await closed(run)
    return [run.handle]


@scenario("human_silent")
async def human_silent(lab: Lab) -> list[Handle]:
    """Nobody answers."""
    run = await lab.start("asking_briefly")
    await closed(run)
    return [run.handle]


@scenario("decided_at_the_root")
async def decided_at_the_root(lab: Lab) -> list[Handle]:
    """A call and a question two levels down are decided at the root; the histories of the root and of who asked."""
    run = await lab.start("grandparent")
    await run.asks()
    await run.update("approve", {"call_id": "c1/c1/c1"})
    await run.seen("question")
    await run.send("answer", {"question_id": "c1/c1/q-c2", "text": "so"})
    await closed(run)
    handles = [run.handle]
    for _ in range(2):
        [started] = await Run(handles[-1]).events("child_started")
        handles.append(lab.client.get_workflow_handle(started["workflow_id"]))
    return [handles[0], handles[2]]


@scenario("paused_and_extended")
async def paused_and_extended(lab: Lab) -> list[Handle]:
    """A limit is reached, and raised."""
    run = await lab.start("pausing")
    await run.seen("limit_reached")
    await run.update("extend", {"steps": 3})
    await closed(run)
    return [run.handle]


@scenario("paused_and_stopped")
async def paused_and_stopped(lab: Lab) -> list[Handle]:
    """A limit is reached, and nobody wants to go on."""
    run = await lab.start("pausing")
    await run.seen("limit_reached")
    await run.update("stop", {})
    await closed(run)
    return [run.handle]


PAUSED_AND_EXPIRED = "paused_and_expired"
"""The scenario of a run that waits a day, for a server that skips time."""


async def paused_and_expired(lab: Lab) -> list[Handle]:
    """A limit is reached, and nobody raises it for as long as the run waits."""
    run = await lab.start("pausing")
    await run.seen("limit_reached")
    await closed(run)
    return [run.handle]


@scenario("notified")
async def notified(lab: Lab) -> list[Handle]:
    """Somebody is told by a function."""
    run = await lab.start("telling")
    await run.asks()
    await run.update("approve", {})
    await closed(run)
    return [run.handle]


CONTINUED_WAITING = "continued_waiting"
"""The scenario of a chain that waits for people, for a server that suggests to continue as new after 30 events."""
agent(CONTINUED_WAITING, calls({"tool": "pay_by_two", "arguments": {"to": "a"}},
                               {"tool": "ask_human", "arguments": {"question": "Why?"}}), reply("ok"),
      tools=[pays("pay_by_two", Approval(quorum=2)), ask_human])  # fmt: skip


async def continued_waiting(lab: Lab) -> list[Handle]:
    """One of two approvals is given before the continuation, the other one and the answer after it."""
    run = await lab.start(CONTINUED_WAITING)
    await run.asks()
    await run.seen("question")
    await run.update("approve", {"by": "ann"})

    async def continued() -> bool:
        await run.send("noise")
        return bool(await run.events("continued"))

    await eventually(continued)
    await run.update("approve", {"by": "joe"})
    await run.update("answer", {"question_id": "q-c2", "text": "so"})
    await closed(run)
    chain: list[Handle] = []
    run_id = run.handle.first_execution_run_id
    while run_id:
        chain.append(lab.client.get_workflow_handle(run.id, run_id=run_id))
        events = (await chain[-1].fetch_history()).events
        run_id = events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
    return chain
