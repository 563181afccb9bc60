"""Wire formats of model providers: pure translations, and the registry of what is known by name."""

from __future__ import annotations

from collections.abc import Mapping

from providers import counting
from providers.anthropic.provider import Anthropic
from providers.chat.provider import ChatCompletions
from providers.chat.request import Quirks
from providers.embeddings import GeminiEmbeddings, OpenAIEmbeddings
from providers.entry import ProviderEntry
from providers.gemini.provider import Gemini
from providers.presets import PRESETS
from providers.responses.provider import Responses
from providers.scripted import Scripted

__all__ = ["REGISTRY", "ProviderEntry"]

_VENDORS = (
    ProviderEntry(
        name="openai",
        provider=Responses("openai"),
        default_base_url="https://api.openai.com/v1",
        base_url_env="OPENAI_BASE_URL",
        api_key_env="OPENAI_API_KEY",
        embeddings=OpenAIEmbeddings(),
        counting=counting.RESPONSES,
    ),
    ProviderEntry(
        name="openai-chat",
        provider=ChatCompletions("openai-chat", Quirks(max_tokens_field="max_completion_tokens")),
        default_base_url="https://api.openai.com/v1",
        base_url_env="OPENAI_BASE_URL",
        api_key_env="OPENAI_API_KEY",
        embeddings=OpenAIEmbeddings(),
    ),
    ProviderEntry(
        name="anthropic",
        provider=Anthropic(),
        default_base_url="https://api.anthropic.com",
        base_url_env="ANTHROPIC_BASE_URL",
        api_key_env="ANTHROPIC_API_KEY",
        counting=counting.ANTHROPIC,
    ),
    ProviderEntry(
        name="gemini",
        provider=Gemini(),
        default_base_url="https://generativelanguage.googleapis.com/v1",
        base_url_env="GEMINI_BASE_URL",
        api_key_env="GEMINI_API_KEY",
        key_header="x-goog-api-key",
        embeddings=GeminiEmbeddings(),
        counting=counting.GEMINI,
    ),
    ProviderEntry(name="scripted", provider=Scripted(), key_required=False),
    ProviderEntry(name="recorded", provider=None, key_required=False),
)

REGISTRY: Mapping[str, ProviderEntry] = {entry.name: entry for entry in (*_VENDORS, *PRESETS)}
