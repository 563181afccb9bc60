"""Requests for vectors and what comes back: as the SDKs send and read them, and nothing bad is taken for a vector."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from google import genai
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from openai.types import CreateEmbeddingResponse, EmbeddingCreateParams

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from providers.base import WireResponse
from providers.embeddings import Batch, EmbeddingFormat, GeminiEmbeddings, OpenAIEmbeddings
from tests.fake_chat import fake_chat
from tests.providers.oracle import strict

OPENAI, GEMINI = OpenAIEmbeddings(), GeminiEmbeddings()
FORMATS = [pytest.param(OPENAI, id="openai"), pytest.param(GEMINI, id="gemini")]
TEXTS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5)
VECTORS = st.integers(1, 4).flatmap(
    lambda size: st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=size, max_size=size),
        min_size=1,
        max_size=6,
    )
)


def openai_body(vectors: list[Any], **fields: Any) -> dict[str, Any]:
    """A whole answer of OpenAI."""
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return {
        "object": "list",
        "model": "m",
        "data": data,
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
        **fields,
    }


def gemini_body(vectors: list[Any], **fields: Any) -> dict[str, Any]:
    """A whole answer of Gemini."""
    return {
        "embeddings": [{"values": vector} for vector in vectors],
        "usageMetadata": {"promptTokenCount": 5},
        **fields,
    }


def body_of(form: EmbeddingFormat, vectors: list[Any], **fields: Any) -> dict[str, Any]:
    """A whole answer of a format."""
    return (openai_body if form is OPENAI else gemini_body)(vectors, **fields)


def parsed(form: EmbeddingFormat, body: Any, count: int) -> Batch:
    """What is read of a body."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return form.parse("here", WireResponse(200, {"content-type": "application/json"}, payload), count)


def refused(form: EmbeddingFormat, body: Any, count: int) -> ProviderError:
    """The error of a body."""
    with pytest.raises(ProviderError) as told:
        parsed(form, body, count)
    assert str(told.value).startswith("here: ")
    return told.value


async def test_openai_is_asked_as_its_sdk_asks() -> None:
    """Path and body are those of the SDK, and it reads the same vectors and usage from the answer."""
    async with (
        fake_chat({"status": 200, "body": openai_body([[0.5, -1], [1e-9, 2]])}) as fake,
        AsyncOpenAI(api_key="k", base_url=fake.base_url) as sdk,
    ):
        read = await sdk.embeddings.create(model="m", input=["a", "b"], dimensions=2, encoding_format="float")
    wire = OPENAI.build("m", ["a", "b"], {"dimensions": 2, "encoding_format": "float"})
    assert [f"/v1{wire.path}"] == fake.paths
    assert [wire.body] == fake.requests
    ours = parsed(OPENAI, openai_body([[0.5, -1], [1e-9, 2]]), 2)
    assert [list(vector) for vector in ours.vectors] == [item.embedding for item in read.data]
    assert ours.usage == Usage(input_tokens=read.usage.prompt_tokens)


@pytest.mark.parametrize("model", ["gemini-embedding-001", "models/gemini-embedding-001", "tunedModels/mine-1"])
async def test_gemini_is_asked_as_its_sdk_asks(model: str) -> None:
    """Path and body are those of the SDK, and it reads the same vectors and usage from the answer."""
    config = types.EmbedContentConfig(output_dimensionality=2, task_type="RETRIEVAL_QUERY", title="T")
    async with fake_chat({"status": 200, "body": gemini_body([[0.5, -1], [1e-9, 2]])}) as fake:
        options = types.HttpOptions(base_url=fake.base_url.removesuffix("/v1"), api_version="v1")
        async with genai.Client(api_key="k", http_options=options).aio as sdk:
            read = await sdk.models.embed_content(model=model, contents=["a", "b"], config=config)
    wire = GEMINI.build(model, ["a", "b"], {"dimensions": 2, "taskType": "RETRIEVAL_QUERY", "title": "T"})
    assert [f"/v1{wire.path}"] == fake.paths
    assert [wire.body] == fake.requests
    ours = parsed(GEMINI, gemini_body([[0.5, -1], [1e-9, 2]]), 2)
    assert [list(vector) for vector in ours.vectors] == [item.values for item in read.embeddings or ()]
    assert read.usage_metadata is not None
    assert ours.usage == Usage(input_tokens=read.usage_metadata.prompt_token_count or 0)


@given(TEXTS)
def test_any_texts_can_be_sent(texts: list[str]) -> None:
    """The SDKs' types take every request, and every text is there, in order, in what can be encoded."""
    body = json.loads(json.dumps(OPENAI.build("m", texts, {}).body, ensure_ascii=False).encode())
    strict(EmbeddingCreateParams).validate_python(body)
    assert body["input"] == texts
    requests = json.loads(json.dumps(GEMINI.build("m", texts, {}).body, ensure_ascii=False).encode())["requests"]
    contents = [types.Content.model_validate(item["content"], by_alias=True, by_name=False) for item in requests]
    assert [part.text for content in contents for part in content.parts or ()] == texts


@pytest.mark.parametrize("form", FORMATS)
def test_halves_of_characters_can_be_sent(form: EmbeddingFormat) -> None:
    """A text with a lone surrogate does not fail the request."""
    sent = json.dumps(form.build("m", ["a\ud83d"], {}).body, ensure_ascii=False).encode()
    assert "a\ufffd".encode() in sent


