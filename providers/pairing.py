"""Calls and results paired as every provider wants them; only the outgoing copy is changed."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.messages import AssistantMessage, Message, ToolMessage, text

INTERRUPTED = "interrupted, not executed"


def paired(messages: Iterable[Message]) -> list[Message]:
    """The messages with exactly one result for each call, right after the calls and in their order.

    A call without a result gets `INTERRUPTED` as an error. A result without an earlier call, or a second one, is left
    out.
    """
    result: list[Message] = []
    open_slots: dict[str, list[int]] = {}
    for message in messages:
        if isinstance(message, ToolMessage):
            if slots := open_slots.get(message.call):
                result[slots.pop(0)] = message
            continue
        result.append(message)
        if isinstance(message, AssistantMessage):
            # An id that is used again belongs to the later call from here on.
            open_slots.update({call.id: [] for call in message.calls})
            for call in message.calls:
                open_slots[call.id].append(len(result))
                result.append(ToolMessage(role="tool", call=call.id, parts=text(INTERRUPTED), error=True))
    return result
