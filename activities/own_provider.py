"""A call of a model that an author's own function answers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from activities.rendering import ERROR_CHARS, render_error
from activities.tool_threads import Outcome, ToolThreads
from perdure.canonical import clean_text
from perdure.errors import ErrorKind, ProviderError
from perdure.model_call import Finish, ModelReply, ModelRequest, RawCall, RawText, RawThinking
from perdure.own_providers import OwnProvider

_PARTS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (RawText, RawThinking, RawCall)}
_REPLY: TypeAdapter[ModelReply] = TypeAdapter(ModelReply)


async def answered(
    own: OwnProvider, request: ModelRequest, show: Callable[[str], None], threads: ToolThreads | None
) -> ModelReply:
    """The reply; raises ProviderError, of kind SERVER for whatever else the function raises."""
    loop, context, over = asyncio.get_running_loop(), contextvars.copy_context(), False

    def show_here(text: str) -> None:
        if not over:  # else it would be shown as a part of the next reply
            show(text)

    def show_from_anywhere(text: str) -> None:
        # In the context of the call: a thread of the author's has none.
        loop.call_soon_threadsafe(show_here, str(text), context=context)

    try:
        outcome = await _outcome(own, (request, show_from_anywhere) if own.streams else (request,), threads)
    finally:
        over = True
    if outcome.error is not None:
        raise _failure(own.name, outcome.error) from None
    return _reply(own.name, outcome.value)


async def _outcome(own: OwnProvider, given: tuple[Any, ...], threads: ToolThreads | None) -> Outcome:
    async def call() -> Any:
        return await own.complete(*given)

    if threads is not None:
        return await threads.run(call, {}, None)
    try:
        return Outcome(value=await call())
    except (Exception, SystemExit) as error:  # an author's function fails in its own ways
        return Outcome(error=error)


def _failure(name: str, error: BaseException) -> ProviderError:
    """What the function raised, in our own terms: its fields may hold anything, and its text too."""
    if not isinstance(error, ProviderError):
        return ProviderError(ErrorKind.SERVER, f"{name}: {render_error(error)}")
    if error.kind not in list(ErrorKind):
        return ProviderError(ErrorKind.CONFIGURATION, f"{name}: ProviderError: its kind must be one of ErrorKind")
    delay = error.retry_after
    return ProviderError(
        ErrorKind(error.kind),
        clean_text(str(error)[:ERROR_CHARS]),
        status=error.status,
        retry_after=delay if isinstance(delay, int | float) and delay >= 0 else None,
        request_id=error.request_id,
    )


def _reply(name: str, value: Any) -> ModelReply:
    if isinstance(value, str):
        value = ModelReply(parts=(RawText(value),) if value.strip() else (), finish=Finish.STOP, usage=None)
    if not isinstance(value, ModelReply):
        raise _wrong(name, f"it must return a ModelReply or a text, not {type(value).__name__}")
    try:
        parts = tuple(_PARTS[type(part)].validate_python(_signed(name, part)) for part in value.parts)
        reply = _REPLY.validate_python({**vars(value), "parts": parts})
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise _wrong(name, f"its reply: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (KeyError, TypeError):
        raise _wrong(name, "its reply: parts: must be a tuple of RawText, RawThinking and RawCall") from None
    if not reply.parts:
        raise ProviderError(ErrorKind.MALFORMED, f"{name}: it returned nothing")
    return reply


def _signed(name: str, part: Any) -> dict[str, Any]:
    """The fields of a part; whose its details are is said in them, so that no other provider sends them."""
    fields = dict(vars(part))
    details = fields["details"]
    return {**fields, "details": {"provider": name, **details}} if details and isinstance(details, Mapping) else fields


def _wrong(name: str, problem: str) -> ProviderError:
    return ProviderError(ErrorKind.CONFIGURATION, f"{name}: {problem}")
