"""The state machine of approvals by itself: stages, quorums, groups, reminders, and what decisions are refused for."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from perdure import Agent, Approval, Escalation, tool
from perdure.approval import Refused, Request, Verdict
from perdure.approvals import Approvals
from perdure.errors import ConfigError
from perdure.testing import reply, scripted

T0 = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
DIGEST, DEFINITION = "sha256:" + "a" * 64, "sha256:" + "d" * 64
GROUPS = {"finance": ("fay", "fred"), "board": ("bea",)}


def checked(_: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Edited arguments, of which `n` must be a whole number."""
    if not isinstance(arguments.get("n"), int):
        raise Refused("arguments: n: must be a whole number")
    return arguments, "sha256:edited"


def machine() -> Approvals:
    """A run of eve's."""
    made = Approvals(checked)
    made.run, made.requester, made.groups = "run-1", "eve", GROUPS
    return made


def ask(
    approvals: Approvals,
    call_id: str = "c1",
    at: datetime = T0,
    *,
    digest: str = DIGEST,
    definition: str = DEFINITION,
    effect: str = "write",
    reask: bool = False,
    **fields: Any,
) -> Request | Verdict:
    """Open a request for a call."""
    called = {"call_id": call_id, "tool": "pay", "arguments": {"n": 1}, "digest": digest}
    return approvals.request(Approval(**fields), at, definition=definition, effect=effect, reask=reask, **called)


def decide(approvals: Approvals, verdict: bool, at: datetime = T0, **payload: Any) -> bool:
    """Decide, after a check that says the same; true where that settled the request."""
    given = {"approve": verdict, **payload}
    approvals.decide(given, at, apply=False)
    return approvals.decide(given, at).verdict is not None


def refusal(approvals: Approvals, payload: Any, at: datetime = T0, verdict: bool | None = None) -> str:
    """Why a decision is refused, which changes nothing and which a mere check says too."""
    before = copy.deepcopy((approvals.open, approvals.settled, approvals.remembered))
    told = []
    for apply in (False, True):
        with pytest.raises(Refused) as refused:
            approvals.decide(payload, at, verdict, apply=apply)
        told.append(str(refused.value))
    assert before == (approvals.open, approvals.settled, approvals.remembered)
    assert told[0] == told[1]
    return told[0]


# --- stages, time -----------------------------------------------------------------------------------------------------

STAGES: dict[str, Any] = {
    "timeout": "1h",
    "approvers": ["ann"],
    "escalate": (
        Escalation(approvers=("@finance",), quorum=2, timeout="2h"),
        Escalation(approvers=("boss",), timeout="3h"),
    ),
}


def test_stages_follow_each_other() -> None:
    """Each stage has its own approvers, quorum and time; those of an earlier one may not decide any more."""
    approvals = machine()
    ask(approvals, **STAGES)
    assert "approvers are ['ann']" in refusal(approvals, {"approve": True, "by": "fay"})
    assert approvals.advance("c1", T0 + HOUR - timedelta(seconds=1)) is None
    assert approvals.advance("c1", T0 + HOUR) == "escalated"
    pending, at = approvals.open["c1"].pending, T0 + HOUR
    assert (pending.stage, pending.quorum, pending.approvers) == (1, 2, ("@finance",))
    assert pending.deadline == at + 2 * HOUR
    assert "may not decide" in refusal(approvals, {"approve": True, "by": "ann"}, at)
    assert not decide(approvals, True, at, by="fay")
    assert approvals.advance("c1", at + 2 * HOUR) == "escalated"
    at += 2 * HOUR
    assert "may not decide" in refusal(approvals, {"approve": True, "by": "fred"}, at)
    assert decide(approvals, True, at, by="boss")
    assert approvals.settled["c1"] == Verdict(approved=True, by="boss")
    assert [(d["stage"], d["by"]) for d in pending.decisions] == [(1, "fay"), (2, "boss")]


