"""What a handler gets instead of a payload that could not be read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Undecodable:
    """Stands for a payload that is no value: broken JSON, an unknown encoding, no data.

    An error while decoding would fail the workflow task again and again; as a value it reaches the handler, which
    refuses it. `reason` is one sentence without any of the payload's content.
    """

    reason: str
