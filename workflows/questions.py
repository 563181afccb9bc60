"""Asking a person and waiting for the answer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow

from perdure.questions import Question
from workflows.notices import Notices
from workflows.state import RunState
from workflows.views import Board

MOST_CHARS = 20_000
"""Characters of a question: `status` shows all that are open."""


class Asking:
    """The questions of one run."""

    def __init__(self, run: RunState, board: Board, notices: Notices) -> None:
        self._run = run
        self._board = board
        self._notices = notices

    async def ask(self, call_id: str, words: str, choices: tuple[str, ...], wait: timedelta) -> str | None:
        """The answer; None where nobody gave one in time, or the run was stopped. A question goes on where it was."""
        run, question_id = self._run, f"q-{call_id}"
        if not run.questions.knows(question_id):
            self._open(question_id, words, choices, wait)
        if (question := run.questions.open.get(question_id)) is not None:
            await self._wait(question)
        run.questions.close(question_id)
        self._board.changed(run, "running tools")
        answer = run.questions.answers.pop(question_id, None)
        return answer.text.strip() if answer else None

    def _open(self, question_id: str, words: str, choices: tuple[str, ...], wait: timedelta) -> None:
        run, now = self._run, workflow.now()
        if len(words) > MOST_CHARS:
            words = f"{words[:MOST_CHARS]}[... {len(words)} characters in all ...]"
        question = Question(question_id=question_id, text=words, options=choices, asked_at=now, deadline=now + wait)
        run.questions.ask(question)
        run.note("question", question_id=question_id, text=words[:500], deadline=question.deadline.isoformat())
        self._board.changed(run, "waiting for an answer")
        self._notices.tell("question", question=question)

    async def _wait(self, question: Question) -> None:
        run, question_id = self._run, question.question_id
        try:
            await workflow.wait_condition(
                lambda: question_id not in run.questions.open or run.stop_reason is not None,
                timeout=max(timedelta(0), question.deadline - workflow.now()),
                timeout_summary=f"question {question_id}",
            )
        except TimeoutError:
            run.note("question_expired", question_id=question_id)
        except asyncio.CancelledError:
            run.questions.close(question_id)
            raise
