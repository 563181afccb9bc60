"""Telling people what waits for them: activities beside the run, whose failure never holds it up."""

from __future__ import annotations

import asyncio
from datetime import datetime

from temporalio.exceptions import ActivityError

from perdure.approval import Pending
from perdure.contracts import NOTIFY, NotifyInput
from perdure.notification import NoticeKind
from perdure.questions import Question
from workflows import options
from workflows.state import RunState
from workflows.steps import execute


class Notices:
    """Sends notices of one run."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._tasks: list[asyncio.Task[None]] = []

    def tell(
        self,
        kind: NoticeKind,
        *,
        call: Pending | None = None,
        question: Question | None = None,
        limit: str | None = None,
        deadline: datetime | None = None,
    ) -> None:
        """Send a notice, where the agent wants any."""
        context = self._run.context
        if context is None or not (context.spec.notify or context.spec.webhook):
            return
        about = call.call_id if call else question.question_id if question else limit or ""
        notice = NotifyInput(
            kind=kind,
            call=call.model_copy(deep=True) if call else None,
            question=question,
            limit=limit,
            deadline=deadline.isoformat() if deadline else None,
            key=f"{self._run.first_run}/{about}/{kind}/{self._run.event_count}",
        )
        self._run.sending += 1
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.create_task(self._send(notice, f"notify {kind} {about}"[:100])))

    async def _send(self, notice: NotifyInput, summary: str) -> None:
        try:
            await execute(NOTIFY, notice, options.NOTIFY, summary)
        except ActivityError as error:
            self._run.note("notify_failed", about=summary, error=str(error.cause or error)[:500])
        self._run.sending -= 1
