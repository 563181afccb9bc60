"""How long a provider asks us to wait, out of the headers that say so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

LONGEST = 3600.0
"""Seconds; a longer wait is cut to this."""

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


def seconds_to_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds from `retry-after-ms` or `Retry-After` (a number or an HTTP date), at most `LONGEST`.

    `now` is in epoch seconds. A date in the past is 0; None where nothing usable is said.
    """
    values = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = values.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds):
        return min(float(milliseconds) / 1000, LONGEST)
    value = values.get("retry-after", "")
    if _NUMBER.fullmatch(value):
        return min(float(value), LONGEST)
    return _until(value, now)


def duration(value: object) -> float | None:
    """Seconds of a protobuf duration such as `34s` or `0.5s`, at most `LONGEST`; None for anything else."""
    if isinstance(value, str) and value.endswith("s") and _NUMBER.fullmatch(value[:-1]):
        return min(float(value[:-1]), LONGEST)
    return None


def _until(date: str, now: float) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        # "-0000" means UTC of unknown origin and parses to a naive time.
        moment = moment.replace(tzinfo=UTC)
    return min(max(moment.timestamp() - now, 0.0), LONGEST)
