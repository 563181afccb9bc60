"""Parameters of the strategies: frozen, documented, checked when an agent is made."""

from __future__ import annotations

from pydantic import Field, StrictInt

from perdure.settings import Settings


class ToolLoop(Settings):
    """The model calls tools until it answers."""

    max_repeats: StrictInt = Field(3, ge=1, le=100)
    """How often the same call with the same arguments runs within one turn of the user."""
    max_nudges: StrictInt = Field(2, ge=0, le=10)
    """How often an empty answer, or a call announced but not sent, is pointed out to the model."""
    max_cut: StrictInt = Field(3, ge=0, le=10)
    """How often calls cut by the output limit are asked for again."""
    max_idle: StrictInt = Field(12, ge=1, le=1_000)
    """After so many replies in a row that bring nothing new the model is told; after as many again the run ends.

    Nothing new: only near repeats of calls of this turn, with errors or results that were seen before, or the same
    words again.
    """
