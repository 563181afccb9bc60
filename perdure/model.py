"""Which model answers: provider, name and how to reach it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import Field

from perdure.errors import ConfigError
from perdure.settings import Settings


class Price(Settings):
    """US dollars for a million tokens; cached input costs like input where it is not given."""

    input: Decimal = Field(ge=0)
    output: Decimal = Field(ge=0)
    cached: Decimal | None = Field(None, ge=0)


class Model(Settings):
    """A model at a provider. Keys and addresses come from the worker's environment; a spec never holds a key."""

    provider: str = Field(min_length=1)
    name: str = ""
    base_url: str | None = None
    path: str | None = None
    """Instead of the provider's own path below `base_url`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Values may name variables of the worker's environment: `{"x-team": "${TEAM}"}`."""
    api_key_env: str | None = None
    """Name of the variable that holds the key, where it is not the provider's usual one."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Sent to the provider as they are."""
    price: Price | None = None

    @property
    def label(self) -> str:
        """`provider:name`, as it is written and shown."""
        return f"{self.provider}:{self.name}" if self.name else self.provider


def parse_model(value: Any) -> Model:
    """A Model from `"provider:name"`, a mapping or a Model; raises ConfigError."""
    if isinstance(value, Model):
        return value
    if isinstance(value, dict):
        return Model(**value)
    if isinstance(value, str):
        provider, _, name = value.partition(":")
        if provider and (name or provider == "scripted"):
            return Model(provider=provider, name=name)
    raise ConfigError(f"model: {value!r} is not 'provider:model' (such as 'openai-chat:gpt-5-mini') nor a Model")
