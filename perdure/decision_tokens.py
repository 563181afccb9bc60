"""Signed proofs of who decides: JSON Web Tokens that an approval system issues and a run can check.

A token is bound to one call of one run by its digest. Checking needs public keys only, so that a worker, which runs
tools, cannot make one; and it reads no clock, so that it can be replayed.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from perdure.errors import ConfigError

ALGORITHM = "EdDSA"
AUDIENCE = "perdure"


@dataclass(frozen=True)
class Identity:
    """Who a token speaks for."""

    by: str
    groups: frozenset[str] = frozenset()


class BadToken(Exception):
    """The token proves nothing; the text says why."""


def make_key() -> tuple[str, str]:
    """A new private key and its public key, each 43 characters of base64url."""
    private = Ed25519PrivateKey.generate()
    return _text(private.private_bytes_raw()), _text(private.public_key().public_bytes_raw())


def public_key_of(private_key: str) -> str:
    """The public key of a private one; raises ConfigError."""
    return _text(_private(private_key).public_key().public_bytes_raw())


def check_public_key(text: str) -> str:
    """The key itself; raises ConfigError where it is none."""
    try:
        Ed25519PublicKey.from_public_bytes(_bytes(text))
    except ValueError:
        raise ConfigError("a decision key is 43 characters of base64url, as `perdure decision-key` prints it") from None
    return text


def sign_decision(
    private_key: str,
    *,
    run: str,
    call_id: str,
    digest: str,
    by: str,
    groups: Iterable[str] = (),
    expires: datetime | None = None,
) -> str:
    """A token with which `by` may decide one call of a run, until `expires`; raises ConfigError for a bad key.

    `run` is the workflow id, `call_id` and `digest` those of the call that waits. Other systems can issue it as well:
    a JWT signed with EdDSA, audience `perdure`, claims `sub`, `run`, `call_id`, `digest`, maybe `groups` and `exp`.
    """
    claims: dict[str, Any] = {"aud": AUDIENCE, "sub": by, "run": run, "call_id": call_id, "digest": digest}
    if groups:
        claims["groups"] = sorted(groups)
    if expires is not None:
        claims["exp"] = math.ceil(expires.timestamp())
    return jwt.encode(claims, _private(private_key), algorithm=ALGORITHM)


def read_token(token: str, keys: Iterable[str], *, run: str, call_id: str, digest: str, now: datetime) -> Identity:
    """Who a token speaks for about this call; raises BadToken."""
    claims = _claims(token, keys)
    for name, wanted in (("run", run), ("call_id", call_id), ("digest", digest)):
        if claims.get(name) != wanted:
            raise BadToken(f"it is for another {name}")
    expires, by, groups = claims.get("exp"), claims.get("sub"), claims.get("groups", [])
    if expires is not None and not (isinstance(expires, int | float) and now.timestamp() < expires):
        raise BadToken("it has expired")
    begins = claims.get("nbf", 0)
    if not (isinstance(begins, int | float) and begins <= now.timestamp()):
        raise BadToken("it is not valid yet")
    if not isinstance(by, str) or not by:
        raise BadToken("it names nobody: its claim 'sub' is missing")
    if not isinstance(groups, list) or not all(isinstance(g, str) for g in groups):
        raise BadToken("its claim 'groups' is no list of names")
    return Identity(by, frozenset(groups))


def _claims(token: str, keys: Iterable[str]) -> dict[str, Any]:
    # The time is checked by the run's own clock; everything else of the library's checks stays on.
    options: Any = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
    for key in keys:
        public = Ed25519PublicKey.from_public_bytes(_bytes(key))
        try:
            return jwt.decode(token, public, algorithms=[ALGORITHM], audience=AUDIENCE, options=options)
        except jwt.InvalidSignatureError:
            continue
        except jwt.InvalidTokenError as error:
            raise BadToken(f"it cannot be read: {error}") from None
        except (ValueError, RecursionError) as error:  # text that is no UTF-8, a header nested a thousand deep
            raise BadToken(f"it cannot be read: {type(error).__name__}") from None
    raise BadToken("no key that the run knows has signed it")


def _private(text: str) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(_bytes(text))
    except ValueError:
        raise ConfigError(
            "PERDURE_DECISION_PRIVATE_KEY: a private decision key is 43 characters of base64url, "
            "as `perdure decision-key` prints it"
        ) from None


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