def test_a_stage_begins_when_it_is_entered() -> None:
    """Over an outage the next stage gets its whole time, for nobody could have been told of it."""
    approvals = machine()
    ask(approvals, **STAGES)
    late = T0 + 30 * HOUR
    assert approvals.advance("c1", late) == "escalated"
    assert approvals.open["c1"].pending.deadline == late + 2 * HOUR
    assert approvals.advance("c1", late) is None


def test_approvals_of_an_earlier_stage_do_not_count_in_a_later_one() -> None:
    """Somebody who approved in one stage, and is asked in the next too, says it again."""
    approvals = machine()
    ask(approvals, quorum=2, timeout="1h", escalate=(Escalation(quorum=2),))
    assert not decide(approvals, True, by="ann")
    approvals.advance("c1", T0 + HOUR)
    assert not decide(approvals, True, T0 + HOUR, by="ann")
    assert decide(approvals, True, T0 + HOUR, by="joe")


@pytest.mark.parametrize(("on_timeout", "approved"), [("deny", False), ("approve", True), ("fail", False)])
def test_nobody_decides(on_timeout: str, approved: bool) -> None:
    """After the last stage the rule decides; a later decision is answered with that."""
    approvals = machine()
    ask(approvals, timeout="1h", on_timeout=on_timeout)
    assert approvals.advance("c1", T0 + HOUR) == "expired"
    assert (approvals.settled["c1"].approved, approvals.settled["c1"].expired) == (approved, True)
    assert refusal(approvals, {"approve": False}, T0 + HOUR).startswith("call_id: may be left out only")
    assert "c1 was already decided: expired" in refusal(approvals, {"call_id": "c1", "approve": True}, T0 + HOUR)


def test_a_late_approval_is_refused_and_a_late_denial_counts() -> None:
    """As long as the call has not run a no is heard; a yes comes too late from the deadline on."""
    approvals = machine()
    ask(approvals, timeout="1h")
    assert "expired at" in refusal(approvals, {"approve": True}, T0 + HOUR)
    assert decide(approvals, False, T0 + HOUR, by="ann")
    assert approvals.settled["c1"] == Verdict(approved=False, by="ann")


def test_reminders() -> None:
    """They come as often as the rule says, in every stage, and never after its end."""
    approvals = machine()
    ask(approvals, timeout="1h", remind_every="25m", escalate=(Escalation(timeout="30m"),))
    told = []
    for minute in range(91):
        at = T0 + timedelta(minutes=minute)
        if "c1" in approvals.open and (what := approvals.advance("c1", at)):
            told.append((minute, what))
    assert told == [(25, "reminder"), (50, "reminder"), (60, "escalated"), (85, "reminder"), (90, "expired")]


def test_an_outage_makes_one_reminder() -> None:
    """What should have been reminded of while no worker was there is told once, and the next in its time."""
    approvals = machine()
    request = ask(approvals, timeout="48h", remind_every="1h")
    assert isinstance(request, Request)
    at = T0 + timedelta(hours=20, minutes=30)
    assert approvals.advance("c1", at) == "reminder"
    assert approvals.advance("c1", at) is None
    assert request.wake == T0 + 21 * HOUR


