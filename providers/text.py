"""Text that any later step can encode: halves of UTF-16 pairs are joined, and halves that stay alone become U+FFFD."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """The text without lone surrogates, which JSON escapes can smuggle in and which no encoder takes."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_json(value: Any) -> Any:
    """A JSON value with `clean` applied to every string and key in it."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value


class TextJoiner:
    """Joins pieces of a text whose cuts may fall inside a surrogate pair."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""

    def add(self, piece: str) -> str:
        """Take a piece and return what can be shown of the text so far and was not shown before."""
        piece = self._half + piece
        self._half = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        piece = clean(piece)
        if piece:
            self._pieces.append(piece)
        return piece

    def text(self) -> str:
        """The whole text."""
        return "".join(self._pieces) + clean(self._half)

    def __bool__(self) -> bool:
        return bool(self._pieces or self._half)
