"""What is known of models beside their prices, as data: what they read, and which parameters they refuse.

Unknown models are taken to read pictures and to accept everything: what a model refuses is learned from its first
refusal. Sources: the vendors' API references of 2026-11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perdure.model import Model

SAMPLING = frozenset({"temperature", "top_p", "top_k"})


@dataclass(frozen=True)
class ModelFacts:
    """What a family of models can do."""

    images: bool = True
    """Reads pictures and documents."""
    refuses: frozenset[str] = frozenset()
    """Parameters that have the whole request refused."""


FAMILIES: tuple[tuple[re.Pattern[str], ModelFacts], ...] = tuple(
    (re.compile(pattern), facts)
    for pattern, facts in (
        (r"claude-", ModelFacts(refuses=SAMPLING | {"seed"})),
        (r"deepseek-(?!vl|ocr)", ModelFacts(images=False)),
        (r"(gpt-oss|gpt-3\.5|o1-mini|o3-mini)", ModelFacts(images=False)),
        (r"(llama-?[123](?!.*vision)|mixtral|codestral|kimi-k2(?![.\d]))", ModelFacts(images=False)),
        (r"qwen(2|2\.5|3)?[-:](?!.*(vl|omni))", ModelFacts(images=False)),
    )
)
"""Families by how their names begin, without what gateways put before them; the first that fits counts."""


def facts_of(model: Model) -> ModelFacts:
    """What is known of a model; its own `images` wins."""
    name = model.name.rpartition("/")[2].lower()
    known = next((facts for pattern, facts in FAMILIES if pattern.match(name)), ModelFacts())
    return known if model.images is None else ModelFacts(images=model.images, refuses=known.refuses)
