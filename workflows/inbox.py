"""Messages to a run: one table for signals and updates. A bad one is recorded or refused and never harms the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio import workflow
from temporalio.common import RawValue

from perdure.approval import Pending, Refused
from perdure.canonical import clean, clean_text
from perdure.contracts import SAID_LIMIT
from perdure.settings import problems_of
from perdure.undecodable import Undecodable
from workflows.state import RunState

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

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._table: dict[str, Callable[[Any, bool], dict[str, Any]]] = {
            "decide": lambda payload, apply: self._decide(payload, None, apply),
            "approve": lambda payload, apply: self._decide(payload, True, apply),
            "deny": lambda payload, apply: self._decide(payload, False, apply),
            "say": self._say,
            "answer": self._answer,
            "stop": self._stop,
        }

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

    def _handler(self, name: str) -> Callable[[Any, bool], dict[str, Any]]:
        if name not in self._table:
            raise Refused(f"no message is named {name[:100]!r}; messages are {', '.join(self._table)}")
        if self._run.ending is not None:
            raise Refused("the run has ended")
        return self._table[name]

    def _decide(self, payload: Any, verdict: bool | None, apply: bool) -> dict[str, Any]:
        pending: Pending = self._run.approvals.decide(payload, workflow.now(), verdict, apply=apply)
        if apply:
            decision = pending.decisions[-1]
            settled = self._run.approvals.settled.get(pending.call_id)
            edited = settled.arguments if settled else None
            self._run.note(
                "approval_decided",
                call_id=pending.call_id,
                tool=pending.tool,
                approve=decision["approve"],
                by=decision["by"],
                verified=False,
                reason=decision["reason"],
                edited=edited is not None or None,
                arguments=edited if len(json.dumps(edited)) <= SHOWN_ARGUMENTS else None,
            )
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
            self._run.note(
                "answered", question_id=answer.question_id, text=answer.text[:200], by=answer.by, verified=False
            )
        return {"question_id": answer.question_id}

    def _stop(self, payload: Any, apply: bool) -> dict[str, Any]:
        request = _read(StopRequest, payload, '{} or {"reason":"..."}')
        if apply and self._run.stop_reason is None:
            self._run.stop_reason = request.reason or "asked to stop"
            self._run.note("stop_requested", reason=request.reason)
        return {"stopping": True}


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