# --- who --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "by", "problem"),
    [
        ({"approvers": ["ann"]}, "ann", None),
        ({"approvers": ["ann"]}, " ann ", None),
        ({"approvers": ["ann"]}, "Ann", "approvers are"),
        ({"approvers": ["ann"]}, None, "approvers are"),
        ({"approvers": ["ann"]}, " ", "approvers are"),
        ({"approvers": ["@finance"]}, "fred", None),
        ({"approvers": ["@finance"]}, "bea", "approvers are"),
        ({"approvers": ["@finance"]}, "@finance", "approvers are"),
        ({"approvers": ["@finance"]}, "finance", "approvers are"),
        ({"approvers": ["@nobody"]}, "ann", "approvers are"),
        ({"approvers": ["@nobody", "ann"]}, "ann", None),
        ({"not_requester": True}, "eve", "somebody other"),
        ({"not_requester": True}, " eve", "somebody other"),
        ({"not_requester": True}, "", "somebody other"),
        ({"not_requester": True}, None, "somebody other"),
        ({"not_requester": True}, "ann", None),
        ({"not_requester": True, "approvers": ["eve", "ann"]}, "eve", "somebody other"),
        ({"quorum": 2}, None, "named approvers"),
        ({"quorum": 2}, "  ", "named approvers"),
        ({"verified": True}, "ann", "signed token"),
    ],
)
def test_who_may_decide(rule: dict[str, Any], by: str | None, problem: str | None) -> None:
    """Names, groups, the requester and the nameless, for a yes and for a no."""
    for verdict in (True, False):
        approvals = machine()
        ask(approvals, **rule)
        if problem is None:
            assert decide(approvals, verdict, by=by)
            assert approvals.settled["c1"].by == "".join(str(by).split())
        else:
            assert problem in refusal(approvals, {"approve": verdict, "by": by})


def test_members_are_those_when_it_was_asked() -> None:
    """A request knows its groups' members; it is carried, and judged by them."""
    approvals = machine()
    request = ask(approvals, approvers=["@finance"])
    assert isinstance(request, Request)
    again = Request.model_validate_json(request.model_dump_json(exclude_defaults=True))
    assert again == request
    assert again.members == {"finance": ("fay", "fred")}


def test_a_quorum_counts_people_once() -> None:
    """The same person, also with spaces around the name, counts once; one no is enough."""
    approvals = machine()
    ask(approvals, quorum=2)
    assert not decide(approvals, True, by="ann")
    for by in ("ann", " ann "):
        assert "already decided" in refusal(approvals, {"approve": True, "by": by})
        assert "already decided" in refusal(approvals, {"approve": False, "by": by})
    assert decide(approvals, False, by="joe")
    assert not approvals.settled["c1"].approved


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"approvers": ["ann"], "quorum": 2}, "can never be reached"),
        ({"approvers": ["ann", "ann"], "quorum": 2}, "can never be reached"),
        ({"approvers": "ann"}, "a list of names"),
        ({"approvers": [""]}, "a list of names"),
        ({"quorum": 0}, "quorum"),
        ({"remind_every": 0}, "remind_every"),
        ({"on_timeout": "maybe"}, "on_timeout"),
        ({"escalate": [{"quorum": 2, "approvers": ["x"]}]}, "can never be reached"),
    ],
)
def test_rules_that_cannot_work(fields: dict[str, Any], problem: str) -> None:
    """They are refused where they are written."""
    with pytest.raises(ConfigError, match=problem):
        Approval(**fields)


def test_groups_that_are_not_there() -> None:
    """An agent whose approvals, its defaults' included, name an unknown group is refused: nobody could decide."""

    @tool(effect="write", approval=Approval(approvers=["@finance"]))
    def pay() -> None: ...

    with pytest.raises(ConfigError, match="groups: pay names 'finance', which is not there"):
        Agent("a", scripted(reply("x")), tools=[pay])
    Agent("a", scripted(reply("x")), tools=[pay], groups={"finance": ["fay"]})


# --- what is refused --------------------------------------------------------------------------------------------------


def test_which_call() -> None:
    """A call is named, or the only one; what is decided, unknown or another call's digest is refused."""
    approvals = machine()
    ask(approvals, "c1")
    ask(approvals, "c2")
    assert "waiting now: c1, c2" in refusal(approvals, {"approve": True})
    assert "no call 'c9' waits for approval; waiting now: c1, c2" in refusal(
        approvals, {"call_id": "c9", "approve": True}
    )
    assert "digest does not match c1" in refusal(approvals, {"call_id": "c1", "approve": True, "digest": "sha256:b"})
    assert decide(approvals, True, call_id="c1", by="ann", digest=DIGEST)
    assert "c1 was already decided: approved by ann" in refusal(approvals, {"call_id": "c1", "approve": False})
    assert decide(approvals, False)
    assert "waiting now: no call" in refusal(approvals, {"approve": True})


