"""Server-sent events out of bytes that may be cut anywhere."""

from __future__ import annotations

import re

from perdure.errors import ErrorKind, ProviderError
from providers.base import ServerSentEvent

MAX_EVENT_BYTES = 8 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class Decoder:
    """Splits a text/event-stream into its events.

    Lines are split as bytes, so that neither a cut character nor U+2028 can look like a line end. Raises ProviderError
    (MALFORMED) for an event larger than `max_event_bytes` and for bytes that are not UTF-8.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._line: list[bytes] = []
        self._data: list[str] = []
        self._event = ""
        self._size = 0
        self._skip_line_feed = False
        self._first_line = True

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Take the next bytes and return the events that they complete."""
        if self._skip_line_feed and chunk:
            self._skip_line_feed = False
            chunk = chunk[1:] if chunk.startswith(b"\n") else chunk
        if not chunk:
            return []
        self._skip_line_feed = chunk.endswith(b"\r")
        events: list[ServerSentEvent] = []
        *ends, rest = _LINE_END.split(chunk)
        for end in ends:
            self._extend(end)
            line, self._line = b"".join(self._line), []
            event = self._take(line)
            if event is not None:
                events.append(event)
        self._extend(rest)
        return events

    def close(self) -> None:
        """Say that the bytes ended; raises ProviderError (TRUNCATED_STREAM) inside a character.

        An event without its closing empty line is dropped, as the format demands.
        """
        try:
            b"".join(self._line).decode()
        except UnicodeDecodeError as error:
            raise ProviderError(ErrorKind.TRUNCATED_STREAM, "the stream ended inside a character") from error

    def _extend(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._size > self._limit:
            raise ProviderError(ErrorKind.MALFORMED, f"one event of the stream is larger than {self._limit} bytes")
        self._line.append(piece)

    def _take(self, raw: bytes) -> ServerSentEvent | None:
        if self._first_line:
            self._first_line = False
            raw = raw.removeprefix(_BOM)
        if not raw:
            data, event = "\n".join(self._data), self._event or "message"
            self._data, self._event, self._size = [], "", 0
            return ServerSentEvent(data=data, event=event) if data else None
        if raw.startswith(b":"):
            self._size -= len(raw)
            return None
        try:
            name, _, value = raw.decode().partition(":")
        except UnicodeDecodeError as error:
            raise ProviderError(ErrorKind.MALFORMED, "the stream is not valid UTF-8") from error
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        return None
