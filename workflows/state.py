"""The state of a run: everything that handlers touch, made before the run begins, and what a continuation carries."""

from __future__ import annotations

import json
from collections import Counter, deque
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from temporalio import workflow

from perdure.approval import Refused, Request, Verdict
from perdure.approvals import Approvals
from perdure.arguments import check_arguments
from perdure.contracts import ConversationRef, RunContext
from perdure.errors import ConfigError
from perdure.family import ChildNeeds, Grant
from perdure.limits import Account, LimitReached, Limits, LimitsOverride
from perdure.messages import Message, Usage, UserMessage, text, text_of
from perdure.outcomes import Ending
from perdure.questions import Answer, Question, Questions
from perdure.repetition import Repetition
from perdure.run_input import RunInput
from workflows.announce import announce
from workflows.turn import Planned, binding

EVENT_BYTES = 256 * 1024
"""Events kept for the `events` query; older ones stay in Temporal's history."""
MOST_SIGNALS, MOST_UPDATES = 8_000, 1_500
"""Messages after which the run goes on in a new one; the server lets no more than 10,000 and 2,000 in."""
INLINE_CHARS = 1024
"""A message of the run itself up to this length rides along with the next model call."""


class Carried(BaseModel):
    """What continue-as-new hands to the next run of the chain."""

    model_config = ConfigDict(frozen=True)

    input: RunInput
    context: RunContext
    limits: Limits
    attributes: tuple[str, ...]
    messages: tuple[Message, ...]
    account: Account
    counters: dict[str, int]
    next_call: int
    said: tuple[dict[str, Any], ...]
    said_ids: tuple[str, ...]
    calls: dict[str, int]
    turn_calls: dict[str, int]
    unsure: tuple[str, ...]
    settled: dict[str, Verdict]
    events: tuple[dict[str, Any], ...]
    event_count: int
    last_usage: Usage
    stop_reason: str | None = None
    turn: tuple[Planned, ...] = ()
    requests: dict[str, Request] = Field(default_factory=dict)
    remembered: dict[str, bool] = Field(default_factory=dict)
    questions: dict[str, Question] = Field(default_factory=dict)
    answers: dict[str, Answer] = Field(default_factory=dict)
    parent: str | None = None
    reset_counted: str | None = None
    paused_until: datetime | None = None
    began: datetime | None = None
    repetition: Repetition = Field(default_factory=Repetition)


