"""Vectors of texts, in as many requests as the vendor's limits ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from activities.endpoints import entry_of
from activities.sender import Sender
from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model import Model
from perdure.own_providers import own_providers
from providers import REGISTRY
from providers.embeddings import Batch, EmbeddingFormat, Vector, check_dimensions

MOST_BYTES = 300_000
"""UTF-8 bytes of one request's texts. A token is at least a byte, and OpenAI takes 300,000 tokens in one request."""


@dataclass(frozen=True)
class Embedded:
    """A vector for each text in the order of the texts, and what they have used."""

    vectors: tuple[Vector | None, ...]
    """None for a text of nothing but white space: it has no meaning, and vendors refuse it."""
    usage: Usage | None
    """None where the provider has not reported it."""

    @property
    def dimension(self) -> int | None:
        """Numbers of each vector; None where there is no vector."""
        return next((len(vector) for vector in self.vectors if vector is not None), None)


class Embeddings:
    """Asks models for vectors."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def embed(self, model: Model, texts: Sequence[str]) -> Embedded:
        """The vectors of some texts; raises ProviderError, with `usage` of what was embedded until then."""
        embedding = _format_of(model)
        said = [number for number, text in enumerate(texts) if text.strip()]
        vectors: list[Vector | None] = [None] * len(texts)
        firsts: list[Vector] = []
        used: list[Usage | None] = []
        for numbers in _batches(model, texts, said, embedding.most_texts):
            try:
                batch = await self._ask(model, embedding, [texts[number] for number in numbers])
                used.append(batch.usage)
                firsts.append(batch.vectors[0])
                check_dimensions(model.provider, firsts)
            except ProviderError as error:
                known = [usage for usage in (*used, error.usage) if usage is not None]
                error.usage = sum(known, start=Usage()) if known else None
                raise
            for number, vector in zip(numbers, batch.vectors, strict=True):
                vectors[number] = vector
        reported = [usage for usage in used if usage is not None]
        return Embedded(tuple(vectors), sum(reported, start=Usage()) if len(reported) == len(used) else None)

    async def _ask(self, model: Model, embedding: EmbeddingFormat, texts: Sequence[str]) -> Batch:
        response = await self._sender.send_whole(model, embedding.build(model.name, texts, model.params))
        return embedding.parse(model.provider, response, len(texts))


def _format_of(model: Model) -> EmbeddingFormat:
    """How the provider of a model makes vectors; raises ProviderError (CONFIGURATION) that names those that do."""
    found = None if model.provider in own_providers else entry_of(model).embeddings
    if found is None:
        can = ", ".join(sorted(entry.name for entry in REGISTRY.values() if entry.embeddings is not None))
        raise ProviderError(
            ErrorKind.CONFIGURATION,
            f"model {model.label!r}: provider {model.provider!r} makes no embeddings; these do: {can}",
        )
    return found


def _batches(model: Model, texts: Sequence[str], said: Sequence[int], most: int) -> Iterator[list[int]]:
    """Numbers of texts that go together, in order; raises ProviderError before any for a text that fits nowhere."""
    sizes = {number: len(texts[number].encode("utf-8", "surrogatepass")) for number in said}
    for number, size in sizes.items():
        if size > MOST_BYTES:
            raise ProviderError(
                ErrorKind.CONTEXT_LENGTH,
                f"model {model.label!r}: text {number + 1} of {len(texts)} has {size} bytes, which no model "
                f"embeds at once; split it: {MOST_BYTES} are sent at most",
            )
    batch: list[int] = []
    left = MOST_BYTES
    for number in said:
        if batch and (len(batch) == most or sizes[number] > left):
            yield batch
            batch, left = [], MOST_BYTES
        batch.append(number)
        left -= sizes[number]
    if batch:
        yield batch
