"""Texts to vectors: the two formats that vendors speak, OpenAI's `/embeddings` and Gemini's `:batchEmbedContents`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from providers.base import WireRequest, WireResponse
from providers.failures import not_a_reply, reported
from providers.text import clean

Vector = tuple[float, ...]


@dataclass(frozen=True)
class Batch:
    """Vectors in the order of the texts, all of one dimension, and what they have used; None where that is not told."""

    vectors: tuple[Vector, ...]
    usage: Usage | None


class EmbeddingFormat(Protocol):
    """One wire format for embeddings."""

    @property
    def most_texts(self) -> int:
        """Texts of one request."""
        ...

    def build(self, model: str, texts: Sequence[str], params: Mapping[str, Any]) -> WireRequest:
        """The request for the vectors of some texts; `params` are put where the format has them, None removes."""
        ...

    def parse(self, name: str, response: WireResponse, count: int) -> Batch:
        """The vectors of a whole body with status 2xx; raises ProviderError unless there are `count` good ones.

        `name` is the provider's, for messages.
        """
        ...


@dataclass(frozen=True)
class OpenAIEmbeddings:
    """`POST /embeddings`, as OpenAI and those like it have it; vectors come as numbers, not as base64."""

    # OpenAI takes 2,048. So many of 3,072 numbers each would be more than is read of one reply.
    most_texts: int = 128

    def build(self, model: str, texts: Sequence[str], params: Mapping[str, Any]) -> WireRequest:
        """The request; `dimensions` and all other params are fields of its body."""
        body = {"model": model, "input": [clean(text) for text in texts]}
        return WireRequest("/embeddings", _without_none({**body, **params}), stream=False)

    def parse(self, name: str, response: WireResponse, count: int) -> Batch:
        """The vectors by their index; where no vector has one, in the order in which they came."""
        body = _body(name, response)
        items = body.get("data")
        if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
            raise not_a_reply(name, response, "a list of embeddings")
        indexes = [item.get("index") for item in items]
        if any(index is not None for index in indexes):
            if not _is_permutation(indexes):
                raise _malformed(name, "the indexes of the embeddings are not 0, 1, 2, ...")
            items = sorted(items, key=lambda item: int(item["index"]))
        vectors = _checked(name, [item.get("embedding") for item in items], count)
        return Batch(vectors, _usage(body.get("usage"), "prompt_tokens", "total_tokens"))


@dataclass(frozen=True)
class GeminiEmbeddings:
    """`:batchEmbedContents` of the Gemini API."""

    most_texts: int = 100

    def build(self, model: str, texts: Sequence[str], params: Mapping[str, Any]) -> WireRequest:
        """The request; params (`taskType`, `title`, `outputDimensionality`) go to each text, `dimensions` too."""
        known = dict(params)
        if "dimensions" in known:
            known.setdefault("outputDimensionality", known.pop("dimensions"))
        resource = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
        requests = [_without_none({"model": resource, "content": _content(text), **known}) for text in texts]
        return WireRequest(f"/{quote(resource, safe='/')}:batchEmbedContents", {"requests": requests}, stream=False)

    def parse(self, name: str, response: WireResponse, count: int) -> Batch:
        """The vectors, which come in the order of the texts."""
        body = _body(name, response)
        items = body.get("embeddings")
        if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
            raise not_a_reply(name, response, "a list of embeddings")
        vectors = _checked(name, [item.get("values") for item in items], count)
        return Batch(vectors, _usage(body.get("usageMetadata"), "promptTokenCount", "totalTokenCount"))


def check_dimensions(name: str, vectors: Sequence[Vector]) -> None:
    """Raise ProviderError (MALFORMED) unless all vectors have as many numbers."""
    sizes = sorted({len(vector) for vector in vectors})
    if len(sizes) > 1:
        raise _malformed(name, f"embeddings of different dimensions: {', '.join(map(str, sizes))}")


def _body(name: str, response: WireResponse) -> Mapping[str, Any]:
    try:
        body = json.loads(response.body, strict=False)
    except (ValueError, RecursionError) as error:
        raise not_a_reply(name, response) from error
    if not isinstance(body, Mapping):
        raise not_a_reply(name, response, "a list of embeddings")
    if body.get("error"):
        raise reported(name, body["error"], response=response)
    return body


def _is_permutation(indexes: Sequence[Any]) -> bool:
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in indexes):
        return False
    return sorted(indexes) == list(range(len(indexes)))


def _checked(name: str, items: Sequence[Any], count: int) -> tuple[Vector, ...]:
    if len(items) != count:
        raise _malformed(name, f"{count} texts were sent and {len(items)} embeddings came back")
    vectors = tuple(_vector(name, number, item) for number, item in enumerate(items))
    check_dimensions(name, vectors)
    return vectors


def _vector(name: str, number: int, item: Any) -> Vector:
    if not isinstance(item, list) or not item:
        raise _malformed(name, f"embedding {number} is no list of numbers")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in item):
        raise _malformed(name, f"embedding {number} holds something that is no number")
    try:
        vector = tuple(map(float, item))
    except OverflowError:
        vector = (math.inf,)
    if not all(map(math.isfinite, vector)):
        raise _malformed(name, f"embedding {number} holds NaN or infinity")
    return vector


def _content(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": clean(text)}]}


def _usage(value: Any, *fields: str) -> Usage | None:
    """The first of the fields that counts tokens."""
    if isinstance(value, Mapping):
        for field in fields:
            tokens = value.get(field)
            if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
                return Usage(input_tokens=tokens)
    return None


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}


def _malformed(name: str, problem: str) -> ProviderError:
    return ProviderError(ErrorKind.MALFORMED, f"{name}: {problem}")
