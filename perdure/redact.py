"""Takes credentials out of what leaves a worker for those who watch: keys, tokens and passwords in texts and values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

MARK = "[redacted]"
"""Stands for what was taken out."""
LEAST = 8
"""Characters of a variable's value from which it is taken for a secret; shorter ones would hit ordinary words."""
SHORT = 64
"""Characters of texts that are remembered: names and ids come again and again."""
HELD_WORDS, HELD_CHARS = 6, 16_384
"""How much of a text that still grows is held back: a credential may only be complete with the next words."""

_NAME = r"pass(?:word|wd|phrase)|pwd|secret|token|credentials?|(?:api|access|private|secret|account)[-_ ]?key|apikey"
_FIELD = re.compile(
    rf"(?i:(?:.*[-_. ])?(?:{_NAME}|authorization|cookie))"
    r"|.*(?:Password|Secret|Token|(?:[Aa]pi|[Aa]ccess|[Ss]ecret|[Pp]rivate)Key)"
)
_ASSIGNED = rf"(?<![A-Za-z])((?:{_NAME})\\*[\"']?\s{{0,8}}[=:]\s{{0,8}})"
_VARIABLE = re.compile(r".*_(?:KEY|TOKEN|SECRET|PASSWORD)", re.IGNORECASE)

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, flags), put)
    for pattern, put, flags in (
        (
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?"
            r"(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
            MARK,
            re.DOTALL,
        ),
        # JSON Web Tokens, signed or not
        (r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", MARK, re.ASCII),
        # keys of model providers, code hosts, clouds, chats and payment services
        (r"(?<![\w-])sk-[\w-]{12,}", MARK, re.ASCII),
        (r"(?<![A-Za-z0-9])(?:[sr]k_(?:live|test)_\w{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,})", MARK, re.ASCII),
        (r"(?<![A-Za-z0-9])(?:glpat-[\w-]{16,}|xox[abeprs]-[\w-]{8,}|hf_\w{20,}|npm_\w{30,})", MARK, re.ASCII),
        (r"(?<![A-Za-z0-9])(?:A(?:KIA|SIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,})", MARK, re.ASCII),
        (r"(?<![\w+.-])([a-z][a-z0-9+.-]*://)[^\s/?#@\[\]]*:[^\s/?#@]+@", rf"\1{MARK}@", re.IGNORECASE),
        (r"\b((?:bearer|basic)\s+)(?=[^\s\"']*[0-9_=.+/-])[\w.~+/=-]{8,}", rf"\1{MARK}", re.IGNORECASE | re.ASCII),
        # what follows a telling name: in quotes that are escaped themselves, in quotes, bare
        (rf"{_ASSIGNED}(\\+[\"'])(?:.*?)(?:\2|\Z)", rf"\1\2{MARK}\2", re.IGNORECASE | re.DOTALL),
        (rf"{_ASSIGNED}([\"'])(?:(?!\2)[^\\]|\\.)*(?:\2|\Z)", rf"\1\2{MARK}\2", re.IGNORECASE | re.DOTALL),
        (rf"{_ASSIGNED}(?!\[redacted\]|[\"'\\])[^\s\"',;&<>)}}\]]+", rf"\1{MARK}", re.IGNORECASE),
    )
)

_HINTS = (
    *("sk-", "sk_", "rk_", "gh", "pat", "xox", "hf_", "npm_", "akia", "asia", "aiza", "ya29", "eyj", "begin", "://"),
    *("pass", "pwd", "secret", "token", "credential", "key", "bearer", "basic"),
)
"""Without any of these no pattern matches; most texts have none."""


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of an environment's variables that are called like a secret."""
    return tuple(value for name, value in environment.items() if _VARIABLE.fullmatch(name) and len(value) >= LEAST)


class Redactor:
    """Knows what a credential looks like, and some of them by heart."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are taken out wherever they stand, also as they stand in JSON."""
        known = {secret.strip() for secret in secrets}
        written = {form for secret in known for form in (secret, json.dumps(secret)[1:-1]) if len(form) >= LEAST}
        self.longest = max(map(len, written), default=0)
        self._forms = sorted(written - {MARK}, key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(map(re.escape, self._forms)))
        self._short = lru_cache(4_096)(self._redact)

    def text(self, text: str) -> str:
        """The text without credentials."""
        return self._short(text) if len(text) <= SHORT else self._redact(text)

    def _redact(self, text: str) -> str:
        if any(secret in text for secret in self._forms):
            text = self._known.sub(MARK, text)
        lower = text.lower()
        if any(hint in lower for hint in _HINTS):
            for pattern, put in _PATTERNS:
                text = pattern.sub(put, text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value without credentials; what stands in a field that is called like one is taken out whole."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self._field(str(name), inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return value

    def _field(self, name: str, value: Any) -> Any:
        if value and not isinstance(value, bool | int | float) and _FIELD.fullmatch(name):
            return MARK
        return self.value(value)


class Flow:
    """A text that arrives in pieces: each piece is given on without credentials, the last words somewhat later."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """Take a further piece and return what may be shown now."""
        self._held += piece
        if len(self._held) > HELD_CHARS:
            return self.rest()
        cut = self._cut()
        shown, kept = self._redactor.text(self._held[:cut]), self._held[cut:]
        if not shown or shown + self._redactor.text(kept) != self._redactor.text(self._held):
            return ""  # a credential goes across
        self._held = kept
        return shown

    def rest(self) -> str:
        """What was held back; the text has ended."""
        shown, self._held = self._redactor.text(self._held), ""
        return shown

    def _cut(self) -> int:
        words = [found.start() for found in re.finditer(r"\S+", self._held)]
        if len(words) <= HELD_WORDS:
            return 0
        return max(0, min(words[-HELD_WORDS], len(self._held) - self._redactor.longest))
