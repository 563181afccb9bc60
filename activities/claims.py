"""Replies that a provider goes on with though nobody listens: what heartbeats hand on, so that they are paid once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from activities.tally import Tally
from perdure.messages import Usage


class Claim(BaseModel):
    """One such reply."""

    model_config = ConfigDict(frozen=True)

    model: str
    """Label of the model that says it."""
    address: str
    """Where it was asked."""
    ticket: Mapping[str, str]
    """What the provider knows it by."""
    before: Usage = Usage()
    """What attempts had used before the one that asked for it."""


class Claims:
    """What one attempt of a model call has found of an earlier one's reply, and what it has learned of its own."""

    def __init__(self, details: Sequence[Any], tally: Tally, beat: Callable[[], None]) -> None:
        """`details` are the heartbeat details that this attempt has found; `beat` hands on what is held now."""
        self.held = _claim_in(details)
        self._tally = tally
        self._beat = beat

    def other_than(self, model: str) -> str | None:
        """The label of another model whose reply an earlier attempt has left."""
        return self.held.model if self.held is not None and self.held.model != model else None

    def keeps_only(self, model: str) -> None:
        """Let go of another model's reply; what has been used on one of this model is no loss any more."""
        if self.other_than(model):
            self.held = None
        if self.held is not None:
            self._tally.resumes(self.held.before)

    def takes(self, model: str, address: str, ticket: Mapping[str, str]) -> None:
        """The provider has said what the reply of this attempt is known by."""
        claim = Claim(model=model, address=address, ticket=ticket, before=self._tally.before)
        if claim != self.held:
            self.held = claim
            self._beat()

    def lets_go(self) -> None:
        """Nothing more will come of the reply: the call is to be made anew."""
        if self.held is not None:
            self.held = None
            self._tally.begins_anew()


def _claim_in(details: Sequence[Any]) -> Claim | None:
    told = details[0].get("claim") if details and isinstance(details[0], Mapping) else None
    try:
        return Claim.model_validate(told) if told else None
    except ValidationError:
        return None
