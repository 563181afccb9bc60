"""Ids of calls on the wire, the same on both halves of a call and its result."""

from __future__ import annotations

from perdure.messages import AssistantMessage, CallPart
from providers.details import own_details


def named_calls(name: str, message: AssistantMessage, taken: set[str]) -> list[tuple[str, CallPart]]:
    """Each call with its id on the wire: the server's own where it is usable and unique, else ours."""
    named = []
    for call in message.calls:
        wanted = own_details(call.details, name).get("id")
        call_id = wanted if isinstance(wanted, str) and wanted and wanted not in taken else call.id
        again = 2
        while call_id in taken:
            call_id, again = f"{call.id}_{again}", again + 1
        taken.add(call_id)
        named.append((call_id, call))
    return named
