"""Heartbeats of a model call: they keep it alive, bring cancellation, and carry the text so far to whoever watches."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from temporalio import activity

from activities.bus import Voice
from activities.chain import turns_of
from activities.claims import Claims
from activities.tally import Tally

FIRST = 0.1
"""Seconds before the first beat: a beat costs as much as a call, and many have ended by then."""
INTERVAL = 1.0
"""Seconds between beats while nothing happens; cancellation arrives with them."""
SHOWN = 48 * 1024
"""Characters of text in a beat; details that leave history would be a reference that nobody can read."""


class Beats:
    """A background beat for as long as the block runs; text that arrives is shown at once, throttled by the SDK."""

    def __init__(self) -> None:
        self._text = ""
        self._offset = 0
        self._beating = False
        self._task: asyncio.Task[None] | None = None
        self.tally = Tally(activity.info().heartbeat_details)
        """What this call has used so far; every beat hands it on."""
        self.turns = turns_of(activity.info().heartbeat_details)
        """What this call has learned of its chain of models; every beat hands it on."""
        self.claims = Claims(activity.info().heartbeat_details, self.tally, self._beat)
        """The reply that its provider goes on with by itself; every beat hands it on."""
        self.voice: Voice | None = None
        """Tells what is said to those who listen on this worker."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat_on())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        if error is not None:
            self._beat()  # the next attempt learns what this one has used to its end

    def text(self, delta: str) -> None:
        """Add what the model has just said; an empty text says that it has answered."""
        self.tally.hears(delta)
        if delta:
            if self.voice is not None:
                self.voice.say(delta, self._offset + len(self._text))
            self._text += delta
            if len(self._text) > SHOWN:
                self._offset += len(self._text) - SHOWN // 2
                self._text = self._text[-(SHOWN // 2) :]
            if self._beating:
                self._beat()

    def _beat(self) -> None:
        shown = {"attempt": activity.info().attempt, "offset": self._offset, "text": self._text}
        turns = self.turns.model_dump(mode="json", exclude_defaults=True)
        held = self.claims.held
        claim = {"claim": held.model_dump(mode="json", exclude_defaults=True)} if held else {}
        activity.heartbeat({**shown, "tally": self.tally.details, **({"turns": turns} if turns else {}), **claim})

    async def _beat_on(self) -> None:
        await asyncio.sleep(FIRST)
        self._beating = True
        while True:
            self._beat()
            await asyncio.sleep(INTERVAL)
