"""A reply of the Gemini API, from one whole body or from the chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, ModelReply, RawCall, RawText, RawThinking
from providers.failures import shorten
from providers.text import TextJoiner, clean, clean_json

# Reasons by which the API says that it failed: nothing of such a reply is an answer, and none of its calls runs.
_FAILED: Mapping[str, ErrorKind] = dict.fromkeys(
    [
        "MALFORMED_FUNCTION_CALL",
        "MALFORMED_RESPONSE",
        "MISSING_THOUGHT_SIGNATURE",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "OTHER",
        "IMAGE_OTHER",
        "NO_IMAGE",
    ],
    ErrorKind.MALFORMED,
) | {"PUP_LIMITED_DISABLED": ErrorKind.AUTHENTICATION}
_FINISH: Mapping[str, Finish] = (
    {"STOP": Finish.STOP}
    | dict.fromkeys(["MAX_TOKENS", "CONTINUATION"], Finish.LENGTH)
    | dict.fromkeys(
        [
            "SAFETY",
            "RECITATION",
            "LANGUAGE",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "ESCALATION",
            "MODEL_ARMOR",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
        ],
        Finish.FILTERED,
    )
)
_UNSPECIFIED = frozenset({"", "BLOCKED_REASON_UNSPECIFIED"})


class _Text:
    """Text or thought under way; a part with a signature stands alone, as it has to go back."""

    def __init__(self, thought: bool, signature: str) -> None:
        self.thought = thought
        self.signature = signature
        self.joiner = TextJoiner()

    def raw(self, provider: str) -> RawText | RawThinking:
        details = _details(provider, self.signature) if self.signature else None
        return (RawThinking if self.thought else RawText)(self.joiner.text(), details)


class GeminiReply:
    """Gathers one reply; every method raises ProviderError for what the API reports as a failure."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._parts: list[_Text | RawCall] = []
        self._usage: Usage | None = None
        self._model = ""
        self._message = ""
        self.finish_reason = ""

    def add(self, body: Mapping[str, Any]) -> str:
        """Take one chunk, or one whole body, and return the text that it adds to the answer."""
        self._model = self._model or _string(body.get("modelVersion"))
        if usage := _mapping(body.get("usageMetadata")):
            self._usage = normal_usage(usage)
        self._check_prompt(_mapping(body.get("promptFeedback")))
        candidate = _first_candidate(body.get("candidates"))
        shown = ""
        for part in _mappings(_mapping(candidate.get("content")).get("parts")):
            shown += self._take(part)
        if reason := _string(candidate.get("finishReason")):
            self.finish_reason = reason.upper()
            self._message = _string(candidate.get("finishMessage"))
        return shown

    def reply(self) -> ModelReply:
        """What was gathered; a failed, an unknown and an empty end are errors."""
        reason = self.finish_reason
        if not reason:
            raise self._error(ErrorKind.TRUNCATED_STREAM, "the reply ended without a finishReason")
        if reason in _FAILED or reason not in _FINISH:
            known = "the reply ended with" if reason in _FAILED else "unknown"
            words = f": {shorten(self._message)}" if self._message else ""
            kind = _FAILED.get(reason, ErrorKind.MALFORMED)
            raise self._error(kind, f"{known} finishReason {reason[:80]}{words}")
        parts = tuple(part.raw(self._provider) if isinstance(part, _Text) else part for part in self._parts)
        if _FINISH[reason] is Finish.STOP and not any(_says(part) for part in parts):
            raise self._error(ErrorKind.MALFORMED, f"the reply ended with finishReason {reason}, but is empty")
        return ModelReply(parts=parts, finish=_FINISH[reason], usage=self._usage, model=self._model)

    def _take(self, part: Mapping[str, Any]) -> str:
        signature = _string(part.get("thoughtSignature"))
        if isinstance(part.get("functionCall"), Mapping):
            self._take_call(part["functionCall"], signature)
            return ""
        text, thought = _string(part.get("text")), part.get("thought") is True
        if not text and not signature:
            return ""
        last = self._parts[-1] if self._parts else None
        joins = isinstance(last, _Text) and last.thought is thought and not last.signature and not signature
        if not joins or not isinstance(last, _Text):
            last = _Text(thought, signature)
            self._parts.append(last)
        shown = last.joiner.add(text)
        return "" if thought else shown

    def _take_call(self, call: Mapping[str, Any], signature: str) -> None:
        details = _details(self._provider, signature)
        if call_id := clean(_string(call.get("id"))):
            details["id"] = call_id
        args = call.get("args")
        made = RawCall(
            tool=clean(_string(call.get("name"))),
            arguments=clean_json(args) if isinstance(args, Mapping) else None,
            details=details,
        )
        # Some servers send a call again in a later event.
        if not any(isinstance(known, RawCall) and _same(known, made) for known in self._parts):
            self._parts.append(made)

    def _check_prompt(self, feedback: Mapping[str, Any]) -> None:
        reason = _string(feedback.get("blockReason"))
        if reason not in _UNSPECIFIED:
            words = shorten(_string(feedback.get("blockReasonMessage")))
            message = f"the prompt was blocked: {reason[:80]}" + (f": {words}" if words else "")
            raise self._error(ErrorKind.INVALID_REQUEST, message)

    def _error(self, kind: ErrorKind, message: str) -> ProviderError:
        return ProviderError(kind, f"{self._provider}: {message}", usage=self._usage)


def normal_usage(usage: Mapping[str, Any]) -> Usage:
    """Inclusive numbers: input with what came from a cache and from tools of the server, output with thoughts."""
    given = _count(usage.get("promptTokenCount")) + _count(usage.get("toolUsePromptTokenCount"))
    thoughts = _count(usage.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=given,
        cached_tokens=min(_count(usage.get("cachedContentTokenCount")), given),
        output_tokens=max(
            _count(usage.get("candidatesTokenCount")) + thoughts, _count(usage.get("totalTokenCount")) - given
        ),
        reasoning_tokens=thoughts,
    )


def _details(provider: str, signature: str) -> dict[str, Any]:
    # The caller fills in the model that was asked: a signature means nothing to another one.
    return {"provider": provider, **({"model": None, "thoughtSignature": signature} if signature else {})}


def _says(part: RawText | RawThinking | RawCall) -> bool:
    return isinstance(part, RawCall) or (isinstance(part, RawText) and bool(part.text))


def _same(one: RawCall, other: RawCall) -> bool:
    """Whether two calls of one reply are one: the same id (or none), tool and arguments."""
    ids = [(call.details or {}).get("id") for call in (one, other)]
    return ids[0] == ids[1] and one.tool == other.tool and one.arguments == other.arguments


def _first_candidate(candidates: object) -> Mapping[str, Any]:
    return next((candidate for candidate in _mappings(candidates) if not candidate.get("index")), {})


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0