@pytest.mark.parametrize("form", FORMATS)
def test_params_go_to_the_vendor_and_none_removes(form: EmbeddingFormat) -> None:
    """A param is a field of the request, or of each text's where the format has it there."""
    body = form.build("m", ["a"], {"user": "u", "model": None}).body
    target = body if form is OPENAI else body["requests"][0]
    assert target["user"] == "u"
    assert "model" not in target


@given(VECTORS, st.randoms(use_true_random=False))
def test_openai_vectors_are_ordered_by_index(vectors: list[list[float]], chance: random.Random) -> None:
    """However they are mixed, they come in the order of the texts; the SDK's type reads the same ones."""
    body = openai_body(vectors)
    chance.shuffle(body["data"])
    read = CreateEmbeddingResponse.model_validate(body)
    ours = parsed(OPENAI, body, len(vectors)).vectors
    assert [list(vector) for vector in ours] == vectors
    assert [list(vector) for vector in ours] == [
        item.embedding for item in sorted(read.data, key=lambda item: item.index)
    ]


@given(VECTORS)
def test_gemini_vectors_come_in_order(vectors: list[list[float]]) -> None:
    """The SDK's type reads the same ones."""
    read = types.EmbedContentResponse.model_validate(gemini_body(vectors))
    ours = [list(vector) for vector in parsed(GEMINI, gemini_body(vectors), len(vectors)).vectors]
    assert ours == vectors == [item.values for item in read.embeddings or ()]


def test_vectors_without_indexes_are_taken_as_they_come() -> None:
    """Some servers leave the index out."""
    body = {"data": [{"embedding": [1]}, {"embedding": [2]}]}
    assert parsed(OPENAI, body, 2) == Batch(((1.0,), (2.0,)), None)


@pytest.mark.parametrize("indexes", [[0, 0], [1, 2], [-1, 0], [0, None], [0, "1"], [True, False], [0.0, 1.0]])
def test_wrong_indexes_are_refused(indexes: list[Any]) -> None:
    """Which vector is whose must be certain."""
    body = {"data": [{"embedding": [1.0], "index": index} for index in indexes]}
    assert refused(OPENAI, body, 2).kind is ErrorKind.MALFORMED


BAD_VECTORS: list[Any] = [
    *([float("nan")], [float("inf")], [-float("inf")], [10**400], ["1"], [None], [True], [[1.0]]),
    *([], None, "AACAPw==", {"0": 1.0}, 1.0),
]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("bad", BAD_VECTORS, ids=lambda value: str(value)[:20])
def test_what_is_no_vector_is_refused(form: EmbeddingFormat, bad: Any) -> None:
    """NaN, infinity, base64, nothing, and anything else that is not a list of numbers."""
    error = refused(form, body_of(form, [[1.0], bad]), 2)
    assert error.kind is ErrorKind.MALFORMED
    assert "embedding 1" in str(error)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("sent", [1, 3])
def test_a_vector_too_many_or_too_few_is_refused(form: EmbeddingFormat, sent: int) -> None:
    """There is one for each text."""
    error = refused(form, body_of(form, [[1.0]] * 2), sent)
    assert error.kind is ErrorKind.MALFORMED
    assert f"{sent} texts were sent and 2 embeddings came back" in str(error)


@pytest.mark.parametrize("form", FORMATS)
def test_vectors_of_different_dimensions_are_refused(form: EmbeddingFormat) -> None:
    """They could not be compared."""
    error = refused(form, body_of(form, [[1.0], [1.0, 2.0]]), 2)
    assert error.kind is ErrorKind.MALFORMED
    assert "different dimensions: 1, 2" in str(error)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", ErrorKind.TRUNCATED_STREAM),
        (b"<html>Log in</html>", ErrorKind.MALFORMED),
        (b'{"data": [', ErrorKind.MALFORMED),
        (b"[" * 100_000, ErrorKind.MALFORMED),
        ([], ErrorKind.MALFORMED),
        ({}, ErrorKind.MALFORMED),
        ({"data": None, "embeddings": {}}, ErrorKind.MALFORMED),
        ({"data": [1], "embeddings": [None]}, ErrorKind.MALFORMED),
        ({"error": {"message": "Slow down", "code": "rate_limit_exceeded"}}, ErrorKind.RATE_LIMIT),
        ({"error": {"message": "no", "status": "UNAVAILABLE"}}, ErrorKind.OVERLOADED),
    ],
)
def test_what_is_no_answer_is_an_error(form: EmbeddingFormat, body: Any, kind: ErrorKind) -> None:
    """A body with status 200 that holds no embeddings is told for what it is."""
    assert refused(form, body, 1).kind is kind


@pytest.mark.parametrize(
    ("form", "body", "usage"),
    [
        (OPENAI, openai_body([[1]], usage={"prompt_tokens": 7, "total_tokens": 9}), 7),
        (OPENAI, openai_body([[1]], usage={"total_tokens": 9}), 9),
        (OPENAI, openai_body([[1]], usage=None), None),
        (OPENAI, openai_body([[1]], usage={"prompt_tokens": -1}), None),
        (OPENAI, openai_body([[1]], usage={"prompt_tokens": True}), None),
        (OPENAI, openai_body([[1]], usage="7"), None),
        (GEMINI, gemini_body([[1]], usageMetadata={"promptTokenCount": 7}), 7),
        (GEMINI, gemini_body([[1]], usageMetadata={}), None),
    ],
)
def test_usage_is_what_is_told(form: EmbeddingFormat, body: dict[str, Any], usage: int | None) -> None:
    """Tokens of the texts; None where there is no sensible number."""
    assert parsed(form, body, 1).usage == (None if usage is None else Usage(input_tokens=usage))
