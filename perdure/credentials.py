"""Credentials that must not be written where they are recorded: specs stay in every run's history."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_CARRIERS = frozenset(
    {
        "api-key",
        "apikey",
        "authorization",
        "cf-aig-authorization",
        "cookie",
        "proxy-authorization",
        "x-api-key",
        "x-goog-api-key",
        "x-portkey-api-key",
    }
)
"""Headers whose whole purpose is a credential."""
_NAMES = re.compile(r"(.*[-_])?(api[-_]?key|authorization|token|secret|password)", re.IGNORECASE)
"""Parameters that may hold one."""
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_KEY = re.compile(
    r"(?<![\w-])(sk-|AKIA|AIza|gh[pousr]_|github_pat_|xox[abprs]-)\w|\b(bearer|basic)\s+[^\s$]", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"[^/?#]*//[^/?#]*@")


def credential_headers(headers: Mapping[str, str]) -> list[str]:
    """Names of the headers that hold a credential as it is, instead of naming a variable."""
    return [
        name
        for name, value in headers.items()
        if _KEY.search(value) or (name.lower() in _CARRIERS and not _VARIABLE.search(value))
    ]


def credential_params(params: Mapping[str, Any]) -> Iterator[str]:
    """Paths of the parameters that are called like a credential and hold what looks like one."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in credential_params(value))
        elif isinstance(value, str) and _NAMES.fullmatch(name) and _KEY.search(value):
            yield name


def has_credentials(address: str) -> bool:
    """Whether an address holds `user:password@`."""
    return _IN_ADDRESS.match(address) is not None
