"""Redaction: no credential leaves in events or traces, and ordinary text is left as it is."""

from __future__ import annotations

import itertools
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.redact import HELD_CHARS, LEAST, MARK, Flow, Redactor, secrets_of

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabcdef==\n-----END RSA PRIVATE KEY-----"
CREDENTIALS = {
    "openai": "sk-proj-AbCdEfGhIjKlMnOpQrStUvWx",
    "anthropic": "sk-ant-api03-AbCdEfGhIjKlMnOp",
    "github": "ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "github_fine": "github_pat_11ABCDEFG0123456789_abcdefghij",
    "gitlab": "glpat-AbCdEfGhIjKlMnOpQrSt",
    "slack": "xoxb-123456789012-abcdefghijkl",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "stripe": "sk_live_AbCdEfGhIjKlMnOp",
    "hugging": "hf_AbCdEfGhIjKlMnOpQrStUv",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.c2lnbmF0dXJlLWJ5dGVz",
    "pem": PEM,
}
KNOWN = ("correct-horse-battery", 'quo"ted\\pass', "a secret of words")

plain = st.text(st.sampled_from(string.ascii_lowercase + " .,!?\n"), max_size=60)


@pytest.mark.parametrize("credential", CREDENTIALS.values(), ids=CREDENTIALS)
@given(before=plain, after=plain)
def test_known_shapes_are_taken_out(credential: str, before: str, after: str) -> None:
    """Wherever they stand between words, and what stands around them stays."""
    text = f"{before} {credential} {after}"
    assert Redactor().text(text) == f"{before} {MARK} {after}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("password=hunter2", "password=[redacted]"),
        ("DB_PASSWORD = 'hunter 2' next", "DB_PASSWORD = '[redacted]' next"),
        ('{"api_key": "hunter2", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        ('{"api_key": "hun\\"ter2", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        ('"{\\"secret\\": \\"hunter2\\", \\"n\\": 1}"', '"{\\"secret\\": \\"[redacted]\\", \\"n\\": 1}"'),
        ("token: hunter2, and more", "token: [redacted], and more"),
        ("https://x.test/?access_token=hunter2&n=1", "https://x.test/?access_token=[redacted]&n=1"),
        ("Authorization: Bearer hunter2/abc==", "Authorization: Bearer [redacted]"),
        ("authorization: basic aHVudGVyMg==", "authorization: basic [redacted]"),
        ("postgres://joe:hunter2@db.test/x", "postgres://[redacted]@db.test/x"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2\nand so on", "[redacted]"),
    ],
)
def test_what_follows_a_telling_name_is_taken_out(text: str, kept: str) -> None:
    """In assignments, JSON, addresses and headers; a key without its end is taken out to the end."""
    assert Redactor().text(text) == kept
    assert "hunter2" not in Redactor().text(f"see {text}")


@pytest.mark.parametrize(
    "text",
    [
        "The tokens: 812, max_tokens=5, and a secretary.",
        "basic understanding of bearer bonds",
        "sk-1 is a street, task-management-system-software is software",
        "see https://x.test/a@b and mail joe@x.test",
        "sha256:3f491d51a426b3014f2ed46de6418dbe496ef60c82b4ffafb0f3992547198da2",
        "01a22ba6-677c-7c64-9b98-3702bf965fd8",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Numbers of tokens, words that look alike, ids and digests."""
    assert Redactor(KNOWN).text(text) == text


@given(st.text(max_size=200))
def test_redacted_text_stays_as_it_is(text: str) -> None:
    """Once more changes nothing."""
    once = Redactor(KNOWN).text(text)
    assert Redactor(KNOWN).text(once) == once


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from([*KNOWN, *CREDENTIALS.values()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(json_values)
def test_no_credential_is_left_in_a_value(value: Any) -> None:
    """However deep it stands, in names and in values, also written as JSON inside a text."""
    for given_ in (value, {"text": json.dumps(value)}):
        left = json.dumps(Redactor(KNOWN).value(given_))
        for credential in (*KNOWN, *CREDENTIALS.values()):
            assert credential not in left
            assert json.dumps(credential)[1:-1] not in left


def test_fields_that_are_called_like_a_secret_are_taken_out_whole() -> None:
    """Numbers are not: they are counts."""
    value = {
        "password": "x",
        "Api-Key": {"a": ["b"]},
        "accessToken": "x",
        "client_secret": ["x"],
        "tokens": 5,
        "token": 7,
        "key": "primary",
        "publicKey": "p",
        "n": None,
    }
    assert Redactor().value(value) == {
        **value,
        "password": MARK,
        "Api-Key": MARK,
        "accessToken": MARK,
        "client_secret": MARK,
    }


def test_secrets_of_the_environment() -> None:
    """Variables that are called so, unless their value is so short that it would hit ordinary words."""
    environment = {
        "OPENAI_API_KEY": "k" * LEAST,
        "X_TOKEN": "t" * 20,
        "Y_SECRET": "s" * 20,
        "DB_PASSWORD": "p" * 20,
        "SHORT_KEY": "abc",
        "HOME": "somewhere else entirely",
        "KEYBOARD": "x" * 20,
    }
    assert secrets_of(environment) == ("k" * LEAST, "t" * 20, "s" * 20, "p" * 20)
    assert Redactor(secrets_of(environment)).text(f"a {'t' * 20} b") == f"a {MARK} b"


# --- text in pieces ---------------------------------------------------------------------------------------------------


def flowing(text: str, cuts: list[int]) -> str:
    """What a flow shows of a text that comes in pieces."""
    flow = Flow(Redactor(KNOWN))
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return "".join(flow.feed(text[a:b]) for a, b in itertools.pairwise(places)) + flow.rest()


@pytest.mark.parametrize("credential", [*CREDENTIALS.values(), *KNOWN, "password = hunter2hunter2"])
@given(before=plain, after=plain, cuts=st.lists(st.integers(0, 400), max_size=40))
def test_a_credential_in_pieces_is_taken_out(credential: str, before: str, after: str, cuts: list[int]) -> None:
    """Wherever the pieces begin; nothing else is lost."""
    text = f"{before} {credential} {after}"
    shown = flowing(text, cuts)
    assert credential not in shown
    assert "hunter2" not in shown
    assert shown == Redactor(KNOWN).text(text)


@given(text=plain, cuts=st.lists(st.integers(0, 400), max_size=40))
def test_ordinary_text_in_pieces_is_whole(text: str, cuts: list[int]) -> None:
    """What is shown is the text."""
    assert flowing(text, cuts) == text


def test_a_flow_shows_words_soon_and_holds_little() -> None:
    """It lags by a few words, and never keeps more than a bounded text."""
    flow = Flow(Redactor())
    shown = ""
    for number in range(100):
        shown += flow.feed(f"word{number} ")
    assert len(shown) > 600
    assert len(Flow(Redactor()).feed("x" * (HELD_CHARS + 1))) > HELD_CHARS
