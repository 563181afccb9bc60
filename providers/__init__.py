"""Wire formats of model providers: pure translations, and the registry of what is known by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from providers.base import Provider
from providers.chat_completions import ChatCompletions
from providers.chat_request import Quirks
from providers.scripted import Scripted


@dataclass(frozen=True)
class ProviderEntry:
    """A provider under its name: its format, and where the worker's environment says how to reach it."""

    name: str
    provider: Provider | Scripted
    """`Scripted` is played by the caller; everything else is built, sent and parsed."""
    default_base_url: str | None = None
    """None where the address has to be given; a request goes to base URL + `WireRequest.path`."""
    base_url_env: str | None = None
    api_key_env: str | None = None
    key_required: bool = True
    auth: Literal["bearer", "none"] = "bearer"
    """How the key travels."""


def _entries(*entries: ProviderEntry) -> Mapping[str, ProviderEntry]:
    return {entry.name: entry for entry in entries}


REGISTRY: Mapping[str, ProviderEntry] = _entries(
    ProviderEntry(
        name="openai-chat",
        provider=ChatCompletions("openai-chat", Quirks(max_tokens_field="max_completion_tokens")),
        default_base_url="https://api.openai.com/v1",
        base_url_env="OPENAI_BASE_URL",
        api_key_env="OPENAI_API_KEY",
    ),
    ProviderEntry(
        name="compatible",
        provider=ChatCompletions("compatible", Quirks(merge_turns=True)),
        base_url_env="COMPATIBLE_BASE_URL",
        api_key_env="COMPATIBLE_API_KEY",
        key_required=False,
    ),
    ProviderEntry(name="scripted", provider=Scripted(), key_required=False, auth="none"),
)
