"""What an agent's `verify` function sees of a run before its answer is accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.messages import AssistantMessage, Message, ToolMessage, text_of


@dataclass(frozen=True)
class ToolCallRecord:
    """A tool call of the run with what it gave."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    result: str
    error: bool


@dataclass(frozen=True)
class VerifyContext:
    """The answer and how it came about; return None to accept it, or what to fix."""

    output: str
    structured: Any
    messages: Sequence[Message]
    data: Any = None
    tenant: str | None = None
    user: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    state: Any = None

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        """All calls with arguments and results, in order."""
        return list(_calls(self.messages))


def _calls(messages: Sequence[Message]) -> Iterator[ToolCallRecord]:
    results = {m.call: m for m in messages if isinstance(m, ToolMessage)}
    for message in messages:
        for call in message.calls if isinstance(message, AssistantMessage) else ():
            result = results.get(call.id)
            yield ToolCallRecord(
                call_id=call.id,
                tool=call.tool,
                arguments=call.arguments,
                result=text_of(result) if result else "",
                error=result.error if result else True,
            )
