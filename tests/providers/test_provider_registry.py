"""What is known by name."""

from __future__ import annotations

from providers import REGISTRY


def test_entries_are_named_as_their_providers() -> None:
    """An entry's key, name and provider agree."""
    assert {(key, entry.name, entry.provider.name) for key, entry in REGISTRY.items()} == {
        (key, key, key) for key in REGISTRY
    }


def test_where_addresses_and_keys_come_from() -> None:
    """Addresses and keys come from the environment of the worker, under the documented names."""
    known = {
        name: (entry.default_base_url, entry.base_url_env, entry.api_key_env, entry.key_required)
        for name, entry in REGISTRY.items()
    }
    assert known["openai-chat"] == ("https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY", True)
    assert known["compatible"] == (None, "COMPATIBLE_BASE_URL", "COMPATIBLE_API_KEY", False)
    assert known["scripted"] == (None, None, None, False)
