"""Images and documents: what a tool may return and a run may be given, and how they are told of in words."""

from __future__ import annotations

import base64 as coding
import binascii
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from perdure.messages import DocumentPart, ImagePart

Shown = TypeVar("Shown", ImagePart, DocumentPart)

MOST_BYTES = 1_200_000
"""Of all images and documents of one message: they ride in it, and a query's answer must hold it (2 MiB)."""
MOST_BESIDE = 50_000
"""Characters of the texts beside them in a tool's result."""

_ADDRESS = re.compile(r"https?://[^\s/]\S*|data:\S+")
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_PDF = "application/pdf"
_BEGINNINGS = ((b"\x89PNG\r\n\x1a\n", _IMAGES[0]), (b"\xff\xd8\xff", _IMAGES[1]), (b"GIF8", _IMAGES[2]))


class Image:
    """A picture that a tool returns, alone or in a list beside texts: by its bytes, as base64 or by its address.

    The media type of PNG, JPEG, GIF and WebP is seen in the bytes; others need `media_type`. Raises ValueError, which
    the model is told, where there is nothing that can be shown.
    """

    def __init__(
        self,
        data: bytes | None = None,
        *,
        base64: str | None = None,
        url: str | None = None,
        media_type: str | None = None,
    ) -> None:
        held = _held("Image", data, base64, url)
        self.part = checked(ImagePart(type="image", url=url, base64=held, media_type=media_type))
        if held is not None and media_type_of(held) is None and self.part.media_type in (None, *_IMAGES):
            raise ValueError("Image: these bytes are no PNG, JPEG, GIF or WebP; give the media_type of another kind")

    def __repr__(self) -> str:
        return in_words(self.part)


class Document:
    """A document that a tool returns, such as a PDF or a text: by its bytes, as base64 or by its address.

    The media type of PDF and of text is seen in the bytes; others need `media_type`. Raises ValueError, which the model
    is told, where there is nothing that can be shown.
    """

    def __init__(
        self,
        data: bytes | None = None,
        *,
        base64: str | None = None,
        url: str | None = None,
        media_type: str | None = None,
        name: str | None = None,
    ) -> None:
        held = _held("Document", data, base64, url)
        if held is not None and media_type is None and media_type_of(held) is None:
            media_type = "text/plain" if _is_text(held) else None
            if media_type is None:
                raise ValueError("Document: these bytes are neither PDF nor text; give their media_type")
        part = DocumentPart(type="document", url=url, base64=held, media_type=media_type, name=name)
        self.part = checked(part)
        if held is not None and self.part.media_type == _PDF and media_type_of(held) is None:
            raise ValueError("Document: these bytes are no PDF; give the media_type of another kind")

    def __repr__(self) -> str:
        return in_words(self.part)


def checked(part: Shown) -> Shown:
    """The part with the media type that its bytes show; raises ValueError, which names the field and the fix."""
    kind = part.type
    if (part.url is None) == (part.base64 is None):
        raise ValueError(f"{'an' if kind == 'image' else 'a'} {kind} needs either 'url' or 'base64'")
    if part.url is not None:
        if not _ADDRESS.fullmatch(part.url):
            raise ValueError("url: must begin with http://, https:// or data:")
        return part
    if not _is_base64(part.base64 or ""):
        raise ValueError("base64: must be its bytes in base64, without spaces")
    seen = media_type_of(part.base64 or "")
    if seen is not None and (seen in _IMAGES) is not (kind == "image"):
        raise ValueError(f"base64: these are the bytes of {seen}, so this must be {_OTHER[kind]}")
    if seen is None and kind == "image" and part.media_type and not part.media_type.startswith("image/"):
        raise ValueError("media_type: that of an image begins with image/")
    return part if seen in (None, part.media_type) else part.model_copy(update={"media_type": seen})


_OTHER = {"image": "a document", "document": "an image"}


def media_type_of(base64: str) -> str | None:
    """What the first bytes show: a kind of image that every vendor takes, PDF, or nothing that is known."""
    data = coding.b64decode(base64[:1_368] if len(base64) > 1_368 else base64)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _IMAGES[3]
    if b"%PDF-" in data[:1_024]:
        return _PDF
    return next((kind for beginning, kind in _BEGINNINGS if data.startswith(beginning)), None)


def in_words(part: ImagePart | DocumentPart) -> str:
    """What stands for it where bytes cannot: `[image image/png 12 KB]`."""
    named = part.name if isinstance(part, DocumentPart) else None
    if part.url is not None and not part.url.startswith("data:"):
        shown = [part.media_type, part.url[:200]]
    else:
        kind = part.media_type or (part.url or "").removeprefix("data:").partition(";")[0]
        shown = [kind, _amount(bytes_of(part))]
    return f"[{' '.join(word for word in (part.type, *shown, named) if word)}]"


def bytes_of(part: ImagePart | DocumentPart) -> int:
    """How many bytes ride in a message with it, about."""
    held = part.base64 or part.url or ""
    return len(held) * 3 // 4 - held[-2:].count("=")


def too_large(parts: Iterable[Any]) -> str | None:
    """Why these parts do not fit one message, if they do not."""
    shown = [part for part in parts if isinstance(part, ImagePart | DocumentPart)]
    size = sum(bytes_of(part) for part in shown)
    if size <= MOST_BYTES:
        return None
    listed = " ".join(in_words(part) for part in shown[:5])
    return f"{listed}: {_amount(size)} of images and documents, and a message holds {_amount(MOST_BYTES)}"


def _amount(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB" if size >= 1_000_000 else f"{max(1, round(size / 1_000))} KB"


def _held(what: str, data: bytes | None, base64: str | None, url: str | None) -> str | None:
    if sum(given is not None for given in (data, base64, url)) != 1:
        raise ValueError(f"{what}: give one of the bytes, base64= and url=")
    if data is None:
        return base64
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ValueError(f"{what}: takes bytes, not {type(data).__name__}; read a file with Path(...).read_bytes()")
    return coding.b64encode(data).decode()


def _is_base64(text: str) -> bool:
    try:
        return bool(coding.b64decode(text, validate=True))
    except ValueError:
        return False


def _is_text(base64: str) -> bool:
    try:
        return "\0" not in coding.b64decode(base64).decode()
    except (UnicodeDecodeError, binascii.Error):
        return False
