"""What to change when a model refuses a parameter: asked once per model and remembered by the caller."""

from __future__ import annotations

import json
import re
from typing import Any

from providers.base import WireRequest, WireResponse
from providers.chat.request import ASKED

_RENAMED = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_DROPPED = frozenset(
    [
        "temperature",
        "top_p",
        "top_k",
        "presence_penalty",
        "frequency_penalty",
        "logprobs",
        "top_logprobs",
        "stop",
        "seed",
        "parallel_tool_calls",
        "stream_options",
    ]
)
_CODES = frozenset({"unsupported_parameter", "unsupported_value", "unknown_parameter"})

_FORMAT = "response_format"
_NAMED = re.compile(r"response[ _]?format", re.IGNORECASE)
_MEANT = re.compile(
    r"json[ _]?(?:schema|mode|object)|response[ _]?(?:mime|schema)|structured[ _]outputs?|guided|grammar", re.IGNORECASE
)
_REFUSED = re.compile(
    r"n[o']t (?:\w+ ){0,2}(?:support|allow|permit|implement|available|enabled)|cannot|can't|unsupported|unavailable|"
    r"unknown|unrecogni[sz]ed|invalid|forbidden|must be|should be|failed|at the same time|but not both",
    re.IGNORECASE,
)
_OF_A_TOOL = re.compile(r"for function|\b(?:tools?|functions?)(?:\[|\.\w)", re.IGNORECASE)
_WRONG_ANSWER = re.compile(r"json_validate_failed|failed to (?:validate|generate) json", re.IGNORECASE)
"""How a server says that the model's answer was no JSON: that of another attempt may be."""
_REFUSING = frozenset({400, 404, 422})
_BROKEN = frozenset({500, 501})
"""Some servers call what they cannot do an error of their own."""


def adaptation(request: WireRequest, response: WireResponse) -> dict[str, str | None]:
    """Changes after which the request may be accepted: field to its new name, or to None to leave it out.

    Empty where the response is not a refusal of one parameter of this request that can be renamed or left out.
    `response_format` can be left out where the instructions have its schema too.
    """
    if _refuses_format(request, response):
        return {_FORMAT: None}
    if response.status not in (400, 422):
        return {}
    try:
        error = json.loads(response.body)["error"]
        field, code = error["param"], error["code"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}
    if code not in _CODES or field not in request.body:
        return {}
    if field in _RENAMED and code != "unsupported_value":
        return {field: _RENAMED[field]}
    return {field: None} if field in _DROPPED else {}


def _refuses_format(request: WireRequest, response: WireResponse) -> bool:
    """Whether it is the form of the answer that is refused; servers have many words for it, and few name the field."""
    if _FORMAT not in request.body or response.status not in _REFUSING | _BROKEN:
        return False
    if ASKED not in json.dumps(request.body.get("messages")):
        return False
    said = response.body.decode(errors="replace")
    param = _param(said)
    if _WRONG_ANSWER.search(said) or (param in request.body and param != _FORMAT):
        return False
    if _NAMED.search(said):
        return response.status in _REFUSING or _REFUSED.search(said) is not None
    return bool(_MEANT.search(said) and _REFUSED.search(said) and not _OF_A_TOOL.search(said))


def _param(said: str) -> str:
    """The field that the error names, if it is well formed."""
    try:
        found: Any = json.loads(said)["error"]["param"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""
