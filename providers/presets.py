"""Servers and gateways that speak the Chat Completions format, as data: one line of facts for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.chat.provider import ChatCompletions
from providers.chat.request import Quirks
from providers.embeddings import OpenAIEmbeddings
from providers.entry import ProviderEntry

LOCAL = Quirks(merge_turns=True)
"""Chat templates of open models demand turns that alternate."""
ANYBODY = OpenAIEmbeddings(most_texts=10)
"""As few texts in one request as the strictest of the servers that are known takes."""


def preset(name: str, default_base_url: str | None, api_key_env: str, **facts: Any) -> ProviderEntry:
    """An entry whose address can be set as `NAME_BASE_URL`."""
    quirks: Quirks = facts.pop("quirks", Quirks())
    variable = f"{name.upper().replace('-', '_')}_BASE_URL"
    provider = ChatCompletions(name, quirks)
    facts.setdefault("embeddings", OpenAIEmbeddings())
    return ProviderEntry(name, provider, default_base_url, variable, api_key_env, **facts)


_CLOUDFLARE = "https://gateway.ai.cloudflare.com/v1/${CLOUDFLARE_ACCOUNT_ID}/${CLOUDFLARE_GATEWAY:-default}/compat"
_PORTKEY: Mapping[str, str] = {
    "x-portkey-api-key": "${PORTKEY_API_KEY}",
    "x-portkey-provider": "${PORTKEY_PROVIDER:-openai}",
}

PRESETS: tuple[ProviderEntry, ...] = (
    preset("compatible", None, "COMPATIBLE_API_KEY", key_required=False, quirks=LOCAL, embeddings=ANYBODY),
    # Vendors.
    preset(
        "deepseek",
        "https://api.deepseek.com",
        "DEEPSEEK_API_KEY",
        quirks=Quirks(reasoning="require", output="json_object"),
        embeddings=None,
    ),
    preset("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", embeddings=None),
    preset(
        "moonshot",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        quirks=Quirks(reasoning="require"),
        embeddings=None,
    ),
    preset("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    # Servers of one's own.
    preset("ollama", "http://localhost:11434/v1", "OLLAMA_API_KEY", key_required=False),
    preset("vllm", "http://localhost:8000/v1", "VLLM_API_KEY", key_required=False, quirks=LOCAL),
    # Gateways.
    preset("bifrost", "http://localhost:8080/v1", "BIFROST_API_KEY", key_required=False),
    preset(
        "cloudflare",
        _CLOUDFLARE,
        "PROVIDER_API_KEY",
        key_required=False,
        headers={"cf-aig-authorization": "Bearer ${CLOUDFLARE_API_TOKEN}"},
        embeddings=None,
    ),
    # Its plugin for keys does not look into `authorization`.
    preset("kong", None, "KONG_API_KEY", key_required=False, key_header="apikey", path=""),
    preset("litellm", "http://localhost:4000/v1", "LITELLM_API_KEY"),
    preset("mlflow", "http://localhost:5000/gateway/mlflow/v1", "MLFLOW_API_KEY", key_required=False),
    preset("portkey", "https://api.portkey.ai/v1", "PROVIDER_API_KEY", key_required=False, headers=_PORTKEY),
    preset("vercel", "https://ai-gateway.vercel.sh/v1", "AI_GATEWAY_API_KEY"),
)
