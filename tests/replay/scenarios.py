"""The runs whose histories are kept: one for each feature of the workflow, small, and the same at every recording."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHandle

from perdure import Agent, Approval, Limits, Price, RetryTool, ToolContext, allow, ask, deny, tool
from perdure.testing import Step, call, calls, failure, reply, scripted
from perdure.verify import VerifyContext
from tests.lab import Lab, Run, closed

Handle = WorkflowHandle[Any, Any]
Scenario = Callable[[Lab], Awaitable[list[Handle]]]

SCENARIOS: dict[str, Scenario] = {}
AGENTS: dict[str, Agent] = {}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


@tool(effect="read", quick=True)
def glance(n: int) -> str:
    """Look quickly."""
    return f"glanced {n}"


@tool(effect="write")
def post(body: str) -> str:
    """Post."""
    return f"posted {body}"


@tool(effect="write", approval=True)
def pay(to: str, cents: int) -> str:
    """Pay."""
    return f"paid {to} {cents}"


@tool(effect="write", approval=Approval(timeout=0.3))
def pay_soon(to: str) -> str:
    """Pay, if somebody agrees at once."""
    return f"paid {to}"


@tool(effect="write", approval=Approval(quorum=2, approvers=("ann", "joe", "eve")))
def pay_much(to: str) -> str:
    """Pay, if two agree."""
    return f"paid {to}"


@tool(effect="write", timeout=0.2)
async def send() -> str:
    """Take too long."""
    await asyncio.sleep(30)
    return "sent"


@tool(effect="write", timeout=0.2, on_unknown="ask")
async def send_asking() -> str:
    """Take too long, and ask then."""
    await asyncio.sleep(30)
    return "sent"


@tool(effect="read")
async def nap() -> str:
    """Take very long."""
    await asyncio.sleep(60)
    return "awake"


@tool(effect="read")
def flaky(ctx: ToolContext) -> str:
    """Work in the second attempt."""
    if ctx.attempt == 1:
        raise RetryTool(delay=0.01)
    return "worked"


@tool(effect="read", final=True)
def submit(answer: str) -> dict[str, str]:
    """Hand in the answer."""
    return {"answer": answer}


def judge(call: Any) -> Any:
    """Allow looking, deny posting, ask for the rest."""
    return {"look": allow(), "post": deny("no posts")}.get(call.tool, ask("unusual"))


def not_first(ctx: VerifyContext) -> str | None:
    """Accept the second answer."""
    return None if "second" in ctx.output else "Try a second time."


def agent(name: str, *steps: Step, repeat: bool = False, **options: Any) -> Agent:
    """An agent of a scenario, with the tools that it calls."""
    price = Price(input=Decimal(1), output=Decimal(2))
    tools = [look, glance, post, pay, pay_soon, pay_much, send, send_asking, nap, flaky, submit]
    called = {made["tool"] for step in steps for made in step.get("calls", ())}
    options.setdefault("tools", [one for one in tools if one.spec.name in called | {"look"}])
    AGENTS[name] = Agent(name, scripted(*steps, repeat=repeat, price=price), **options)
    return AGENTS[name]


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    """Put a scenario in the table."""

    def add(function: Scenario) -> Scenario:
        SCENARIOS[name] = function
        return function

    return add


def simple(name: str, *steps: Step, given: dict[str, Any] | None = None, repeat: bool = False, **options: Any) -> None:
    """A scenario that needs nobody."""
    made = agent(name, *steps, repeat=repeat, **options)

    async def play(lab: Lab) -> list[Handle]:
        run = await lab.start(made, **(given or {}))
        await closed(run)
        return [run.handle]

    SCENARIOS[name] = play


simple("answer", reply("Hello."), given={"tenant": "acme", "user": "ann", "data": {"k": 1}, "metadata": {"m": "x"}})
simple("tool", calls("look", n=1), reply("{{last_tool_text}}"))
simple("quick_tool", calls("glance", n=1), reply("{{last_tool_text}}"))
simple("parallel", calls(*(call("look", n=n) for n in range(5)), call("glance", n=9)), reply("ok"))
simple("serial", calls(*(call("look", n=n) for n in range(3))), reply("ok"), parallel_tools=False)
simple("writes_in_order", calls(*(call("post", body=b) for b in "abc"), call("look", n=1)), reply("ok"))
simple("many_turns", *(calls("look", n=n) for n in range(8)), reply("ok"))
simple("bad_calls", calls(call("lok", n=1), call("look", m=1), call("look", n=2)), reply("ok"))
simple("repeated_calls", calls("look", n=1), repeat=True)
simple("empty_replies", reply(""), reply(""), reply("ok"))
simple("approval_expired", calls("pay_soon", to="bob"), reply("{{last_tool_text}}"))
simple("policy_denied", calls(call("post", body="x"), call("look", n=1)), reply("ok"), policy=judge)
simple("verified", reply("first"), reply("second"), verify=not_first)
simple("not_verified", reply("first"), reply("third"), verify=not_first)
simple("schema", reply("none"), reply('{"n": 1}'), given={"output_schema": SCHEMA})
simple("max_steps", calls("look", n=1), calls("look", n=2), limits=Limits(steps=1))
simple("max_tool_calls", calls(call("look", n=1), call("look", n=2)), limits=Limits(tool_calls=1))
simple("max_cost", calls("look", n=1), reply("x"), limits=Limits(cost_usd=Decimal("0.000001")))
simple("deadline", calls("nap"), limits=Limits(deadline=0.4))
simple("retried_model", failure("server", times=1, then=reply("ok")))
simple("failed_model", failure("authentication"))
simple("retried_tool", calls("flaky"), reply("{{last_tool_text}}"))
simple("final_tool", calls(call("submit", answer="yes"), call("pay", to="bob", cents=1)))
simple("paused_turn", reply("wait", finish="paused"), {**calls("look", n=1), "finish": "paused"}, reply("ok"))
simple("unknown_told", calls("send"), calls("look", n=1), reply("ok"))

agent("child", calls("look", n=1), reply("grown up"))
simple("parent", calls(call("child", prompt="a"), call("child", prompt="b")), reply("ok"), tools=[AGENTS["child"]])
agent("failing_child", failure("authentication"))
simple("failed_child", calls("failing_child", prompt="a"), reply("ok"), tools=[AGENTS["failing_child"]])


@scenario("invalid_input")
async def invalid_input(lab: Lab) -> list[Handle]:
    """Nothing was given."""
    run = await lab.begin()
    await closed(run)
    return [run.handle]


@scenario("unknown_agent")
async def unknown_agent(lab: Lab) -> list[Handle]:
    """No such agent."""
    run = await lab.start("nobody")
    await closed(run)
    return [run.handle]


@scenario("child_of_a_parent")
async def child_of_a_parent(lab: Lab) -> list[Handle]:
    """The child's own history."""
    run = await lab.start("parent")
    await closed(run)
    started = (await run.events("child_started"))[0]
    return [lab.client.get_workflow_handle(started["workflow_id"])]


