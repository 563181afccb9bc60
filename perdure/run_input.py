"""What starts a run: the JSON object that comes from anywhere, checked field by field."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from perdure.agent import OutputSchema
from perdure.limits import LimitsOverride
from perdure.media import checked, too_large
from perdure.messages import DocumentPart, ImagePart, TextPart
from perdure.settings import must

GivenPart = TextPart | ImagePart | DocumentPart


def _parts(value: Any) -> Any:
    if not isinstance(value, str | list | tuple):
        raise ValueError("must be a text or a list of parts")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _part(value: Any) -> GivenPart:
    """By its type, so that a problem is at the part's own field and not at a branch of a union."""
    match value:
        case TextPart():
            return value
        case {"type": "text"}:
            return TextPart.model_validate(value)
        case ImagePart() | {"type": "image"}:
            return checked(ImagePart.model_validate(value))
        case DocumentPart() | {"type": "document"}:
            return checked(DocumentPart.model_validate(value))
    raise ValueError("must be an object whose 'type' is 'text', 'image' or 'document'")


def _not_blank(parts: list[GivenPart]) -> list[GivenPart]:
    if all(isinstance(part, TextPart) and not part.text.strip() for part in parts):
        raise ValueError("must not be empty")
    return parts


def _sendable(parts: list[GivenPart]) -> list[GivenPart]:
    if (problem := too_large(parts)) is not None:
        raise ValueError(f"{problem}; give an address ('url') or something smaller")
    return parts


PromptPart = Annotated[GivenPart, BeforeValidator(_part)]
Parts = Annotated[
    list[PromptPart],
    BeforeValidator(_parts),
    Field(min_length=1),
    AfterValidator(_not_blank),
    AfterValidator(_sendable),
]


class GivenMessage(BaseModel):
    """A message of a conversation given as input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: Parts


def _is_agent(value: Any) -> bool:
    return isinstance(value, str | dict) and bool(value)


AgentInput = Annotated[str | dict[str, Any], BeforeValidator(must(_is_agent, "name an agent or describe one"))]
DATA_LIMIT = 900_000
"""Characters of a run's `data` as JSON: workers learn it by query, together with the spec."""


class RunInput(BaseModel):
    """What starts a run; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: AgentInput
    prompt: Parts | None = None
    messages: list[GivenMessage] | None = Field(None, min_length=1)
    data: Any = None
    output_schema: OutputSchema | None = None
    tenant: str | None = Field(None, min_length=1, max_length=200)
    user: str | None = Field(None, min_length=1, max_length=200)
    limits: LimitsOverride | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    continue_from: str | None = Field(None, min_length=1, max_length=1000)

    @field_validator("data")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        if len(json.dumps(value)) > DATA_LIMIT:
            raise ValueError(f"is larger than {DATA_LIMIT} characters of JSON; put it where a tool can read it")
        return value

    @model_validator(mode="after")
    def _one_beginning(self) -> RunInput:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: give either 'prompt' or 'messages'")
        return self
