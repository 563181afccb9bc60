"""What attempts of one model call have used that came to nothing: an estimate, handed on by their heartbeats.

A provider that has begun to answer is paid, whether its answer arrives or not. An attempt that was cut, lost with its
worker or cancelled leaves no usage, so it is counted at four characters a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.messages import Usage


class Tally:
    """The count of one attempt, on top of what earlier attempts left in their last heartbeat."""

    def __init__(self, details: Sequence[Any]) -> None:
        """`details` are the heartbeat details that this attempt has found."""
        left = details[0].get("tally") if details and isinstance(details[0], dict) else None
        counts = left if isinstance(left, list) and all(isinstance(n, int) for n in left) and len(left) == 2 else (0, 0)
        self.before = Usage(input_tokens=counts[0], output_tokens=counts[1])
        """Of earlier attempts."""
        self._asked = 0
        self._sent = 0
        self._said = 0

    def asks(self, tokens: int) -> None:
        """So many tokens will be sent; they count once the provider answers."""
        self._asked = tokens

    def hears(self, text: str) -> None:
        """The provider has answered something."""
        self._sent = self._asked
        self._said += len(text)

    @property
    def used(self) -> Usage:
        """Of all attempts, this one included as if it came to nothing."""
        return self.before + Usage(input_tokens=self._sent, output_tokens=self._said // 4)

    @property
    def details(self) -> list[int]:
        """What a heartbeat hands to the next attempt."""
        return [self.used.input_tokens, self.used.output_tokens]
