"""Text that can be encoded, however it was cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.text import TextJoiner, clean, clean_json


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("plain", "plain"),
        ("é 你 🌍", "é 你 🌍"),
        ("ok \ud83d end", "ok \ufffd end"),
        ("\ude00", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("a\u0000b", "a\u0000b"),
    ],
)
def test_clean(text: str, right: str) -> None:
    """Pairs become one character, halves become U+FFFD, and all else stays."""
    assert clean(text) == right


def test_clean_json_reaches_keys_and_items() -> None:
    """Strings are cleaned wherever they are."""
    assert clean_json({"\ud83d": ["\udc97", {"a": "b"}], "n": 1}) == {"\ufffd": ["\ufffd", {"a": "b"}], "n": 1}


@given(st.lists(st.text(alphabet=st.sampled_from("ab\ud83d\ude00é"), max_size=3)))
def test_joining_pieces_equals_cleaning_the_whole(pieces: list[str]) -> None:
    """A pair cut in two is joined again, and what is shown is a prefix of the whole text."""
    joiner = TextJoiner()
    shown = "".join([joiner.add(piece) for piece in pieces])
    assert joiner.text() == clean("".join(pieces))
    assert joiner.text().startswith(shown)
