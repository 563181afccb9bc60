"""Embeddings over the wire: batches within the vendor's limits, order, failures, and what is not sent at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from activities.breakers import FAILURES, Breakers
from activities.embedding import MOST_BYTES, Embedded, Embeddings
from activities.http import make_client
from activities.sender import Sender
from perdure import Model
from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.own_providers import own_providers, provider
from providers import REGISTRY
from tests.fake_chat import Answer, FakeChat, fake_chat

CAN = sorted(name for name, entry in REGISTRY.items() if entry.embeddings is not None)
CANNOT = sorted(REGISTRY.keys() - CAN)
KEYS = {name: "sk-1" for entry in REGISTRY.values() for name in entry.variables if not name.endswith("_BASE_URL")}
BOTH = pytest.mark.parametrize("name", ["openai", "gemini"])


@pytest.fixture
async def embeddings() -> AsyncIterator[Embeddings]:
    """Embeddings with a client of their own."""
    async with make_client() as http:
        yield Embeddings(Sender(http, KEYS, Breakers()))


def model_of(name: str, fake: FakeChat, **params: Any) -> Model:
    """A model of a provider at a server on loopback."""
    return Model(provider=name, name="m", base_url=fake.base_url, params=params)


def texts_of(body: dict[str, Any]) -> list[str]:
    """The texts that a request has sent."""
    if "input" in body:
        found: list[str] = body["input"]
        return found
    return [item["content"]["parts"][0]["text"] for item in body["requests"]]


def answer_of(body: dict[str, Any], vectors: list[list[float]], tokens: int | None) -> Answer:
    """An answer in the format of a request."""
    usage: dict[str, Any]
    if "input" in body:
        data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
        usage = {} if tokens is None else {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        return {"status": 200, "body": {"object": "list", "model": "m", "data": data[::-1], **usage}}
    usage = {} if tokens is None else {"usageMetadata": {"promptTokenCount": tokens}}
    return {"status": 200, "body": {"embeddings": [{"values": vector} for vector in vectors], **usage}}


def lengths(tokens: int | None = 1) -> Callable[[dict[str, Any]], Answer]:
    """A server whose vectors are a text's length and first character."""

    def answer(body: dict[str, Any]) -> Answer:
        return answer_of(body, [[len(text), ord(text[0])] for text in texts_of(body)], tokens)

    return answer


async def failed(embeddings: Embeddings, model: Model, texts: list[str]) -> ProviderError:
    """The error that texts end with."""
    with pytest.raises(ProviderError) as told:
        await embeddings.embed(model, texts)
    return told.value


@pytest.mark.parametrize("name", CAN)
async def test_many_texts_go_in_batches_and_keep_their_order(embeddings: Embeddings, name: str) -> None:
    """No request has more texts than its format takes; every text has its own vector."""
    entry = REGISTRY[name].embeddings
    assert entry is not None
    texts = [chr(0x4E00 + number) * (1 + number % 7) for number in range(2 * entry.most_texts + 1)]
    async with fake_chat(lengths()) as fake:
        found = await embeddings.embed(model_of(name, fake), texts)
    assert [len(texts_of(body)) for body in fake.requests] == [entry.most_texts, entry.most_texts, 1]
    assert found == Embedded(tuple((len(t), ord(t[0])) for t in texts), Usage(input_tokens=3))
    assert found.dimension == 2


