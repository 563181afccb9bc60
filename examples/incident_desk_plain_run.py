"""The workflow of incident_desk_plain.py: what its activities exchange with it, its three agents, and their loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, is_cancelled_exception
from temporalio.exceptions import TimeoutError as LostError

from examples.incident_desk import agents as desk

# --- the agents -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tool:
    """How a tool may run; its function is known to the activity."""

    effect: Literal["read", "write"] = "read"
    approval: timedelta | None = None
    final: bool = False


@dataclass(frozen=True)
class Agent:
    """An agent and what it may spend."""

    instructions: str
    tools: tuple[str, ...]
    output: type[BaseModel] | None = None
    steps: int = 10
    tool_calls: int = 40
    tokens: int = 100_000
    deadline: timedelta = timedelta(minutes=10)


TOOLS = {
    **dict.fromkeys(("count_status", "read_log", "trace_request", "cross_check"), Tool()),
    "open_ticket": Tool(effect="write", approval=timedelta(minutes=15)),
    "file_report": Tool(final=True),
}
AGENTS = {
    "gateway_analyst": Agent(str(desk.gateway_analyst.instructions), ("count_status", "read_log"), desk.Findings),
    "payments_analyst": Agent(str(desk.payments_analyst.instructions), ("count_status", "read_log"), desk.Findings),
    "incident_desk": Agent(
        str(desk.incident_desk.instructions),
        ("gateway_analyst", "payments_analyst", "cross_check", "trace_request", "open_ticket", "file_report"),
        steps=20,
        tokens=400_000,
        deadline=timedelta(minutes=20),
    ),
}

# --- what activities and workflow exchange ----------------------------------------------------------------------------


class Call(BaseModel):
    """A tool call; its id is minted by the run."""

    id: str
    tool: str
    arguments: dict[str, Any]


class Message(BaseModel):
    """One message of a conversation."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: list[Call] = Field(default_factory=list)
    call: str = ""
    error: bool = False


class Question(BaseModel):
    """One model call."""

    agent: str
    messages: list[Message]
    first_call: int


class Reply(BaseModel):
    """What the model said."""

    message: Message
    input_tokens: int
    output_tokens: int


class ToolResult(BaseModel):
    """What a tool returned, or why it did not."""

    text: str
    error: bool = False
    structured: Any = None


class Job(BaseModel):
    """The input of a run."""

    agent: str
    prompt: str


class Decision(BaseModel):
    """A person's word on one call, bound to its digest."""

    call_id: str
    approve: bool
    by: str
    digest: str
    reason: str = ""


class Ending(BaseModel):
    """The result of a run."""

    outcome: str
    reason: str | None = None
    output: str = ""
    structured: Any = None
    steps: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


