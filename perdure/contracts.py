"""Input and output of every workflow and activity, and their names. Workflows and activities meet only here.

Fields are added last and with defaults, so that recorded histories still decode. What is recorded in every turn is kept
small: fields at their defaults are not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
)

from perdure.agent import AgentSpec
from perdure.approval import Pending
from perdure.limits import Limits, LimitsOverride
from perdure.messages import AssistantMessage, Message, ToolMessage, Usage, Whole
from perdure.notification import NoticeKind
from perdure.questions import Question

AGENT_WORKFLOW = "AgentWorkflow"
TASK_QUEUE = "perdure"

SAID_LIMIT = 200_000
"""Characters of one `say`; more would not fit a query's answer with others."""
OUTPUT_LIMIT = 400_000
"""Characters of a result's output; results never leave history."""
STRUCTURED_LIMIT = 300_000
"""Bytes of a result's structured answer; with the output it must stay below the 2 MiB of a payload."""
OFFLOAD_CHARS = 64 * 1024
"""Texts from this length on are kept in the blob store and stand in messages as a reference."""
MOST_CALLS = 128
"""Calls of one reply; more are answered with an error."""
SUMMARY_LIMIT = 120
"""Characters of a summary on an activity or timer."""

In = TypeVar("In")
Out = TypeVar("Out")


class Record(BaseModel):
    """Base of recorded values: frozen, unknown fields ignored so that older code reads newer histories."""

    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True)
class ActivityRef(Generic[In, Out]):
    """An activity by name, with the types that go in and come out."""

    name: str
    input: type[In]
    output: type[Out]


# --- the run's input ------------------------------------------------------------------------------------------------


# --- the run's conversation, by reference ---------------------------------------------------------------------------


class ConversationRef(Record):
    """A conversation without its messages: how many, the id of the last that was sent before, and those since."""

    count: int
    base: str = ""
    tail: tuple[str | Message, ...] = ()
    """Ids; a short message of the run itself rides along whole."""
    run: str | None = None
    """First run id of the chain, where it is not the id of the run that asks."""


# --- activities -----------------------------------------------------------------------------------------------------


class RunAbout(Record):
    """Who and what a run is for."""

    tenant: str | None = None
    user: str | None = None
    data: Any = None
    metadata: dict[str, str] = Field(default_factory=dict)
    key_prefix: str = ""
    """Idempotency keys of a child run begin with its parent's."""


class ResolveInput(Record):
    """Which agent, and the beginning of the conversation where it is too large to stay in history."""

    agent: str | dict[str, Any]
    limits: LimitsOverride | None = None
    output_schema: dict[str, Any] | None = None
    continue_from: str | None = None
    large: tuple[Message, ...] = ()
    about: RunAbout | None = None
    """For the memory of the worker that resolves; None where it is too large to be recorded twice."""


FrozenSpec = Annotated[AgentSpec, PlainSerializer(lambda spec: spec.model_dump(mode="json"))]
"""Recorded with every field, so that a later default never changes a running run."""


class RunContext(RunAbout):
    """What workers must know of a run besides its conversation; served by the `spec` query."""

    spec: FrozenSpec
    digest: str
    keys: tuple[str, ...] = ()
    """Public keys that prove who has signed a decision."""
    most: Limits | None = None
    """The agent's own limits, where the run was started with lower ones."""


class ResolveOutput(Record):
    """The frozen spec, and what the first step learned of its surroundings."""

    spec: FrozenSpec
    digest: str
    attributes: tuple[str, ...] = ()
    """Search attributes that are registered with the right type."""
    earlier: tuple[Message, ...] = ()
    """The conversation of the run that this one continues."""
    large: tuple[Message, ...] = ()
    keys: tuple[str, ...] = ()
    """Public keys that prove who has signed a decision."""
    most: Limits | None = None
    """The agent's own limits, where the run was started with lower ones."""


class ModelInput(Record):
    """One model call, by reference."""

    conversation: ConversationRef
    first_call: int = 1
    """Number of the first tool call of the reply: ids are c1, c2, ... in the run."""
    tool_choice: str = "auto"
    cost_left: str | None = None
    """US dollars that this call may cost; None without a limit on cost."""
    tokens_left: int | None = None
    """Set where the limit on tokens is near."""
    after_reset: bool = False
    """What a reset of this run has thrown away is asked for, until it is told."""
    counted: str | None = None
    """The run whose resets are counted already, where an earlier reset was."""


