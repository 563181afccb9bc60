"""Arguments too large to be shown, cut so that they stay small and still differ where the whole ones do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from perdure.canonical import canonical_json

EXCERPT_CHARS = 3_000
"""Characters of an excerpt as JSON, about."""
LEVELS = ((1_000, 50), (200, 20), (60, 8))
"""Characters of a text and members of a list or object that are shown; the first pair that is small enough counts."""
REST = "..."
"""Name of the member that says how much of an object is not shown."""


def excerpt(arguments: Mapping[str, Any], most: int = 0) -> dict[str, Any]:
    """The arguments with long texts, lists and objects cut; what was cut says how large it is, and its hash.

    Up to `most` characters of JSON they are whole.
    """
    if len(json.dumps(arguments)) <= max(most, EXCERPT_CHARS):
        return dict(arguments)
    for chars, members in LEVELS:
        cut: dict[str, Any] = _cut(arguments, chars, members)
        if len(json.dumps(cut)) <= EXCERPT_CHARS:
            return cut
    text = canonical_json(arguments)
    return {REST: f"{text[:1_000]}{_mark(f'{len(text)} characters of JSON', text)}"}


def _cut(value: Any, chars: int, members: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= chars else f"{value[:chars]}{_mark(f'{len(value)} characters', value)}"
    if isinstance(value, Mapping):
        shown = {_cut(key, chars, members): _cut(value[key], chars, members) for key in list(value)[:members]}
        return (
            shown if len(value) <= members else {**shown, REST: _mark(f"{len(value)} members", canonical_json(value))}
        )
    if isinstance(value, list | tuple):
        items = [_cut(item, chars, members) for item in value[:members]]
        return items if len(value) <= members else [*items, _mark(f"{len(value)} items", canonical_json(value))]
    return value


def _mark(size: str, whole: str) -> str:
    return f"[... {size} in all, sha256 {hashlib.sha256(whole.encode('utf-8', 'surrogatepass')).hexdigest()[:16]} ...]"
