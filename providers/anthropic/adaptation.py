"""What to leave out when a model refuses a parameter: asked once per model and remembered by the caller."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from providers.base import WireRequest, WireResponse

# Without these a request is another one, or none.
_KEPT = frozenset(
    ["model", "messages", "max_tokens", "system", "tools", "tool_choice", "stream", "output_config.format"]
)
# A value of these that a model refuses is its own setting away from working without.
_ANY_COMPLAINT = frozenset(["temperature", "top_p", "top_k", "thinking", "output_config.effort"])

_PATH = re.compile(r"[`'\"]?([a-z_]+(?:\.[A-Za-z0-9_]+)*)[`'\"]?:")
_REFUSAL = re.compile(
    r"not supported|n[o']t support|unsupported|not permitted|not allowed|not available|deprecated|removed|"
    r"may only be set|cannot both be|unknown (?:field|parameter)|unrecognized"
)


def adaptation(request: WireRequest, response: WireResponse) -> dict[str, str | None]:
    """Fields (`a.b` is `b` in the object `a`) without which the request may be accepted, each with None.

    Empty where the response is not a refusal of one parameter of this request that can be left out.
    """
    if response.status not in (400, 422):
        return {}
    try:
        message = str(json.loads(response.body)["error"]["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}
    fields = list(_fields(request.body))
    refused = _REFUSAL.search(message.lower())
    if match := _PATH.match(message):
        path = match.group(1)
        field = next((f for f in fields if path == f or path.startswith(f"{f}.")), None)
        return {field: None} if field and (refused or field in _ANY_COMPLAINT) else {}
    if not refused:
        return {}
    named = [(at, field) for field in fields if (at := _mention(message, field)) is not None]
    return {min(named)[1]: None} if named else {}


def _fields(body: Mapping[str, Any]) -> list[str]:
    """What may be left out, inner fields first."""
    output = body.get("output_config")
    inner = [f"output_config.{name}" for name in output] if isinstance(output, Mapping) else []
    return [field for field in [*inner, *(name for name in body if name != "output_config")] if field not in _KEPT]


def _mention(message: str, field: str) -> int | None:
    match = re.search(rf"\b{re.escape(field.rpartition('.')[2])}\b", message, re.IGNORECASE)
    return match.start() if match else None
