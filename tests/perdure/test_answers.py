"""Which texts of a model are the object that was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.answers import SHAPELESS, read_answer

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "celsius": {"type": "integer"}},
    "required": ["city", "celsius"],
    "additionalProperties": False,
}
BARE = '{"city": "Oslo", "celsius": 9}'
OSLO = {"city": "Oslo", "celsius": 9}
PRETTY = json.dumps(OSLO, indent=2)


@pytest.mark.parametrize(
    "text",
    [
        BARE,
        f"  \n{PRETTY}\n",
        f"```json\n{PRETTY}\n```",
        f"```\n{BARE}\n```",
        f"```JSON\n{BARE}\n```",
        f"Here you are:\n\n```json\n{PRETTY}\n```",
        f"```json\n{PRETTY}\n```\nTell me if you need more.",
        f"Sure! {BARE}",
        f"{BARE}\n\nI hope that helps.",
        f"The answer for {{city}} is {BARE}, as {{asked}}.",
        f"<think>Is it {{9}} or {json.dumps({'celsius': 8})}?</think>\n{BARE}",
        json.dumps(BARE),
        json.dumps(PRETTY),
        "{'city': 'Oslo', 'celsius': 9}",
        "Here: {'city': 'Oslo', 'celsius': 9,}",
        '{"city": "Oslo", "celsius": "9"}',
    ],
)
def test_the_only_object_of_a_text_is_the_answer(text: str) -> None:
    """Fences, sentences and a second encoding around it do not matter, nor does damage with one reading."""
    assert read_answer(text, SCHEMA).value == OSLO


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "It is 9 degrees in Oslo.",
        f"[{BARE}]",
        f"Here: [\n  {BARE}\n]",
        f"{BARE}\n{BARE}",
        f"First {BARE}, or rather {json.dumps(OSLO | {'celsius': 8})}",
        f'An example: {{"city": "Rome"}}. The answer: {BARE}',
        BARE[:-1],
        f"```json\n{PRETTY[:-1]}",
        f"Here: {BARE[:20]}",
        f'{BARE} and {{"city": "Ro',
        f'{BARE} and {{"city": "Ro }}',
        f'{{"note": {BARE}',
        f"{{'note': it's {BARE}}}",
        '{"city": "Oslo", "city": "Rome", "celsius": 9}',
        '{"city": "Oslo", "celsius": NaN}',
    ],
)
def test_what_is_not_exactly_one_whole_object_is_no_answer(text: str) -> None:
    """Nothing is taken from a list, from several objects, from one that was cut or from inside a damaged one."""
    answer = read_answer(text, SCHEMA)
    assert (answer.value, answer.misfit) == (None, SHAPELESS)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"city": "Oslo"}', "celsius: required, but missing"),
        ('Here: {"city": "Oslo", "celsius": "warm"}', "celsius: must be integer"),
        ('```json\n{"city": "Oslo", "celsius": 9, "wind": 3}\n```', "wind: unknown"),
        ("{}", "required, but missing"),
        (json.dumps(SCHEMA), "unknown"),
    ],
)
def test_an_object_that_does_not_fit_says_what_is_wrong(text: str, problem: str) -> None:
    """The model is told the field, wherever the object stood."""
    answer = read_answer(text, SCHEMA)
    assert answer.value is None
    assert problem in (answer.misfit or "")


TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="{}\0"), max_size=30)
ANY = {"type": "object"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(blacklist_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, JSON, min_size=1, max_size=3), TEXTS, TEXTS)
def test_words_around_an_object_change_nothing(value: dict[str, Any], before: str, after: str) -> None:
    """Whatever is said without braces before and after, the object is found whole or not at all."""
    body = json.dumps(value)
    alone = read_answer(body, ANY).value
    around = read_answer(f"{before}{body}{after}", ANY).value
    assert around in (alone, None)
    if not before.rstrip().endswith("["):
        assert around == alone


@given(st.dictionaries(TEXTS, JSON, min_size=1, max_size=3), TEXTS, st.data())
def test_a_cut_object_is_never_accepted(value: dict[str, Any], before: str, data: st.DataObject) -> None:
    """At whatever character the text ends."""
    body = json.dumps(value)
    cut = data.draw(st.integers(1, len(body) - 1))
    assert read_answer(before + body[:cut], ANY).value is None


@given(st.text(max_size=200))
def test_any_text_is_judged(text: str) -> None:
    """There is a value or a reason, never both, and never an exception."""
    answer = read_answer(text, SCHEMA)
    assert (answer.value is None) is (answer.misfit is not None)
