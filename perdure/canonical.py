"""One spelling for each JSON value, and text that every store, terminal and protocol can carry."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_UNCARRIED = re.compile("[\x00\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Replace what cannot travel as UTF-8 text: lone surrogates and NUL become U+FFFD, one for one.

    Halves of a pair that stand side by side become the character they mean. NUL is valid JSON, but databases and
    terminals refuse it or cut the text there.
    """
    if not _UNCARRIED.search(text):
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\x00", REPLACEMENT)


def clean(value: Any) -> Any:
    """A copy of a JSON value with `clean_text` applied to every string and key; tuples become lists.

    Keys that become equal by it keep apart by further U+FFFD, so that no member is lost.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        members: dict[str, Any] = {}
        for key, member in value.items():
            name = clean_text(key)
            while name in members or (name != key and name in value):
                name += REPLACEMENT
            members[name] = clean(member)
        return members
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def canonical_json(value: Any) -> str:
    """JSON text that is the same for equal values: keys sorted by code point, no whitespace, non-ASCII as it is.

    A float with an integral value is written as the integer, so 100 and 100.0 are the same call.
    Raises ValueError for NaN and infinities, TypeError for keys that are not strings and for what is not JSON.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """`sha256:` and the hex SHA-256 of the canonical JSON in UTF-8, of the value as `clean` leaves it."""
    return "sha256:" + hashlib.sha256(canonical_json(clean(value)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a JSON object has keys of text, not {type(key).__name__} ({key!r})")
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
