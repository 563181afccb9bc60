"""The job of the incident desk on bare temporalio, for comparison: the same tools, model, approver and ending.

python examples/incident_desk_plain.py

It is what a good engineer would write by hand for these three agents: model and tool calls as activities, specialists
as child workflows, an approval with a timeout, effects that decide about repetition, limits, a graceful stop.
The workflow is in incident_desk_plain_run.py; what the two do not do is said in `MISSING`. The tools are the functions
of incident_desk/agents.py, and the scripted model of Perdure stands in for a vendor's SDK.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed runs too

from pydantic import TypeAdapter, ValidationError, validate_call
from temporalio import activity
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from examples.incident_desk import agents as desk
from examples.incident_desk_plain_run import (
    AGENTS,
    TOOLS,
    Agent,
    AgentRun,
    Call,
    Decision,
    Job,
    Message,
    Question,
    Reply,
    ToolResult,
)
from perdure.embedded import EmbeddedServer
from perdure.errors import PerdureError, ProviderError
from perdure.messages import MESSAGES
from perdure.model_call import ModelRequest, RawCall, RawText
from perdure.tools import Tool
from providers.scripted import play

MISSING = (
    "a write that never began is told as unknown too, and the same write again asks nobody",
    "history grows with the square of the turns: each model call takes the whole conversation",
    "the limits of a child are its own: nothing is reserved, and money is not counted",
    "the deadline is looked at between steps",
    "a run cannot be continued as new, paused on a limit and extended, asked a question or told something more",
    "approvals have one stage and one decision: no quorum, escalation, reminder, edited arguments or signed decision",
    "a reset repeats what lies after its point, writes included",
    "no live text, no event log, no search attributes, no large payloads, no redaction",
    "damaged arguments are not repaired, repeated calls are not noticed",
    "other agents need another program: names, tools and limits are code of the workflow",
)
"""What Perdure's run of the same job does and this one does not."""

HERE = Path(__file__).resolve().parent
QUEUE = "incident-desk-plain"


# --- activities -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToolContext:
    """What the tools ask of their call: the idempotency key is the same in every attempt."""

    run_id: str
    idempotency_key: str


def context() -> ToolContext:
    """The context of the call that this activity is."""
    info = activity.info()
    return ToolContext(info.workflow_id or "", f"{info.workflow_run_id}/{info.activity_id}")


def bare(tool: Tool) -> Callable[..., Any]:
    """The function of a tool, without what Perdure makes of it."""
    assert tool.function is not None
    return tool.function


def open_ticket(title: str, body: str, severity: Literal["low", "medium", "high"]) -> Any:
    """Open a ticket for the people on call. A person has to approve it."""
    return bare(desk.open_ticket)(title, body, severity, context())


def file_report(report: desk.IncidentReport) -> Any:
    """File the report, which ends the job. A report that contradicts the logs is refused with what is wrong."""
    return bare(desk.file_report)(report, context())


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "count_status": bare(desk.count_status),
    "read_log": bare(desk.read_log),
    "trace_request": bare(desk.trace_request),
    "cross_check": bare(desk.cross_check),
    "open_ticket": open_ticket,
    "file_report": file_report,
}


