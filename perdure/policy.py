"""What a policy function may answer for a tool call: allow, deny with a reason, or ask a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PolicyDecision:
    """A policy's answer; made by `allow`, `deny` and `ask`."""

    action: Literal["allow", "deny", "ask"]
    reason: str = ""


def allow() -> PolicyDecision:
    """The call may run; its tool's own approval still applies."""
    return PolicyDecision("allow")


def deny(reason: str) -> PolicyDecision:
    """The call must not run; the model is told why."""
    return PolicyDecision("deny", reason)


def ask(reason: str = "") -> PolicyDecision:
    """The call runs only after a person's approval."""
    return PolicyDecision("ask", reason)
