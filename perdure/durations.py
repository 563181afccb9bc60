"""Durations as people write them: ISO 8601 (`PT10M`), `10m` style, seconds, or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_SHORT = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_ISO = re.compile(
    r"P(?:(\d+(?:\.\d+)?)D)?(?:T(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
_LONGEST = timedelta(days=3650)


def parse_duration(value: Any) -> timedelta:
    """The timedelta that `value` means; raises ValueError that says which forms are understood."""
    if isinstance(value, timedelta):
        result = value
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LONGEST.total_seconds():
        result = timedelta(seconds=value)
    else:
        text = value.strip() if isinstance(value, str) else ""
        if re.fullmatch(r"\d+(\.\d+)?", text):  # seconds, as a variable of the environment holds them
            text = f"{text}s"
        match = _SHORT.fullmatch(text) or _ISO.fullmatch(text)
        if not match or not any(match.groups()):
            raise ValueError(f"{value!r} is not a duration; write '10m', '1h30m', 'PT10M' or a number of seconds")
        days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
        result = timedelta(days=min(days, 99_999), hours=hours, minutes=minutes, seconds=seconds)
    if not timedelta(0) < result <= _LONGEST:
        raise ValueError(f"{value!r} must be longer than zero and at most ten years")
    return result


def seconds_of(value: timedelta) -> int | float:
    """Seconds, as an int where they are whole."""
    seconds = value.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(seconds_of, return_type=int | float),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]}),
]
"""A duration field: takes every form, is written as seconds."""