class ModelOutput(Record):
    """A recorded reply."""

    message: AssistantMessage
    usage: Usage = Usage()
    cost: str = "0"
    finish: Literal["stop", "length", "filtered", "refused", "paused"] = "stop"
    announced: bool = False
    structured: Any = None
    misfit: str | None = None
    unpriced: bool = False
    """No price is known for the model, so the cost says nothing."""
    over: str | None = None
    """The limit that this call would have crossed; nothing was sent."""
    short: str | None = None
    """How much of that limit was missing, about."""
    lost: Usage = Usage()
    """About what attempts of this call that came to nothing have used, and the runs that a reset threw away."""
    lost_cost: str = "0"
    counted: str | None = None
    """This run's id, where `lost` has what resets of it threw away."""
    model: str | None = None
    """Who has answered, where it was not the agent's first model."""


NOTHING = AssistantMessage(role="assistant", parts=())
"""In place of a reply that there is not."""


def tally_of(details: Sequence[Any]) -> Usage:
    """About what a model call has used, as the details of its last heartbeat say."""
    left = details[0].get("tally") if details and isinstance(details[0], dict) else None
    counts = left if isinstance(left, list) and all(isinstance(n, int) for n in left) and len(left) == 2 else (0, 0)
    return Usage(input_tokens=counts[0], output_tokens=counts[1])


class ToolInput(Record):
    """One tool call."""

    call: str
    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    definition: str | None = None
    """Digest of the definition that was approved; another one voids the approval."""
    run: str | None = None
    earlier: str | None = None
    """After a reset: the run whose recorded result of a write counts."""
    same: int = 0
    """How many calls of the same tool with the same arguments came before in this run."""
    note: str | None = None
    """Put before the result: what an approver changed."""
    approved_at_step: int | None = None
    """Set for approved calls: today's policy may still forbid one."""
    whole: Whole | None = None
    """Set where `arguments` is an excerpt."""


class ToolOutput(Record):
    """What became of a tool call."""

    message: ToolMessage | None = None
    status: Literal["done", "not_started", "unknown"] = "done"
    why: str | None = None
    structured: Any = None
    """The value of a `final` tool."""


class PolicyCall(Record):
    """A tool call as a policy function sees it."""

    id: str
    tool: str
    arguments: dict[str, Any]
    effect: str
    agent: str
    step: int
    permissions: tuple[str, ...] = ()
    egress: bool = False
    untrusted: bool = False
    tenant: str | None = None
    user: str | None = None
    data: Any = None
    metadata: dict[str, str] = Field(default_factory=dict)


class PolicyInput(Record):
    """All calls of one reply, judged before any of them runs."""

    calls: tuple[tuple[str, str, dict[str, Any]], ...]
    """Id, tool and arguments."""
    step: int
    run: str | None = None
    whole: dict[str, Whole] = Field(default_factory=dict)
    """Calls of whose arguments there is an excerpt, by id."""


class PolicyOutput(Record):
    """Decisions other than allow, by call id: `deny` or `ask`, and why."""

    decisions: dict[str, tuple[Literal["deny", "ask"], str]] = Field(default_factory=dict)


class VerifyInput(Record):
    """An answer for the agent's own check."""

    conversation: ConversationRef
    structured: Any = None


class VerifyOutput(Record):
    """None, or what to fix; `crashed` where the check itself failed, which is never a pass."""

    problem: str | None = None
    crashed: bool = False


class NotifyInput(Record):
    """Something that people should know."""

    kind: NoticeKind
    call: Pending | None = None
    question: Question | None = None
    limit: str | None = None
    deadline: str | None = None
    key: str = ""
    """The same for every attempt: webhooks get it as their idempotency key."""


class NotifyOutput(Record):
    """Nobody waits for more."""


class ChildRef(Record):
    """A child run that exists already."""

    workflow_id: str


RESOLVE = ActivityRef("resolve_agent", ResolveInput, ResolveOutput)
CALL_MODEL = ActivityRef("call_model", ModelInput, ModelOutput)
CALL_TOOL = ActivityRef("call_tool", ToolInput, ToolOutput)
CHECK_POLICY = ActivityRef("check_policy", PolicyInput, PolicyOutput)
VERIFY = ActivityRef("verify_answer", VerifyInput, VerifyOutput)
AWAIT_CHILD = ActivityRef("await_child", ChildRef, dict)
NOTIFY = ActivityRef("notify", NotifyInput, NotifyOutput)
