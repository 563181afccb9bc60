"""The agents of the contract tests: one for each thing that the contract promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from perdure import Agent, Approval, Limits, Model, tool


def scripted(*steps: Mapping[str, Any]) -> Model:
    """A model that follows a script."""
    return Model(provider="scripted", params={"script": list(steps)})


class Receipt(BaseModel):
    """A structured answer."""

    to: str
    amount_cents: int


@tool(effect="write", approval=Approval(timeout="10m"))
def pay(to: str, amount_cents: int) -> str:
    """Pay somebody."""
    return f"paid {to} {amount_cents}"


@tool(effect="read")
def weather(city: str) -> str:
    """Weather now."""
    return f"{city}: 9C"


@tool(effect="read", max_result_chars=4_000_000)
def huge(megabytes: int) -> str:
    """A very large text."""
    return "0123456789abcdef" * (megabytes * 65_536)


PAY = {"calls": [{"tool": "pay", "arguments": {"to": "bob", "amount_cents": 100}}]}
BOTH = {"calls": [PAY["calls"][0], {"tool": "pay", "arguments": {"to": "eve", "amount_cents": 7}}]}
WEATHER = {"calls": [{"tool": "weather", "arguments": {"city": "Oslo"}}]}

clerk = Agent("clerk", scripted(PAY, {"text": "Result: {{last_tool_text}}"}), "You pay invoices.", [pay, weather])
pair = Agent("pair", scripted(BOTH, {"text": "{{tool:c1}}; {{tool:c2}}"}), tools=[pay])
reader = Agent("reader", scripted(WEATHER, {"text": "{{last_tool_text}}"}), tools=[weather])
hoarder = Agent(
    "hoarder",
    scripted({"calls": [{"tool": "huge", "arguments": {"megabytes": 3}}]}, {"text": "kept"}),
    tools=[huge],
)
structured = Agent("structured", scripted({"text": '{"to": "bob", "amount_cents": 100}'}), output=Receipt)
stubborn = Agent("stubborn", scripted({"text": "no", "repeat": True}), verify=lambda ctx: "it is wrong")
looping = Agent("looping", scripted({**WEATHER, "repeat": True}), tools=[weather], limits=Limits(steps=3))
filtered = Agent("filtered", scripted({"text": "", "finish": "filtered"}))
broken = Agent("broken", scripted({"error": {"kind": "authentication", "message": "wrong key"}}))
slow = Agent("slow", scripted({"text": "done", "delay_ms": 30_000}), limits=Limits(deadline="1s"))
echo = Agent("echo", scripted({"text": "{{user}}", "repeat": True}))
