"""A conversation as turns of the Anthropic Messages format: strictly alternating, the user first and, but for a turn
that the server paused, last.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import (
    AssistantMessage,
    BlobPart,
    CallPart,
    DocumentPart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ThinkingPart,
    ToolMessage,
)
from providers.details import own_details
from providers.pairing import paired
from providers.text import clean, clean_json

CONTINUE = "(continue)"
"""What the user says where the format wants a word from the user and there is none."""
FAILED = "The call failed without a message."

_ID = re.compile(r"[A-Za-z0-9_-]+")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
_DATA_URL = re.compile(r"data:([^;,]*)[^,]*;base64,(.*)", re.DOTALL | re.IGNORECASE)
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF = "application/pdf"
_TEXTS = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml")
_LONGEST_NAME, _LONGEST_TITLE = 128, 500

Wire = dict[str, Any]


def turns_of(name: str, messages: Iterable[Message]) -> list[Wire]:
    """The turns; raises ProviderError (INVALID_REQUEST) for a part of the user's that cannot be sent."""
    turns: list[Wire] = []
    taken: set[str] = set()
    waiting: list[tuple[str, CallPart]] = []
    results: list[Wire] = []
    shown: list[Wire] = []
    said = paired(m for m in messages if not isinstance(m, SystemMessage))
    paused = bool(said) and _is_paused(name, said[-1])
    served = _served(name, said, goes_on=paused or (bool(said) and isinstance(said[-1], ToolMessage)))
    for message in said:
        if isinstance(message, AssistantMessage):
            waiting = [(_id_of(name, call, taken), call) for call in message.calls]
            _add(turns, "assistant", _said(name, message, waiting, served))
        elif isinstance(message, ToolMessage):
            call_id, call = waiting.pop(0)
            result, beside = _result(name, message, call_id, call)
            results, shown = [*results, result], [*shown, *beside]
            if not waiting:
                _add(turns, "user", [*results, *shown])
                results, shown = [], []
        else:
            _add(turns, "user", [block for part in message.parts for block in _given(name, part)])
    if turns and turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [_text(CONTINUE)]})
    if not turns or (turns[-1]["role"] == "assistant" and not paused):
        turns.append({"role": "user", "content": [_text(CONTINUE)]})
    return turns


def unresolved(name: str, part: BlobPart) -> ProviderError:
    """The error of a reference that reached a request."""
    return ProviderError(
        ErrorKind.INVALID_REQUEST,
        f"{name}: blob {part.digest} has to be read from its store before the request is built",
    )


def _add(turns: list[Wire], role: str, content: list[Wire]) -> None:
    if content and turns and turns[-1]["role"] == role:
        turns[-1]["content"] += content
    elif content:
        turns.append({"role": role, "content": content})


def _id_of(name: str, call: CallPart, taken: set[str]) -> str:
    """The server's own id where it is usable and unique, else ours."""
    wanted = own_details(call.details, name).get("id")
    ours = _FORBIDDEN.sub("_", call.id) or "call"
    call_id = wanted if isinstance(wanted, str) and _ID.fullmatch(wanted) and wanted not in taken else ours
    again = 2
    while call_id in taken:
        call_id, again = f"{ours}_{again}", again + 1
    taken.add(call_id)
    return call_id


def _is_paused(name: str, message: Message) -> bool:
    """Whether it is a reply that the server wants to go on with."""
    thoughts = [part for part in message.parts if isinstance(part, ThinkingPart)]
    return any(own_details(part.details, name).get("paused") for part in thoughts)


def _served(name: str, messages: Sequence[Message], *, goes_on: bool) -> set[str]:
    """Ids of the calls of the server's own tools that can go back: the format refuses one without its result.

    Where the last turn goes on, its results may be still to come.
    """
    waiting: set[str] = set()
    served: set[str] = set()
    for message in messages:
        if not isinstance(message, AssistantMessage | ToolMessage):
            waiting.clear()
        for part in message.parts:
            made, answered = _ids(_block(name, part))
            waiting |= {made} - {""}
            served |= {answered} & waiting
    return served | waiting if goes_on else served


def _block(name: str, part: Part) -> Mapping[str, Any]:
    """The block of the server's own tools that a part holds; empty where it holds none."""
    block = own_details(part.details, name).get("block") if isinstance(part, ThinkingPart) else None
    return block if isinstance(block, Mapping) else {}


def _ids(block: Mapping[str, Any]) -> tuple[str, str]:
    """Which call a block is, and of which it is the result."""
    made, answered = (value if isinstance(value := block.get(field), str) else "" for field in ("id", "tool_use_id"))
    return made, answered