async def beating(work: Awaitable[Any]) -> Any:
    """Wait for work and beat meanwhile: a lost worker is noticed, and a cancellation arrives."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            activity.heartbeat()
            await asyncio.wait([task], timeout=1)
        return task.result()
    finally:
        task.cancel()


@activity.defn
async def call_model(question: Question) -> Reply:
    """One attempt of one model call; transport errors are retried by Temporal, refusals are not."""
    try:
        text, wanted, spent = await beating(complete(question, AGENTS[question.agent]))
    except PermanentError as error:
        raise ApplicationError(str(error), type="provider_error", non_retryable=True) from None
    calls = [Call(id=f"c{n}", tool=t, arguments=a) for n, (t, a) in enumerate(wanted, question.first_call)]
    message = Message(role="assistant", text=text, calls=calls)
    return Reply(message=message, input_tokens=spent[0], output_tokens=spent[1])


@activity.defn
async def call_tool(call: Call) -> ToolResult:
    """One attempt of one call; what goes wrong in it is a result that the model sees."""
    checked = validate_call(FUNCTIONS[call.tool])
    try:
        value = await beating(asyncio.to_thread(checked, **call.arguments))
    except ValidationError as error:
        return ToolResult(text=f"arguments of {call.tool}: {error}", error=True)
    except Exception as error:
        return ToolResult(text=f"{type(error).__name__}: {error}", error=True)
    plain = TypeAdapter(Any).dump_python(value, mode="json")
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return ToolResult(text=text, structured=plain if TOOLS[call.tool].final else None)


# --- the worker -------------------------------------------------------------------------------------------------------


def make_worker(client: Client) -> Worker:
    """A worker that finishes what must not be cut when it is stopped."""
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[AgentRun],
        activities=[call_model, call_tool],
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("examples", "perdure")
        ),
        graceful_shutdown_timeout=timedelta(seconds=80),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=3),
    )


# === from here on: what stands around it, and is not counted ==========================================================
# The scripted model of Perdure in place of a vendor's SDK; the embedded server, the approver and the report of run.py.

PROMPT = "Customers saw errors at the checkout between 18:00 and 19:00 UTC. Find out what happened, and report."
OPERATOR = "desk-operator"


class PermanentError(Exception):
    """The model refuses the request, and would again."""


async def complete(question: Question, agent: Agent) -> tuple[str, list[tuple[str, dict[str, Any]]], tuple[int, int]]:
    """Text, calls and tokens of a reply, as a vendor's SDK would give them."""
    said: list[dict[str, Any]] = []
    for m in question.messages:
        parts: list[dict[str, Any]] = [{"type": "text", "text": m.text}] if m.text else []
        parts += [{"type": "call", **call.model_dump()} for call in m.calls]
        said.append({"role": m.role, "parts": parts, **({"call": m.call} if m.role == "tool" else {})})
    script = json.loads((HERE / "incident_desk" / "script.json").read_text())[question.agent]
    request = ModelRequest(
        model="",
        instructions=agent.instructions,
        messages=tuple(MESSAGES.validate_python(said)),
        params={"script": script},
    )
    try:
        turn = play(request, activity.info().attempt)
    except ProviderError as error:
        raise PermanentError(str(error)) from error
    await asyncio.sleep(turn.delay_ms / 1_000)
    text = "".join(part.text for part in turn.reply.parts if isinstance(part, RawText))
    wanted = [part for part in turn.reply.parts if isinstance(part, RawCall)]
    calls = [(call.tool, dict(call.arguments)) for call in wanted if isinstance(call.arguments, Mapping)]
    usage = turn.reply.usage
    return text, calls, (usage.input_tokens, usage.output_tokens) if usage else (0, 0)


def say(who: str, what: str) -> None:
    """Print a line of the story."""
    print(f"{datetime.now().astimezone():%H:%M:%S}  {who:<17} {what}", flush=True)


async def main(data_dir: Path) -> int:
    """Exit code: 0 where the job ended with its report and one ticket."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    run_id = f"incident-plain-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    async with AsyncExitStack() as stack:
        found = EmbeddedServer.running(data_dir)
        endpoint = found or (await stack.enter_async_context(EmbeddedServer(data_dir))).endpoint
        say("server", f"{endpoint.address}, {'already running' if found else 'started'}; data in {data_dir}")
        client = await Client.connect(endpoint.address, data_converter=pydantic_data_converter)
        await stack.enter_async_context(make_worker(client))
        handle = await client.start_workflow(
            AgentRun.run,
            Job(agent="incident_desk", prompt=PROMPT),
            id=run_id,
            task_queue=QUEUE,
            static_summary="incident_desk",
        )
        say("run", run_id)
        result = asyncio.create_task(handle.result())
        while not result.done():
            for call in (await handle.query(AgentRun.status))["pending"]:
                say("operator", f'approving as {OPERATOR}, in your place: "{call["arguments"].get("title")}"')
                decision = Decision(call_id=call["id"], approve=True, by=OPERATOR, digest=call["digest"])
                await handle.execute_update(AgentRun.decide, decision)
            await asyncio.wait([result], timeout=0.1)
        ending = await result
        tickets = desk.tickets_of(run_id)
        for name, value in (ending.structured or {"output": ending.output or ending.reason}).items():
            print(f"{name:<16}  {value}")
        print(f"\nOutcome   {ending.outcome}{f' ({ending.reason})' if ending.reason else ''}")
        print(f"Tokens    {ending.input_tokens} in and {ending.output_tokens} out, all three agents together")
        print(f"Steps     {ending.steps} model calls and {ending.tool_calls} tool calls of the desk")
        print(f"Tickets   {len(tickets)} of this run in the desk's table")
        print(f"Run       {run_id}, kept in {data_dir}")
    return 0 if ending.outcome == "success" and len(tickets) == 1 else 1


if __name__ == "__main__":
    try:
        code = asyncio.run(main(Path(os.environ.get("PERDURE_DATA_DIR") or ".perdure").resolve()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = 130
    except (PerdureError, OSError) as error:
        print(f"incident desk: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Temporal's client has threads of its own that need not be waited for
