"""How many tokens a request is: told by the provider where it counts, else learned from what models have used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from activities.breakers import Breakers
from activities.http import make_client
from activities.sender import Sender
from activities.token_counts import (
    FEWEST_CHARS,
    MOST_CHARS,
    MOST_MODELS,
    PICTURE_TOKENS,
    Calibration,
    TokenCount,
    TokenCounts,
)
from perdure import Model
from perdure.messages import AssistantMessage, CallPart, ImagePart, UserMessage, Whole, text
from perdure.model_call import ModelRequest, ToolDefinition
from perdure.own_providers import own_providers, provider
from tests.fake_chat import FakeChat, fake_chat

MODEL = Model(provider="compatible", name="m")
KEYS = {"OPENAI_API_KEY": "sk-1", "GEMINI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
COUNTING = {
    "openai": ("/v1/responses/input_tokens", {"object": "response.input_tokens", "input_tokens": 1234}),
    "anthropic": ("/v1/v1/messages/count_tokens", {"input_tokens": 1234}),
    "gemini": ("/v1/models/m:countTokens", {"totalTokens": 1234}),
}
"""Path and answer of each provider that counts."""
REPORTS = st.lists(st.tuples(st.integers(1, 50_000), st.integers(1, 10**9)), max_size=30)
"""Characters of requests and the tokens that were reported for them."""


def said(chars: int, instructions: str = "") -> ModelRequest:
    """A request with a message of so many characters."""
    return ModelRequest("m", instructions, (UserMessage(role="user", parts=text("x" * chars)),))


def learned(*reports: tuple[int, int]) -> Calibration:
    """A calibration that has been told these."""
    calibration = Calibration()
    for chars, tokens in reports:
        calibration.learn(MODEL, said(chars), tokens)
    return calibration


def test_it_begins_at_four_characters_a_token() -> None:
    """What is counted: instructions, texts, calls with their arguments, tools and the output schema."""
    tool = ToolDefinition("add", "Add numbers.", {"type": "object"})
    call = CallPart(type="call", id="c1", tool="add", arguments={"a": 1})
    stored = CallPart(type="call", id="c2", tool="add", arguments={}, whole=Whole(digest="d", size=4_000))
    calibration = Calibration()
    assert calibration.chars_a_token(MODEL) == 4
    assert calibration.estimate(MODEL, said(4_000)) == 1_000
    assert calibration.estimate(MODEL, said(4_000, "i" * 400)) == 1_100
    assert calibration.estimate(MODEL, ModelRequest("m", "", (), tools=(tool,))) == (3 + 12 + 18 + 3) // 4
    assert calibration.estimate(MODEL, ModelRequest("m", "", (), output_schema={"type": "object"})) == 5
    for part, tokens in ((call, (3 + 8 + 3) // 4), (stored, 1_001)):
        message = AssistantMessage(role="assistant", parts=(part,))
        assert calibration.estimate(MODEL, ModelRequest("m", "", (message,))) == tokens


def test_a_picture_counts_though_it_has_no_characters() -> None:
    """It adds to the estimate, and a request that has one teaches nothing."""
    picture = ImagePart(type="image", url="https://example.org/a.png")
    asked = ModelRequest("m", "", (UserMessage(role="user", parts=(*text("x" * 400), picture)),))
    calibration = Calibration()
    assert calibration.estimate(MODEL, asked) == 100 + PICTURE_TOKENS
    calibration.learn(MODEL, asked, 1_600)
    assert calibration.chars_a_token(MODEL) == 4


@given(REPORTS, st.integers(0, 100_000))
def test_an_estimate_is_always_sensible(reports: list[tuple[int, int]], chars: int) -> None:
    """Whatever was reported, the ratio keeps within its bounds, an estimate is at least 1 and grows with the text."""
    calibration = learned(*reports)
    assert FEWEST_CHARS <= calibration.chars_a_token(MODEL) <= MOST_CHARS
    estimate = calibration.estimate(MODEL, said(chars))
    assert 1 <= estimate <= chars / FEWEST_CHARS + 1
    assert calibration.estimate(MODEL, said(chars + 100)) > estimate


@given(REPORTS, st.integers(1, 50_000), st.integers(1, 100_000))
def test_a_report_draws_the_ratio_towards_itself(reports: list[tuple[int, int]], chars: int, tokens: int) -> None:
    """Never past it, and never away from it."""
    calibration = learned(*reports)
    before = calibration.chars_a_token(MODEL)
    calibration.learn(MODEL, said(chars), tokens)
    target = min(max(chars / tokens, FEWEST_CHARS), MOST_CHARS)
    low, high = sorted((before, target))
    assert low - 1e-9 <= calibration.chars_a_token(MODEL) <= high + 1e-9


@given(REPORTS, st.floats(FEWEST_CHARS, MOST_CHARS))
def test_the_same_report_again_and_again_is_learned(reports: list[tuple[int, int]], ratio: float) -> None:
    """Whatever was there before fades."""
    calibration = learned(*reports)
    tokens = round(10_000 / ratio)
    for _ in range(100):
        calibration.learn(MODEL, said(10_000), tokens)
    assert calibration.estimate(MODEL, said(10_000)) == pytest.approx(tokens, rel=0.02)


@given(REPORTS, st.sampled_from([Model(provider="openai", name="m"), Model(provider="compatible", name="n")]))
def test_models_are_learned_apart(reports: list[tuple[int, int]], other: Model) -> None:
    """Of one nothing is said of another."""
    assert learned(*reports).chars_a_token(other) == 4


@given(st.integers(-5, 0))
def test_what_was_not_counted_teaches_nothing(tokens: int) -> None:
    """No tokens, or no characters."""
    calibration = learned((400, tokens))
    calibration.learn(MODEL, ModelRequest("m", "", ()), 100)
    assert calibration.chars_a_token(MODEL) == 4


@given(st.integers(0, 9))
def test_a_small_report_changes_little(chars: int) -> None:
    """The frame of a short request is not what its text costs."""
    assume(chars)
    assert learned((chars, 20)).chars_a_token(MODEL) == pytest.approx(4, rel=0.05)


def test_models_are_forgotten_before_they_are_too_many() -> None:
    """The one that reported longest ago goes first."""
    calibration = Calibration()
    models = [Model(provider="compatible", name=f"m{number}") for number in range(MOST_MODELS + 1)]
    for model in (*models[:2], models[0], *models[2:]):
        calibration.learn(model, said(10_000), 5_000)
    changed = [model.name for model in models if calibration.chars_a_token(model) != 4]
    assert len(changed) == MOST_MODELS
    assert "m1" not in changed


@pytest.fixture
async def counts() -> AsyncIterator[TokenCounts]:
    """Counts with a client of their own."""
    async with make_client() as http:
        yield TokenCounts(Sender(http, KEYS, Breakers()), Calibration())


def at(fake: FakeChat, name: str, **fields: Any) -> Model:
    """A model of a provider at a server on loopback."""
    return Model(provider=name, name="m", base_url=fake.base_url, **fields)


@pytest.mark.parametrize("name", COUNTING)
async def test_a_provider_that_counts_is_asked(counts: TokenCounts, name: str) -> None:
    """At its endpoint, once, and its number is exact."""
    path, body = COUNTING[name]
    async with fake_chat({"status": 200, "body": body}) as fake:
        assert await counts.count(at(fake, name), said(400)) == TokenCount(1234, exact=True)
    assert fake.paths == [path]


@pytest.mark.parametrize("name", ["openai-chat", "compatible", "deepseek", "scripted", "recorded"])
async def test_the_others_are_estimated(counts: TokenCounts, name: str) -> None:
    """Nothing is sent."""
    async with fake_chat({"status": 200, "body": {}}) as fake:
        assert await counts.count(at(fake, name), said(400)) == TokenCount(100, exact=False)
    assert fake.paths == []


async def test_a_provider_of_ones_own_is_estimated(counts: TokenCounts) -> None:
    """Its function is not called."""

    @provider("mine-for-counting")
    async def answer(request: Any) -> str:
        raise AssertionError

    try:
        model = Model(provider="mine-for-counting", name="m")
        assert await counts.count(model, said(400)) == TokenCount(100, exact=False)
    finally:
        del own_providers["mine-for-counting"]


@pytest.mark.parametrize("name", COUNTING)
async def test_a_path_of_its_own_is_never_asked_to_count(counts: TokenCounts, name: str) -> None:
    """There the request would be answered by the model, and paid."""
    async with fake_chat({"status": 200, "body": COUNTING[name][1]}) as fake:
        assert await counts.count(at(fake, name, path="/own"), said(400)) == TokenCount(100, exact=False)
    assert fake.paths == []


@pytest.mark.parametrize("name", COUNTING)
@pytest.mark.parametrize("status", [200, 400, 401, 404, 405, 429, 500, 503])
async def test_where_counting_fails_there_is_an_estimate(counts: TokenCounts, name: str, status: int) -> None:
    """Whatever the endpoint says."""
    async with fake_chat({"status": status, "body": {"error": {"message": "no"}}}) as fake:
        assert await counts.count(at(fake, name), said(400)) == TokenCount(100, exact=False)


async def test_an_endpoint_that_is_not_there_is_asked_once(counts: TokenCounts) -> None:
    """For one model at one address."""
    async with fake_chat({"status": 404}) as fake, fake_chat({"status": 404}) as other:
        for _ in range(3):
            await counts.count(at(fake, "openai"), said(400))
        await counts.count(at(other, "openai"), said(400))
    assert (len(fake.paths), len(other.paths)) == (1, 1)


async def test_a_key_that_is_missing_leaves_an_estimate() -> None:
    """The call itself will say so."""
    async with make_client() as http:
        counted = await TokenCounts(Sender(http, {}, Breakers()), Calibration()).count(
            Model(provider="openai", name="m"), said(400)
        )
    assert counted == TokenCount(100, exact=False)
