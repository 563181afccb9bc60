"""A streamed reply in the OpenAI Responses format, put together item by item.

Every event names its item by `output_index`. A delta adds to a piece of the item, a `done` event says the piece or the
item whole and wins over its deltas, and the response object at the end wins over everything that was streamed. Only
reasoning is taken as its `output_item.done` said it: that is where the API promises its complete encrypted content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.model_call import ModelReply
from providers.base import ServerSentEvent
from providers.failures import reported, shorten
from providers.responses.reply import failed, mapping, mappings, reply_of, string, text_in
from providers.text import TextJoiner, clean

_PIECES: Mapping[str, tuple[str, str]] = {
    "response.output_text": ("output_text", "content_index"),
    "response.refusal": ("refusal", "content_index"),
    "response.reasoning_text": ("reasoning_text", "content_index"),
    "response.reasoning_summary_text": ("summary_text", "summary_index"),
    "response.function_call_arguments": ("arguments", ""),
}
"""Events whose `.delta` and `.done` speak of a piece: its kind, and the field with its place in the item."""
_FIELDS: Mapping[str, tuple[str, str]] = {
    "output_text": ("content", "message"),
    "refusal": ("content", "message"),
    "reasoning_text": ("content", "reasoning"),
    "summary_text": ("summary", "reasoning"),
}
"""Where a piece lies in its item, and what that is."""
_SHOWN = ("output_text", "refusal")
_ENDS: Mapping[str, str] = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}


class ResponseFold:
    """Accumulates a streamed reply; raises ProviderError for an error in the stream."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: dict[int, _Item] = {}
        self._end: dict[str, Any] | None = None
        self.ticket: Mapping[str, str] | None = None
        """The `id` of a reply in the background."""
        self.after: int | None = None
        """The number of the last event."""

    def feed(self, event: ServerSentEvent) -> str:
        """Take one event and return the text that it adds to the answer."""
        data = event.data.strip()
        if not data or data == "[DONE]" or self._end is not None:
            return ""
        body = self._decode(data, event.event)
        if not isinstance(body, Mapping):
            return ""
        kind = string(body.get("type")) or event.event
        if kind == "error" or (body.get("error") and not kind.startswith("response.")):
            raise failed(self._name, body.get("error") or body)
        if isinstance(number := body.get("sequence_number"), int):
            self.after = number
        if kind == "response.created":
            begun = mapping(body.get("response"))
            if begun.get("background") is True and (known := string(begun.get("id"))):
                self.ticket = {"id": known}
            return ""
        if kind in _ENDS:
            self._close(_ENDS[kind], mapping(body.get("response")))
            return ""
        if kind in ("response.output_item.added", "response.output_item.done"):
            return self._item_of(body).take(mapping(body.get("item")), done=kind.endswith(".done"))
        if kind == "response.content_part.done":
            part = mapping(body.get("part"))
            if part.get("type") in _SHOWN:
                return self._item_of(body).whole(part["type"], _place(body, "content_index"), text_in(part))
            return ""
        name, _, manner = kind.rpartition(".")
        if name not in _PIECES or manner not in ("delta", "done"):
            return ""
        piece, place = _PIECES[name]
        item, at = self._item_of(body), _place(body, place)
        if manner == "delta":
            return item.add(piece, at, string(body.get("delta")))
        return item.whole(piece, at, string(body.get("arguments")) or text_in(body))

    def finish(self) -> ModelReply:
        """The complete reply; raises ProviderError (TRUNCATED_STREAM) where no response object ended the stream."""
        if self._end is None:
            raise ProviderError(ErrorKind.TRUNCATED_STREAM, f"{self._name}: the stream ended before the response did")
        streamed = [self._items[at] for at in sorted(self._items)]
        listed = mappings(self._end.get("output"))
        if not listed:
            return reply_of(self._name, self._end, [item.made() for item in streamed])
        known = {string(item.said.get("id")): item.said for item in streamed if item.done}
        output = [_agreed(item, known.get(string(item.get("id")) or "-", {})) for item in listed]
        return reply_of(self._name, self._end, output)

    def _close(self, status: str, response: Mapping[str, Any]) -> None:
        said = response.get("status")
        self._end = {**response, "status": said if said in _ENDS.values() else status}
        if self._end["status"] == "failed":
            raise failed(self._name, response.get("error") or "the response failed")

    def _item_of(self, body: Mapping[str, Any]) -> _Item:
        at = body.get("output_index")
        wanted = string(body.get("item_id")) or string(mapping(body.get("item")).get("id"))
        if not isinstance(at, int):
            named = (known for known, item in self._items.items() if wanted and item.said.get("id") == wanted)
            at = next(named, max(self._items, default=-1) + 1 if wanted else max(self._items, default=0))
        item = self._items.setdefault(at, _Item())
        if wanted:
            item.said.setdefault("id", wanted)
        return item

    def _decode(self, data: str, event: str) -> Any:
        try:
            return json.loads(data, strict=False)
        except (ValueError, RecursionError) as error:
            if event == "error":
                raise reported(self._name, data) from error
            raise ProviderError(
                ErrorKind.MALFORMED, f"{self._name}: an event of the stream is not JSON: {shorten(data)}"
            ) from error


