"""Parameters that models refuse: left out where it is known, else learned by one refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities.exchange import Exchange
from activities.http import make_client
from perdure import Model
from perdure.catalog import SAMPLING
from perdure.errors import ErrorKind, ProviderError
from perdure.messages import UserMessage, text
from perdure.model_call import ModelRequest
from tests.fake_chat import Answer, fake_chat

PARAMS: dict[str, Any] = {"temperature": 0.2, "top_p": 0.9, "seed": 7, "reasoning_effort": "low"}


@pytest.fixture
async def exchange() -> AsyncIterator[Exchange]:
    """An exchange with a client of its own."""
    async with make_client() as http:
        yield Exchange(http, {})


async def said(exchange: Exchange, model: Model) -> None:
    """One call."""
    messages = (UserMessage(role="user", parts=text("Go.")),)
    await exchange.complete(model, ModelRequest(model.name, "", messages, params=model.params), lambda words: None)


def picky(*refused: str) -> Any:
    """An answer that refuses these parameters, one at a time."""

    def answer(body: dict[str, Any]) -> Answer:
        for field in refused:
            if field in body:
                error = {"message": f"Unsupported parameter: {field}", "param": field, "code": "unsupported_parameter"}
                return {"status": 400, "body": {"error": error}}
        return {"text": "hi"}

    return answer


@pytest.mark.parametrize("name", ["claude-opus-5", "anthropic/claude-sonnet-5"])
async def test_what_is_known_to_be_refused_is_not_sent(exchange: Exchange, name: str) -> None:
    """A family that refuses parameters is asked without them at once; the others are sent."""
    async with fake_chat(picky(*SAMPLING, "seed")) as fake:
        await said(exchange, fake.model(name, **PARAMS))
    [request] = fake.requests
    assert request.keys() & PARAMS.keys() == {"reasoning_effort"}


async def test_what_is_not_known_is_learned_once(exchange: Exchange) -> None:
    """For one model at one address: another model and another address are sent everything again."""
    async with fake_chat(picky("temperature", "seed")) as fake, fake_chat(picky()) as other:
        for _ in range(3):
            await said(exchange, fake.model("m", **PARAMS))
        assert [sorted(PARAMS.keys() - request.keys()) for request in fake.requests] == [
            [], ["temperature"], *[["seed", "temperature"]] * 3
        ]  # fmt: skip
        await said(exchange, fake.model("n", **PARAMS))
        assert len(fake.requests) == 5 + 3
        await said(exchange, other.model("m", **PARAMS))
    assert [PARAMS.keys() - request.keys() for request in other.requests] == [set()]


async def test_a_refusal_of_something_else_is_a_failure(exchange: Exchange) -> None:
    """What cannot be left out is told, after one request."""
    async with fake_chat(picky("messages")) as fake:
        with pytest.raises(ProviderError, match="Unsupported parameter: messages") as refused:
            await said(exchange, fake.model("m", **PARAMS))
    assert (refused.value.kind, len(fake.requests)) == (ErrorKind.INVALID_REQUEST, 1)


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_a_key_that_a_server_repeats(status: int) -> None:
    """No message of an error has it, whatever it looks like."""
    key = "correct-horse-battery-staple"
    answer: Answer = {"status": status, "body": {"error": {"message": f"wrong key {key}, or {key}!"}}}
    async with make_client() as http, fake_chat(answer) as fake:
        exchange = Exchange(http, {"COMPATIBLE_API_KEY": key})
        with pytest.raises(ProviderError) as caught:
            await said(exchange, fake.model())
    assert "wrong key" in str(caught.value)
    assert key not in str(caught.value)