agent("payer", calls(call("pay", to="bob", cents=100), call("look", n=1)), reply("{{last_tool_text}}"))


async def decided(lab: Lab, name: str, *messages: tuple[str, Any], by: str = "update") -> list[Handle]:
    """A run whose approval is decided by these messages."""
    run = await lab.start(name)
    await run.asks()
    for kind, payload in messages:
        await (run.update(kind, payload) if by == "update" else run.send(kind, payload))
    await closed(run)
    return [run.handle]


@scenario("approved")
async def approved(lab: Lab) -> list[Handle]:
    """By update."""
    return await decided(lab, "payer", ("approve", {"call_id": "c1", "by": "ann"}))


@scenario("approved_by_signal")
async def approved_by_signal(lab: Lab) -> list[Handle]:
    """By signal, after bad ones."""
    messages = [("approve", {"call_id": "c9"}), ("aprove", {}), ("say", 5), ("decide", {"approve": True})]
    return await decided(lab, "payer", *messages, by="signal")


@scenario("denied")
async def denied(lab: Lab) -> list[Handle]:
    """By update."""
    return await decided(lab, "payer", ("deny", {"call_id": "c1", "reason": "no"}))


@scenario("edited")
async def edited(lab: Lab) -> list[Handle]:
    """With other arguments."""
    return await decided(lab, "payer", ("approve", {"call_id": "c1", "arguments": {"to": "eve", "cents": "5"}}))


@scenario("quorum")
async def quorum(lab: Lab) -> list[Handle]:
    """Two people."""
    return await decided(lab, "much_payer", ("approve", {"by": "ann"}), ("approve", {"by": "joe"}))


agent("much_payer", calls("pay_much", to="bob"), reply("{{last_tool_text}}"))


@scenario("stopped_while_waiting")
async def stopped_while_waiting(lab: Lab) -> list[Handle]:
    """Stop a run that waits for a person."""
    return await decided(lab, "payer", ("stop", {"reason": "lunch"}))


