"""What a model call costs. Looked up when the call is made, so that replay never asks."""

from __future__ import annotations

import functools
from decimal import Decimal

import genai_prices
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelPrice

from perdure.messages import Usage
from perdure.model import Model, Price

PROVIDERS = {"openai-chat": "openai"}
"""Our providers that the price list knows under another name; others are found by the model's name."""

MILLION = Decimal(1_000_000)
FREE = frozenset({"scripted"})


def cost_of(model: Model, usage: Usage) -> Decimal | None:
    """US dollars for a usage; where no price is known by the model's own policy, None where that is to deny."""
    known = known_cost(model, usage)
    if known is not None or model.unknown_price == "deny":
        return known
    return Decimal(0) if model.unknown_price == "ignore" else _own(_dearest(), usage)


def known_cost(model: Model, usage: Usage) -> Decimal | None:
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


@functools.cache
def _dearest() -> Price:
    """The highest prices of all known text models."""
    known = [m.prices for p in get_snapshot().providers for m in p.models if isinstance(m.prices, ModelPrice)]

    def most(name: str) -> Decimal:
        values = (getattr(price, name) for price in known)
        return max(value for value in values if isinstance(value, Decimal))

    return Price(input=most("input_mtok"), output=most("output_mtok"))


def _own(price: Price, usage: Usage) -> Decimal:
    cached = price.cached if price.cached is not None else price.input
    fresh = usage.input_tokens - usage.cached_tokens
    return (fresh * price.input + usage.cached_tokens * cached + usage.output_tokens * price.output) / MILLION


def plain(cost: Decimal) -> str:
    """A cost as it is recorded: without an exponent or needless zeros."""
    return format(cost.normalize(), "f")
