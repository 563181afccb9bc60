"""Any conversation that a run may have stored, for properties that hold of every request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from perdure.arguments import parse_arguments
from perdure.messages import (
    AssistantMessage,
    CallPart,
    DocumentPart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ThinkingPart,
    ToolMessage,
    UserMessage,
)
from perdure.model_call import ModelReply, RawCall, RawText

SECRET = "FOREIGN-SIGNATURE"
"""Stands in all details of another provider, and nowhere else."""

Details = st.SearchStrategy[dict[str, Any] | None]

TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(["", "\ud83d", "a\ud83d\ude00b", "\u2028", "\x00"])
FOREIGN: Details = st.sampled_from(
    [
        {"provider": "elsewhere", "id": SECRET, "phase": SECRET, "namespace": SECRET, "function": {"x": SECRET}},
        {"provider": "elsewhere", "item": {"type": "reasoning", "id": SECRET, "encrypted_content": SECRET}},
        {"provider": "elsewhere", "extra_content": SECRET, "reasoning_details": [SECRET], "signature": SECRET},
    ]
)
NOTHING: Details = st.none()
_JSON = st.dictionaries(
    TEXTS, st.none() | st.booleans() | st.integers() | TEXTS | st.lists(TEXTS, max_size=2), max_size=3
)
_CALL_IDS = st.sampled_from([f"c{number}" for number in range(1, 7)])
_TOOLS = st.sampled_from(["add", "get weather!", "", "x" * 99])


def texts(details: Details = NOTHING) -> st.SearchStrategy[TextPart]:
    """Text parts, empty ones too."""
    return st.builds(TextPart, type=st.just("text"), text=TEXTS, details=details)


def images() -> st.SearchStrategy[ImagePart]:
    """Images by address and as data."""
    linked = st.builds(ImagePart, type=st.just("image"), url=st.just("https://example.org/a.png"))
    held = st.builds(ImagePart, type=st.just("image"), base64=st.just("aGk="), media_type=st.just("image/png"))
    return linked | held


def documents(*, linked: bool = True) -> st.SearchStrategy[DocumentPart]:
    """Documents as data, and by address where the format has that."""
    held = st.builds(
        DocumentPart,
        type=st.just("document"),
        base64=st.just("aGk="),
        media_type=st.sampled_from(["application/pdf", "text/plain", "application/x-odd"]),
        name=st.none() | TEXTS,
    )
    return held | st.just(DocumentPart(type="document", url="https://example.org/a.pdf")) if linked else held


def conversations(
    *,
    thinking: Details,
    call: Details,
    text: Details = NOTHING,
    system: st.SearchStrategy[Any] | None = None,
    user: st.SearchStrategy[Any] | None = None,
    result: st.SearchStrategy[Any] | None = None,
) -> st.SearchStrategy[tuple[Message, ...]]:
    """Messages in any order, with calls without results, results without calls, and ids that come again.

    The details are the provider's own; another's are mixed in. `system`, `user` and `result` are the parts that such
    messages may hold, where the format cannot say all of them.
    """
    anything = texts() | images() | documents()
    thoughts = st.builds(ThinkingPart, type=st.just("thinking"), text=TEXTS, details=thinking | FOREIGN | NOTHING)
    calls = st.builds(
        CallPart,
        type=st.just("call"),
        id=_CALL_IDS,
        tool=_TOOLS,
        arguments=_JSON,
        error=st.none() | TEXTS,
        details=call | FOREIGN | NOTHING,
    )
    said = st.lists(thoughts | calls | texts(text | FOREIGN | NOTHING), max_size=6).map(_with_own_ids)
    messages = st.one_of(
        st.builds(SystemMessage, role=st.just("system"), parts=_tuple(anything if system is None else system)),
        st.builds(UserMessage, role=st.just("user"), parts=_tuple(anything if user is None else user)),
        st.builds(AssistantMessage, role=st.just("assistant"), parts=said),
        st.builds(
            ToolMessage,
            role=st.just("tool"),
            call=_CALL_IDS,
            parts=_tuple(anything if result is None else result),
            error=st.booleans(),
        ),
    )
    return st.lists(messages, max_size=7).map(tuple)


def stored(reply: ModelReply, prefix: str = "r") -> AssistantMessage:
    """A reply as a run stores it: calls under ids of its own, details untouched, through JSON and back."""
    parts: list[Any] = []
    for number, part in enumerate(reply.parts, 1):
        details = dict(part.details) if part.details else None
        if isinstance(part, RawCall):
            arguments = parse_arguments(part.arguments).value or {}
            call = CallPart(type="call", id=f"{prefix}{number}", tool=part.tool, arguments=arguments, details=details)
            parts.append(call)
        elif isinstance(part, RawText):
            parts.append(TextPart(type="text", text=part.text, details=details))
        else:
            parts.append(ThinkingPart(type="thinking", text=part.text, details=details))
    message = AssistantMessage(role="assistant", parts=tuple(parts))
    return AssistantMessage.model_validate_json(message.model_dump_json())


def _tuple(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(parts, max_size=3).map(tuple)


def _with_own_ids(parts: Sequence[Any]) -> tuple[Any, ...]:
    """The parts without a second call of one id: within one reply a run never mints an id twice."""
    seen: set[str] = set()
    kept = []
    for part in parts:
        if isinstance(part, CallPart):
            if part.id in seen:
                continue
            seen.add(part.id)
        kept.append(part)
    return tuple(kept)
