"""What is known by name."""

from __future__ import annotations

from providers import REGISTRY


def test_entries_are_named_as_their_providers() -> None:
    """An entry's key, name and provider agree."""
    played = {"recorded"}  # the worker answers itself
    named = {key: entry.provider.name if entry.provider else None for key, entry in REGISTRY.items()}
    assert named == {key: None if key in played else key for key in REGISTRY}
    assert {key: entry.name for key, entry in REGISTRY.items()} == {key: key for key in REGISTRY}


def test_where_addresses_and_keys_come_from() -> None:
    """Addresses and keys come from the environment of the worker, under the documented names."""
    known = {
        name: (entry.default_base_url, entry.base_url_env, entry.api_key_env, entry.key_required)
        for name, entry in REGISTRY.items()
    }
    assert known["openai-chat"] == ("https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY", True)
    assert known["compatible"] == (None, "COMPATIBLE_BASE_URL", "COMPATIBLE_API_KEY", False)
    assert known["openai"] == known["openai-chat"]
    assert known["anthropic"] == ("https://api.anthropic.com", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", True)
    assert known["gemini"][1:] == ("GEMINI_BASE_URL", "GEMINI_API_KEY", True)
    assert known["scripted"] == (None, None, None, False)