class RunState:
    """One run. Handlers change it at any time after construction; the strategy reads it between its steps."""

    def __init__(self) -> None:
        self.input: RunInput | None = None
        self.context: RunContext | None = None
        self.limits = Limits()
        self.attributes: tuple[str, ...] = ()
        self.messages: list[Message] = []
        self.sent = 0
        """How many messages workers have seen with a model call."""
        self.own: set[str] = set()
        """Ids of messages that the run itself made: no worker has them."""
        self.account = Account()
        self.counters: Counter[str] = Counter()
        self.next_call = 1
        self.said: deque[dict[str, Any]] = deque()
        self.said_ids: dict[str, None] = {}
        self.calls: Counter[str] = Counter()
        self.turn_calls: Counter[str] = Counter()
        self.repetition = Repetition()
        """What this turn of the user has seen."""
        self.unsure: set[str] = set()
        """Calls whose outcome is unknown: an identical one needs a person."""
        self.approvals = Approvals(self._checked)
        self.questions = Questions()
        self.events: deque[dict[str, Any]] = deque()
        self.event_count = 0
        self.last_usage = Usage()
        self.stop_reason: str | None = None
        self.received = 0
        """Signals and updates of this run of the chain."""
        self.updates = 0
        self.turn: list[Planned] = []
        """The calls of the last reply, until all have their results."""
        self.sending = 0
        """Notices and messages to other runs that are on their way."""
        self.paused: LimitReached | None = None
        """The limit that the run waits for somebody to extend."""
        self.paused_until: datetime | None = None
        self.asking = False
        """Its parent is asked for more of a limit; the clock stands still."""
        self.extended = 0
        """How often its limits were raised."""
        self.parent: str | None = None
        """Workflow id of the run that this one is a child of."""
        self.misread = 0
        """Decisions and answers that were refused here; a parent that has passed one on must learn that."""
        self.children: dict[str, str] = {}
        """Workflow ids of open child runs, and the call that started each."""
        self.paused_children: set[str] = set()
        """Calls whose child run waits for a higher limit."""
        self.needs: dict[str, ChildNeeds] = {}
        """Open child runs, by the call that started each, that wait for more of a limit."""
        self.grants: dict[int, Grant] = {}
        """Answers to what this run has asked its parent for."""
        self.reset_counted: str | None = None
        """The run id up to whose resets all that they threw away is on the account."""
        self.ending: Ending | None = None
        self.activity = "starting"
        """What the run is doing, for people."""
        self.began: datetime | None = None
        """When the first run of the chain was started; None in that one."""
        self.key_prefix = ""
        """What idempotency keys begin with in a child run."""
        self._event_bytes = 0
        self._active_since: datetime | None = None

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of the contract's states."""
        if self.ending is not None:
            return "closed"
        if self.approvals.open:
            return "waiting_approval"
        if self.questions.open:
            return "waiting_answer"
        return "waiting_limit" if self.paused or self.paused_children else "running"

    @property
    def counting(self) -> bool:
        """Whether its time counts."""
        return self.state == "running" and not self.asking

    @property
    def full(self) -> bool:
        """Whether it should go on in a new run of the chain, as soon as nothing is in flight."""
        if not workflow.all_handlers_finished():  # an early update: it would be taken after what is carried
            return False
        suggested = workflow.info().is_continue_as_new_suggested()
        return suggested or self.received > MOST_SIGNALS or self.updates > MOST_UPDATES

    def tick(self) -> None:
        """Settle the active time up to now; called whenever a wait begins or ends."""
        now = workflow.now()
        if self._active_since is not None:
            self.account.active += (now - self._active_since).total_seconds()
        self._active_since = now if self.counting else None

    def seconds_left(self) -> float:
        """What is left of the deadline."""
        running = (workflow.now() - self._active_since).total_seconds() if self._active_since else 0.0
        return self.limits.deadline.total_seconds() - self.account.active - running

    def time_left(self) -> timedelta:
        """`seconds_left` as a timer takes it."""
        return timedelta(seconds=max(0.0, self.seconds_left()))

    def extend(self, by: LimitsOverride, *, own: bool = False, apply: bool = True) -> None:
        """Raise the limits, with `own` not above the agent's; whatever waits goes on. Raises Refused where too high."""
        most = (self.context.most or self.context.spec.limits) if own and self.context else None
        try:
            raised = self.limits.raised(by, most)
        except ConfigError as error:
            raise Refused(str(error).removeprefix("Limits: ")) from None
        if apply:
            self.limits = raised
            self.extended += 1

    # --- approvals ----------------------------------------------------------------------------------------------------

    def _checked(self, tool: str, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Arguments that an approver has edited, as they will run, and the digest of that call."""
        spec = self.context.spec.tool(tool) if self.context else None
        if spec is None:
            raise Refused(f"arguments: there is no tool {tool!r}")
        checked = check_arguments(spec.parameters, given)
        if checked.error is not None or checked.value is None:
            raise Refused(f"arguments: {checked.error}")
        return checked.value, binding(tool, checked.value, spec)

    # --- conversation -----------------------------------------------------------------------------------------------

    def mint(self) -> str:
        """An id for a message of the run; another one after a reset, so that no worker's memory mistakes it."""
        minted = f"r{workflow.random().getrandbits(44):011x}"
        self.own.add(minted)
        return minted

    def say(self, body: str) -> None:
        """Add a user message to the conversation."""
        self.messages.append(UserMessage(role="user", parts=text(body), id=self.mint()))

    def conversation(self) -> ConversationRef:
        """The conversation by reference, for an activity."""
        tail = [
            message if message.id in self.own and len(text_of(message)) <= INLINE_CHARS else message.id
            for message in self.messages[self.sent :]
        ]
        return ConversationRef(
            count=len(self.messages),
            base=self.messages[self.sent - 1].id if self.sent else "",
            tail=tuple(tail),
            run=self.chain,
        )

    @property
    def first_run(self) -> str:
        """First run id of the chain."""
        return workflow.info().first_execution_run_id

    @property
    def chain(self) -> str | None:
        """First run id of the chain, where it is not this run's: what idempotency keys and caches begin with."""
        info = workflow.info()
        return info.first_execution_run_id if info.first_execution_run_id != info.run_id else None

    # --- events -----------------------------------------------------------------------------------------------------

    def note(self, kind: str, **fields: Any) -> None:
        """Append to the event log; the oldest make room."""
        self.event_count += 1
        present = {name: value for name, value in fields.items() if value is not None}
        event = {"n": self.event_count, "at": workflow.now().isoformat(), "type": kind, **present}
        self.events.append(event)
        self._event_bytes += _size(event)
        announce(self, event)
        while self._event_bytes > EVENT_BYTES and len(self.events) > 1:
            self._event_bytes -= _size(self.events.popleft())

    # --- continuation -----------------------------------------------------------------------------------------------

    def go_on_if_full(self) -> None:
        """Continue as new where that is due; only where nothing is in flight but notices, which are waited for."""
        if self.full and self.sending == 0:
            workflow.continue_as_new(args=[None, self.carry()])

    def carry(self) -> Carried:
        """Everything the next run of the chain needs; what may still change in this one is copied."""
        assert self.input is not None
        assert self.context is not None
        self.tick()
        return Carried(
            input=self.input,
            context=self.context,
            limits=self.limits,
            attributes=self.attributes,
            messages=tuple(self.messages),
            account=self.account.model_copy(deep=True),
            counters=dict(self.counters),
            next_call=self.next_call,
            said=tuple(self.said),
            said_ids=tuple(self.said_ids),
            calls=dict(self.calls),
            turn_calls=dict(self.turn_calls),
            unsure=tuple(sorted(self.unsure)),
            settled=dict(self.approvals.settled),
            events=tuple(self.events),
            event_count=self.event_count,
            last_usage=self.last_usage,
            stop_reason=self.stop_reason,
            turn=tuple(plan.model_copy() for plan in self.turn),
            requests={call_id: request.model_copy(deep=True) for call_id, request in self.approvals.open.items()},
            remembered=dict(self.approvals.remembered),
            questions=dict(self.questions.open),
            answers=dict(self.questions.answers),
            parent=self.parent,
            reset_counted=self.reset_counted,
            paused_until=self.paused_until,
            began=self.began or workflow.info().workflow_start_time,
            repetition=self.repetition.model_copy(deep=True),
        )

    def take_over(self, carried: Carried) -> None:
        """Go on from what an earlier run of the chain carried, before any message is taken."""
        self.input, self.context, self.limits = carried.input, carried.context, carried.limits
        self.attributes = carried.attributes
        self.messages = list(carried.messages)
        self.sent = len(self.messages)
        self.account = carried.account.model_copy()
        self.counters = Counter(carried.counters)
        self.next_call = carried.next_call
        self.said_ids, self.said = dict.fromkeys(carried.said_ids), deque(carried.said)
        self.calls, self.turn_calls = Counter(carried.calls), Counter(carried.turn_calls)
        self.unsure = set(carried.unsure)
        self.repetition = carried.repetition.model_copy(deep=True)
        self.approvals.settled.update(carried.settled)
        self.approvals.open.update(carried.requests)
        self.approvals.remembered.update(carried.remembered)
        self.questions.open.update(carried.questions)
        self.questions.answers.update(carried.answers)
        self.turn = list(carried.turn)
        self.parent, self.reset_counted = carried.parent, carried.reset_counted
        self.paused_until, self.began = carried.paused_until, carried.began
        self.key_prefix = carried.context.key_prefix
        self.know()
        self.events, self._event_bytes = deque(carried.events), sum(map(_size, carried.events))
        self.event_count = carried.event_count
        self.last_usage = carried.last_usage
        self.stop_reason = carried.stop_reason
        self._active_since = workflow.now() if self.counting else None

    def know(self) -> None:
        """Tell the approvals who may decide, once that is known."""
        assert self.input is not None
        assert self.context is not None
        self.approvals.run = workflow.info().workflow_id
        self.approvals.requester = self.input.user
        self.approvals.groups, self.approvals.keys = self.context.spec.groups, self.context.keys


def _size(event: dict[str, Any]) -> int:
    return len(json.dumps(event, ensure_ascii=False, default=str))
