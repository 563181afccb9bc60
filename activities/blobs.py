"""Large texts of messages: kept in the blob store, fetched for the model."""

from __future__ import annotations

from typing import TypeVar, cast

from activities.stores.base import BlobStore
from perdure.contracts import OFFLOAD_CHARS
from perdure.messages import AssistantPart, BlobPart, TextPart, UserPart

P = TypeVar("P", UserPart, AssistantPart)

PREVIEW = 1_000
"""Characters of a large text that stay in its message."""


async def shrink_parts(parts: tuple[P, ...], store: BlobStore, most: int = OFFLOAD_CHARS) -> tuple[P, ...]:
    """The parts with every text of `most` characters or more replaced by a reference."""
    return tuple([cast(P, await _shrink(part, store, most)) for part in parts])


async def resolve_parts(parts: tuple[P, ...], store: BlobStore) -> tuple[P, ...]:
    """The parts with every reference replaced by its text; raises BlobMissing or BlobCorrupt."""
    return tuple([cast(P, await _resolve(part, store)) for part in parts])


async def _shrink(part: P, store: BlobStore, most: int) -> P | BlobPart:
    if not isinstance(part, TextPart) or len(part.text) < most:
        return part
    preview = f"{part.text[:PREVIEW]}\n[... {len(part.text)} characters in all ...]"
    digest = await store.put(part.text.encode())
    return BlobPart(type="blob", digest=digest, size=len(part.text), preview=preview)


async def _resolve(part: P, store: BlobStore) -> P | TextPart:
    if not isinstance(part, BlobPart):
        return part
    return TextPart(type="text", text=(await store.get(part.digest)).decode())
