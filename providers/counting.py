"""How many tokens a request is: the endpoints that count, asked with the very request that would be sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from providers.base import WireRequest, WireResponse
from providers.failures import not_a_reply, reported

_ANTHROPIC = frozenset({"cache_control", "messages", "model", "output_config", "speed", "system"}) | {
    *("thinking", "tool_choice", "tools")
}
_RESPONSES = frozenset({"conversation", "input", "instructions", "model", "parallel_tool_calls", "personality"}) | {
    *("previous_response_id", "reasoning", "text", "tool_choice", "tools", "truncation")
}
"""Fields of a request that the endpoints take; they refuse others, such as `max_tokens` and `stream`."""


@dataclass(frozen=True)
class Counting:
    """An endpoint that counts."""

    build: Callable[[WireRequest], WireRequest]
    """From the request that the provider of this format has built."""
    field: str
    """Where the answer has the number."""

    def parse(self, name: str, response: WireResponse) -> int:
        """Input tokens that a body with status 2xx tells; raises ProviderError. `name` is the provider's."""
        try:
            body = json.loads(response.body, strict=False)
        except (ValueError, RecursionError) as error:
            raise not_a_reply(name, response) from error
        if isinstance(body, Mapping) and body.get("error"):
            raise reported(name, body["error"], response=response)
        tokens = body.get(self.field) if isinstance(body, Mapping) else None
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            raise not_a_reply(name, response, "a count of tokens")
        return tokens


def _anthropic(wire: WireRequest) -> WireRequest:
    return WireRequest(f"{wire.path}/count_tokens", _only(_ANTHROPIC, wire.body), wire.headers, stream=False)


def _responses(wire: WireRequest) -> WireRequest:
    return WireRequest(f"{wire.path}/input_tokens", _only(_RESPONSES, wire.body), wire.headers, stream=False)


def _gemini(wire: WireRequest) -> WireRequest:
    path = wire.path.rpartition(":")[0]
    # Only a whole request has its instructions and tools counted too, and it must name its model again.
    whole = {"model": unquote(path.removeprefix("/")), **wire.body}
    return WireRequest(f"{path}:countTokens", {"generateContentRequest": whole}, wire.headers, stream=False)


def _only(fields: frozenset[str], body: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in body.items() if field in fields}


ANTHROPIC = Counting(_anthropic, "input_tokens")
RESPONSES = Counting(_responses, "input_tokens")
GEMINI = Counting(_gemini, "totalTokens")
