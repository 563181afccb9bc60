"""What stands in messages of the Chat Completions format: text, images and documents."""

from __future__ import annotations

import base64
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import BlobPart, DocumentPart, ImagePart, SystemMessage, TextPart, ToolMessage, UserMessage
from providers.text import clean

Wire = dict[str, Any]


def user_content(name: str, message: UserMessage) -> str | list[Wire]:
    """The content of a user message; raises ProviderError (INVALID_REQUEST) for what the format cannot say."""
    if not any(isinstance(part, ImagePart | DocumentPart) for part in message.parts):
        return plain(name, message)
    content: list[Wire] = []
    for part in message.parts:
        if isinstance(part, BlobPart):
            raise unresolved(name, part)
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": clean(part.text)})
        else:
            content.append(_image(name, part) if isinstance(part, ImagePart) else _document(name, part))
    return content


def plain(name: str, message: SystemMessage | UserMessage | ToolMessage, *, beside: bool = False) -> str:
    """The text of a message; raises ProviderError for a blob, and for a file unless it is sent `beside`."""
    texts = []
    for part in message.parts:
        if isinstance(part, BlobPart):
            raise unresolved(name, part)
        if isinstance(part, TextPart):
            texts.append(clean(part.text))
        elif not beside:
            raise ProviderError(
                ErrorKind.INVALID_REQUEST, f"{name}: this {part.type} cannot stand in a {message.role} message"
            )
    return "\n\n".join(texts)


def shown_by_tool(name: str, message: ToolMessage) -> tuple[str, list[Wire]]:
    """The images and documents of a result, and the word for them."""
    files = [part for part in message.parts if isinstance(part, ImagePart | DocumentPart)]
    return "files" if any(isinstance(part, DocumentPart) for part in files) else "image", [
        _shown(name, p) for p in files
    ]


def _shown(name: str, part: ImagePart | DocumentPart) -> Wire:
    if isinstance(part, ImagePart):
        return _image(name, part)
    if part.base64 and part.media_type:
        return _document(name, part)
    # What no author chose must not have the conversation refused for ever.
    return {"type": "text", "text": f"(this document cannot be shown: {clean(part.url or part.name or 'no data')})"}


def _image(name: str, part: ImagePart) -> Wire:
    if part.url:
        return {"type": "image_url", "image_url": {"url": part.url}}
    if not part.base64 or not part.media_type:
        raise ProviderError(
            ErrorKind.INVALID_REQUEST, f"{name}: an image needs a url, or base64 data together with its media_type"
        )
    return {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{part.base64}"}}


def _document(name: str, part: DocumentPart) -> Wire:
    if not part.base64 or not part.media_type:
        raise ProviderError(
            ErrorKind.INVALID_REQUEST, f"{name}: a document must be base64 data together with its media_type"
        )
    if part.media_type.startswith("text/") or part.media_type == "application/json":
        # As a file servers take nothing but PDF.
        return {"type": "text", "text": clean(f"{part.name}:\n" if part.name else "") + _decoded(name, part.base64)}
    data = f"data:{part.media_type};base64,{part.base64}"
    return {"type": "file", "file": {"filename": part.name or "document", "file_data": data}}


def _decoded(name: str, data: str) -> str:
    try:
        return base64.b64decode(data).decode(errors="replace")
    except ValueError as error:
        raise ProviderError(ErrorKind.INVALID_REQUEST, f"{name}: the base64 of a document cannot be read") from error


def unresolved(name: str, part: BlobPart) -> ProviderError:
    """The error for a part that lies in the blob store still."""
    return ProviderError(
        ErrorKind.INVALID_REQUEST,
        f"{name}: blob {part.digest} has to be read from its store before the request is built",
    )
