"""Which models answer a call: rules over the conversation, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from perdure.errors import ConfigError
from perdure.messages import BlobPart, DocumentPart, ImagePart, Message, TextPart, ToolMessage, UserMessage, text_of
from perdure.model import MOST_MODELS, Model, parse_model
from perdure.settings import Settings

LEFT_OUT = "[{} left out: this model reads text only]"
"""In place of what a text model cannot see."""


def _chain(value: Any) -> tuple[Any, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    if not 1 <= len(items) <= MOST_MODELS:
        raise ConfigError(f"must be a model, or a list of 1 to {MOST_MODELS}")
    # A frozen spec has objects: a worker that does not know a provider must still read its run.
    return tuple(item if isinstance(item, dict) else parse_model(item) for item in items)


Chain = Annotated[tuple[Model, ...], BeforeValidator(_chain)]
"""A model, or several of which each answers where those before it failed."""


class RoutingRule(Settings):
    """Models for the calls that fit every condition that is given."""

    model: Chain
    contains: str | None = Field(None, min_length=1)
    """The last message of the user contains this text; case does not count. Of a large one only its preview is seen."""
    above_chars: int | None = Field(None, ge=0)
    """The conversation is longer than so many characters."""
    after_steps: int | None = Field(None, ge=0)
    """The conversation has at least so many replies of models."""


class Router(Settings):
    """Models by rule: pictures and documents of the last user message go to `vision`, then the first rule that fits.

    Without either `default` answers. Where `vision` is given, the other models are text models: pictures of earlier
    messages are left out for them, with a note, unless they say `images=True`.
    """

    default: Chain
    vision: Chain | None = None
    rules: tuple[RoutingRule, ...] = ()

    def choose(self, messages: Sequence[Message], steps: int) -> tuple[Model, ...]:
        """The models for the next call."""
        asked = next((m for m in reversed(messages) if isinstance(m, UserMessage)), None)
        if self.vision is not None and asked is not None and shows(asked):
            return self.vision
        return next((rule.model for rule in self.rules if _fits(rule, messages, asked, steps)), self.default)

    @property
    def models(self) -> tuple[Model, ...]:
        """Every model that may answer."""
        chains = (self.default, self.vision or (), *(rule.model for rule in self.rules))
        return tuple(model for chain in chains for model in chain)

    def reads_text_only(self, chosen: tuple[Model, ...]) -> bool:
        """Whether these models are not to be shown pictures."""
        return self.vision is not None and chosen != self.vision


def shows(message: Message) -> bool:
    """Whether a message has a picture or a document."""
    return any(isinstance(part, ImagePart | DocumentPart) for part in message.parts)


def in_words(message: Message) -> Message:
    """The message with a note in place of each picture and document."""
    if not isinstance(message, UserMessage | ToolMessage) or not shows(message):
        return message
    parts = [
        TextPart(type="text", text=LEFT_OUT.format(part.type)) if isinstance(part, ImagePart | DocumentPart) else part
        for part in message.parts
    ]
    return message.model_copy(update={"parts": tuple(parts)})


def _fits(rule: RoutingRule, messages: Sequence[Message], asked: UserMessage | None, steps: int) -> bool:
    if rule.contains is not None and (asked is None or rule.contains.casefold() not in text_of(asked).casefold()):
        return False
    if rule.after_steps is not None and steps < rule.after_steps:
        return False
    return rule.above_chars is None or sum(_length(message) for message in messages) > rule.above_chars


def _length(message: Message) -> int:
    sizes = (
        p.size if isinstance(p, BlobPart) else len(p.text) for p in message.parts if isinstance(p, TextPart | BlobPart)
    )
    return sum(sizes)
