"""An answer that must be an object: the one that a model's text holds, checked against the schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perdure.arguments import check_arguments, parse_arguments

SHAPELESS = "it must be nothing but one JSON object that fits the given schema"

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
"""Servers that do not know a model's marks leave its reasoning in the text."""
_INSIDE = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}]', re.DOTALL)
_QUOTED = re.compile(r"""\{\s*["']""")
_LISTED = re.compile(r"\[\s*\Z")
_NEAR = 100
"""Characters before an object in which it shows that it is an item of a list."""


@dataclass(frozen=True)
class Answer:
    """The object in the types of the schema, or `misfit`: why there is none that fits."""

    value: dict[str, Any] | None
    misfit: str | None = None


def read_answer(text: str, schema: Mapping[str, Any]) -> Answer:
    """Read the object that a text is, or the only one that stands in it, in a code fence or among sentences.

    Damage is repaired where it has a single reading. Several objects, one that was cut, and a list are no answer.
    """
    text = _THOUGHT.sub("", text, count=1) if _THOUGHT.match(text) else text
    # Blank text and `null` are an empty object as arguments, and nothing as an answer.
    parsed = parse_arguments(text) if "{" in text else None
    if parsed is None or parsed.value is None:
        alone = _only_object(text)
        parsed = parse_arguments(alone) if alone else None
    if parsed is None or parsed.value is None:
        return Answer(None, SHAPELESS)
    checked = check_arguments(schema, parsed.value)
    return Answer(None, f"it does not fit the schema: {checked.error}") if checked.error else Answer(checked.value)


def _only_object(text: str) -> str | None:
    """The one outermost object in a text; braces that hold no JSON, as in `{name}`, are words."""
    found: str | None = None
    position = 0
    while (start := text.find("{", position)) >= 0:
        position = _end(text, start)
        if position < 0 or _LISTED.search(text[max(0, start - _NEAR) : start]):
            return None
        if parse_arguments(text[start:position]).error is None:
            if found is not None:
                return None
            found = text[start:position]
        elif _QUOTED.match(text, start):
            return None
    return found


def _end(text: str, start: int) -> int:
    """Where the object ends that begins at `start`, -1 where it does not; braces in its strings do not count."""
    depth = 0
    for match in _INSIDE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return -1
