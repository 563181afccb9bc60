"""What a model call costs. Looked up when the call is made, so that replay never asks."""

from __future__ import annotations

from decimal import Decimal

import genai_prices

from perdure.messages import Usage
from perdure.model import Model, Price

PROVIDERS = {"openai-chat": "openai"}
"""Our providers that the price list knows under another name; others are found by the model's name."""

MILLION = Decimal(1_000_000)
FREE = frozenset({"scripted"})


def cost_of(model: Model, usage: Usage) -> Decimal | None:
    """US dollars for a usage, or None where no price is known."""
    if model.price is not None:
        return _own(model.price, usage)
    if model.provider in FREE:
        return Decimal(0)
    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens, cache_read_tokens=usage.cached_tokens, output_tokens=usage.output_tokens
    )
    try:
        found = genai_prices.calc_price(counted, model.name, provider_id=PROVIDERS.get(model.provider))
    except LookupError:
        return None
    return Decimal(found.total_price)


def affordable_output(model: Model, input_tokens: int, budget: Decimal) -> int | None:
    """Output tokens that `budget` dollars buy after the input: negative where not even that, None without a price."""
    price_in = cost_of(model, Usage(input_tokens=input_tokens))
    price_out = cost_of(model, Usage(output_tokens=100_000))
    if price_in is None or price_out is None:
        return None
    if price_out == 0:
        return 1_000_000_000 if price_in <= budget else -1
    return int((budget - price_in) / (price_out / 100_000))


def _own(price: Price, usage: Usage) -> Decimal:
    cached = price.cached if price.cached is not None else price.input
    fresh = usage.input_tokens - usage.cached_tokens
    return (fresh * price.input + usage.cached_tokens * cached + usage.output_tokens * price.output) / MILLION
