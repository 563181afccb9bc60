"""A conversation as Gemini's `contents`: turns of user and model in alternation, each call with one result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
    UserMessage,
)
from providers.details import own_details
from providers.pairing import paired
from providers.text import clean, clean_json

Wire = dict[str, Any]

EARLIER = "(The conversation began earlier.)"
"""Stands where a conversation begins with the model's turn, which the API refuses."""

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_MEDIA_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "heic": "image/heic",
    "heif": "image/heif",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "csv": "text/csv",
    "html": "text/html",
    "md": "text/markdown",
}


def contents(name: str, model: str, messages: Iterable[Message]) -> list[Wire]:
    """The turns without what is instruction; raises ProviderError (INVALID_REQUEST) for what the format cannot say."""
    turns: list[Wire] = []
    taken: set[str] = set()
    waiting: list[tuple[str | None, CallPart]] = []
    files: list[Wire] = []
    for message in paired(m for m in messages if not isinstance(m, SystemMessage)):
        if isinstance(message, ToolMessage):
            call_id, call = waiting.pop(0)
            shown = [_file(name, part) for part in message.parts if isinstance(part, ImagePart | DocumentPart)]
            _add(turns, "user", [_result(name, call_id, call, message, files=bool(shown))])
            if shown:
                files += [{"text": f"Files from the result of {_tool_name(call.tool)}:"}, *shown]
            if not waiting and files:
                # Not every model takes files inside a result; beside the results each does.
                _add(turns, "user", files)
                files = []
        elif isinstance(message, AssistantMessage):
            waiting = _identified(name, message, taken)
            _add(turns, "model", _model_parts(name, model, message, [call_id for call_id, _ in waiting]))
        elif isinstance(message, UserMessage):
            _add(turns, "user", [wire for part in message.parts if (wire := _user_part(name, part))])
    if turns and turns[0]["role"] == "model":
        turns.insert(0, {"role": "user", "parts": [{"text": EARLIER}]})
    return turns


def plain(name: str, message: SystemMessage | ToolMessage, *, files: bool = False) -> str:
    """The text of a message; raises ProviderError for a file, unless `files` are sent beside it, and for a blob."""
    texts = []
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(clean(part.text))
        elif isinstance(part, BlobPart):
            raise _unresolved(name, part)
        elif not files:
            raise _refused(name, f"this {part.type} cannot stand in a {message.role} message")
    return "\n\n".join(texts)


def _add(turns: list[Wire], role: str, parts: Sequence[Wire]) -> None:
    if not parts:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["parts"] += parts
    else:
        turns.append({"role": role, "parts": [*parts]})


def _identified(name: str, message: AssistantMessage, taken: set[str]) -> list[tuple[str | None, CallPart]]:
    """Each call with the server's id; without one the API pairs by name and order, so only a double one is replaced."""
    named: list[tuple[str | None, CallPart]] = []
    for call in message.calls:
        wanted = own_details(call.details, name).get("id")
        call_id = wanted if isinstance(wanted, str) and wanted else None
        again = 2
        while call_id in taken:
            call_id, again = f"{wanted}_{again}", again + 1
        if call_id:
            taken.add(call_id)
        named.append((call_id, call))
    return named


def _model_parts(name: str, model: str, message: AssistantMessage, ids: list[str | None]) -> list[Wire]:
    parts: list[Wire] = []
    for part in message.parts:
        if isinstance(part, BlobPart):
            raise _unresolved(name, part)
        signature = own_details(part.details, name, model).get("thoughtSignature")
        signed = {"thoughtSignature": signature} if isinstance(signature, str) and signature else {}
        if isinstance(part, CallPart):
            call: Wire = {"name": _tool_name(part.tool), "args": clean_json(part.arguments)}
            call_id = ids.pop(0)
            parts.append({"functionCall": {"id": call_id, **call} if call_id else call, **signed})
        elif isinstance(part, ThinkingPart):
            parts += [{"text": clean(part.text), "thought": True, **signed}] if signed else []
        elif part.text or signed:
            parts.append({"text": clean(part.text), **signed})
    return parts


def _result(name: str, call_id: str | None, call: CallPart, message: ToolMessage, *, files: bool) -> Wire:
    text = plain(name, message, files=True) or ("(see the files that follow)" if files else "")
    response: Wire = {"name": _tool_name(call.tool), "response": {"error" if message.error else "result": text}}
    return {"functionResponse": {"id": call_id, **response} if call_id else response}


def _tool_name(tool: str) -> str:
    # A made-up name that the format forbids would have the whole conversation refused from now on.
    made = re.sub(r"[^A-Za-z0-9_.:-]", "_", tool)
    return (made if re.match(r"[A-Za-z_]", made) else f"_{made}")[:128]


def _user_part(name: str, part: TextPart | ImagePart | DocumentPart | BlobPart) -> Wire | None:
    if isinstance(part, BlobPart):
        raise _unresolved(name, part)
    if isinstance(part, TextPart):
        return {"text": clean(part.text)} if part.text else None
    return _file(name, part)


def _file(name: str, part: ImagePart | DocumentPart) -> Wire:
    data, media_type = part.base64, part.media_type
    if part.url:
        if not (inline := _DATA_URL.fullmatch(part.url)):
            ending = re.split(r"[?#]", part.url)[0].rpartition(".")[2].lower()
            media_type = media_type or _MEDIA_TYPES.get(ending)
            return {"fileData": {"fileUri": part.url, **({"mimeType": media_type} if media_type else {})}}
        media_type, data = inline.groups()
    if not data or not media_type:
        raise _refused(name, f"this {part.type} needs a url, or base64 data together with its media_type")
    return {"inlineData": {"mimeType": media_type, "data": data}}


def _refused(name: str, what: str) -> ProviderError:
    return ProviderError(ErrorKind.INVALID_REQUEST, f"{name}: {what}")


def _unresolved(name: str, part: BlobPart) -> ProviderError:
    return _refused(name, f"blob {part.digest} has to be read from its store before the request is built")
