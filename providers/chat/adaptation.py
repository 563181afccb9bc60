"""What to change when a model refuses a parameter: asked once per model and remembered by the caller."""

from __future__ import annotations

import json

from providers.base import WireRequest, WireResponse

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


def adaptation(request: WireRequest, response: WireResponse) -> dict[str, str | None]:
    """Changes after which the request may be accepted: field to its new name, or to None to leave it out.

    Empty where the response is not a refusal of one parameter of this request that can be renamed or left out.
    """
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