@scenario("policy_asked")
async def policy_asked(lab: Lab) -> list[Handle]:
    """The policy makes a read wait."""
    return await decided(lab, "judged", ("approve", {}))


agent("judged", calls(call("glance", n=1), call("look", n=1)), reply("ok"), policy=judge)


@scenario("said")
async def said(lab: Lab) -> list[Handle]:
    """Messages of the user while an approval waits."""
    messages = [("say", {"text": "one"}), ("say", {"text": "two", "message_id": "2"}), ("deny", {})]
    return await decided(lab, "payer", *messages)


@scenario("cancelled_while_waiting")
async def cancelled_while_waiting(lab: Lab) -> list[Handle]:
    """Cancel a run that waits for a person."""
    run = await lab.start("payer")
    await run.asks()
    await run.handle.cancel()
    await closed(run)
    return [run.handle]


@scenario("cancelled_in_a_tool")
async def cancelled_in_a_tool(lab: Lab) -> list[Handle]:
    """Cancel a run whose tool runs."""
    run = await lab.start("napper")
    await run.seen("tool_start", 2)
    await run.handle.cancel()
    await closed(run)
    return [run.handle]


agent("napper", calls(call("nap"), call("nap")), reply("never"))


@scenario("cancelled_in_a_model_call")
async def cancelled_in_a_model_call(lab: Lab) -> list[Handle]:
    """Cancel a run whose model call runs."""
    run = await lab.start("slow_talker")
    await run.seen("run_started")
    await run.handle.cancel()
    await closed(run)
    return [run.handle]


agent("slow_talker", {**reply("never"), "delay_ms": 60_000})


async def answered(lab: Lab, *answers: str) -> list[Handle]:
    """A run that asks a person what became of a call."""
    run = await lab.start("asker")
    await run.seen("question")
    for answer in answers:
        await run.send("answer", {"question_id": "q-c1", "text": answer})
    await closed(run)
    return [run.handle]


@scenario("question_done")
async def question_done(lab: Lab) -> list[Handle]:
    """It was done."""
    return await answered(lab, "perhaps", "done")


@scenario("question_not_done")
async def question_not_done(lab: Lab) -> list[Handle]:
    """It was not done."""
    return await answered(lab, "not done")


agent("asker", calls("send_asking"), reply("{{last_tool_text}}"))


@scenario("unknown_again")
async def unknown_again(lab: Lab) -> list[Handle]:
    """An identical call after an unknown outcome needs a person."""
    run = await lab.start("sender")
    await run.asks()
    await run.update("deny", {})
    await closed(run)
    return [run.handle]


agent("sender", calls("send"), calls("send"), reply("{{last_tool_text}}"))


@scenario("reset")
async def reset(lab: Lab) -> list[Handle]:
    """A run that was reset to its beginning: its write is not repeated."""
    run = await lab.start("poster")
    await closed(run)
    history = await run.handle.fetch_history()
    first = next(e for e in history.events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
    request = ResetWorkflowExecutionRequest(
        namespace=lab.client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=run.handle.first_execution_run_id or ""),
        workflow_task_finish_event_id=first.event_id,
        reason="recording",
        request_id=run.id,
        reset_reapply_type=ResetReapplyType.RESET_REAPPLY_TYPE_NONE,
    )
    answer = await lab.client.workflow_service.reset_workflow_execution(request)
    again = lab.client.get_workflow_handle(run.id, run_id=answer.run_id)
    await closed(Run(again))
    return [again]


agent("poster", calls(call("post", body="x"), call("look", n=1)), reply("{{tool:c1}}"))

CONTINUED = "continued"
"""The scenario for a server that suggests to continue as new after 30 events; it gives every run of the chain."""
agent("continuing", *(calls("look", n=n) for n in range(7)), calls("pay", to="bob", cents=1), reply("ok"))


async def continued(lab: Lab) -> list[Handle]:
    """A chain of runs, with messages of the user and an approval."""
    run = await lab.start("continuing")
    await run.send("say", {"text": "one", "message_id": "1"})
    await run.asks()
    await run.send("say", {"text": "two", "message_id": "1"})
    await run.update("approve", {})
    await closed(run)
    chain: list[Handle] = []
    run_id = run.handle.first_execution_run_id
    while run_id:
        chain.append(lab.client.get_workflow_handle(run.id, run_id=run_id))
        events = (await chain[-1].fetch_history()).events
        run_id = events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
    return chain
