"""What attempts of one model call have used that came to nothing: an estimate, handed on by their heartbeats.

A provider that has begun to answer is paid, whether its answer arrives or not. An attempt that was cut, lost with its
worker or cancelled leaves no usage, so it is counted at four characters a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.contracts import tally_of
from perdure.messages import Usage

CHARS = 4
"""Characters that count as a token where nobody counts tokens."""


class Tally:
    """The count of one attempt, on top of what earlier attempts left in their last heartbeat."""

    def __init__(self, details: Sequence[Any]) -> None:
        """`details` are the heartbeat details that this attempt has found."""
        self.before = tally_of(details)
        """Of earlier attempts."""
        self._all = self.before
        self._asked = 0
        self._sent = 0
        self._said = 0

    def asks(self, tokens: int) -> None:
        """So many tokens will be sent; they count once the provider answers."""
        self._asked = tokens

    def hears(self, text: str) -> None:
        """The provider has answered something; what is no text (a piece of a call, of reasoning) counts as a token."""
        self._sent = self._asked
        self._said += len(text) or CHARS

    def resumes(self, before: Usage) -> None:
        """What the last attempt has used is no loss: this one takes over its reply. `before` is of those before it."""
        self.before = before

    def begins_anew(self) -> None:
        """It was a loss after all."""
        self.before = self._all

    def gives_up(self) -> None:
        """Nobody will learn whether the provider has begun to answer, so it counts as if it had."""
        self._sent = self._asked

    def is_told(self, usage: Usage) -> None:
        """The provider has said what this attempt has used, though it failed."""
        self._sent, self._said = usage.input_tokens, usage.output_tokens * CHARS

    @property
    def used(self) -> Usage:
        """Of all attempts, this one included as if it came to nothing."""
        return self.before + Usage(input_tokens=self._sent, output_tokens=self._said // CHARS)

    @property
    def details(self) -> list[int]:
        """What a heartbeat hands to the next attempt."""
        return [self.used.input_tokens, self.used.output_tokens]
