"""Signed decision tokens: what they prove, and everything that proves nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from perdure import Approval
from perdure.approval import Refused, Request
from perdure.approvals import Approvals
from perdure.decision_tokens import make_key, public_key_of, sign_decision
from perdure.errors import ConfigError
from perdure.worker_settings import WorkerSettings

T0 = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64
PRIVATE, PUBLIC = make_key()
BOUND: dict[str, Any] = {"run": "run-1", "call_id": "c1", "digest": DIGEST, "by": "ann"}


def waiting(*keys: str, call_id: str = "c1", **rule: Any) -> Approvals:
    """One call that waits, in a run that knows these keys."""
    approvals = Approvals(lambda _, arguments: (arguments, ""))
    approvals.run, approvals.keys, approvals.requester = "run-1", keys or (PUBLIC,), "eve"
    approvals.groups = {"finance": ("fay",)}
    called: dict[str, Any] = {"call_id": call_id, "tool": "pay", "arguments": {}, "digest": DIGEST}
    approvals.request(Approval(timeout="1h", **rule), T0, definition="d", effect="write", **called)
    return approvals


def refusal(approvals: Approvals, token: Any, **fields: Any) -> str:
    """Why a decision with this token is refused, which changes nothing."""
    with pytest.raises(Refused) as refused:
        approvals.decide({"approve": True, "token": token, **fields}, T0)
    assert list(approvals.open) == ["c1"]
    assert approvals.open["c1"].pending.decisions == []
    return str(refused.value)


def signed(header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token as another system makes it."""
    body = {"aud": "perdure", "sub": "ann", "run": "run-1", "call_id": "c1", "digest": DIGEST, **claims}
    raw = base64.urlsafe_b64decode(PRIVATE + "=")
    key = Ed25519PrivateKey.from_private_bytes(raw)
    return jwt.encode({k: v for k, v in body.items() if v is not None}, key, algorithm="EdDSA", headers=header)


def test_a_token_proves_who_decides() -> None:
    """The decision is recorded as verified, and `verified=True` is satisfied by it."""
    for by in ({}, {"by": "ann"}):
        approvals = waiting(verified=True, approvers=["ann"])
        decided = approvals.decide({"approve": True, "token": sign_decision(PRIVATE, **BOUND), **by}, T0)
        assert (decided.decision["by"], decided.decision["verified"]) == ("ann", True)
    with pytest.raises(Refused, match="needs a decision with a signed token"):
        waiting(verified=True).decide({"approve": True, "by": "ann"}, T0)


def test_groups_of_a_token() -> None:
    """A token may prove membership of a group that the rule names, and of no other."""
    approvals = waiting(approvers=["@finance"])
    assert "may not decide" in refusal(approvals, sign_decision(PRIVATE, **BOUND))
    assert "may not decide" in refusal(approvals, sign_decision(PRIVATE, **BOUND, groups=["board"]))
    assert approvals.decide({"approve": True, "token": sign_decision(PRIVATE, **BOUND, groups=["finance"])}, T0)


def test_a_token_for_a_child() -> None:
    """At the root it is still a token for the call of the child run that waits."""
    approvals = waiting()
    request = approvals.open.pop("c1")
    assert isinstance(request, Request)
    pending = request.pending.model_copy(update={"call_id": "c2/c1", "run": "child-1"})
    approvals.mirror(request.model_copy(update={"pending": pending}))
    token = sign_decision(PRIVATE, **{**BOUND, "run": "child-1"})
    wrong = sign_decision(PRIVATE, **BOUND)
    with pytest.raises(Refused, match="another run"):
        approvals.decide({"approve": True, "token": wrong}, T0)
    assert approvals.decide({"approve": True, "token": token}, T0).decision["verified"] is True


def test_any_of_several_keys() -> None:
    """While keys are changed both old and new ones are believed."""
    other, its_public = make_key()
    approvals = waiting(PUBLIC, its_public)
    assert approvals.decide({"approve": True, "token": sign_decision(other, **BOUND)}, T0)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"run": "run-2"}, "another run"),
        ({"call_id": "c2"}, "another call_id"),
        ({"digest": "sha256:b"}, "another digest"),
        ({"digest": None}, "another digest"),
        ({"sub": None}, "names nobody"),
        ({"sub": ""}, "names nobody"),
        ({"aud": "other"}, "cannot be read"),
        ({"aud": None}, "cannot be read"),
        ({"exp": int(T0.timestamp())}, "expired"),
        ({"exp": int(T0.timestamp()) - 1}, "expired"),
        ({"exp": "tomorrow"}, "expired"),
        ({"nbf": int(T0.timestamp()) + 1}, "not valid yet"),
        ({"nbf": "tomorrow"}, "not valid yet"),
        ({"groups": "finance"}, "no list of names"),
        ({"groups": [1]}, "no list of names"),
    ],
)
def test_claims_that_do_not_fit(changed: dict[str, Any], problem: str) -> None:
    """Each claim is bound to the call that waits, and times are the run's own."""
    assert problem in refusal(waiting(), signed(**changed))