def digest_of(call: Call) -> str:
    """What an approval is bound to."""
    body = json.dumps([call.tool, call.arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(body.encode()).hexdigest()


# --- the workflow -----------------------------------------------------------------------------------------------------

MODEL_RETRY = RetryPolicy(
    maximum_interval=timedelta(seconds=60), maximum_attempts=6, non_retryable_error_types=["PayloadsTooLarge"]
)
CORRECTIONS = 2


class Stop(Exception):
    """The run must end now: an outcome and why."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


@workflow.defn
class AgentRun:
    """One run of one agent."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.pending: dict[str, tuple[Call, datetime]] = {}
        self.decisions: dict[str, Decision] = {}
        self.ending = Ending(outcome="running")
        self.stopping: str | None = None
        self.waited = timedelta()
        self.next_call = 1

    @workflow.update
    def decide(self, decision: Decision) -> str:
        """Approve or deny a call that waits."""
        self.decisions[decision.call_id] = decision
        return "approved" if decision.approve else "denied"

    @decide.validator
    def check_decision(self, decision: Decision) -> None:
        """Refuse a decision about what does not wait, or about another call than was looked at."""
        if decision.call_id not in self.pending or decision.call_id in self.decisions:
            raise ApplicationError(f"{decision.call_id} does not wait for a decision")
        if decision.digest != digest_of(self.pending[decision.call_id][0]):
            raise ApplicationError(f"{decision.call_id} is another call than the one that was decided about")

    @workflow.signal(name="decide_later")
    def on_decision(self, given: Any) -> None:
        """The same for who does not wait for an answer; a bad one changes nothing."""
        try:
            decision = Decision.model_validate(given)
            self.check_decision(decision)
            self.decisions[decision.call_id] = decision
        except (ValidationError, ApplicationError) as error:
            workflow.logger.warning("a decision was refused: %s", error)

    @workflow.signal
    def stop(self, reason: Any = None) -> None:
        """End after the present step."""
        self.stopping = str(reason or "stopped")

    @workflow.query
    def status(self) -> dict[str, Any]:
        """State, spend and what waits for a person."""
        pending = [
            {**call.model_dump(), "digest": digest_of(call), "deadline": deadline.isoformat()}
            for call, deadline in self.pending.values()
        ]
        return {**self.ending.model_dump(), "state": self._state(), "pending": pending}

    @workflow.run
    async def run(self, job: Job) -> Ending:
        """Model, tools, model, ... until an answer stands or a limit is reached."""
        if job.agent not in AGENTS:
            raise ApplicationError(f"agent: there is no {job.agent!r}", type="invalid_input", non_retryable=True)
        self.name, self.agent = job.agent, AGENTS[job.agent]
        self.messages.append(Message(role="user", text=job.prompt))
        workflow.upsert_memo({"agent": job.agent, "prompt": job.prompt[:200]})
        try:
            answer = await self._loop()
            self.ending.outcome, self.ending.output, self.ending.structured = "success", answer.text, answer.structured
        except Stop as stop:
            self.ending.outcome, self.ending.reason = stop.outcome, stop.reason
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self.ending.outcome, self.ending.reason = "failed", "provider_error"
            raise ApplicationError(
                str(error.cause or error), self.ending.model_dump(), type="failed", non_retryable=True
            ) from error
        self._show("ended")
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.ending

    async def _loop(self) -> ToolResult:
        corrections = 0
        while True:
            reply = await self._ask_model()
            if reply.calls:
                if (final := await self._run_calls(reply.calls)) is not None:
                    return final
                continue
            problem, structured = self._check(reply.text)
            if problem is None:
                return ToolResult(text=reply.text, structured=structured)
            corrections += 1
            if corrections > CORRECTIONS:
                raise Stop("no_solution", "output_schema")
            self.messages.append(Message(role="user", text=f"Your answer was not accepted: {problem}"))

    async def _ask_model(self) -> Message:
        self._check_limits()
        step = self.ending.steps + 1
        self._show(f"waiting for the model, step {step}")
        reply: Reply = await workflow.execute_activity(
            "call_model",
            Question(agent=self.name, messages=self.messages, first_call=self.next_call),
            result_type=Reply,
            start_to_close_timeout=timedelta(minutes=10),
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=MODEL_RETRY,
            summary=f"model, step {step}",
        )
        self.ending.steps = step
        self.ending.input_tokens += reply.input_tokens
        self.ending.output_tokens += reply.output_tokens
        self.next_call += len(reply.message.calls)
        self.messages.append(reply.message)
        return reply.message

    def _check_limits(self) -> None:
        if self.stopping is not None:
            raise Stop("no_solution", "stopped")
        if workflow.now() - workflow.info().start_time - self.waited > self.agent.deadline:
            raise Stop("timeout", "deadline")
        if self.ending.steps >= self.agent.steps:
            raise Stop("budget_exceeded", "max_steps")
        said = sum(len(message.text) for message in self.messages) // 4
        if self.ending.input_tokens + self.ending.output_tokens + said > self.agent.tokens:
            raise Stop("budget_exceeded", "max_tokens")

    def _check(self, text: str) -> tuple[str | None, Any]:
        if not text.strip():
            return "it is empty", None
        if self.agent.output is None:
            return None, None
        try:
            return None, self.agent.output.model_validate_json(text).model_dump(mode="json")
        except ValidationError as error:
            return str(error), None

    async def _run_calls(self, calls: list[Call]) -> ToolResult | None:
        """Run the calls of a reply, reads side by side and writes in order; the result of a final tool, if any."""
        if self.ending.tool_calls + len(calls) > self.agent.tool_calls:
            raise Stop("budget_exceeded", "max_tool_calls")
        self.ending.tool_calls += len(calls)
        self._show(f"running {', '.join(call.tool for call in calls)}")
        tasks: list[asyncio.Task[ToolResult]] = []
        before: asyncio.Task[ToolResult] | None = None
        for call in calls:
            ordered = call.tool in TOOLS and TOOLS[call.tool].effect == "write"
            tasks.append(asyncio.create_task(self._run_call(call, before if ordered else None)))
            before = tasks[-1] if ordered else before
        results = [await task for task in tasks]
        pairs = list(zip(calls, results, strict=True))
        self.messages += [Message(role="tool", call=c.id, text=r.text, error=r.error) for c, r in pairs]
        finals = (r for c, r in pairs if c.tool in TOOLS and TOOLS[c.tool].final)
        return next((result for result in finals if not result.error), None)

    async def _run_call(self, call: Call, before: asyncio.Task[ToolResult] | None) -> ToolResult:
        if call.tool not in self.agent.tools:
            return ToolResult(text=f"there is no tool {call.tool!r}", error=True)
        if call.tool in AGENTS:
            return await self._run_child(call)
        tool = TOOLS[call.tool]
        if tool.approval is not None and (refusal := await self._approval(call, tool.approval)):
            return ToolResult(text=f"not executed: {refusal}", error=True)
        if before is not None:
            await workflow.wait([before])
        try:
            result: ToolResult = await workflow.execute_activity(
                "call_tool",
                call,
                result_type=ToolResult,
                activity_id=call.id,
                start_to_close_timeout=timedelta(seconds=75),
                heartbeat_timeout=timedelta(seconds=5 if tool.effect == "read" else 20),
                retry_policy=RetryPolicy(maximum_attempts=3 if tool.effect == "read" else 1),
                summary=f"{call.tool} {' '.join(str(v)[:40] for v in call.arguments.values() if isinstance(v, str))}"[
                    :120
                ],
            )
            return result
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            lost = (
                "its worker was lost or it did not end in time"
                if isinstance(error.cause, LostError)
                else str(error.cause)
            )
            if tool.effect == "read":
                return ToolResult(text=f"failed after 3 attempts: {lost}", error=True)
            body = (
                f"outcome unknown: {lost}; {call.tool} may or may not have taken effect. Find out before you rely on it"
            )
            return ToolResult(text=body, error=True)

    async def _approval(self, call: Call, limit: timedelta) -> str | None:
        """Wait for a person; None where the call may run, else why not."""
        asked = workflow.now()
        self.pending[call.id] = (call, asked + limit)
        self._show("waiting for approval")
        try:
            await workflow.wait_condition(
                lambda: call.id in self.decisions or self.stopping is not None,
                timeout=limit,
                timeout_summary=f"approval of {call.id}",
            )
        except TimeoutError:
            return "nobody approved it in time"
        finally:
            del self.pending[call.id]
            self.waited += workflow.now() - asked
        decision = self.decisions.get(call.id)
        if decision is None:
            return "the run was stopped"
        return None if decision.approve else f"denied by {decision.by}: {decision.reason}"

    async def _run_child(self, call: Call) -> ToolResult:
        """A specialist as a run of its own; what it spends is on this run's account."""
        info = workflow.info()
        try:
            ending = await workflow.execute_child_workflow(
                AgentRun.run,
                Job(agent=call.tool, prompt=str(call.arguments.get("prompt", ""))),
                id=f"{info.workflow_id}/{call.id}",
                static_summary=call.tool,
            )
        except ChildWorkflowError as error:
            if is_cancelled_exception(error):
                raise
            return ToolResult(text=f"failed: {error.cause or error}", error=True)
        self.ending.input_tokens += ending.input_tokens
        self.ending.output_tokens += ending.output_tokens
        told = {"outcome": ending.outcome, "output": ending.structured or ending.output}
        return ToolResult(text=json.dumps(told, ensure_ascii=False), error=ending.outcome != "success")

    def _state(self) -> str:
        waiting = "waiting_approval" if self.pending else "running"
        return waiting if self.ending.outcome == "running" else "closed"

    def _show(self, doing: str) -> None:
        spent = self.ending.input_tokens + self.ending.output_tokens
        lines = [f"**{self._state()}** · {doing}", f"step {self.ending.steps} · {spent} tokens"]
        lines += [f"- `{call.id}` **{call.tool}** waits until {at.isoformat()}" for call, at in self.pending.values()]
        workflow.set_current_details("\n\n".join(lines))
