"""The seam between a call of a model and the wire: pure functions from a request to bytes, from bytes to a reply.

A provider never sends anything. `activities.model` sends what `build` returns and feeds what comes back to `parse` (one
body) or to a `Fold` (a stream of server-sent events).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from perdure.model_call import ModelReply, ModelRequest


@dataclass(frozen=True)
class WireRequest:
    """An HTTP request without host or credentials."""

    path: str
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: bool = True
    method: str = "POST"
    """`GET` has no body."""


@dataclass(frozen=True)
class WireResponse:
    """A whole HTTP response; `body` may have been capped."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def adapted(request: WireRequest, changes: Mapping[str, str | None]) -> WireRequest:
    """The request with the changes of a provider's `adaptation` applied.

    `a.b` is the field `b` of the object `a`. `a[b]` are the elements of the list `a` that have a field `b`, which can
    only be left out.
    """
    return replace(request, body=_changed(request.body, changes, "")) if changes else request


def _changed(body: Mapping[str, Any], changes: Mapping[str, str | None], parent: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for known, value in body.items():
        path = f"{parent}{known}"
        name = changes.get(path, known)
        if name is None:
            continue
        if isinstance(value, Mapping):
            value = _changed(value, changes, f"{path}.")
        elif isinstance(value, list):
            value = [item for item in value if not _is_left_out(item, path, changes)]
        made[name] = value
    return made


def _is_left_out(item: Any, path: str, changes: Mapping[str, str | None]) -> bool:
    return isinstance(item, Mapping) and any(f"{path}[{field}]" in changes for field in item)


@dataclass(frozen=True)
class ServerSentEvent:
    """One event of a text/event-stream."""

    data: str
    event: str = "message"


class Fold(Protocol):
    """Accumulates a stream; raises ProviderError on an error event."""

    def feed(self, event: ServerSentEvent) -> str:
        """Take one event and return the text that it adds to the answer."""
        ...

    def finish(self) -> ModelReply:
        """The complete reply; raises ProviderError where the stream did not prove its end."""
        ...


class Provider(Protocol):
    """One wire format."""

    name: str

    def build(self, request: ModelRequest) -> WireRequest:
        """Translate a request; raises ProviderError for what the format cannot say."""
        ...

    def parse(self, response: WireResponse) -> ModelReply:
        """Translate one whole body with status 2xx; raises ProviderError."""
        ...

    def fold(self) -> Fold:
        """A fresh accumulator for a streamed reply."""
        ...

    def adaptation(self, request: WireRequest, response: WireResponse) -> Mapping[str, str | None]:
        """Changes after which a refused request may be accepted: field to its new name, or to None to leave it out."""
        ...

    def failure(self, response: WireResponse, now: float) -> Exception:
        """The ProviderError of a response with another status; `now` (epoch seconds) is for Retry-After dates."""
        ...


@runtime_checkable
class BackgroundFold(Fold, Protocol):
    """A fold of a reply that the server may go on with though nobody listens."""

    ticket: Mapping[str, str] | None
    """What to ask for it by, once the server has said that it does; None where it does not."""
    after: int | None
    """The number of the last event that was fed; None before the first."""


@runtime_checkable
class BackgroundProvider(Provider, Protocol):
    """A wire format in which a reply can be asked for again."""

    def resumed(self, ticket: Mapping[str, str], after: int | None) -> WireRequest:
        """The request for the rest of a reply, from the event behind `after` on; with None for all of its events."""
        ...

    def cancelled(self, ticket: Mapping[str, str]) -> WireRequest:
        """The request that ends a reply which nobody wants any more."""
        ...
