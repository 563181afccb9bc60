"""The requests for approval of a run: what waits, who may decide it, and how each ended.

Pure state: the workflow feeds it time and messages. The first decision that settles a stage counts; whatever else
arrives is answered with what was wrong and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from perdure.approval import (
    GROUP,
    Approval,
    Decision,
    Pending,
    Refused,
    Remember,
    Request,
    Verdict,
    read_decision,
)
from perdure.decision_tokens import BadToken, Identity, read_token

Check = Callable[[str, dict[str, Any]], tuple[dict[str, Any], str]]
"""Tool and edited arguments to the arguments as they will run and the digest of that call; raises Refused."""

REMEMBERABLE: Mapping[Remember, frozenset[str]] = {
    "call": frozenset({"read", "idempotent", "write", "dangerous"}),
    # Each call of a dangerous tool is looked at, or has been.
    "tool": frozenset({"read", "idempotent", "write"}),
}
"""For which effects a decision may reach beyond its call, by how far."""


@dataclass(frozen=True)
class Decided:
    """A decision that was taken."""

    request: Request
    decision: dict[str, Any]
    verdict: Verdict | None
    """Set where it settled the request."""


class Approvals:
    """All requests of a run: open ones by call id, and how the others ended."""

    def __init__(self, check: Check) -> None:
        self.run = ""
        """Workflow id of the run, which tokens are bound to."""
        self.requester: str | None = None
        self.groups: Mapping[str, tuple[str, ...]] = {}
        self.keys: tuple[str, ...] = ()
        """Public keys that verify tokens."""
        self.open: dict[str, Request] = {}
        self.settled: dict[str, Verdict] = {}
        self.remembered: dict[str, bool] = {}
        """Decisions that reach further, by the digest of a call or of a tool's definition."""
        self._check = check

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(
        self, rule: Approval, now: datetime, *, definition: str, effect: str, reask: bool = False, **call: Any
    ) -> Request | Verdict:
        """Open a request for a call (fields of Pending), or the verdict that was remembered for it.

        `reask` asks anew whatever is remembered.
        """
        known = [self.remembered[key] for key in (call["digest"], definition) if key in self.remembered]
        if known and not reask:
            verdict = Verdict(approved=known[0], remembered=True, reason="as decided before for such calls")
            self.settled[call["call_id"]] = verdict
            return verdict
        pending = Pending(**call, requested_at=now, deadline=now)
        members = {group: self.groups.get(group, ()) for group in sorted(rule.groups)}
        request = Request(
            pending=pending, rule=rule, definition=definition, effect=effect, members=members, stage_began=now
        )
        _enter(request, 0, now)
        self.settled.pop(pending.call_id, None)
        self.open[pending.call_id] = request
        return request

    def mirror(self, request: Request) -> None:
        """Show a request of a child run, or its newer state; deciding it here is passed on by the caller."""
        self.open[request.pending.call_id] = request

    def advance(self, call_id: str, now: datetime) -> Literal["reminder", "escalated", "expired"] | None:
        """Do what is due of an open request: remind, go on to the next stage, or settle it the way its rule says."""
        request = self.open[call_id]
        if now < request.wake:
            return None
        if now < request.pending.deadline:
            # One for all that fell into an outage of the workers.
            request.reminders = (now - request.stage_began) // (request.rule.remind_every or timedelta.max)
            return "reminder"
        following = request.pending.stage + 1
        if following <= len(request.rule.escalate):
            _enter(request, following, now)
            return "escalated"
        approved = request.rule.on_timeout == "approve"
        self._settle(call_id, Verdict(approved=approved, expired=True, reason="nobody decided in time"))
        return "expired"

    def drop(self, call_id: str) -> None:
        """Forget a request of a child run that has been decided there, or has ended."""
        self.open.pop(call_id, None)

    def close(self, call_id: str) -> None:
        """Withdraw a request that nobody waits for any more."""
        if call_id in self.open:
            self._settle(call_id, Verdict(approved=False, reason="the run ended before it was decided"))

    # --- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, payload: Any, now: datetime, verdict: bool | None = None, *, apply: bool = True) -> Decided:
        """Take a decision; raises Refused. With `apply=False` it only checks."""
        decision = read_decision(payload, verdict)
        request = self._find(decision.call_id)
        who, verified = self._admit(request, decision, now)
        arguments = self._edited(request, decision)
        self._may_remember(request, decision)
        taken = {
            "approve": decision.approve,
            "by": who,
            "verified": verified,
            "reason": decision.reason,
            "remember": decision.remembered,
            "stage": request.pending.stage,
            "at": now.isoformat(),
        }
        if not apply:
            return Decided(request, taken, None)
        request.pending.decisions.append(taken)
        stage = [d for d in request.pending.decisions if d.get("stage", 0) == request.pending.stage]
        if decision.approve and sum(1 for d in stage if d["approve"]) < request.pending.quorum:
            return Decided(request, taken, None)
        self._remember(request, [d for d in stage if d["approve"] == decision.approve], decision.approve)
        settled = Verdict(approved=decision.approve, by=who, reason=decision.reason, arguments=arguments)
        self._settle(request.pending.call_id, settled)
        return Decided(request, taken, settled)

    def _admit(self, request: Request, decision: Decision, now: datetime) -> tuple[str | None, bool]:
        """Who decides, and whether that is proven; raises Refused where they may not."""
        pending, rule = request.pending, request.rule
        if now >= pending.deadline and decision.approve:  # a denial counts as long as the call has not run
            raise Refused(f"{pending.call_id} expired at {pending.deadline.isoformat()}; it was not decided in time")
        if decision.digest is not None and decision.digest != pending.digest:
            raise Refused(f"digest does not match {pending.call_id}: the call that waits has {pending.digest}")
        identity = self._identity(request, decision, now)
        who = identity.by if identity else decision.by
        if rule.verified and identity is None:
            raise Refused(f"token: {pending.call_id} needs a decision with a signed token")
        if pending.approvers and not _is_among(request, who, identity):
            raise Refused(f"by: {who!r} may not decide {pending.call_id}; approvers are {list(pending.approvers)}")
        if rule.not_requester and (who is None or who == self.requester):
            raise Refused(f"by: {pending.call_id} must be decided by somebody other than who asked for the run")
        if pending.quorum > 1 and who is None:
            raise Refused(f"by: {pending.call_id} needs {pending.quorum} named approvers, so say who decides")
        if any(who == d["by"] and d.get("stage", 0) == pending.stage for d in pending.decisions):
            raise Refused(f"by: {who!r} has already decided {pending.call_id}")
        return who, identity is not None

    def _identity(self, request: Request, decision: Decision, now: datetime) -> Identity | None:
        if decision.token is None:
            return None
        if not self.keys:
            raise Refused("token: the run knows no decision key; set PERDURE_DECISION_KEYS for its workers")
        pending = request.pending
        call_id = pending.call_id.rsplit("/", 1)[-1]  # in the run that waits, a child, it has no path
        try:
            identity = read_token(
                decision.token, self.keys, run=pending.run or self.run, call_id=call_id, digest=pending.digest, now=now
            )
        except BadToken as problem:
            raise Refused(f"token: {problem}") from None
        if decision.by is not None and decision.by != identity.by:
            raise Refused(f"by: {decision.by!r} is not whom the token speaks for, {identity.by!r}")
        return identity

    def _edited(self, request: Request, decision: Decision) -> dict[str, Any] | None:
        if decision.arguments is None:
            return None
        if not decision.approve:
            raise Refused("arguments: only an approval can change them")
        if request.pending.quorum > 1:
            raise Refused("arguments: a call that needs several approvers cannot be changed; deny it instead")
        if decision.remembered is not None:
            raise Refused("remember: a call with changed arguments cannot be remembered")
        if request.pending.run is not None:
            return decision.arguments  # the child checks them
        arguments, _ = self._check(request.pending.tool, decision.arguments)
        return arguments

    def _may_remember(self, request: Request, decision: Decision) -> None:
        how = decision.remembered
        if how is not None and decision.approve and request.effect not in REMEMBERABLE[how]:
            raise Refused(f"remember: {how!r} is not for effect {request.effect!r}; decide each of its calls")

    def _remember(self, request: Request, agreeing: list[dict[str, Any]], approve: bool) -> None:
        """Remember as far as all who agreed have said; what a child run waits for is remembered there."""
        if request.pending.run is not None:
            return
        said = {decision.get("remember") for decision in agreeing}
        if None not in said:
            key = request.definition if said == {"tool"} else request.pending.digest
            self.remembered[key] = approve

    def _settle(self, call_id: str, verdict: Verdict) -> None:
        del self.open[call_id]
        self.settled[call_id] = verdict

    def _find(self, call_id: str | None) -> Request:
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


def _enter(request: Request, number: int, now: datetime) -> None:
    # A later stage counts from when it is entered: over an outage of all workers nobody was told of it.
    stage = request.rule.stage(number)
    request.stage_began, request.reminders = now, 0
    request.pending.stage = number
    request.pending.quorum, request.pending.approvers = stage.quorum, stage.approvers
    request.pending.deadline = now + stage.timeout


def _is_among(request: Request, who: str | None, identity: Identity | None) -> bool:
    """Whether somebody is named as an approver, or is in a group that is, as the agent or their token says."""
    groups = {name.removeprefix(GROUP) for name in request.pending.approvers if name.startswith(GROUP)}
    people = {name for name in request.pending.approvers if not name.startswith(GROUP)}
    proven = identity is not None and bool(groups & identity.groups)
    return who is not None and (
        who in people or proven or any(who in request.members.get(group, ()) for group in groups)
    )