@BOTH
async def test_requests_are_bounded_in_bytes(embeddings: Embeddings, name: str) -> None:
    """Long texts go in further requests; one that is as large as a request goes alone."""
    texts = ["x" * MOST_BYTES, "y", "é" * (MOST_BYTES // 4), "z" * (MOST_BYTES // 2 - 1), "w"]
    async with fake_chat(lengths()) as fake:
        found = await embeddings.embed(model_of(name, fake), texts)
    sent = [texts_of(body) for body in fake.requests]
    assert [[text[0] for text in batch] for batch in sent] == [["x"], ["y", "é", "z"], ["w"]]
    assert all(len("".join(batch).encode()) <= MOST_BYTES for batch in sent)
    assert [vector and vector[0] for vector in found.vectors] == [len(text) for text in texts]


@BOTH
async def test_a_text_that_fits_nowhere_is_refused_before_anything_is_sent(embeddings: Embeddings, name: str) -> None:
    """It is named, with what to do."""
    async with fake_chat(lengths()) as fake:
        error = await failed(embeddings, model_of(name, fake), ["a"] * 300 + ["x" * (MOST_BYTES + 1)])
    assert fake.requests == []
    assert error.kind is ErrorKind.CONTEXT_LENGTH
    assert "text 301 of 301" in str(error)
    assert "split it" in str(error)


@BOTH
async def test_empty_texts_have_no_vector_and_are_not_sent(embeddings: Embeddings, name: str) -> None:
    """Vendors refuse them; the others keep their places."""
    async with fake_chat(lengths()) as fake:
        found = await embeddings.embed(model_of(name, fake), ["", "a", " \n\t", "bb", "\u3000"])
    assert [texts_of(body) for body in fake.requests] == [["a", "bb"]]
    assert found.vectors == (None, (1.0, 97.0), None, (2.0, 98.0), None)


@BOTH
@pytest.mark.parametrize("texts", [[], [""], [" ", "\n"]])
async def test_nothing_to_embed_sends_nothing(embeddings: Embeddings, name: str, texts: list[str]) -> None:
    """It costs nothing."""
    async with fake_chat(lengths()) as fake:
        found = await embeddings.embed(model_of(name, fake), texts)
    assert fake.requests == []
    assert found == Embedded((None,) * len(texts), Usage())
    assert found.dimension is None


async def test_params_and_key_are_sent(embeddings: Embeddings) -> None:
    """As calls of models send them."""
    async with fake_chat(lengths()) as fake:
        await embeddings.embed(model_of("openai", fake, dimensions=2), ["a"])
        await embeddings.embed(model_of("gemini", fake, dimensions=2, taskType="RETRIEVAL_QUERY"), ["a"])
    openai, gemini = fake.requests
    assert openai == {"model": "m", "input": ["a"], "dimensions": 2}
    assert gemini["requests"][0].items() >= {"outputDimensionality": 2, "taskType": "RETRIEVAL_QUERY"}.items()
    assert fake.headers[0]["authorization"] == "bearer sk-1"
    assert fake.headers[1]["x-goog-api-key"] == "sk-1"


@BOTH
async def test_batches_of_different_dimensions_are_refused(embeddings: Embeddings, name: str) -> None:
    """As when a gateway answers from two models; what was used until then is told."""
    first, second = (
        lambda body: answer_of(body, [[1.0]] * len(texts_of(body)), 5),
        lambda body: answer_of(body, [[1.0, 2.0]] * len(texts_of(body)), 6),
    )
    async with fake_chat(first, second) as fake:
        error = await failed(embeddings, model_of(name, fake), ["a"] * 200)
    assert error.kind is ErrorKind.MALFORMED
    assert "different dimensions: 1, 2" in str(error)
    assert error.usage == Usage(input_tokens=11)


@BOTH
async def test_usage_is_unknown_where_a_batch_has_not_told_it(embeddings: Embeddings, name: str) -> None:
    """A part of it would be taken for the whole."""
    async with fake_chat(lengths(7), lengths(None)) as fake:
        found = await embeddings.embed(model_of(name, fake), ["a"] * 200)
    assert found.usage is None


@BOTH
@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "maximum context length is 8192 tokens"}, ErrorKind.CONTEXT_LENGTH),
        (400, {"message": "no", "code": "invalid_request_error"}, ErrorKind.INVALID_REQUEST),
        (401, {"message": "no"}, ErrorKind.AUTHENTICATION),
        (404, {"message": "no"}, ErrorKind.NOT_FOUND),
        (429, {"message": "slow down"}, ErrorKind.RATE_LIMIT),
        (429, {"message": "no", "code": "insufficient_quota"}, ErrorKind.QUOTA),
        (500, {"message": "no"}, ErrorKind.SERVER),
        (503, {"message": "no"}, ErrorKind.OVERLOADED),
    ],
)
async def test_failures_are_told_as_those_of_calls(
    embeddings: Embeddings, name: str, status: int, error: dict[str, Any], kind: ErrorKind
) -> None:
    """One table for both; what the batches before have used comes with it."""
    async with fake_chat(lengths(7), {"status": status, "body": {"error": error}}) as fake:
        told = await failed(embeddings, model_of(name, fake), ["a"] * 200)
    assert (told.kind, told.status, told.usage) == (kind, status, Usage(input_tokens=7))


async def test_an_address_that_keeps_failing_is_left_alone(embeddings: Embeddings) -> None:
    """By the same breakers as calls of models."""
    async with fake_chat({"status": 500}) as fake:
        for _ in range(FAILURES + 2):
            told = await failed(embeddings, model_of("openai", fake), ["a"])
    assert len(fake.requests) == FAILURES
    assert told.kind is ErrorKind.OVERLOADED


async def test_a_server_that_says_nothing_is_given_up() -> None:
    """After the sender's limit."""
    over = asyncio.Event()
    async with fake_chat({"status": 200, "hold": over}) as fake, make_client() as http:
        told = await failed(Embeddings(Sender(http, KEYS, Breakers(), 0.05)), model_of("openai", fake), ["a"])
        over.set()
    assert told.kind is ErrorKind.STALLED


@pytest.mark.parametrize("name", CANNOT)
async def test_a_provider_without_embeddings_is_named_with_those_that_have_them(
    embeddings: Embeddings, name: str
) -> None:
    """Nothing is sent, and it is not tried again."""
    told = await failed(embeddings, Model(provider=name, name="m"), ["a"])
    assert told.kind is ErrorKind.CONFIGURATION
    assert f"provider {name!r} makes no embeddings; these do: {', '.join(CAN)}" in str(told)


async def test_a_provider_of_ones_own_makes_none(embeddings: Embeddings) -> None:
    """A function that answers calls is no function for vectors."""

    @provider("mine-for-embedding")
    async def answer(request: Any) -> str:
        return "hi"

    try:
        told = await failed(embeddings, Model(provider="mine-for-embedding", name="m"), ["a"])
    finally:
        del own_providers["mine-for-embedding"]
    assert "makes no embeddings" in str(told)
