"""Retry-After beyond the table of the cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.retry_after import LONGEST, duration, seconds_to_wait


@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,3} [A-Z][a-z]{2} [0-9]{1,6} [0-9:]{0,9} [A-Z+0-9-]{0,6}"))
def test_no_value_can_crash(value: str) -> None:
    """Whatever a header says, the answer is None or a wait within bounds."""
    waits = seconds_to_wait({"Retry-After": value}, 1_788_264_000.0)
    assert waits is None or 0 <= waits <= LONGEST


@pytest.mark.parametrize(
    ("headers", "right"),
    [
        ({"RETRY-AFTER": "7"}, 7),
        ({"Retry-After-Ms": "1500", "Retry-After": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({"retry-after": "9" * 5000}, LONGEST),
        ({"retry-after": "٣"}, None),
        ({}, None),
    ],
)
def test_headers(headers: dict[str, str], right: float | None) -> None:
    """Names in any case; milliseconds win where they are usable; only ASCII digits are numbers."""
    assert seconds_to_wait(headers, 0.0) == right


@pytest.mark.parametrize(
    ("value", "right"), [("34s", 34), ("0.5s", 0.5), ("99999s", LONGEST), ("34", None), (34, None), ("s", None)]
)
def test_durations(value: object, right: float | None) -> None:
    """The protobuf form of a wait."""
    assert duration(value) == right
