"""What a tool returned or raised, as parts for a model: bounded, clean, and never failing."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json, to_jsonable_python

from perdure.canonical import clean, clean_text
from perdure.media import MOST_BESIDE, Document, Image, in_words
from perdure.messages import UserPart, text

ERROR_CHARS = 2_000


def render_parts(value: Any, most: int) -> tuple[UserPart, ...]:
    """A value as parts: images and documents, alone or in a list, each behind words for it; everything else as text.

    `most` are the characters of all its text; beside images and documents it is less.
    """
    items = value if isinstance(value, list | tuple) else (value,)
    if not any(isinstance(item, Image | Document) for item in items):
        return text(render_value(value, most))
    most = min(most, MOST_BESIDE)
    parts: list[UserPart] = []
    for item in items:
        if isinstance(item, Image | Document):
            parts += [*text(in_words(item.part)), item.part]
        else:
            body = render_value(item, most)
            most = max(0, most - len(body))
            parts += text(body)
    return tuple(parts)


def render_value(value: Any, most: int) -> str:
    """A value as text: strings as they are, everything else as JSON, what is not JSON as its repr."""
    body = value if isinstance(value, str) else _json(value)
    return trim(clean_text(body), most)


def jsonable(value: Any) -> Any:
    """A value as JSON data, or None where it is plain text or nothing."""
    if value is None or isinstance(value, str):
        return None
    return clean(to_jsonable_python(value, fallback=_show))


def render_error(error: BaseException) -> str:
    """Kind and message of an exception, bounded."""
    try:
        message = str(error)
    except BaseException:  # an exception's own __str__ may raise anything
        message = "(its message cannot be shown)"
    return clean_text(f"{type(error).__name__}: {message[:ERROR_CHARS]}" if message else type(error).__name__)


def trim(body: str, most: int) -> str:
    """A text of at most `most` characters: two thirds from its beginning, the rest from its end."""
    if len(body) <= most:
        return body
    mark = f"\n[... {len(body) - most} characters left out ...]\n"
    room = max(0, most - len(mark))
    head = room * 2 // 3
    return body[:head] + mark + (body[-(room - head) :] if room > head else "")


def _json(value: Any) -> str:
    try:
        return to_json(value, fallback=_show).decode("utf-8", "replace")
    except BaseException:  # a broken object must not turn a deed that was done into a failure
        return _show(value)


def _show(value: Any) -> str:
    try:
        return repr(value)
    except BaseException:  # as above: any object's repr may raise anything
        return f"(a value of type {type(value).__name__} that cannot be shown)"
