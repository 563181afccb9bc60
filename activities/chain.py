"""Which of several models answers an attempt: each failure hands the call to the next one, and Temporal retries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from activities._failures import RETRYABLE
from activities.prices import cost_of
from perdure.agent import AgentSpec
from perdure.catalog import facts_of
from perdure.errors import ProviderError
from perdure.messages import AssistantMessage, Message, Usage
from perdure.model import Model
from perdure.routing import in_words
from providers.retry_after import LONGEST

AT_ONCE = 0.001
"""Seconds: Temporal takes none for no wish."""


class Turns(BaseModel):
    """What the attempts of one call have learned of its chain; models are told by their places in it."""

    model_config = ConfigDict(frozen=True)

    turn: int = 0
    """Whose turn it is."""
    dead: tuple[int, ...] = ()
    """Those that have failed for good."""
    until: dict[int, float] = Field(default_factory=dict)
    """Epoch seconds before which they want to be left alone."""
    asked: int = 0
    """Who was asked last."""
    used: dict[int, Usage] = Field(default_factory=dict)
    """What attempts before that have used, about."""

    def spent(self, total: Usage) -> dict[int, Usage]:
        """What each has used, of what all attempts have: the last that was asked has used the rest."""
        known = sum(self.used.values(), Usage())
        rest = Usage(
            input_tokens=max(0, total.input_tokens - known.input_tokens),
            output_tokens=max(0, total.output_tokens - known.output_tokens),
        )
        own = {self.asked: self.used.get(self.asked, Usage()) + rest} if rest.total else {}
        return {**self.used, **own}


@dataclass(frozen=True)
class Handover:
    """What follows a failure: what the next attempt must know, and the seconds until it; None for Temporal's own."""

    turns: Turns
    pause: float | None


@dataclass(frozen=True)
class Chain:
    """The models that may answer one call, as its present attempt finds them."""

    models: tuple[Model, ...]
    place: int
    """Who is asked now."""
    turns: Turns
    """What the next attempt finds where nobody says how this one ended: this model had its turn, it may have hung."""
    text_only: bool = False
    """A router has chosen these for texts."""

    @property
    def model(self) -> Model:
        """Who is asked now."""
        return self.models[self.place]

    @property
    def interrupted(self) -> Turns:
        """What the next attempt finds where this one ends without a fault of its model."""
        return self.turns.model_copy(update={"turn": self.place})

    def named(self, label: str | None) -> Model | None:
        """The first model of this label."""
        return next((model for model in self.models if model.label == label), None)

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The conversation as this model can read it."""
        blind = not facts_of(self.model).images or (self.text_only and self.model.images is None)
        return [in_words(message) for message in messages] if blind else messages

    def cost(self, used: Usage) -> Decimal:
        """US dollars for what all attempts have used, each by the price of its own model."""
        spent = self.turns.spent(used)
        return sum((cost_of(self.models[place], usage) or Decimal(0) for place, usage in spent.items()), Decimal(0))

    def after(self, error: ProviderError, now: float) -> Handover | None:
        """What follows this failure, at `now` in epoch seconds; None where all have failed for good.

        The others come at once. Where all have had their turn the first that may be asked comes again.
        """
        dead = self.turns.dead if RETRYABLE[error.kind] else (*self.turns.dead, self.place)
        until = {place: moment for place, moment in self.turns.until.items() if place != self.place}
        if error.retry_after is not None:
            until[self.place] = now + min(error.retry_after, LONGEST)
        left = [place for place in range(len(self.models)) if place not in dead]
        if not left:
            return None
        order = sorted(left, key=lambda place: (place <= self.place, place))
        following = next((p for p in order if until.get(p, now) <= now), None)
        if following is not None and following > self.place:
            pause: float | None = AT_ONCE
        else:
            following = min(order, key=lambda place: until[place]) if following is None else following
            pause = max(until[following] - now, AT_ONCE) if following in until else None
        return Handover(self.turns.model_copy(update={"turn": following, "dead": dead, "until": until}), pause)


def turns_of(details: Sequence[Any]) -> Turns:
    """What an earlier attempt has said of the chain in its last heartbeat."""
    told = details[0].get("turns") if details and isinstance(details[0], Mapping) else None
    try:
        return Turns.model_validate(told or {})
    except ValidationError:
        return Turns()


def chain_for(spec: AgentSpec, messages: Sequence[Message], turns: Turns, before: Usage) -> Chain:
    """The chain of an attempt; the same for every attempt of a call, for its conversation is.

    `before` is what earlier attempts have used.
    """
    chosen, text_only = spec.models, False
    if spec.router is not None:
        chosen = spec.router.choose(messages, sum(isinstance(message, AssistantMessage) for message in messages))
        text_only = spec.router.reads_text_only(chosen)
    every = range(len(chosen))
    # All have failed for good and nobody has heard it: the last worker was lost just then.
    left = [place for place in every if place not in turns.dead] or every
    place = next((place for place in left if place >= turns.turn), left[0])
    begun = turns.model_copy(update={"turn": place + 1, "asked": place, "used": turns.spent(before)})
    return Chain(chosen, place, begun, text_only)
