"""Approvals as data: what a call needs before it runs, what a decision says, and what waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from perdure.durations import Duration, parse_duration
from perdure.messages import Whole
from perdure.settings import Settings, must, problems_of

OnTimeout = Literal["deny", "approve", "fail"]
Remember = Literal["call", "tool"]

GROUP = "@"
"""Names that begin with it are groups of approvers."""


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(n, str) and n.strip() for n in value)


Names = Annotated[tuple[str, ...], BeforeValidator(must(_are_names, "be a list of names, such as ['ann', 'bob']"))]
"""Names that are not empty, in the order given: a set has none, and a spec has one digest."""


class Escalation(Settings):
    """Who decides next where nobody has in time; those before may not any more."""

    approvers: Names = ()
    """Who may decide: names, and groups such as `@finance`; empty means anybody who can reach the run."""
    quorum: StrictInt = Field(1, ge=1, le=100)
    """How many different people must approve; one denial is enough to deny."""
    timeout: Duration = Field(default_factory=lambda: parse_duration("24h"))

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        grouped = any(name.startswith(GROUP) for name in self.approvers)
        if self.approvers and not grouped and self.quorum > len(set(self.approvers)):
            raise ValueError(
                f"quorum: {self.quorum} can never be reached with {len(set(self.approvers))} approvers; "
                "lower it or name more of them"
            )
        return self


class Approval(Escalation):
    """A person must agree before the call runs. Its own fields are the first stage, `escalate` the further ones."""

    on_timeout: OnTimeout = "deny"
    """What becomes of a call that nobody has decided when the last stage is over."""
    not_requester: StrictBool = False
    """The `user` that the run is for may not decide."""
    escalate: tuple[Escalation, ...] = ()
    remind_every: Duration | None = None
    """How often those who may decide are reminded."""
    verified: StrictBool = False
    """Only a decision with a signed token counts."""

    def stage(self, number: int) -> Escalation:
        """The stage of a number; 0 is the approval's own."""
        return self if number == 0 else self.escalate[number - 1]

    @property
    def groups(self) -> set[str]:
        """The groups that it names, without their mark."""
        stages = (self, *self.escalate)
        return {name.removeprefix(GROUP) for s in stages for name in s.approvers if name.startswith(GROUP)}


def _says_how_far(value: Any) -> bool:
    return value is None or isinstance(value, bool) or value in get_args(Remember)


class Decision(BaseModel):
    """Payload of `decide`; `approve` and `deny` are the same with the verdict in their name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    call_id: str | None = Field(None, max_length=1_000)
    approve: bool
    by: Annotated[str | None, AfterValidator(lambda name: (name or "").strip() or None)] = Field(None, max_length=500)
    reason: str | None = Field(None, max_length=10_000)
    digest: str | None = Field(None, max_length=200)
    arguments: dict[str, Any] | None = None
    remember: Annotated[
        bool | Remember | None, BeforeValidator(must(_says_how_far, "be true, false, 'call' or 'tool'"))
    ] = None
    """`call` (or true): the same call is decided the same way from now on; `tool`: every call of the tool."""
    token: str | None = Field(None, max_length=20_000)
    """Signed proof of who decides."""

    @property
    def remembered(self) -> Remember | None:
        """How far the decision reaches beyond its call."""
        return "call" if self.remember is True else self.remember or None


class Pending(BaseModel):
    """One call that waits for its decision, as `status` and `approvals` show it."""

    model_config = ConfigDict(extra="forbid")

    call_id: str
    tool: str
    arguments: dict[str, Any]
    digest: str
    requested_at: datetime
    deadline: datetime
    """When the present stage is over."""
    reason: str | None = None
    """Why it is asked, where a policy or an unknown outcome asks."""
    stage: int = 0
    quorum: int = 1
    decisions: list[dict[str, Any]] = Field(default_factory=list)
    approvers: tuple[str, ...] = ()
    """Who may decide now; empty means anybody."""
    run: str | None = None
    """Workflow id of the child run that waits; None where it is this run."""
    whole: Whole | None = None
    """Digest and size of the arguments, where `arguments` is an excerpt."""


class Request(BaseModel):
    """A call that waits, with everything that deciding it needs; carried through continue-as-new."""

    pending: Pending
    rule: Approval
    definition: str = ""
    """Digest of the tool's definition, which remembered decisions are bound to."""
    effect: str = "write"
    members: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Who is in the groups that the rule names."""
    stage_began: datetime
    reminders: int = 0
    """How many were sent in this stage."""

    @property
    def wake(self) -> datetime:
        """When something is due: a reminder or the end of the stage."""
        every = self.rule.remind_every
        if every is None:
            return self.pending.deadline
        return min(self.stage_began + every * (self.reminders + 1), self.pending.deadline)


class Verdict(BaseModel):
    """How a request for approval ended."""

    model_config = ConfigDict(frozen=True)

    approved: bool
    by: str | None = None
    reason: str | None = None
    arguments: dict[str, Any] | None = None
    """Edited by the approver; None where the call runs as it was asked."""
    expired: bool = False
    remembered: bool = False
    """Decided earlier, for this call too."""


class Refused(Exception):
    """A message changes nothing; the text says what was wrong with it."""


def unreachable(rule: Approval, members: Mapping[str, Sequence[str]]) -> str | None:
    """Why a rule can never be satisfied with these members of its groups: the field and the fix, or None."""
    if rule.verified:  # tokens prove who is in a group, whoever is known to be
        return None
    if empty := sorted(group for group in rule.groups if not members[group]):
        return f"approvers: nobody is in the group {empty[0]!r}; name its people, or ask for tokens: verified=True"
    for number, stage in enumerate((rule, *rule.escalate)):
        people = {
            person
            for name in stage.approvers
            for person in (members[name.removeprefix(GROUP)] if name.startswith(GROUP) else [name])
        }
        if people and stage.quorum > len(people):
            field = f"escalate.{number - 1}.quorum" if number else "quorum"
            named = ", ".join(stage.approvers)
            return (
                f"{field}: {stage.quorum} can never be reached with {len(people)} approvers ({named}); "
                "lower it or name more of them"
            )
    return None


def read_decision(payload: Any, verdict: bool | None) -> Decision:
    """A decision from a message's payload, `verdict` where the message's name says it. Raises Refused."""
    if not isinstance(payload, dict):
        example = '{"call_id":"c1"}, or {} for the only one'
        if verdict is None:
            example = '{"call_id":"c1","approve":true}'
        raise Refused(f"a decision is an object such as {example}")
    fields: Mapping[str, Any] = payload
    if verdict is not None:
        if "approve" in fields:
            raise Refused("approve: the name of this message already says it; use 'decide' to send it as a field")
        fields = {**fields, "approve": verdict}
    try:
        return Decision.model_validate(fields)
    except ValidationError as error:
        raise Refused(problems_of(error)) from None
