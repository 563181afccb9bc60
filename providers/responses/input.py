"""A conversation as input items of the OpenAI Responses format.

Items that came from the server and that only it understands (reasoning, its own tools) lie in `details["item"]` and go
back as they came. A reasoning item is valid only right before the item that followed it, and an item of the server's
own tools only right after its reasoning, so both are sent or neither. Our own items carry no id, so that nothing on
the server's side is missed where the reasoning before them is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import (
    AssistantMessage,
    BlobPart,
    CallPart,
    DocumentPart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ThinkingPart,
    ToolMessage,
    UserPart,
)
from providers.details import own_details
from providers.naming import named_calls
from providers.pairing import paired
from providers.text import clean, clean_json

CALL_EXTRAS = ("namespace", "caller", "async")
"""Fields of a call that have to go back with it."""

_EXTENSIONS: Mapping[str, str] = {"text/plain": ".txt", "text/markdown": ".md", "application/pdf": ".pdf"}

Wire = dict[str, Any]


def input_items(name: str, messages: Sequence[Message], *, stored: bool) -> list[Wire]:
    """The items of a conversation; raises ProviderError (INVALID_REQUEST) for what the format cannot say.

    `stored` says that the server keeps its replies, so that reasoning without its content can go back by its id.
    """
    items: list[Wire] = []
    taken: set[str] = set()
    waiting: list[tuple[str, CallPart]] = []
    for message in paired(messages):
        if isinstance(message, ToolMessage):
            call_id, call = waiting.pop(0)
            items.append(_result(name, call_id, call, message))
        elif isinstance(message, AssistantMessage):
            waiting = named_calls(name, message, taken)
            items += _reply_items(name, message, waiting, stored=stored)
        elif message.parts:
            role = "developer" if isinstance(message, SystemMessage) else "user"
            items.append({"role": role, "content": _content(name, message.parts)})
    return items


def _reply_items(
    name: str, message: AssistantMessage, calls: Sequence[tuple[str, CallPart]], *, stored: bool
) -> list[Wire]:
    items: list[Wire] = []
    held: list[Mapping[str, Any]] = []
    call_ids = iter([call_id for call_id, _ in calls])
    for part in message.parts:
        details = own_details(part.details, name) if not isinstance(part, BlobPart) else {}
        if isinstance(part, BlobPart):
            raise _unresolved(name, part)
        if isinstance(part, ThinkingPart):
            opaque = details.get("item")
            if not isinstance(opaque, Mapping):
                continue
            item, kind = clean_json(opaque), opaque.get("type")
            if kind == "reasoning":
                if stored or opaque.get("encrypted_content") or opaque.get("content"):
                    held.append(details)
                continue
        elif isinstance(part, CallPart):
            item, kind = _call(next(call_ids), part, details), details.get("id") or "function_call"
        elif part.text:
            item, kind = _message(part, details), "message"
        else:
            continue
        reasoning = held if _leads_to(held, kind) else []
        held = []
        if reasoning or not details.get("after_reasoning"):
            items += [*(clean_json(before["item"]) for before in reasoning), item]
    return items


def _leads_to(held: Sequence[Mapping[str, Any]], kind: object) -> bool:
    """Whether each of the reasoning items stands before what it stood before when it came."""
    followed = [*("reasoning" for _ in held[1:]), kind]
    return (
        all(before.get("next", after) == after for before, after in zip(held, followed, strict=True)) if held else False
    )


def _message(part: TextPart, details: Mapping[str, Any]) -> Wire:
    phase = {"phase": details["phase"]} if details.get("phase") else {}
    return {"role": "assistant", "content": clean(part.text), **phase}


def _call(call_id: str, call: CallPart, details: Mapping[str, Any]) -> Wire:
    return {
        "type": "function_call",
        "call_id": call_id,
        # A made-up name that the format forbids would have the whole conversation refused from now on.
        "name": re.sub(r"[^A-Za-z0-9_-]", "_", call.tool)[:64] or "unnamed",
        "arguments": json.dumps(clean_json(call.arguments), ensure_ascii=False, separators=(",", ":")),
        **{field: details[field] for field in CALL_EXTRAS if field in details},
    }


def _result(name: str, call_id: str, call: CallPart, message: ToolMessage) -> Wire:
    details = own_details(call.details, name)
    caller = {"caller": details["caller"]} if "caller" in details else {}
    return {"type": "function_call_output", "call_id": call_id, "output": _content(name, message.parts), **caller}


def _content(name: str, parts: Sequence[UserPart]) -> str | list[Wire]:
    """Text alone as one string, anything else as a list in the order of the parts."""
    for part in parts:
        if isinstance(part, BlobPart):
            raise _unresolved(name, part)
    texts = [clean(part.text) for part in parts if isinstance(part, TextPart) and part.text]
    if not any(isinstance(part, ImagePart | DocumentPart) for part in parts):
        return "\n\n".join(texts)
    content: list[Wire] = []
    for part in parts:
        if isinstance(part, ImagePart):
            content.append(_image(name, part))
        elif isinstance(part, DocumentPart):
            content.append(_document(name, part))
        elif isinstance(part, TextPart) and part.text:
            content.append({"type": "input_text", "text": clean(part.text)})
    return content


def _image(name: str, part: ImagePart) -> Wire:
    url = part.url or _data_url(name, part, "an image")
    return {"type": "input_image", "detail": "auto", "image_url": url}


def _document(name: str, part: DocumentPart) -> Wire:
    if part.url:
        return {"type": "input_file", "file_url": part.url}
    filename = clean(part.name or f"document{_EXTENSIONS.get(part.media_type or '', '')}")
    return {"type": "input_file", "filename": filename, "file_data": _data_url(name, part, "a document")}


def _data_url(name: str, part: ImagePart | DocumentPart, what: str) -> str:
    if not part.base64 or not part.media_type:
        raise ProviderError(
            ErrorKind.INVALID_REQUEST, f"{name}: {what} needs a url, or base64 data together with its media_type"
        )
    return f"data:{part.media_type};base64,{part.base64}"


def _unresolved(name: str, part: BlobPart) -> ProviderError:
    return ProviderError(
        ErrorKind.INVALID_REQUEST,
        f"{name}: blob {part.digest} has to be read from its store before the request is built",
    )
