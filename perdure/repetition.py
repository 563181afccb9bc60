"""Steps that bring nothing new: near repeats of earlier calls with results that were seen before, or the same words.

Two texts are near when they differ in case, spaces and digits only. Digits of a result count, save those of the call's
own arguments: another page, price or state is something new, an echo of the question is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256

from pydantic import BaseModel, ConfigDict, Field

from perdure.agent import AgentSpec
from perdure.canonical import canonical_json
from perdure.messages import BlobPart, CallPart, ToolMessage, media_of, text_of
from perdure.tools import REPEATABLE

LOOKED_AT = 4_000
"""Characters of a text that are compared: half of them from its beginning, half from its end."""
MOST_SEEN = 1_000
"""Calls and results of a turn that are remembered; the oldest are forgotten."""

_DIGITS = re.compile(r"\d+")


class Repetition(BaseModel):
    """What this turn of the user has seen, and how many steps in a row brought nothing new."""

    model_config = ConfigDict(extra="ignore")

    seen: dict[str, str] = Field(default_factory=dict)
    """Marks of calls, results and words, in the order in which they came first; of a call its last result."""
    idle: int = 0

    def clear(self) -> None:
        """A new turn begins."""
        self.seen, self.idle = {}, 0

    def step(self, spec: AgentSpec, words: str, done: Sequence[tuple[CallPart, ToolMessage]]) -> int:
        """Take note of a reply: what its calls brought, or its words where it has none.

        Returns how many steps in a row, this one included, brought nothing new.
        """
        nothing = [self._is_idle(spec, call, message) for call, message in done]  # all are noted
        idle = all(nothing) if done else self._known(_mark("said", near(words)))
        self.idle = self.idle + 1 if idle else 0
        return self.idle

    def changed(self, call: CallPart, message: ToolMessage) -> bool:
        """Whether exactly this call has had another result the last time: somebody waits for something."""
        mark = _mark("same", call.tool, _arguments(call))
        before, now = self.seen.get(mark), _mark(_text(message))
        self._keep(mark, now)
        return before is not None and before != now and not message.error

    def _is_idle(self, spec: AgentSpec, call: CallPart, message: ToolMessage) -> bool:
        arguments = _arguments(call)
        asked = self._known(_mark("call", call.tool, near(arguments)))
        answered = self._known(_mark("result", call.tool, near(_text(message), _DIGITS.findall(arguments))))
        tool = spec.tool(call.tool)
        reads = tool is None or tool.effect in REPEATABLE  # another write is something new, whatever it says
        return asked and (message.error or (answered and reads))

    def _known(self, mark: str) -> bool:
        known = mark in self.seen
        self._keep(mark, "")
        return known

    def _keep(self, mark: str, value: str) -> None:
        self.seen.pop(mark, None)  # the last seen come last
        self.seen[mark] = value
        while len(self.seen) > MOST_SEEN:
            del self.seen[next(iter(self.seen))]


def near(text: str, digits: Iterable[str] | None = None) -> str:
    """A text without its case, spaces and digits, or without these digits only."""
    half = LOOKED_AT // 2
    short = text if len(text) <= LOOKED_AT else f"{text[:half]} {len(text)} {text[-half:]}"
    plain = "".join(short.casefold().split())
    if digits is None:
        return _DIGITS.sub("#", plain)
    gone = frozenset(digits)
    return _DIGITS.sub(lambda found: "#" if found[0] in gone else found[0], plain) if gone else plain


def _arguments(call: CallPart) -> str:
    return canonical_json(call.arguments) + (call.whole.digest if call.whole else "")


def _text(message: ToolMessage) -> str:
    kept = [part.digest for part in message.parts if isinstance(part, BlobPart)]
    return "".join([text_of(message), *kept, *(_mark(part.base64 or part.url or "") for part in media_of(message))])


def _mark(*words: str) -> str:
    return sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:12]
