"""The commands that are offered to people for what a run waits for."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from perdure.limits import REASONS

_MORE = {"steps": "10", "tool_calls": "20", "tokens": "100000", "cost_usd": "0.50", "deadline": "30m"}
"""How much more of each limit is offered."""
_FLAGS = {REASONS[limit]: f"--{limit.replace('_', '-')} {more}" for limit, more in _MORE.items()}


def approve(id: str, call_id: str) -> str:
    """Decides a call."""
    return f"perdure approve {id} {call_id}"


def answer(id: str, question_id: str, options: Sequence[str] = ()) -> str:
    """Answers a question, with its first option where there are some."""
    return f"perdure answer {id} {question_id} {quote(options[0]) if options else 'TEXT'}"


def extend(id: str, reason: str) -> str:
    """Raises the limit that a run is paused on, which `reason` names."""
    return f"perdure extend {id} {_FLAGS.get(reason, '--help')}"
