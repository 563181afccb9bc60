"""One vocabulary for conversations: what a run stores, what providers translate, what queries show.

Every message has an `id` minted where it was produced; a model call refers to messages by these ids. Whatever only one
provider understands rides in `details` and goes back to it as it came.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Part(BaseModel):
    """Base of all parts and messages: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(Part):
    """Plain text."""

    type: Literal["text"]
    text: str
    details: dict[str, Any] | None = None


class ImagePart(Part):
    """An image by address or as base64 data."""

    type: Literal["image"]
    url: str | None = None
    base64: str | None = None
    media_type: str | None = None


class DocumentPart(Part):
    """A document, such as a PDF, by address or as base64 data."""

    type: Literal["document"]
    url: str | None = None
    base64: str | None = None
    media_type: str | None = None
    name: str | None = None


class ThinkingPart(Part):
    """A model's reasoning; `details` holds signatures and encrypted content untouched."""

    type: Literal["thinking"]
    text: str = ""
    details: dict[str, Any] | None = None


class Whole(Part):
    """Where arguments are that are too large for history: canonical JSON in the blob store."""

    digest: str
    """Of the arguments, and the name of the blob."""
    size: int
    """Bytes."""


class CallPart(Part):
    """A tool call as it will run: arguments decoded, validated and coerced, or `error` saying why it cannot run."""

    type: Literal["call"]
    id: str
    """Minted by the run: c1, c2, ..."""
    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None
    repaired: bool = False
    """The arguments were damaged JSON that could be repaired safely."""
    details: dict[str, Any] | None = None
    whole: Whole | None = None
    """Set where `arguments` is an excerpt."""


class BlobPart(Part):
    """Text too large for history, kept in the blob store under its SHA-256."""

    type: Literal["blob"]
    digest: str
    size: int
    """Characters."""
    preview: str = ""
    details: dict[str, Any] | None = None
    """Of the text."""


UserPart = Annotated[TextPart | ImagePart | DocumentPart | BlobPart, Field(discriminator="type")]
AssistantPart = Annotated[TextPart | ThinkingPart | CallPart | BlobPart, Field(discriminator="type")]


class SystemMessage(Part):
    """Instructions that came with a given conversation."""

    role: Literal["system"]
    parts: tuple[UserPart, ...]
    id: str = ""


class UserMessage(Part):
    """What the user said, or what the run tells the model (a correction)."""

    role: Literal["user"]
    parts: tuple[UserPart, ...]
    id: str = ""


class AssistantMessage(Part):
    """One reply of a model."""

    role: Literal["assistant"]
    parts: tuple[AssistantPart, ...]
    id: str = ""

    @property
    def calls(self) -> tuple[CallPart, ...]:
        """The tool calls of this reply in order."""
        return tuple(p for p in self.parts if isinstance(p, CallPart))


class ToolMessage(Part):
    """The result of one tool call."""

    role: Literal["tool"]
    call: str
    """`CallPart.id` of the call that it answers."""
    parts: tuple[UserPart, ...]
    error: bool = False
    id: str = ""


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]

MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


def text_of(message: Message) -> str:
    """The text of a message: text parts joined, previews for parts that lie in the blob store."""
    if len(message.parts) == 1 and isinstance(part := message.parts[0], TextPart):
        return part.text
    return "".join(
        p.text if isinstance(p, TextPart) else p.preview for p in message.parts if isinstance(p, TextPart | BlobPart)
    )


def media_of(message: Message) -> list[ImagePart | DocumentPart]:
    """The pictures and documents of a message."""
    return [part for part in message.parts if isinstance(part, ImagePart | DocumentPart)]


def text(value: str) -> tuple[TextPart, ...]:
    """A single text part, or none for the empty string."""
    return (TextPart(type="text", text=value),) if value else ()


class Usage(Part):
    """Tokens of one or many model calls; input includes cached, output includes reasoning."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )

    @property
    def total(self) -> int:
        """What a limit on tokens counts."""
        return self.input_tokens + self.output_tokens
