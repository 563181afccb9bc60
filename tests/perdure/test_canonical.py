"""Canonical JSON, digests, and text without what cannot travel."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.canonical import canonical_json, clean, clean_text, digest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "é"]}, '{"a":[true,null,"é"],"b":1}'),
        ({"n": 100.0}, '{"n":100}'),
        ([0.5, -0.0, 1e21], "[0.5,0,1000000000000000000000]"),
        ((1, 2), "[1,2]"),
        ({}, "{}"),
    ],
)
def test_canonical_json_has_one_spelling(value: Any, text: str) -> None:
    """Keys are sorted, whitespace is gone, integral floats are integers."""
    assert canonical_json(value) == text


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": float("-inf")}])
def test_canonical_json_refuses_numbers_that_json_lacks(value: Any) -> None:
    """NaN and infinities are ValueErrors."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


@pytest.mark.parametrize("value", [{1: "a"}, {"a": {None: 1}}, {"a": object()}, b"x"])
def test_canonical_json_refuses_what_is_not_json(value: Any) -> None:
    """Keys that are not text and foreign objects are TypeErrors, never renamed."""
    with pytest.raises(TypeError):
        canonical_json(value)


def test_digest_is_stable() -> None:
    """The digest is SHA-256 over the canonical JSON, whatever the order of the keys."""
    known = "sha256:43258cff783fe7036d8a43033f830adfc60ec037382473548ac742b888292777"
    assert digest({"b": 2, "a": 1}) == digest({"a": 1.0, "b": 2}) == known


def test_digest_of_lone_surrogates() -> None:
    """A lone surrogate counts as U+FFFD and does not crash."""
    assert digest({"a": "x\ud83d"}) == digest({"a": "x\ufffd"})


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain é 😀", "plain é 😀"),
        ("ok \ud83d end", "ok \ufffd end"),
        ("\udc97", "\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("a\x00b", "a\ufffdb"),
        ("tab\tand\x1b stay", "tab\tand\x1b stay"),
    ],
)
def test_clean_text(text: str, cleaned: str) -> None:
    """Lone surrogates and NUL become U+FFFD one for one, pairs become their character."""
    assert clean_text(text) == cleaned


def test_clean_keeps_members_apart() -> None:
    """Keys that become equal are told apart, so that nothing is dropped."""
    names = [chr(0xD800), chr(0xD801), "\ufffd"]
    cleaned = clean({**dict(zip(names, (1, 2, 3), strict=True)), "n": ["\x00", {"k": "\udfff"}]})
    assert sorted(value for key, value in cleaned.items() if key != "n") == [1, 2, 3]
    assert cleaned["\ufffd"] == 3
    assert cleaned["n"] == ["\ufffd", {"k": "\ufffd"}]


@given(st.text(st.characters(codec=None, categories=None)))
def test_clean_text_always_encodes(text: str) -> None:
    """Cleaned text is UTF-8 without NUL, and cleaning twice is cleaning once."""
    cleaned = clean_text(text)
    assert b"\x00" not in cleaned.encode()
    assert clean_text(cleaned) == cleaned


@given(JSON)
def test_canonical_json_means_the_same(value: Any) -> None:
    """Canonical text decodes to an equal value and is its own canonical form."""
    text = canonical_json(clean(value))
    assert json.loads(text) == clean(value)
    assert canonical_json(json.loads(text)) == text
