"""What a usage costs by the policy of its model."""

from __future__ import annotations

from decimal import Decimal

import pytest
from genai_prices.data_snapshot import get_snapshot

from activities.prices import affordable_output, cost_of, known_cost
from perdure import Model, Price
from perdure.messages import Usage

USED = Usage(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000)


def model(name: str = "no-such-model-anywhere", **fields: object) -> Model:
    """A model."""
    return Model.model_validate({"provider": "compatible", "name": name, **fields})


def test_the_policies() -> None:
    """Deny says that nothing is known, ignore counts nothing, the worst case more than any known model."""
    assert cost_of(model(unknown_price="deny"), USED) is None
    assert cost_of(model(unknown_price="ignore"), USED) == 0
    worst = cost_of(model(unknown_price="worst_case"), USED)
    assert worst is not None
    for name in ("gpt-4o", "claude-opus-4-1", "o1-pro", "gemini-2.5-pro"):
        known = known_cost(model(name), USED)
        assert known is not None
        assert 0 < known <= worst


@pytest.mark.parametrize("policy", ["deny", "worst_case", "ignore"])
def test_a_known_price_counts_whatever_the_policy_is(policy: str) -> None:
    """The policy is for prices that nobody knows."""
    assert cost_of(model("gpt-4o", unknown_price=policy), USED) == known_cost(model("gpt-4o"), USED)
    own = Price(input=Decimal(1), output=Decimal(10), cached=Decimal("0.5"))
    assert cost_of(model("gpt-4o", price=own, unknown_price=policy), USED) == Decimal("1.8")


def test_what_money_buys() -> None:
    """Nothing is known, everything that is free, and a little of the dearest."""
    assert affordable_output(model(unknown_price="deny"), 100, Decimal(1)) is None
    assert (affordable_output(model(unknown_price="ignore"), 100, Decimal(1)) or 0) > 1_000_000
    assert 0 < (affordable_output(model(unknown_price="worst_case"), 100, Decimal(1)) or 0) < 100_000


def test_the_dearest_is_of_text_models() -> None:
    """No price of a known model is above it, in or out."""
    model_prices = [m.prices for provider in get_snapshot().providers for m in provider.models]
    most_in = cost_of(model(unknown_price="worst_case"), Usage(input_tokens=1_000_000))
    most_out = cost_of(model(unknown_price="worst_case"), Usage(output_tokens=1_000_000))
    assert most_in is not None
    assert most_out is not None
    plain = [p for p in model_prices if not isinstance(p, list)]
    assert all(p.input_mtok <= most_in for p in plain if isinstance(p.input_mtok, Decimal))
    assert all(p.output_mtok <= most_out for p in plain if isinstance(p.output_mtok, Decimal))
