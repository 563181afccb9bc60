"""The seam between a run and a model: pure functions from a request to bytes, and from bytes to a reply.

A provider never sends anything. `activities.model` sends what `build` returns and feeds what comes back to `parse` (one
body) or to a `Fold` (a stream of server-sent events).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from perdure.messages import Message, Usage


@dataclass(frozen=True)
class ToolDefinition:
    """A tool as a model sees it; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class ModelRequest:
    """Everything one model call needs, in our vocabulary."""

    model: str
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `required`, `none` or the name of a tool."""
    parallel_tools: bool = True
    output_schema: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the provider as they are (temperature, reasoning_effort, ...); they win over what we set."""


@dataclass(frozen=True)
class WireRequest:
    """An HTTP request without host or credentials."""

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: bool = True


@dataclass(frozen=True)
class WireResponse:
    """A whole HTTP response; `body` may have been capped."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def adapted(request: WireRequest, changes: Mapping[str, str | None]) -> WireRequest:
    """The request with the changes of a provider's `adaptation` applied."""
    body = {}
    for known, value in request.body.items():
        name = changes.get(known, known)
        if name is not None:
            body[name] = value
    return replace(request, body=body)


class Finish(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    FILTERED = "filtered"
    REFUSED = "refused"


@dataclass(frozen=True)
class RawCall:
    """A tool call as the provider sent it: `arguments` undecoded text, or an object where the provider sends one."""

    tool: str
    arguments: str | Mapping[str, Any] | None
    details: Mapping[str, Any] | None = None
    """The provider's own id (`id`) and whatever has to go back with the call."""


@dataclass(frozen=True)
class RawText:
    """Text of the answer."""

    text: str
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RawThinking:
    """Reasoning that the provider showed; `details` must go back as it came."""

    text: str
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ModelReply:
    """A complete reply: parts in the provider's order, with proof that it ended."""

    parts: tuple[RawText | RawThinking | RawCall, ...]
    finish: Finish
    usage: Usage | None
    """None where the provider reported none."""
    announced_calls: bool = False
    """The provider said that it stopped for tool calls."""
    model: str = ""


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
