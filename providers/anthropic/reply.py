"""A reply in the Anthropic Messages format, from one whole message or from the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, ModelReply, RawCall, RawText, RawThinking
from providers.text import TextJoiner, clean, clean_json

_FINISH: Mapping[str, Finish] = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "tool_use": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.REFUSED,
    "pause_turn": Finish.PAUSED,
}
_OF_THE_SERVER = ("_tool_use", "_tool_result")
"""How the types of blocks end that belong to the server's own tools."""
_MOST_OF_THE_SERVER = 400_000
"""Characters of such blocks that are kept of one reply, the last ones: the history carries them."""


@dataclass
class _Block:
    """One content block; which of its fields count depends on its type."""

    type: str
    start: Mapping[str, Any]
    text: TextJoiner = field(default_factory=TextJoiner)
    """Of a text or of thinking."""
    signature: str = ""
    pieces: list[str] = field(default_factory=list)
    """JSON text of a call's arguments."""

    @property
    def is_servers(self) -> bool:
        """It is a call of a tool that the server runs, or what came of one."""
        return self.type.endswith(_OF_THE_SERVER)

    def part(self, provider: str) -> RawText | RawThinking | RawCall | None:
        """What the block means in our vocabulary; None where it is empty or of a type that we do not know."""
        origin = {"provider": provider}
        if self.type == "text":
            return RawText(self.text.text()) if self.text else None
        if self.type == "thinking" and (self.text or self.signature):
            return RawThinking(self.text.text(), origin | ({"signature": self.signature} if self.signature else {}))
        if self.type == "redacted_thinking" and (data := _string(self.start.get("data"))):
            return RawThinking("", {**origin, "data": data})
        if self.type == "tool_use":
            call_id = clean(_string(self.start.get("id")))
            return RawCall(
                tool=clean(_string(self.start.get("name"))),
                arguments=self._arguments(),
                details=origin | ({"id": call_id} if call_id else {}),
            )
        return RawThinking("", {**origin, "block": self._as_it_came()}) if self.is_servers else None

    def _as_it_came(self) -> Mapping[str, Any]:
        try:
            given = json.loads("".join(self.pieces), strict=False)
        except (ValueError, RecursionError):
            given = None
        return {**self.start, "input": given} if isinstance(given, dict) else self.start

    def _arguments(self) -> str | Mapping[str, Any]:
        if text := clean("".join(self.pieces)).strip():
            return text
        given = self.start.get("input")
        if isinstance(given, str):
            return clean(given)
        return clean_json(given) if isinstance(given, Mapping) else {}


class MessageReply:
    """Gathers one reply."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._blocks: list[_Block] = []
        self._at: dict[object, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._model = ""
        self._reason = ""
        self._explanation = ""

    def begin(self, message: object) -> str:
        """Take a message, in a stream still without content, and return the text of its answer."""
        message = _mapping(message)
        self._model = self._model or _string(message.get("model"))
        self._take_usage(message.get("usage"))
        content = message.get("content")
        return "".join(self.open(n, block) for n, block in enumerate(content if isinstance(content, list) else ()))

    def open(self, index: object, start: object) -> str:
        """Take the beginning of a block, or all of it, and return the text that it adds to the answer."""
        start = _mapping(start)
        block = _Block(_string(start.get("type")), start)
        self._blocks.append(block)
        self._at[str(index)] = block
        if block.type == "thinking":
            block.text.add(_string(start.get("thinking")))
            block.signature = _string(start.get("signature"))
        return block.text.add(_string(start.get("text"))) if block.type == "text" else ""

    def extend(self, index: object, delta: object) -> str:
        """Take a delta of a block and return the text that it adds to the answer.

        Raises ProviderError (MALFORMED) where the block was not begun.
        """
        delta = _mapping(delta)
        block = self._at.get(str(index))
        if block is None:
            raise ProviderError(
                ErrorKind.MALFORMED,
                f"{self._provider}: the stream continues block {str(index)[:20]}, which never began",
            )
        match delta.get("type"):
            case "text_delta" if block.type == "text":
                return block.text.add(_string(delta.get("text")))
            case "thinking_delta" if block.type == "thinking":
                block.text.add(_string(delta.get("thinking")))
            case "signature_delta":
                block.signature = _string(delta.get("signature")) or block.signature
            case "input_json_delta":
                block.pieces.append(_string(delta.get("partial_json")))
        return ""

    def end(self, message: Mapping[str, Any]) -> None:
        """Take why the message stopped and what it has used so far."""
        self._take_usage(message.get("usage"))
        self._reason = _string(message.get("stop_reason")) or self._reason
        self._explanation = _string(_mapping(message.get("stop_details")).get("explanation")) or self._explanation

    def reply(self) -> ModelReply:
        """What was gathered; no stop_reason counts as a stop, one that cannot be an end of a reply is an error."""
        reason = self._reason or "end_turn"
        parts = self._parts()
        if reason not in _FINISH:
            raise ProviderError(ErrorKind.MALFORMED, f"{self._provider}: unknown stop_reason {reason[:80]!r}")
        if reason == "model_context_window_exceeded" and not parts:
            raise ProviderError(ErrorKind.CONTEXT_LENGTH, f"{self._provider}: the context window has no room to answer")
        finish = _FINISH[reason]
        if finish is Finish.REFUSED:
            # Classifiers cut a reply anywhere: a call in it is not what the model means to do.
            parts = [part for part in parts if not isinstance(part, RawCall)]
            if self._explanation and not any(isinstance(part, RawText) for part in parts):
                parts.append(RawText(clean(self._explanation)))
        if finish is Finish.PAUSED:
            # Says when the reply goes back that no word of the user's may close it.
            parts.append(RawThinking("", {"provider": self._provider, "paused": True}))
        return ModelReply(
            parts=tuple(parts),
            finish=finish,
            usage=normal_usage(self._usage) if self._usage else None,
            announced_calls=reason == "tool_use",
            model=self._model,
        )

    def _parts(self) -> list[RawText | RawThinking | RawCall]:
        parts, room = [], _MOST_OF_THE_SERVER
        for block in reversed(self._blocks):
            part = block.part(self._provider)
            if part is not None and block.is_servers:
                room -= len(json.dumps(part.details))
            if part is not None and (room >= 0 or not block.is_servers):
                parts.append(part)
        return parts[::-1]

    def _take_usage(self, usage: object) -> None:
        # Every report is cumulative, and a field that is left out has not changed.
        self._usage |= {name: value for name, value in _mapping(usage).items() if value is not None}


def normal_usage(usage: Mapping[str, Any]) -> Usage:
    """Inclusive numbers: input with what was read from and written to the cache, which the server counts apart."""
    cached = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens")) or sum(
        _count(tokens) for tokens in _mapping(usage.get("cache_creation")).values()
    )
    output = _count(usage.get("output_tokens"))
    thinking = _count(_mapping(usage.get("output_tokens_details")).get("thinking_tokens"))
    return Usage(
        input_tokens=_count(usage.get("input_tokens")) + cached + written,
        cached_tokens=cached,
        output_tokens=output,
        reasoning_tokens=min(thinking, output),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0
