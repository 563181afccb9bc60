"""A reply in the Chat Completions format, from one whole message or from the deltas of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, ModelReply, RawCall, RawText, RawThinking
from providers.chat.calls import Calls
from providers.chat.request import REASONING_FIELDS
from providers.failures import reported
from providers.text import TextJoiner, clean_json

# Reasons by which servers say that they failed: nothing of such a reply is an answer.
_FAILED = frozenset(
    [
        "error",
        "insufficient_system_resource",
        "network_error",
        "abort",
        "cancelled",
        "malformed_function_call",
        "malformed_response",
        "unexpected_tool_call",
    ]
)
_FINISH: Mapping[str, Finish] = (
    dict.fromkeys(
        ["stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "tool_use", "function_call"],
        Finish.STOP,
    )
    | dict.fromkeys(
        ["length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"], Finish.LENGTH
    )
    | dict.fromkeys(
        ["content_filter", "safety", "recitation", "prohibited_content", "blocklist", "spii", "sensitive"],
        Finish.FILTERED,
    )
    | {"refusal": Finish.REFUSED}
)


class ChatReply:
    """Gathers one reply; every method raises ProviderError for what a server reports as a failure."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._text = TextJoiner()
        self._refusal = TextJoiner()
        self._thinking: dict[str, TextJoiner] = {}
        self._reasoning_details: list[dict[str, Any]] = []
        self._calls = Calls()
        self._usage: Usage | None = None
        self._model = ""
        self.finish_reason = ""

    def add(self, body: Mapping[str, Any], *, whole: bool = False) -> str:
        """Take one chunk, or one whole body, and return the text that it adds to the answer."""
        self._model = self._model or _string(body.get("model"))
        self._take_usage(body.get("usage"))
        self._take_usage(_mapping(body.get("x_groq")).get("usage"))
        choice = _first_choice(body.get("choices"))
        if choice.get("error"):
            raise reported(self._provider, choice["error"])
        self._take_usage(choice.get("usage"))
        shown = self._message(_mapping(choice.get("message" if whole else "delta")), whole=whole)
        if reason := _string(choice.get("finish_reason")):
            self.finish_reason = reason.lower()
            if self.finish_reason in _FAILED:
                raise ProviderError(
                    ErrorKind.SERVER, f"{self._provider}: the reply ended with finish_reason {reason!r}"
                )
        return shown

    def reply(self) -> ModelReply:
        """What was gathered; no finish reason counts as a stop, an unknown one is an error (MALFORMED)."""
        reason = self.finish_reason or "stop"
        if reason not in _FINISH:
            raise ProviderError(ErrorKind.MALFORMED, f"{self._provider}: unknown finish_reason {reason[:80]!r}")
        thinking = [
            RawThinking(text=joiner.text(), details=self._origin({field: True} if field in REASONING_FIELDS else {}))
            for field, joiner in self._thinking.items()
        ]
        if self._reasoning_details:
            details = self._origin({"reasoning_details": clean_json(self._reasoning_details)})
            if thinking:
                thinking[0] = RawThinking(text=thinking[0].text, details={**(thinking[0].details or {}), **details})
            else:
                thinking = [RawThinking(text=_shown(self._reasoning_details), details=details)]
        texts = [RawText(joiner.text()) for joiner in (self._text, self._refusal) if joiner]
        calls: tuple[RawCall, ...] = self._calls.raw(self._provider)
        return ModelReply(
            parts=(*thinking, *texts, *calls),
            finish=Finish.REFUSED if self._refusal else _FINISH[reason],
            usage=self._usage,
            announced_calls=reason in ("tool_calls", "tool_use"),
            model=self._model,
        )

    def _message(self, message: Mapping[str, Any], *, whole: bool) -> str:
        for field in REASONING_FIELDS:
            if thought := _string(message.get(field)):
                # Some servers say the same under both names.
                self._thinking.setdefault(field, TextJoiner()).add(thought)
                break
        for detail in _mappings(message.get("reasoning_details")):
            self._add_detail(detail, whole=whole)
        shown = ""
        content = message.get("content")
        for part in [content] if isinstance(content, str) else _mappings(content):
            if isinstance(part, str):
                shown += self._text.add(part)
            elif part.get("type") == "thinking":
                self._thinking.setdefault("", TextJoiner()).add(_shown(_mappings(part.get("thinking"))))
            else:
                shown += self._text.add(_string(part.get("text")))
        shown += self._refusal.add(_string(message.get("refusal")))
        entries = _mappings(message.get("tool_calls"))
        if function := _mapping(message.get("function_call")):
            entries.append({"function": function, "index": "function_call"})
        if entries:
            (self._calls.add_whole if whole else self._calls.add_fragments)(entries)
        return shown

    def _add_detail(self, detail: Mapping[str, Any], *, whole: bool) -> None:
        last = self._reasoning_details[-1] if self._reasoning_details else {}
        continues = (
            bool(last)
            and not whole
            and "data" not in detail
            and all(last.get(field) == detail.get(field) for field in ("type", "index"))
            and detail.get("id") in (None, last.get("id"))
        )
        if not continues:
            self._reasoning_details.append(dict(detail))
            return
        for field, value in detail.items():
            if field in ("text", "summary") and isinstance(value, str):
                last[field] = (last.get(field) or "") + value
            elif value is not None:
                last[field] = value

    def _origin(self, details: Mapping[str, Any]) -> dict[str, Any]:
        return {"provider": self._provider, **details}

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, Mapping) and usage:
            self._usage = normal_usage(usage)


def normal_usage(usage: Mapping[str, Any]) -> Usage:
    """Inclusive numbers: input with what came from a cache, output with reasoning.

    Servers that count reasoning beside the completion show it by a larger total.
    """
    given, answered = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    cached = (
        _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
        or _count(usage.get("prompt_cache_hit_tokens"))
        or _count(usage.get("cached_tokens"))
    )
    return Usage(
        input_tokens=given,
        cached_tokens=min(cached, given),
        output_tokens=max(answered, _count(usage.get("total_tokens")) - given),
        reasoning_tokens=_count(_mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )


def _first_choice(choices: object) -> Mapping[str, Any]:
    return next((choice for choice in _mappings(choices) if not choice.get("index")), {})


def _shown(details: list[Any]) -> str:
    return "".join(_string(detail.get("text")) or _string(detail.get("summary")) for detail in details)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Any]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0
