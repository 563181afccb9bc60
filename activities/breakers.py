"""Circuit breakers of a worker: an address that keeps failing is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from activities._failures import RETRYABLE
from perdure.errors import ErrorKind, ProviderError

FAILURES = 5
"""Failures in a row after which nothing is sent any more."""
OPEN_SECONDS = 30.0
"""How long; then one call tries."""
SPARED = frozenset({ErrorKind.RATE_LIMIT, ErrorKind.MALFORMED})
"""Retryable, but no sign that the address is down."""


@dataclass
class _Breaker:
    failures: int = 0
    closed_at: float = 0.0


class Breakers:
    """One breaker for each address; `clock` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._breakers: dict[str, _Breaker] = {}

    def check(self, address: str) -> None:
        """Raise ProviderError (OVERLOADED, with the seconds to wait) while the address is left alone."""
        breaker = self._breakers.get(address)
        if breaker is None or breaker.failures < FAILURES:
            return
        left = breaker.closed_at - self._clock()
        if left > 0:
            raise ProviderError(
                ErrorKind.OVERLOADED,
                f"{address} failed {breaker.failures} times in a row; nothing is sent there for {left:.0f} s more",
                retry_after=left,
            )
        breaker.closed_at = self._clock() + OPEN_SECONDS  # this call is the one that tries

    def succeeded(self, address: str) -> None:
        """The address has answered, if only to refuse."""
        self._breakers.pop(address, None)

    def failed(self, address: str, error: ProviderError) -> None:
        """Count a failure that speaks of the address and not of the request; the last one says how long to wait."""
        if not RETRYABLE[error.kind] or error.kind in SPARED:
            self.succeeded(address)
            return
        breaker = self._breakers.setdefault(address, _Breaker())
        breaker.failures += 1
        breaker.closed_at = self._clock() + OPEN_SECONDS
        if breaker.failures >= FAILURES:  # else the next attempt would come in vain
            error.retry_after = max(error.retry_after or 0.0, OPEN_SECONDS)
