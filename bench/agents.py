"""The agents that are measured: scripted models without latency, and tools that do nothing but answer."""

from __future__ import annotations

import time
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from perdure import Agent, Approval, Limits, Model, Price, ToolContext, allow, tool
from perdure.policy import PolicyDecision

RESULT, REPLY = 400, 100
"""Characters of a tool's result and of a reply."""
TOKENS = 1_000
"""Pieces of the streamed answer."""
STREAM_MS = 5_000
"""Milliseconds over which it comes."""
HEARTBEAT = timedelta(seconds=2)
"""Of the tool whose worker is killed."""
PAUSE = 240.0
"""Seconds that it takes after its effect: nobody waits for its end."""
SEVERAL = 7
"""Results differ by more than the number that was asked for, as those of a real tool do."""


def result_of(i: int) -> str:
    """The result of every tool here."""
    return f"{i * SEVERAL + 1}:".ljust(RESULT, "x")


@tool(effect="read")
def lookup(i: int) -> str:
    """Look something up."""
    return result_of(i)


@tool(effect="read", quick=True)
def lookup_quick(i: int) -> str:
    """Look something up at once."""
    return result_of(i)


@tool(effect="write", approval=Approval(timeout="1h"), final=True)
def act(i: int) -> str:
    """Do something that a person must allow; says when it began, in seconds of the machine's steady clock."""
    return repr(time.monotonic())


@tool(effect="write", heartbeat=HEARTBEAT, timeout="5m")
def write_down(ledger: str, ctx: ToolContext) -> str:
    """Leave a line in a file, then take so long that something happens meanwhile."""
    with Path(ledger).open("a") as file:
        file.write(f"{ctx.run_id}\n")
    time.sleep(PAUSE)
    return "written"


def nothing_to_say(call: Any) -> PolicyDecision:
    """A policy that allows everything."""
    return allow()


def calling(used: str) -> dict[str, Any]:
    """A step of a script that calls a tool, again and again."""
    return {
        "text": "y" * REPLY,
        "calls": [{"tool": used, "arguments": {"i": "{{step}}"}}],
        "usage": {"input_tokens": 1_000, "output_tokens": 50},
        "repeat": True,
    }


def make_agent(name: str, *script: dict[str, Any], **extra: Any) -> Agent:
    """An agent that follows a script until its run's limit on steps."""
    model = Model(
        provider="scripted", params={"script": list(script)}, price=Price(input=Decimal("0.25"), output=Decimal(2))
    )
    limits = Limits(steps=1_000, tool_calls=1_000, tokens=100_000_000)
    return Agent(name=name, model=model, tools=[lookup, lookup_quick, act, write_down], limits=limits, **extra)


ANSWER = "".join(f"token{i % 10} " for i in range(TOKENS))

ordinary = make_agent("ordinary", calling("lookup"))
quick = make_agent("quick", calling("lookup_quick"))
policy = make_agent("policy", calling("lookup"), policy=nothing_to_say)
approval = make_agent("approval", calling("act"))
told = make_agent("told", {"text": ANSWER})
streamed = make_agent("streamed", {"text": ANSWER, "chunks": TOKENS, "delay_ms": STREAM_MS})
cut_short = make_agent(
    "cut_short",
    {"calls": [{"tool": "write_down", "arguments": {"ledger": "{{user}}"}}]},
    {"text": "{{last_tool_text}}"},
)
AGENTS = {agent.name: agent for agent in (ordinary, quick, policy, approval, told, streamed, cut_short)}
