"""A reply in the OpenAI Responses format: from a response object to our parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, ModelReply, RawCall, RawText, RawThinking
from providers.failures import reported
from providers.responses.input import CALL_EXTRAS
from providers.text import clean, clean_json

Item = Mapping[str, Any]
Part = RawText | RawThinking | RawCall

_INCOMPLETE: Mapping[object, Finish] = {
    None: Finish.LENGTH,
    "max_output_tokens": Finish.LENGTH,
    "max_messages": Finish.LENGTH,
    "content_filter": Finish.FILTERED,
}
_REASONING_FIELDS = ("type", "id", "summary", "content", "encrypted_content")
"""What the API takes back of a reasoning item; a `status` of null, say, it refuses."""
_ONLY_SHOWN = ("created_by",)
"""Fields that items of the server's own tools have only when they come."""
_LARGEST_ITEM = 100_000
"""Characters of such an item that are kept; an image that the server made is larger, and the history would carry it."""

_REFUSED = (
    "invalid_prompt",
    "data_residency_mismatch",
    "bio_policy",
    "misalignment_policy_violation",
    "image_too_large",
    "image_too_small",
    "image_parse_error",
    "image_content_policy_violation",
    "image_file_too_large",
    "image_file_not_found",
    "invalid_image",
    "invalid_image_format",
    "invalid_base64_image",
    "invalid_image_url",
    "invalid_image_mode",
    "unsupported_image_media_type",
    "empty_image_file",
    "failed_to_download_image",
)
"""Codes of a failed response that the same request will meet again."""


def failed(provider: str, error: object) -> ProviderError:
    """The error of a response that failed, or of an error event."""
    found = reported(provider, error)
    code = error.get("code") if isinstance(error, Mapping) else None
    if code == "vector_store_timeout":
        found.kind = ErrorKind.TIMEOUT
    elif code in _REFUSED:
        found.kind = ErrorKind.INVALID_REQUEST
    return found


def reply_of(provider: str, response: Mapping[str, Any], output: Sequence[Item]) -> ModelReply:
    """The reply that a response object with these items is; raises ProviderError where it is none."""
    finish = _finish(provider, response)
    parts = _parts(provider, output)
    if finish is Finish.STOP and not parts:
        kinds = ", ".join(str(item.get("type")) for item in output) or "no items"
        raise ProviderError(ErrorKind.MALFORMED, f"{provider}: the reply has neither text nor calls ({kinds})")
    refused = any(content.get("type") == "refusal" for item in output for content in mappings(item.get("content")))
    return ModelReply(
        parts=_with_commentary_apart(provider, parts),
        finish=Finish.REFUSED if refused else finish,
        usage=normal_usage(response["usage"]) if isinstance(response.get("usage"), Mapping) else None,
        model=string(response.get("model")),
    )


def normal_usage(usage: Mapping[str, Any]) -> Usage:
    """The numbers as they are: this format counts cached tokens in the input and reasoning in the output."""
    given = _count(usage.get("input_tokens"))
    return Usage(
        input_tokens=given,
        cached_tokens=min(_count(mapping(usage.get("input_tokens_details")).get("cached_tokens")), given),
        output_tokens=_count(usage.get("output_tokens")),
        reasoning_tokens=_count(mapping(usage.get("output_tokens_details")).get("reasoning_tokens")),
    )


def _finish(provider: str, response: Mapping[str, Any]) -> Finish:
    status = response.get("status") or "completed"
    if status == "completed":
        return Finish.STOP
    if status == "incomplete":
        reason = mapping(response.get("incomplete_details")).get("reason")
        if reason in _INCOMPLETE:
            return _INCOMPLETE[reason]
        raise ProviderError(ErrorKind.MALFORMED, f"{provider}: the reply is incomplete for the reason {reason!r:.80}")
    if status == "failed":
        raise failed(provider, response.get("error") or "the response failed")
    if status == "cancelled":
        raise ProviderError(ErrorKind.SERVER, f"{provider}: the response was cancelled")
    if response.get("background") is True:
        raise ProviderError(
            ErrorKind.CONFIGURATION,
            f"{provider}: the response is {status!r:.80}: stream it, or take background out of params",
        )
    raise ProviderError(ErrorKind.MALFORMED, f"{provider}: the response is {status!r:.80}, which is no end")


