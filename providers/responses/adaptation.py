"""What to change when a model refuses a parameter of the Responses format: asked once per model and remembered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from providers.base import WireRequest, WireResponse

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
        "reasoning",
        "reasoning.effort",
        "reasoning.summary",
        "text.verbosity",
        "include",
    ]
)
"""Never `store`: without it the vendor keeps the conversation."""
_UNKNOWN = frozenset({"unsupported_parameter", "unknown_parameter"})
_VALUES = frozenset({"unsupported_value"})
_BY_VALUE = frozenset({"temperature", "top_p", "parallel_tool_calls", "reasoning.summary"})
"""Dropped also where only the value is refused: another one than the default is a wish, not a meaning."""
_OPAQUE = "input[id]"
"""Of all items only those that the server made have an id: reasoning, and calls of its own tools."""
_REASONING = re.compile(
    r"encrypted content .*could not be|of type '\w+' was provided without its required|"
    r"items are not persisted when `store` is set to false|duplicate item found with id",
    re.IGNORECASE,
)
"""How the API refuses what it once said itself: made by another model or organisation, expired, or half of a pair."""
_NAMED = re.compile(
    r"(?:unsupported|unknown|unrecognized)(?: request)? (?:parameter|argument)(?: supplied)?: '?([\w.]+)", re.I
)


def adaptation(request: WireRequest, response: WireResponse) -> dict[str, str | None]:
    """Changes after which the request may be accepted: field to None to leave it out; paths are those of `adapted`.

    Empty where the response is not a refusal of one parameter of this request that can be left out.
    """
    if response.status not in (400, 404, 422):
        return {}
    try:
        error = json.loads(response.body)["error"]
        message, code = str(error.get("message")), error.get("code")
        field = str(error.get("param") or "").partition("[")[0]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}
    if code == "invalid_encrypted_content" or _REASONING.search(message):
        opaque = [item for item in request.body.get("input") or () if isinstance(item, Mapping) and "id" in item]
        return {_OPAQUE: None} if opaque else {}
    if named := _NAMED.search(message):
        field, code = field or named.group(1), "unknown_parameter"
    if "encrypted content is not supported" in message.lower():
        field, code = "include", "unsupported_parameter"
    if field not in _DROPPED or not _is_in(request.body, field):
        return {}
    refused = code in _UNKNOWN or field == "include" or (code in _VALUES and field in _BY_VALUE)
    return {field: None} if refused else {}


def _is_in(body: Mapping[str, object], field: str) -> bool:
    name, _, inner = field.partition(".")
    held = body.get(name)
    return name in body and (not inner or (isinstance(held, Mapping) and _is_in(held, inner)))