def test_edited_arguments() -> None:
    """Only an approval changes them, they are checked, and the verdict has them as they run."""
    approvals = machine()
    ask(approvals)
    assert "n: must be" in refusal(approvals, {"approve": True, "arguments": {"n": "x"}})
    assert "only an approval" in refusal(approvals, {"approve": False, "arguments": {"n": 2}})
    edited = {"approve": True, "arguments": {"n": 2}, "remember": True}
    assert "cannot be remembered" in refusal(approvals, edited)
    assert decide(approvals, True, arguments={"n": 2})
    assert approvals.settled["c1"].arguments == {"n": 2}
    ask(approvals, "c2", quorum=2)
    assert "several approvers" in refusal(approvals, {"approve": True, "by": "ann", "arguments": {"n": 2}})


@pytest.mark.parametrize("said", ["all", "", "Call", 1, 0, 1.0, ["call"], {}])
def test_a_reach_that_is_none(said: Any) -> None:
    """The field is named with what it may be, whatever is there."""
    approvals = machine()
    ask(approvals)
    told = refusal(approvals, {"approve": True, "remember": said})
    assert told == "remember: must be true, false, 'call' or 'tool'"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
FIELDS = ["call_id", "approve", "by", "reason", "digest", "arguments", "remember", "token", "x"]


@given(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON), st.sampled_from([None, True, False]))
@settings(max_examples=400, deadline=None)
def test_garbage_changes_nothing(payload: Any, verdict: bool | None) -> None:
    """Whatever comes is taken or refused with a reason; nothing else is raised, and a refusal changes nothing."""
    approvals = machine()
    approvals.keys = ("A" * 43,)
    ask(approvals, "c1")
    before = copy.deepcopy((approvals.open, approvals.settled, approvals.remembered))
    try:
        approvals.decide(payload, T0, verdict)
        return
    except Refused as refused:
        told = str(refused)
    assert told
    assert before == (approvals.open, approvals.settled, approvals.remembered)


# --- remembering ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [True, False])
@pytest.mark.parametrize(
    ("said", "same", "other_arguments", "other_definition"),
    [(None, False, False, False), (False, False, False, False), (True, True, False, False),
     ("call", True, False, False), ("tool", True, True, False)],
)  # fmt: skip
def test_how_far_a_decision_reaches(
    verdict: bool, said: Any, same: bool, other_arguments: bool, other_definition: bool
) -> None:
    """The same call, or every call of the tool, is decided the same way; a changed definition voids it."""
    approvals = machine()
    ask(approvals)
    decide(approvals, verdict, remember=said)
    expected = {("a", DEFINITION): same, ("b", DEFINITION): other_arguments, ("c", "sha256:new"): other_definition}
    for (name, definition), remembered in expected.items():
        digest = DIGEST if name == "a" else f"sha256:{name}"
        found = ask(approvals, f"c-{name}", digest=digest, definition=definition)
        assert isinstance(found, Verdict) is remembered
        if isinstance(found, Verdict):
            assert (found.approved, found.remembered) == (verdict, True)
            assert "already decided" in refusal(approvals, {"call_id": f"c-{name}", "approve": not verdict})
    assert isinstance(ask(approvals, "c-again", reask=True), Request)


@pytest.mark.parametrize(
    ("effect", "said", "approve", "taken"),
    [("write", "tool", True, True), ("dangerous", "tool", True, False), ("dangerous", "tool", False, True),
     ("dangerous", "call", True, True), ("read", "tool", True, True)],
)  # fmt: skip
def test_what_may_be_remembered(effect: str, said: str, approve: bool, taken: bool) -> None:
    """Not a yes to every call of a dangerous tool."""
    approvals = machine()
    ask(approvals, effect=effect)
    if taken:
        assert decide(approvals, approve, remember=said)
        assert approvals.remembered == {DEFINITION if said == "tool" else DIGEST: approve}
    else:
        assert "is not for effect 'dangerous'" in refusal(approvals, {"approve": approve, "remember": said})


