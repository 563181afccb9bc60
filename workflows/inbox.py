"""Messages to a run: one table for signals and updates. A bad one is recorded or refused and never harms the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio import workflow
from temporalio.common import RawValue

from perdure.approval import Refused
from perdure.canonical import clean, clean_text
from perdure.contracts import SAID_LIMIT
from perdure.family import CHILD_NEEDS, CHILD_WAITS, GRANT, ChildNeeds, ChildWaits, Grant
from perdure.limits import LimitsOverride
from perdure.settings import problems_of
from perdure.undecodable import Undecodable
from workflows.family import Family
from workflows.state import RunState
from workflows.views import Board

M = TypeVar("M", bound=BaseModel)

SHOWN_ARGUMENTS = 4_000
"""Characters of edited arguments that the event log shows; the result of the call names them all."""

SAID_QUEUE = 1_000
"""Messages of the user that may wait to be taken in."""


class Said(BaseModel):
    """Payload of `say`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: str = Field(min_length=1, max_length=SAID_LIMIT)
    message_id: str | None = Field(None, min_length=1, max_length=200)


class StopRequest(BaseModel):
    """Payload of `stop`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    reason: str | None = Field(None, max_length=2_000)


class Inbox:
    """Checks and takes messages. `take` raises Refused exactly where `check` does."""

    def __init__(self, run: RunState, board: Board, family: Family) -> None:
        self._run = run
        self._board = board
        self._family = family
        self._table: dict[str, Callable[[Any, bool], dict[str, Any]]] = {
            "decide": lambda payload, apply: self._decide(payload, None, apply),
            "approve": lambda payload, apply: self._decide(payload, True, apply),
            "deny": lambda payload, apply: self._decide(payload, False, apply),
            "say": self._say,
            "answer": self._answer,
            "extend": self._extend,
            "stop": self._stop,
        }
        relatives: dict[str, tuple[type[BaseModel], Callable[[Any, bool], None]]] = {
            CHILD_WAITS: (ChildWaits, family.child_waits),
            CHILD_NEEDS: (ChildNeeds, family.child_needs),
            GRANT: (Grant, family.granted),
        }
        self._relatives = {name: _reader(model, take) for name, (model, take) in relatives.items()}
        """Messages between runs; they decide nothing that a person must."""

    @property
    def names(self) -> list[str]:
        """The messages that are understood."""
        return list(self._table)

    def check(self, name: str, args: Sequence[RawValue]) -> None:
        """Raise Refused where `take` would; changes nothing."""
        self._handler(name)(_payload(args), False)

    def take(self, name: str, args: Sequence[RawValue]) -> dict[str, Any]:
        """Take a message and return what to answer."""
        return self._handler(name)(_payload(args), True)

    def receive(self, name: str, args: Sequence[RawValue]) -> None:
        """Take a signal: what is wrong with it is recorded, for nobody waits for an answer."""
        try:
            self.take(name, args)
        except Refused as refusal:
            self._run.note("message_refused", message=name[:100], reason=str(refusal)[:1_000])
            self._run.misread += name in {"decide", "answer"}

    def _handler(self, name: str) -> Callable[[Any, bool], dict[str, Any]]:
        handler = self._table.get(name) or self._relatives.get(name)
        if handler is None:
            raise Refused(f"no message is named {name[:100]!r}; messages are {', '.join(self._table)}")
        if self._run.ending is not None:
            raise Refused("the run has ended")
        return handler

    def _decide(self, payload: Any, verdict: bool | None, apply: bool) -> dict[str, Any]:
        decided = self._run.approvals.decide(payload, workflow.now(), verdict, apply=apply)
        pending, decision = decided.request.pending, decided.decision
        if apply:
            edited = decided.verdict.arguments if decided.verdict else None
            self._run.note(
                "approval_decided",
                call_id=pending.call_id,
                tool=pending.tool,
                **{name: decision[name] for name in ("approve", "by", "verified", "reason", "remember")},
                edited=edited is not None or None,
                arguments=edited if len(json.dumps(edited)) <= SHOWN_ARGUMENTS else None,
            )
            given = payload if verdict is None else {**payload, "approve": verdict}
            if self._family.pass_on("decide", "call_id", pending.call_id, given):
                self._board.changed(self._run, self._run.activity)
        return {"call_id": pending.call_id, "open": pending.call_id in self._run.approvals.open}

    def _say(self, payload: Any, apply: bool) -> dict[str, Any]:
        said = _read(Said, payload, '{"text":"..."}')
        if said.message_id in self._run.said_ids:
            return {"queued": len(self._run.said), "duplicate": True}
        if len(self._run.said) >= SAID_QUEUE:
            raise Refused(f"{SAID_QUEUE} messages wait already; the run takes them in before its next model call")
        if apply:
            if said.message_id:
                self._run.said_ids[said.message_id] = None
            self._run.said.append({"text": clean_text(said.text), "message_id": said.message_id})
            self._run.note("said", message_id=said.message_id, text=said.text[:200])
        return {"queued": len(self._run.said)}

    def _answer(self, payload: Any, apply: bool) -> dict[str, Any]:
        answer = self._run.questions.answer(payload, workflow.now(), apply=apply)
        if apply:
            passed = self._family.pass_on("answer", "question_id", answer.question_id, payload)
            self._run.note(
                "answered", question_id=answer.question_id, text=answer.text[:200], by=answer.by, verified=False
            )
            if passed:
                self._board.changed(self._run, self._run.activity)
        return {"question_id": answer.question_id}

    def _extend(self, payload: Any, apply: bool) -> dict[str, Any]:
        more = _read(LimitsOverride, payload, '{"steps":10} or {"deadline":"30m"}')
        given = more.model_dump(mode="json", exclude_none=True)
        if not given:
            raise Refused("say by how much: steps, tool_calls, tokens, cost_usd or deadline")
        unlimited = [name for name in given if getattr(self._run.limits, name) is None]
        if unlimited:
            raise Refused(f"{unlimited[0]}: the run has no such limit")
        self._run.extend(more, apply=apply)
        if apply:
            self._run.note("limits_extended", **given)
            self._family.extended(more)
        return {"limits": self._run.limits.raised(LimitsOverride() if apply else more).model_dump(mode="json")}

    def _stop(self, payload: Any, apply: bool) -> dict[str, Any]:
        request = _read(StopRequest, payload, '{} or {"reason":"..."}')
        if apply and self._run.stop_reason is None:
            self._run.stop_reason = request.reason or "asked to stop"
            self._run.note("stop_requested", reason=request.reason)
            self._family.stop(request.reason)
        return {"stopping": True}


def _reader(model: type[M], take: Callable[[M, bool], None]) -> Callable[[Any, bool], dict[str, Any]]:
    def handle(payload: Any, apply: bool) -> dict[str, Any]:
        take(_read(model, payload, f"a {model.__name__}"), apply)
        return {}

    return handle


def _payload(args: Sequence[RawValue]) -> Any:
    if len(args) > 1:
        raise Refused(f"a message has one payload, not {len(args)}")
    if not args:
        return None
    try:
        value = workflow.payload_converter().from_payload(args[0].payload)
    except Exception as error:  # whatever a stranger sent must not fail the workflow task
        raise Refused(f"the payload cannot be read: {type(error).__name__}") from None
    if isinstance(value, Undecodable):
        raise Refused(f"the payload cannot be read: {value.reason}")
    return clean(value)


def _read(model: type[M], payload: Any, example: str) -> M:
    if not isinstance(payload, dict):
        raise Refused(f"the payload is an object such as {example}")
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        raise Refused(problems_of(error)) from None
