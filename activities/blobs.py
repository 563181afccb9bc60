"""Large texts and arguments of messages: kept in the blob store, fetched where they are needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from activities.stores.base import BlobStore, StoreDown
from perdure.canonical import canonical_json
from perdure.contracts import OFFLOAD_CHARS
from perdure.excerpt import excerpt
from perdure.messages import AssistantPart, BlobPart, CallPart, TextPart, UserPart, Whole

P = TypeVar("P", UserPart, AssistantPart)
T = TypeVar("T")

PREVIEW = 1_000
"""Characters of a large text that stay in its message."""
PAUSES, BRIEF = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0), (1.0, 2.0, 4.0)
"""Seconds before what a store refused is tried again: where a paid reply would be lost, and before a tool begins."""


async def shrink_parts(
    parts: tuple[P, ...], store: BlobStore, most: int = OFFLOAD_CHARS, kept: int = PREVIEW
) -> tuple[P, ...]:
    """The parts with every text of `most` characters or more replaced by its first `kept` and a reference.

    Raises StoreDown.
    """
    return tuple([cast(P, await _shrink(part, store, most, kept)) for part in parts])


async def shrink_call(call: CallPart, store: BlobStore) -> CallPart:
    """The call with an excerpt of its arguments, and a reference to them; raises StoreDown."""
    data = canonical_json(call.arguments).encode()
    whole = Whole(digest=await store.put(data), size=len(data))
    return call.model_copy(update={"arguments": excerpt(call.arguments), "whole": whole})


async def resolve_parts(parts: tuple[P, ...], store: BlobStore) -> tuple[P, ...]:
    """The parts with every reference replaced by what it means; raises BlobMissing, BlobCorrupt, StoreDown."""
    return tuple([cast(P, await _resolve(part, store)) for part in parts])


async def resolve_arguments(arguments: dict[str, Any], whole: Whole | None, store: BlobStore) -> dict[str, Any]:
    """The arguments of a call, all of them; raises BlobMissing, BlobCorrupt, StoreDown."""
    if whole is None:
        return arguments
    resolved: dict[str, Any] = json.loads(await store.get(whole.digest))
    return resolved


async def patiently(work: Callable[[], Awaitable[T]], pauses: Sequence[float] = PAUSES) -> T:
    """Do it, and again after each pause while the store is down; raises StoreDown in the end."""
    for pause in pauses:
        try:
            return await work()
        except StoreDown:
            await asyncio.sleep(pause)
    return await work()


async def _shrink(part: P, store: BlobStore, most: int, kept: int) -> P | BlobPart:
    if not isinstance(part, TextPart) or len(part.text) < most:
        return part
    preview = f"{part.text[:kept]}\n[... {len(part.text)} characters in all ...]"
    digest = await store.put(part.text.encode())
    return BlobPart(type="blob", digest=digest, size=len(part.text), preview=preview, details=part.details)


async def _resolve(part: P, store: BlobStore) -> P | TextPart | CallPart:
    if isinstance(part, BlobPart):
        return TextPart(type="text", text=(await store.get(part.digest)).decode(), details=part.details)
    if isinstance(part, CallPart) and part.whole is not None:
        arguments = await resolve_arguments(part.arguments, part.whole, store)
        return part.model_copy(update={"arguments": arguments, "whole": None})
    return part