def _parts(provider: str, output: Sequence[Item]) -> list[Part]:
    parts: list[Part] = []
    answered = {item.get("call_id") for item in output if string(item.get("type")).endswith("_output")}
    for at, item in enumerate(output):
        kind = string(item.get("type"))
        if kind == "message":
            text = _text(provider, item)
            parts += [text] if text.text else []
        elif kind == "function_call":
            parts.append(_call(provider, item))
        elif kind == "reasoning":
            parts.append(_reasoning(provider, item, output[at + 1 : at + 2]))
        elif _asks_us(kind, item.get("call_id"), answered):
            raise ProviderError(
                ErrorKind.CONFIGURATION,
                f"{provider}: the model sent a {kind!r:.80}, which no agent can answer; take that tool out of params",
            )
        elif kind != "function_call_output" and len(json.dumps(item)) <= _LARGEST_ITEM:
            # Items of the server's own tools: the API takes them back, and refuses the reasoning before them alone.
            after = at > 0 and output[at - 1].get("type") == "reasoning"
            kept = {field: clean_json(value) for field, value in item.items() if field not in _ONLY_SHOWN}
            details = {"provider": provider, "item": kept} | ({"after_reasoning": True} if after else {})
            parts.append(RawThinking("", details))
    return parts


def _asks_us(kind: str, call_id: object, answered: set[object]) -> bool:
    """Whether an item waits for an output that the server itself did not give."""
    if kind.endswith("_output"):
        return False
    return kind == "mcp_approval_request" or (bool(call_id) and call_id not in answered)


def _text(provider: str, item: Item) -> RawText:
    content = item.get("content")
    shown = content if isinstance(content, str) else "".join(map(text_in, mappings(content)))
    phase = string(item.get("phase"))
    return RawText(clean(shown), {"provider": provider, "phase": phase} if phase else None)


def _call(provider: str, item: Item) -> RawCall:
    details: dict[str, Any] = {"provider": provider}
    if call_id := string(item.get("call_id")):
        details["id"] = clean(call_id)
    details |= {field: clean_json(item[field]) for field in CALL_EXTRAS if item.get(field) is not None}
    arguments = item.get("arguments")
    return RawCall(
        tool=clean(string(item.get("name"))),
        arguments=clean_json(arguments) if isinstance(arguments, str | Mapping) else None,
        details=details,
    )


def _reasoning(provider: str, item: Item, following: Sequence[Item]) -> RawThinking:
    shown = [clean(text_in(entry)) for entry in mappings(item.get("summary")) or mappings(item.get("content"))]
    details: dict[str, Any] = {"provider": provider}
    for after in following:
        kept = {field: clean_json(item[field]) for field in _REASONING_FIELDS if item.get(field) is not None}
        is_call = after.get("type") == "function_call"
        details |= {"item": kept, "next": string(is_call and after.get("call_id")) or string(after.get("type"))}
    return RawThinking("\n\n".join(text for text in shown if text), details)


def _with_commentary_apart(provider: str, parts: list[Part]) -> tuple[Part, ...]:
    """Commentary beside the final answer becomes thinking, so that the answer stands alone and parses as JSON."""
    texts = [part for part in parts if isinstance(part, RawText)]
    if all(_is_commentary(part) for part in texts):
        return tuple(parts)
    return tuple(_aside(provider, p) if isinstance(p, RawText) and _is_commentary(p) else p for p in parts)


def _is_commentary(part: RawText) -> bool:
    return (part.details or {}).get("phase") == "commentary"


def _aside(provider: str, part: RawText) -> RawThinking:
    item = {"type": "message", "role": "assistant", "content": part.text, "phase": "commentary"}
    return RawThinking(part.text, {"provider": provider, "item": item})


def text_in(entry: Item) -> str:
    """The text of one entry of a content or summary."""
    return string(entry.get("text")) or string(entry.get("refusal"))


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list, and none where there is no list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def string(value: object) -> str:
    """The value where it is text, else none."""
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0