class _Item:
    """One output item as far as it came."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}
        self.done = False
        self._pieces: dict[tuple[str, int], TextJoiner] = {}
        self._whole: dict[tuple[str, int], str] = {}

    def take(self, item: Mapping[str, Any], *, done: bool) -> str:
        """Take the item as it was announced or ended and return what of it was not shown yet."""
        if done:
            self.said, self.done = dict(item), True
        elif not self.done:
            self.said = dict(item)
        if not done or item.get("type") != "message":
            return ""
        content = [(at, part) for at, part in enumerate(mappings(item.get("content"))) if part.get("type") in _SHOWN]
        return "".join([self.whole(part["type"], at, text_in(part)) for at, part in content])

    def add(self, kind: str, at: int, text: str) -> str:
        """Take a delta; one that comes after the whole piece is a repetition."""
        if (kind, at) in self._whole:
            return ""
        shown = self._pieces.setdefault((kind, at), TextJoiner()).add(text)
        return shown if kind in _SHOWN else ""

    def whole(self, kind: str, at: int, text: str) -> str:
        """Take a whole piece and return what of it was not shown yet, if it goes on where the deltas ended."""
        if (kind, at) in self._whole:
            return ""
        before = self._pieces[kind, at].text() if (kind, at) in self._pieces else ""
        self._whole[kind, at] = text = clean(text) or before
        return text[len(before) :] if kind in _SHOWN and text.startswith(before) else ""

    def made(self) -> Mapping[str, Any]:
        """The item, out of its pieces where it did not come whole."""
        if self.done:
            return self.said
        pieces = {key: joiner.text() for key, joiner in self._pieces.items()} | self._whole
        # What was only announced may be incomplete.
        item = {field: value for field, value in self.said.items() if field != "encrypted_content"}
        told: dict[str, Any] = {}
        for (kind, _), text in sorted(pieces.items(), key=lambda piece: piece[0][1]):
            if kind == "arguments":
                told |= {"type": "function_call", "arguments": text}
                continue
            field, owner = _FIELDS[kind]
            told.setdefault("type", owner)
            told.setdefault(field, []).append({"type": kind, "refusal" if kind == "refusal" else "text": text})
        return {**item, **told, "type": item.get("type") or told.get("type")}


def _agreed(item: Mapping[str, Any], streamed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The item of the final response, with what only the stream said of it."""
    if item.get("type") == "reasoning" and streamed:
        return {**item, **streamed}
    return {**streamed, **{field: value for field, value in item.items() if value is not None}}


def _place(body: Mapping[str, Any], field: str) -> int:
    at = body.get(field)
    return at if isinstance(at, int) else 0