def _said(name: str, message: AssistantMessage, calls: Sequence[tuple[str, CallPart]], served: Set[str]) -> list[Wire]:
    """Thinking, text and blocks of the server's tools in their order, then the calls: only results may follow those."""
    content: list[Wire] = []
    for part in message.parts:
        if isinstance(part, BlobPart):
            raise unresolved(name, part)
        if isinstance(part, TextPart):
            content += _texts(part)
        elif block := _block(name, part):
            content += [clean_json(block)] if not served.isdisjoint(_ids(block)) else []
        elif isinstance(part, ThinkingPart):
            content += _thinking(name, part)
    content += [_call(call_id, call) for call_id, call in calls]
    while content and content[-1]["type"] in ("thinking", "redacted_thinking"):
        content.pop()  # a turn must not end with it
    return content


def _thinking(name: str, part: ThinkingPart) -> list[Wire]:
    """The block as it came; nothing where it is not this provider's or its seal is lost."""
    details = own_details(part.details, name)
    signature, data = details.get("signature"), details.get("data")
    if isinstance(data, str) and data:
        return [{"type": "redacted_thinking", "data": data}]
    if isinstance(signature, str) and signature and clean(part.text) == part.text:
        return [{"type": "thinking", "thinking": part.text, "signature": signature}]
    return []


def _call(call_id: str, call: CallPart) -> Wire:
    # A made-up name that the format forbids would have the whole conversation refused from now on.
    tool = _FORBIDDEN.sub("_", call.tool)[:_LONGEST_NAME] or "unnamed"
    return {"type": "tool_use", "id": call_id, "name": tool, "input": clean_json(call.arguments)}


def _result(name: str, message: ToolMessage, call_id: str, call: CallPart) -> tuple[Wire, list[Wire]]:
    """The result of a call, and what of it has to stand behind all results."""
    content: list[Wire] = []
    for part in message.parts:
        if isinstance(part, ImagePart | DocumentPart):
            media = _media(part)
            # What no author chose must not have the conversation refused for ever.
            content.append(_text(f"({media})") if isinstance(media, str) else media)
        else:
            content += _given(name, part)
    wire: Wire = {"type": "tool_result", "tool_use_id": call_id}
    beside: list[Wire] = []
    if message.error:
        # The format takes nothing but text in the result of a failed call, and demands some.
        wire["is_error"] = True
        beside = [block for block in content if block["type"] != "text"]
        content = [block for block in content if block["type"] == "text"] or [_text(FAILED)]
        if beside:
            beside.insert(0, _text(f"From the result of {clean(call.tool)} ({call_id}):"))
    if content:
        wire["content"] = content
    return wire, beside


def _given(name: str, part: TextPart | ImagePart | DocumentPart | BlobPart) -> list[Wire]:
    if isinstance(part, BlobPart):
        raise unresolved(name, part)
    if isinstance(part, TextPart):
        return _texts(part)
    media = _media(part)
    if isinstance(media, str):
        raise ProviderError(ErrorKind.INVALID_REQUEST, f"{name}: {media}")
    return [media]


def _texts(part: TextPart) -> list[Wire]:
    """The block of a text; none where it is empty, which the format refuses."""
    return [_text(clean(part.text))] if part.text.strip() else []


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


def _media(part: ImagePart | DocumentPart) -> Wire | str:
    """The block of an image or document, or why there cannot be one."""
    url, data, kind = part.url, part.base64, (part.media_type or "").partition(";")[0].strip().lower()
    if url and (match := _DATA_URL.fullmatch(url)):
        url, kind, data = None, match.group(1).strip().lower(), match.group(2)
    if not url and not (data and kind):
        return f"this {part.type} needs a url, or base64 data together with its media_type"
    return _image(url, data, kind) if isinstance(part, ImagePart) else _document(url, data, kind, part.name)


def _image(url: str | None, data: str | None, kind: str) -> Wire | str:
    if url:
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind = "image/jpeg" if kind == "image/jpg" else kind
    if kind not in _IMAGES:
        return f"an image of type {kind} cannot be shown; it can be {', '.join(_IMAGES)}"
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def _document(url: str | None, data: str | None, kind: str, title: str | None) -> Wire | str:
    titled = {"title": clean(title)[:_LONGEST_TITLE]} if title and title.strip() else {}
    if kind == _PDF or (url and not kind):
        where = {"type": "url", "url": url} if url else {"type": "base64", "media_type": _PDF, "data": data}
        return {"type": "document", "source": where, **titled}
    if url:
        return f"a document of type {kind} cannot be given by its address; only a PDF can"
    if not kind.startswith("text/") and kind not in _TEXTS:
        return f"a document of type {kind} cannot be shown; it can be {_PDF} or text"
    try:
        text = base64.b64decode(data or "").decode(errors="replace")
    except (binascii.Error, ValueError):
        return "the base64 data of this document cannot be read"
    if not text.strip():
        return _text("(an empty document)")
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **titled}
