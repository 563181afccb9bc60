"""Tool calls of a Chat Completions reply, put together from their fragments.

The rules are tried in this order: an id that is known belongs to its call. A new id opens a call, unless the call at
that index still lacks an id. Without an id, a known index means the newest call there. Without id and known index, a
fragment opens a call when it has a name or stands beside another one in its delta, and continues the newest call
otherwise. A name fragment equal to the whole name known so far is a repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.model_call import RawCall
from providers.text import clean, clean_json


@dataclass
class _Call:
    index: object = None
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    whole: Mapping[str, Any] | None = None
    """Arguments that came as an object instead of text."""
    extra: dict[str, Any] = field(default_factory=dict)
    function_extra: dict[str, Any] = field(default_factory=dict)

    def add(self, entry: Mapping[str, Any]) -> None:
        self.id = self.id or _text(entry.get("id"))
        _keep(self.extra, entry, ("index", "id", "type", "function"))
        function = entry.get("function")
        if not isinstance(function, Mapping):
            return
        name, arguments = _text(function.get("name")), function.get("arguments")
        if name != self.name:
            self.name += name
        if isinstance(arguments, str):
            self.pieces.append(arguments)
        elif isinstance(arguments, Mapping):
            self.whole = arguments
        _keep(self.function_extra, function, ("name", "arguments"))

    def raw(self, provider: str) -> RawCall:
        details: dict[str, Any] = {"provider": provider}
        if self.id:
            details["id"] = clean(self.id)
        if self.function_extra:
            details["function"] = clean_json(self.function_extra)
        details |= clean_json(self.extra)
        arguments: str | Mapping[str, Any] | None = clean("".join(self.pieces)) if self.pieces else None
        return RawCall(
            tool=clean(self.name),
            arguments=arguments if self.whole is None else clean_json(self.whole),
            details=details,
        )


class Calls:
    """The calls of one reply."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add_fragments(self, entries: list[Mapping[str, Any]]) -> None:
        """Take the `tool_calls` of one delta."""
        for entry in entries:
            self._call_of(entry, alone=len(entries) == 1).add(entry)

    def add_whole(self, entries: list[Mapping[str, Any]]) -> None:
        """Take the `tool_calls` of one whole message: each entry is a call of its own."""
        for entry in entries:
            self._open(None).add(entry)

    def raw(self, provider: str) -> tuple[RawCall, ...]:
        """The calls in the order in which they began."""
        return tuple(call.raw(provider) for call in self._calls)

    def _call_of(self, entry: Mapping[str, Any], *, alone: bool) -> _Call:
        call_id, index = _text(entry.get("id")), entry.get("index")
        at_index = None if index is None else self._newest(lambda call: call.index == index)
        if call_id:
            known = self._newest(lambda call: call.id == call_id)
            return known or (at_index if at_index and not at_index.id else self._open(index))
        if at_index:
            return at_index
        function = entry.get("function")
        named = isinstance(function, Mapping) and _text(function.get("name"))
        return self._open(index) if named or not alone or not self._calls else self._calls[-1]

    def _newest(self, fits: Any) -> _Call | None:
        return next((call for call in reversed(self._calls) if fits(call)), None)

    def _open(self, index: object) -> _Call:
        self._calls.append(_Call(index=index))
        return self._calls[-1]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _keep(kept: dict[str, Any], entry: Mapping[str, Any], known: tuple[str, ...]) -> None:
    kept.update({name: value for name, value in entry.items() if name not in known and value is not None})
