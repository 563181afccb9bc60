"""One call of a model in our vocabulary: what is asked and what comes back; providers translate it into bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

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


class Finish(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    FILTERED = "filtered"
    REFUSED = "refused"
    PAUSED = "paused"
    """The server is not done with its own tools: the same conversation, asked again, goes on."""


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
