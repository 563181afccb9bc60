"""Repairs of damaged JSON that change its spelling and never its content.

The text is read as tokens and each is written again as JSON. Only a trailing comma is ever dropped and nothing added or
moved, so a text that was cut stays unreadable, and a text with two readings is left alone.
"""

from __future__ import annotations

import json
import re

_FENCED = re.compile(r"```(?:json)?[ \t]*\r?\n(\{.*\})\s*```", re.DOTALL | re.IGNORECASE)

_TOKEN = re.compile(
    r"""
      (?P<space>  [ \t\r\n]+)
    | (?P<mark>   [{}\[\]:,])
    | (?P<double> "(?:[^"\\]|\\.)*+")
    | (?P<single> '(?:[^'\\]|\\.)*+')
    | (?P<number> -?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.+-]))
    | (?P<word>   [A-Za-z_$][\w$-]*)
    """,
    re.VERBOSE | re.DOTALL,
)

_LITERALS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}

_MARKS = frozenset("{}[]:,")
_KEY_FOLLOWS = re.compile(r"[ \t\r\n]*:")
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)", re.DOTALL)
_VALID_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')
# Escapes of other languages: they may stand for a character or for themselves.
_DOUBTFUL = re.compile(r"\\(?:x[0-9a-fA-F]{2}|0|U[0-9a-fA-F]{8}|['\r\n])")


def unfence(text: str) -> str | None:
    """The object inside, where the whole text is one fenced block with a JSON object; otherwise None."""
    match = _FENCED.fullmatch(text)
    return match[1] if match else None


def repair(text: str) -> str | None:
    """JSON with the same content as a damaged object, or None where that cannot be shown.

    Repaired are single quotes, keys without quotes, Python's True, False and None, trailing commas, and backslashes
    that were not escaped, the last only if no backslash in the text is an escape: "C:\\dir" means one thing, but beside
    it "C:\\new" would become two lines. What comes back may still be invalid; the caller decodes it strictly.
    """
    tokens: list[str] = []
    position = 0
    raw_backslashes = _has_raw_backslashes(text)
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        position = match.end()
        token = match[0]
        written: str | None = token
        match match.lastgroup:
            case "space":
                continue
            case "mark" if token in "]}" and _ends_with_comma(tokens):
                tokens.pop()
            case "double" if raw_backslashes:
                written = _double_backslashes(token)
            case "single":
                written = None if raw_backslashes and "\\" in token else _requote(token)
            case "word":
                is_key = tokens[-1:] in (["{"], [","]) and _KEY_FOLLOWS.match(text, position)
                written = _LITERALS.get(token) or (json.dumps(token) if is_key else None)
        neighbours = match.lastgroup != "mark" and tokens and tokens[-1] not in _MARKS
        if written is None or neighbours:
            return None
        tokens.append(written)
    return "".join(tokens)


def _ends_with_comma(tokens: list[str]) -> bool:
    return len(tokens) > 1 and tokens[-1] == "," and tokens[-2] not in ("{", "[", ",", ":")


def _has_raw_backslashes(text: str) -> bool:
    if "\\" not in text:
        return False
    doubles = (match[0] for match in _TOKEN.finditer(text) if match.lastgroup == "double")
    return any(not _VALID_ESCAPE.fullmatch(escape) for string in doubles for escape in _ESCAPE.findall(string))


def _double_backslashes(string: str) -> str | None:
    escapes = _ESCAPE.findall(string)
    if _DOUBTFUL.search(string) or any(_VALID_ESCAPE.fullmatch(escape) for escape in escapes):
        return None
    return string.replace("\\", "\\\\")


def _requote(string: str) -> str | None:
    body = string[1:-1]
    if any(escape != "\\'" and not _VALID_ESCAPE.fullmatch(escape) for escape in _ESCAPE.findall(body)):
        return None
    escaped = re.sub(r'\\.|"', lambda m: {"\\'": "'", '"': '\\"'}.get(m[0], m[0]), body, flags=re.DOTALL)
    return f'"{escaped}"'
