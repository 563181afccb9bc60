"""Agents whose tools leave a line in a ledger before they wait at a gate, so that a test knows when to strike."""

from __future__ import annotations

import asyncio
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from perdure import Agent, Approval, Model, ToolContext, tool
from perdure.verify import VerifyContext

FOLDER = Path(os.environ["CHAOS_FOLDER"])
PATIENCE = 60.0

watched = partial(tool, heartbeat="2s", timeout="20s")
"""A tool whose lost worker is noticed soon."""


def write_down(phase: str, **fields: Any) -> None:
    """Append a line to the ledger; it is on the disk when this returns."""
    line = json.dumps({"phase": phase, "pid": os.getpid(), **fields}) + "\n"
    handle = os.open(FOLDER / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def is_open(gate: str) -> bool:
    """Whether nobody has to wait at this gate."""
    return not gate or (FOLDER / f"gate-{gate}").exists()


def act(ctx: ToolContext, gate: str, pause_ms: int = 0, **fields: Any) -> None:
    """The deed, then the wait at the gate, in a thread that blocks."""
    about = {"tool": ctx.tool, "run": ctx.run_id, "call": ctx.call_id, "key": ctx.idempotency_key, **fields}
    write_down("begin", **about, attempt=ctx.attempt)
    time.sleep(pause_ms / 1_000)
    end = time.monotonic() + PATIENCE
    while not is_open(gate) and time.monotonic() < end:
        time.sleep(0.01)
    write_down("end", **about)


@watched(effect="write")
def pay(to: str, amount: int, ctx: ToolContext, gate: str = "", pause_ms: int = 0) -> str:
    """Pay somebody."""
    act(ctx, gate, pause_ms, to=to, amount=amount)
    return f"paid {to} {amount}"


@watched(effect="write")
async def pay_async(to: str, amount: int, ctx: ToolContext, gate: str = "") -> str:
    """Pay somebody without a thread."""
    write_down("begin", tool=ctx.tool, run=ctx.run_id, call=ctx.call_id, to=to, amount=amount)
    while not is_open(gate):  # noqa: ASYNC110  the test opens it in another process
        await asyncio.sleep(0.01)
    write_down("end", tool=ctx.tool, run=ctx.run_id, call=ctx.call_id)
    return f"paid {to} {amount}"


@watched(effect="write", on_unknown="ask")
def pay_ask(to: str, amount: int, ctx: ToolContext, gate: str = "", pause_ms: int = 0) -> str:
    """Pay somebody; a person says what became of it."""
    act(ctx, gate, pause_ms, to=to, amount=amount)
    return f"paid {to} {amount}"


@watched(effect="write", on_unknown="fail")
def pay_fail(to: str, amount: int, ctx: ToolContext, gate: str = "") -> str:
    """Pay somebody, or end the run."""
    act(ctx, gate, to=to, amount=amount)
    return f"paid {to} {amount}"


@watched(effect="write", approval=Approval(timeout="5m"))
def pay_approved(to: str, amount: int, ctx: ToolContext, gate: str = "", pause_ms: int = 0) -> str:
    """Pay somebody when a person agrees."""
    act(ctx, gate, pause_ms, to=to, amount=amount)
    return f"paid {to} {amount}"


@watched(effect="dangerous")
def wipe(to: str, amount: int, ctx: ToolContext, gate: str = "", pause_ms: int = 0) -> str:
    """Remove something for good."""
    act(ctx, gate, pause_ms, to=to, amount=amount)
    return f"wiped {to}"


@watched(effect="read")
def look(name: str, ctx: ToolContext, gate: str = "") -> str:
    """Look at something."""
    act(ctx, gate, name=name)
    return f"{name} seen in attempt {ctx.attempt}"


@watched(effect="idempotent")
def put(name: str, ctx: ToolContext, gate: str = "") -> str:
    """Put something in its place."""
    act(ctx, gate, name=name)
    return f"put {name} in attempt {ctx.attempt}"


def check(ctx: VerifyContext) -> None:
    """Accept every answer after a look at the gate."""
    write_down("verify", output=ctx.output)
    end = time.monotonic() + PATIENCE
    while not is_open("verify") and time.monotonic() < end:
        time.sleep(0.01)


def scripted(*steps: dict[str, Any]) -> Model:
    """A model that follows a script."""
    return Model(provider="scripted", params={"script": list(steps)})


PAYMENT = {"calls": [{"tool": "pay", "arguments": {"to": "child", "amount": 1, "gate": "child"}}]}

helper = Agent("helper", scripted(PAYMENT, {"text": "helped: {{last_tool_text}}"}), tools=[pay])
checked = Agent("checked", scripted({"text": "an answer", "repeat": True}), verify=check)
boss = Agent(
    "boss",
    scripted(
        {"calls": [{"tool": "helper", "arguments": {"prompt": "help"}}]},
        {"calls": [{"tool": "look", "arguments": {"name": "later", "gate": "later"}}]},
        {"text": "{{tool:c1.output}}"},
    ),
    tools=[helper, look],
)
payer = Agent(
    "payer",
    "compatible:fake",
    tools=[pay, pay_async, pay_ask, pay_fail, pay_approved, wipe, look, put],
)
