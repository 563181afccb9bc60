"""What only one provider understands of a part, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def own_details(details: Mapping[str, Any] | None, provider: str, model: str | None = None) -> Mapping[str, Any]:
    """The details of a part where they are this provider's; another's signatures and ids stay at home.

    With `model` they must have come from that model too, where they say which.
    """
    if not details or details.get("provider", provider) != provider:
        return {}
    return {} if model is not None and (details.get("model") or model) != model else details
