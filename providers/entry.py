"""What is known of a provider by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from providers.base import Provider
from providers.counting import Counting
from providers.embeddings import EmbeddingFormat
from providers.scripted import Scripted

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""A variable of the worker's environment in a text, and its default."""


@dataclass(frozen=True)
class ProviderEntry:
    """A provider under its name: its format, and where the worker's environment says how to reach it."""

    name: str
    provider: Provider | Scripted | None
    """`Scripted` is played by the caller, and so is what is recorded (None); all else is built, sent and parsed."""
    default_base_url: str | None = None
    """None where the address has to be given; a request goes to base URL + `WireRequest.path`."""
    base_url_env: str | None = None
    api_key_env: str | None = None
    key_required: bool = True
    key_header: str = "authorization"
    """The header that carries the key: after `Bearer ` in this one, bare in any other."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers; like the address they may name variables of the worker: `${NAME}`, or `${NAME:-default}`."""
    path: str | None = None
    """In place of the path of its format."""
    embeddings: EmbeddingFormat | None = None
    """How it makes vectors of texts; None where it does not."""
    counting: Counting | None = None
    """How it counts the tokens of a request; None where it does not."""

    @property
    def variables(self) -> frozenset[str]:
        """Names of all variables of a worker's environment that it may read."""
        named = VARIABLE.findall(" ".join([self.default_base_url or "", *self.headers.values()]))
        return frozenset({*(name for name, _ in named), self.base_url_env or "", self.api_key_env or ""} - {""})