@pytest.mark.parametrize(
    ("first", "second", "remembered"),
    [("tool", "tool", DEFINITION), ("tool", "call", DIGEST), (True, "tool", DIGEST), (None, "tool", None),
     ("call", None, None), ("call", False, None)],
)  # fmt: skip
def test_a_quorum_remembers_as_far_as_all_say(first: Any, second: Any, remembered: str | None) -> None:
    """The one who says the least counts."""
    approvals = machine()
    ask(approvals, quorum=2)
    decide(approvals, True, by="ann", remember=first)
    decide(approvals, True, by="joe", remember=second)
    assert approvals.remembered == ({remembered: True} if remembered else {})


def test_a_decision_for_a_child_is_remembered_there() -> None:
    """What is decided at the root for a child's call says nothing of the root's own calls."""
    approvals = machine()
    request = ask(approvals)
    assert isinstance(request, Request)
    shown = request.pending.model_copy(update={"call_id": "c2/c1", "run": "child-1"})
    approvals.mirror(request.model_copy(update={"pending": shown}))
    assert decide(approvals, True, call_id="c2/c1", remember="tool")
    assert approvals.remembered == {}


# --- any order --------------------------------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order: each call has one outcome, and it never changes."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.approvals, self.now, self.count = machine(), T0, 0
        self.outcomes: dict[str, Verdict] = {}

    @rule(target=calls, quorum=st.integers(1, 3), stages=st.integers(0, 2), remind=st.sampled_from([None, "20m"]))
    def request(self, quorum: int, stages: int, remind: str | None) -> str:
        """Ask for another call."""
        self.count += 1
        more = tuple(Escalation(quorum=quorum, timeout="1h") for _ in range(stages))
        call_id = f"c{self.count}"
        digest = f"sha256:{self.count % 3}"
        ask(self.approvals, call_id, self.now, digest=digest, quorum=quorum, timeout="1h",
            remind_every=remind, escalate=more)  # fmt: skip
        return call_id

    @rule(call_id=calls, approve=st.booleans(), by=st.sampled_from(["ann", "joe", "fay"]),
          remember=st.sampled_from([None, "call"]))  # fmt: skip
    def decide(self, call_id: str, approve: bool, by: str, remember: str | None) -> None:
        """Somebody decides, in time or not."""
        payload = {"call_id": call_id, "approve": approve, "by": by, "remember": remember}
        late = call_id in self.approvals.open and self.now >= self.approvals.open[call_id].pending.deadline
        try:
            decided = self.approvals.decide(payload, self.now)
            assert not (late and approve)
            assert (decided.verdict is None) == (call_id in self.approvals.open)
        except Refused:
            pass

    @precondition(lambda self: self.approvals.open)
    @rule(minutes=st.integers(0, 200))
    def time(self, minutes: int) -> None:
        """Time goes on, and what is due is done."""
        self.now += timedelta(minutes=minutes)
        for call_id, request in list(self.approvals.open.items()):
            while call_id in self.approvals.open and self.now >= request.wake:
                assert self.approvals.advance(call_id, self.now) is not None

    @rule(call_id=calls)
    def close(self, call_id: str) -> None:
        """The run gives the call up."""
        self.approvals.close(call_id)

    @invariant()
    def one_outcome(self) -> None:
        """Open or settled, never both; what is settled stays so."""
        assert not set(self.approvals.open) & set(self.approvals.settled)
        assert len(self.approvals.open) + len(self.approvals.settled) == self.count
        for call_id, verdict in self.outcomes.items():
            assert self.approvals.settled[call_id] == verdict
        self.outcomes = dict(self.approvals.settled)
        for request in self.approvals.open.values():
            yes = [d for d in request.pending.decisions if d["stage"] == request.pending.stage]
            assert all(d["approve"] for d in yes)
            assert len({d["by"] for d in yes}) == len(yes) < request.pending.quorum


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
