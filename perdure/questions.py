"""Questions that a run asks a person, and their answers. Pure state, like approvals."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.approval import Refused
from perdure.settings import problems_of


class Answer(BaseModel):
    """Payload of `answer`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    question_id: str = Field(max_length=1_000)
    text: str = Field(max_length=100_000)
    by: str | None = Field(None, max_length=500)


class Question(BaseModel):
    """One open question, as `status` shows it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    question_id: str
    text: str
    options: tuple[str, ...] = ()
    """The only answers that are understood; empty means any text."""
    asked_at: datetime
    deadline: datetime
    run: str | None = None
    """Workflow id of the child run that asks; None where it is this run."""


class Questions:
    """Open questions by id, and the answers that came."""

    def __init__(self) -> None:
        self.open: dict[str, Question] = {}
        self.answers: dict[str, Answer] = {}

    def ask(self, question: Question) -> None:
        """Open a question."""
        self.answers.pop(question.question_id, None)
        self.open[question.question_id] = question

    def answer(self, payload: Any, now: datetime, *, apply: bool = True) -> Answer:
        """Take an answer; raises Refused. With `apply=False` it only checks."""
        if not isinstance(payload, dict):
            raise Refused('an answer is an object such as {"question_id":"q-c1","text":"done"}')
        try:
            answer = Answer.model_validate(payload)
        except ValidationError as error:
            raise Refused(problems_of(error)) from None
        question = self.open.get(answer.question_id)
        if question is None:
            waiting = ", ".join(self.open) or "none"
            raise Refused(f"question_id: no question {answer.question_id!r} is open; open now: {waiting}")
        if now >= question.deadline:
            raise Refused(f"{answer.question_id} expired at {question.deadline.isoformat()}")
        if question.options and answer.text.strip() not in question.options:
            raise Refused(f"text: answer one of {list(question.options)}")
        if apply:
            del self.open[answer.question_id]
            if question.run is None:  # else it is passed on to the child run that asks
                self.answers[answer.question_id] = answer
        return answer

    def knows(self, question_id: str) -> bool:
        """Whether it is open, or its answer has not been taken yet."""
        return question_id in self.open or question_id in self.answers

    def close(self, question_id: str) -> None:
        """Withdraw a question that nobody waits for any more."""
        self.open.pop(question_id, None)
