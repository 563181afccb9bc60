"""Approvals: what waits for a person, what a decision must match, and who may give it.

Pure state: the workflow feeds it time and messages. The first decision of a person counts; whatever else arrives is
answered with what was wrong and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
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
from perdure.settings import Settings, must, problems_of

OnTimeout = Literal["deny", "approve", "fail"]


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(n, str) and n.strip() for n in value)


Names = Annotated[tuple[str, ...], BeforeValidator(must(_are_names, "be a list of names, such as ['ann', 'bob']"))]
"""Names that are not empty, in the order given: a set has none, and a spec has one digest."""


class Approval(Settings):
    """A person must agree before the call runs."""

    timeout: Duration = Field(default_factory=lambda: parse_duration("24h"))
    on_timeout: OnTimeout = "deny"
    approvers: Names = ()
    """Who may decide; empty means anybody who can reach the run."""
    quorum: StrictInt = Field(1, ge=1, le=100)
    """How many different people must approve; one denial is enough to deny."""
    not_requester: StrictBool = False
    """The `user` that the run is for may not decide."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.approvers and self.quorum > len(set(self.approvers)):
            raise ValueError(f"quorum: {self.quorum} can never be reached with {len(set(self.approvers))} approvers")
        return self


class Decision(BaseModel):
    """Payload of `decide`; `approve` and `deny` are the same with the verdict in their name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    call_id: str | None = None
    approve: bool
    by: str | None = None
    reason: str | None = None
    digest: str | None = None
    arguments: dict[str, Any] | None = None


class Pending(BaseModel):
    """One call that waits for its decision, as `status` and `approvals` show it."""

    model_config = ConfigDict(extra="forbid")

    call_id: str
    tool: str
    arguments: dict[str, Any]
    digest: str
    requested_at: datetime
    deadline: datetime
    reason: str | None = None
    """Why it is asked, where a policy or an unknown outcome asks."""
    stage: int = 0
    quorum: int = 1
    decisions: list[dict[str, Any]] = Field(default_factory=list)


class Verdict(BaseModel):
    """How a request for approval ended."""

    model_config = ConfigDict(frozen=True)

    approved: bool
    by: str | None = None
    reason: str | None = None
    arguments: dict[str, Any] | None = None
    """Edited by the approver; None where the call runs as it was asked."""
    expired: bool = False


class Refused(Exception):
    """A message changes nothing; the text says what was wrong with it."""


class Approvals:
    """All requests of a run: open ones by call id, and how the others ended."""

    def __init__(self, requester: str | None = None) -> None:
        self.requester = requester
        self.open: dict[str, Pending] = {}
        self.settled: dict[str, Verdict] = {}
        self._rules: dict[str, Approval] = {}
        self._checks: dict[str, Callable[[dict[str, Any]], tuple[dict[str, Any], str]]] = {}

    def request(
        self,
        pending: Pending,
        rule: Approval,
        check: Callable[[dict[str, Any]], tuple[dict[str, Any], str]],
    ) -> None:
        """Open a request; `check` returns edited arguments coerced and their digest, or raises Refused."""
        self.settled.pop(pending.call_id, None)
        self.open[pending.call_id] = pending
        self._rules[pending.call_id] = rule
        self._checks[pending.call_id] = check

    def decide(self, payload: Any, now: datetime, verdict: bool | None = None, *, apply: bool = True) -> Pending:
        """Take a decision and return its request; raises Refused. With `apply=False` it only checks."""
        decision = _read(payload, verdict)
        pending = self._find(decision.call_id)
        rule = self._rules[pending.call_id]
        if now >= pending.deadline:
            raise Refused(f"{pending.call_id} expired at {pending.deadline.isoformat()}; it was not decided in time")
        if decision.digest is not None and decision.digest != pending.digest:
            raise Refused(f"digest does not match {pending.call_id}: the call that waits has {pending.digest}")
        if rule.approvers and decision.by not in rule.approvers:
            raise Refused(f"by: {decision.by!r} may not decide {pending.call_id}; approvers are {list(rule.approvers)}")
        if rule.not_requester and (decision.by is None or decision.by == self.requester):
            raise Refused(f"by: {pending.call_id} must be decided by somebody other than who asked for the run")
        if rule.quorum > 1 and decision.by is None:
            raise Refused(f"by: {pending.call_id} needs {rule.quorum} named approvers, so say who decides")
        if any(decision.by == earlier["by"] for earlier in pending.decisions):
            raise Refused(f"by: {decision.by!r} has already decided {pending.call_id}")
        arguments = None
        if decision.arguments is not None:
            if not decision.approve:
                raise Refused("arguments: only an approval can change them")
            if rule.quorum > 1:
                raise Refused("arguments: a call that needs several approvers cannot be changed; deny it instead")
            arguments, _ = self._checks[pending.call_id](decision.arguments)
        if apply:
            pending.decisions.append(
                {"approve": decision.approve, "by": decision.by, "reason": decision.reason, "at": now.isoformat()}
            )
            approvals = sum(1 for d in pending.decisions if d["approve"])
            if not decision.approve or approvals >= rule.quorum:
                self._settle(
                    pending.call_id,
                    Verdict(approved=decision.approve, by=decision.by, reason=decision.reason, arguments=arguments),
                )
        return pending

    def expire(self, call_id: str) -> Verdict:
        """Settle a request whose deadline has passed the way its rule says; `fail` is left to the caller."""
        rule = self._rules[call_id]
        approved = rule.on_timeout == "approve"
        self._settle(call_id, Verdict(approved=approved, expired=True, reason="nobody decided in time"))
        return self.settled[call_id]

    def close(self, call_id: str) -> None:
        """Withdraw a request that nobody waits for any more."""
        if call_id in self.open:
            self._settle(call_id, Verdict(approved=False, reason="the run ended before it was decided"))

    def _settle(self, call_id: str, verdict: Verdict) -> None:
        del self.open[call_id], self._rules[call_id], self._checks[call_id]
        self.settled[call_id] = verdict

    def _find(self, call_id: str | None) -> Pending:
        if call_id is None:
            if len(self.open) == 1:
                return next(iter(self.open.values()))
            waiting = ", ".join(self.open) or "no call"
            raise Refused(f"call_id: may be left out only while exactly one call waits; waiting now: {waiting}")
        if call_id in self.open:
            return self.open[call_id]
        if call_id in self.settled:
            was = self.settled[call_id]
            how = "expired" if was.expired else "approved" if was.approved else "denied"
            raise Refused(f"call_id: {call_id} was already decided: {how}{f' by {was.by}' if was.by else ''}")
        raise Refused(f"call_id: no call {call_id!r} waits for approval; waiting now: {', '.join(self.open) or 'none'}")


def _read(payload: Any, verdict: bool | None) -> Decision:
    fields = payload
    if not isinstance(fields, dict):
        example = '{"call_id":"c1"}, or {} for the only one'
        if verdict is None:
            example = '{"call_id":"c1","approve":true}'
        raise Refused(f"a decision is an object such as {example}")
    if verdict is not None:
        if "approve" in fields:
            raise Refused("approve: the name of this message already says it; use 'decide' to send it as a field")
        fields = {**fields, "approve": verdict}
    try:
        return Decision.model_validate(fields)
    except ValidationError as error:
        raise Refused(problems_of(error)) from None