def test_the_time_of_a_token() -> None:
    """It is looked at by the run's time, not by a clock of the machine."""
    soon = sign_decision(PRIVATE, **BOUND, expires=T0 + timedelta(milliseconds=300))
    assert waiting().decide({"approve": True, "token": soon}, T0).verdict
    assert waiting().decide({"approve": True, "token": signed(nbf=int(T0.timestamp()), iat=9_999_999_999)}, T0).verdict


def test_signatures_that_prove_nothing() -> None:
    """Another key, no signature, a symmetric one made with the public key, and garbage."""
    body = {"aud": "perdure", "sub": "ann", "run": "run-1", "call_id": "c1", "digest": DIGEST}
    assert "no key that the run knows" in refusal(waiting(), sign_decision(make_key()[0], **BOUND))
    raw = base64.urlsafe_b64decode(PUBLIC + "=")
    pem = Ed25519PublicKey.from_public_bytes(raw).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    good = sign_decision(PRIVATE, **BOUND).split(".")

    def part(value: Any) -> str:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(text).decode().rstrip("=")

    def symmetric(key: bytes) -> str:
        head = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(body)}"
        return f"{head}.{part(hmac.new(key, head.encode(), hashlib.sha256).digest())}"

    deep = part(b"[" * 7_000 + b"]" * 7_000)
    tokens = [
        jwt.encode(body, "", algorithm="none"),
        f"{part({'alg': 'none'})}.{good[1]}.{good[2]}",
        *(symmetric(key) for key in (PUBLIC.encode(), raw, pem)),
        f"{good[0]}.{part({**body, 'sub': 'boss'})}.{good[2]}",
        f"{good[0]}.{good[1]}.",
        f"{deep}.{good[1]}.{good[2]}"[:20_000],
        f"{part({'alg': 'EdDSA', 'b64': False, 'crit': ['b64']})}.{good[1]}.{good[2]}",
        f"{part({'alg': ['EdDSA']})}.{good[1]}.{good[2]}",
        f"{part([1])}.{good[1]}.{good[2]}",
        "", ".", "..", "...", "a.b.c", "\u00e9.\u00e9.\u00e9", "\ud800", "x" * 20_000, " ".join(good),
    ]  # fmt: skip
    for token in tokens:
        assert refusal(waiting(), token).startswith("token: ")
    assert "token" in refusal(waiting(), "x" * 20_001)
    assert "token" in refusal(waiting(), 5)


def test_the_name_beside_a_token() -> None:
    """A `by` that differs from the token's is refused; no key means no proof."""
    token = sign_decision(PRIVATE, **BOUND)
    assert "is not whom the token speaks for" in refusal(waiting(), token, by="boss")
    keyless = waiting()
    keyless.keys = ()
    assert "set PERDURE_DECISION_KEYS" in refusal(keyless, token)


def test_keys_of_a_worker() -> None:
    """Public keys are a list; the private key's own is known too; a broken one is named and not shown."""
    other = make_key()[1]
    read = WorkerSettings.parse({"PERDURE_DECISION_KEYS": f"{other}, {PUBLIC}"})
    assert read.known_keys == (other, PUBLIC)
    read = WorkerSettings.parse({"PERDURE_DECISION_PRIVATE_KEY": PRIVATE})
    assert read.known_keys == (PUBLIC,) == (public_key_of(PRIVATE),)
    assert PRIVATE not in repr(read)
    for variable in ("PERDURE_DECISION_KEYS", "PERDURE_DECISION_PRIVATE_KEY"):
        for broken in ("s3cr3t", "\u00e9", f"{'A' * 42}"):
            with pytest.raises(ConfigError, match=variable) as raised:
                WorkerSettings.parse({variable: broken})
            assert broken not in str(raised.value)
            assert str(raised.value).count("PERDURE_DECISION") == 1
