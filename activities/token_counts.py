"""How many tokens a request is: told by the provider where it counts, else estimated from what models have used."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from activities.endpoints import entry_of
from activities.sender import Sender
from activities.tally import CHARS
from perdure.errors import ErrorKind, ProviderError
from perdure.messages import AssistantMessage, CallPart, Message, media_of, text_of
from perdure.model import Model
from perdure.model_call import ModelRequest
from perdure.own_providers import own_providers
from providers.scripted import Scripted

FEWEST_CHARS, MOST_CHARS = 0.5, 8.0
"""Characters a token, of any model and language."""
TRUSTED_TOKENS, REMEMBERED_TOKENS = 1_000, 20_000
"""How many tokens the first guess counts as, and after how many older ones fade."""
MOST_MODELS = 1_000
"""Models that are remembered; of more, the one that reported longest ago is forgotten."""
PICTURE_TOKENS = 1_500
"""What a picture or a document counts where nobody counts tokens: about a picture of a million pixels."""


@dataclass
class _Seen:
    chars: float = float(CHARS * TRUSTED_TOKENS)
    tokens: float = float(TRUSTED_TOKENS)


class Calibration:
    """Characters a token of each model: 4, until its reported usage says otherwise. One for a worker process."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def chars_a_token(self, model: Model) -> float:
        """The ratio, from 0.5 to 8."""
        seen = self._seen.get(model.label, _Seen())
        return min(max(seen.chars / seen.tokens, FEWEST_CHARS), MOST_CHARS)

    def estimate(self, model: Model, request: ModelRequest) -> int:
        """About how many tokens a request is; at least 1."""
        pictures = PICTURE_TOKENS * sum(len(media_of(message)) for message in request.messages)
        return max(1, ceil(_chars_of(request) / self.chars_a_token(model))) + pictures

    def learn(self, model: Model, request: ModelRequest, input_tokens: int) -> None:
        """Take what a provider has reported of a request, cached tokens included.

        A request with pictures or documents teaches nothing of characters, and neither does one that was not counted.
        """
        chars = _chars_of(request)
        if input_tokens <= 0 or chars <= 0 or any(map(media_of, request.messages)):
            return
        seen = self._seen.setdefault(model.label, _Seen())
        self._seen.move_to_end(model.label)
        # One report, whatever it says, weighs no more than what is remembered.
        weight = min(1.0, REMEMBERED_TOKENS / input_tokens)
        tokens = input_tokens * weight
        likely = min(max(chars / input_tokens, FEWEST_CHARS), MOST_CHARS)
        faded = min(1.0, REMEMBERED_TOKENS / (seen.tokens + tokens))
        seen.chars, seen.tokens = (seen.chars + likely * tokens) * faded, (seen.tokens + tokens) * faded
        if len(self._seen) > MOST_MODELS:
            self._seen.popitem(last=False)


@dataclass(frozen=True)
class TokenCount:
    """Input tokens of a request."""

    tokens: int
    exact: bool
    """The provider has counted."""


class TokenCounts:
    """Counts where the provider has an endpoint for it, and estimates elsewhere and where that fails."""

    def __init__(self, sender: Sender, calibration: Calibration) -> None:
        self._sender = sender
        self._calibration = calibration
        self._missing: set[tuple[str, str | None]] = set()

    async def count(self, model: Model, request: ModelRequest) -> TokenCount:
        """Input tokens of a request; never fails for the endpoint's sake."""
        try:
            told = await self._told(model, request)
        except ProviderError as error:
            told = None
            if error.kind is ErrorKind.NOT_FOUND:  # a server of this format that does not count
                self._missing.add((model.label, model.base_url))
        if told is None:
            return TokenCount(self._calibration.estimate(model, request), exact=False)
        return TokenCount(told, exact=True)

    async def _told(self, model: Model, request: ModelRequest) -> int | None:
        if model.provider in own_providers or (model.label, model.base_url) in self._missing:
            return None
        entry = entry_of(model)
        if entry.counting is None or isinstance(entry.provider, Scripted | None):
            return None
        # A path of its own would take the request for a call of the model.
        if model.path is not None or entry.path is not None:
            return None
        wire = entry.counting.build(entry.provider.build(request))
        return entry.counting.parse(model.provider, await self._sender.send_whole(model, wire))


def _chars_of(request: ModelRequest) -> int:
    said = len(request.instructions) + sum(map(_message_chars, request.messages))
    tools = sum(len(tool.name) + len(tool.description) + _json_chars(tool.parameters) for tool in request.tools)
    return said + tools + (_json_chars(request.output_schema) if request.output_schema else 0)


def _message_chars(message: Message) -> int:
    calls = message.calls if isinstance(message, AssistantMessage) else ()
    return len(text_of(message)) + sum(map(_call_chars, calls))


def _call_chars(call: CallPart) -> int:
    return len(call.tool) + (call.whole.size if call.whole else _json_chars(call.arguments))


def _json_chars(value: Mapping[str, Any]) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=dict))
