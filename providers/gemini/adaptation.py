"""What to change when a Gemini model refuses a parameter: asked once per model and remembered by the caller."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from providers.base import WireRequest, WireResponse

_DROPPED: Mapping[str, str] = {
    "temperature": r"temperature",
    "topP": r"top.?p",
    "topK": r"top.?k",
    "seed": r"seed",
    "stopSequences": r"stop.?sequences?",
    "presencePenalty": r"presence.?penalty|penalty is not enabled",
    "frequencyPenalty": r"frequency.?penalty|penalty is not enabled",
    "responseLogprobs": r"response.?logprobs|logprobs is not enabled",
    "logprobs": r"(?<!response)(?<!response_)logprobs",
    "mediaResolution": r"media.?resolution",
    "thinkingConfig.thinkingLevel": r"thinking.?level",
    "thinkingConfig.thinkingBudget": r"thinking.?budget|budget [-0-9]+ is",
    "thinkingConfig.includeThoughts": r"include.?thoughts",
    "thinkingConfig": r"thinking.?config|thinking is not|support thinking",
}
"""Fields of generationConfig without which a request still means the same, and how refusals name them."""
_REFUSED = re.compile(
    r"cannot find field|unknown name|not (yet )?supported|not support|unsupported|not enabled|not allowed|is invalid"
    r"|only works",
    re.IGNORECASE,
)


def adaptation(request: WireRequest, response: WireResponse) -> dict[str, str | None]:
    """Fields to leave out after which the request may be accepted, as dotted paths.

    Empty where the response is not a refusal of parameters of this request that can be left out.
    """
    if response.status != 400:
        return {}
    message = _message(response.body)
    config = request.body.get("generationConfig")
    if not _REFUSED.search(message) or not isinstance(config, Mapping):
        return {}
    refused: dict[str, str | None] = {}
    for path, words in _DROPPED.items():
        if _holds(config, path) and re.search(rf"(?<![a-z])(?:{words})(?![a-z])", message, re.IGNORECASE):
            refused[f"generationConfig.{path}"] = None
    inner = any("." in path.removeprefix("generationConfig.") for path in refused)
    if inner:
        refused.pop("generationConfig.thinkingConfig", None)
    return refused


def _message(body: bytes) -> str:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    found = found[0] if isinstance(found, list) and found else found
    error = found.get("error") if isinstance(found, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else None
    return message if isinstance(message, str) else ""


def _holds(config: Mapping[str, Any], path: str) -> bool:
    value: Any = config
    for step in path.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    return True
