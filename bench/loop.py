"""The loop that a competent user would write on bare temporalio: what Perdure is measured against.

The conversation lives in the workflow, a model call gets only what is new, workers remember the rest and ask for it by
query where they do not. It has no limits, no effects, no checks, no recorded usage: less than this would not work.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.contrib.workflow_streams import WorkflowStream, WorkflowStreamClient
from temporalio.exceptions import ApplicationError

RESULT, REPLY, TOKENS, STREAM_SECONDS = 400, 100, 1_000, 5.0
"""As in `bench.agents`, which workflow code cannot import: characters, pieces, seconds."""
S60, HOUR = timedelta(seconds=60), timedelta(hours=1)
BATCH = timedelta(milliseconds=200)
"""How often streamed tokens are sent on: as often as Perdure's heartbeats."""
PAGE = 1_000_000
MOST = 5_000

PREFIX: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
FRESH: OrderedDict[str, dict[str, Any]] = OrderedDict()


def remember(store: OrderedDict[str, Any], key: str, value: Any) -> None:
    """Keep a value; the oldest make room."""
    store[key] = value
    store.move_to_end(key)
    while len(store) > MOST:
        store.popitem(last=False)


def minted(message: dict[str, Any]) -> dict[str, Any]:
    """Give a message an id of this attempt and remember it."""
    message["rid"] = secrets.token_urlsafe(6)
    remember(FRESH, message["rid"], message)
    return message


async def conversation_of(ref: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversation that a reference means, from memory or else by query."""
    info = activity.info()
    run = info.workflow_run_id or ""
    known = list(PREFIX.pop(run, []))
    before = ref["count"] - len(ref["tail"])
    if len(known) < before or (before and known[before - 1]["rid"] != ref["base"]):
        known = []
    else:
        fresh = [item if isinstance(item, dict) else FRESH.pop(item, None) for item in ref["tail"]]
        known = [*known[:before], *(message for message in fresh if message is not None)] if all(fresh) else known
    if len(known) < ref["count"]:
        handle = activity.client().get_workflow_handle(info.workflow_id or "", run_id=run)
        while len(known) < ref["count"]:
            page = await handle.query("conversation", len(known))
            if not page:
                raise RuntimeError("the conversation is not there yet")
            known += page
    remember(PREFIX, run, known)
    return known


@activity.defn
async def ask_model(ref: dict[str, Any]) -> dict[str, Any]:
    """One model call."""
    messages = await conversation_of(ref)
    step = 1 + len(messages) // 2
    return minted(
        {
            "role": "assistant",
            "content": "y" * REPLY,
            "usage": {"input_tokens": 1_000, "output_tokens": 50},
            "calls": [{"id": f"c{step}", "tool": "lookup", "arguments": {"i": step}}],
        }
    )


@activity.defn
async def look_up(arguments: dict[str, Any]) -> dict[str, Any]:
    """The tool."""
    return minted({"role": "tool", "content": f"{arguments['i'] * 7 + 1}:".ljust(RESULT, "x")})


@activity.defn
async def act_now(arguments: dict[str, Any]) -> str:
    """A tool that must be allowed; says when it began."""
    return repr(time.monotonic())


@activity.defn
async def stream_model(live: bool) -> str:
    """One model call whose tokens are published in batches, or whose answer just comes."""
    pieces = [f"token{i % 10} " for i in range(TOKENS)]
    if live:
        async with WorkflowStreamClient.from_within_activity(batch_interval=BATCH) as client:
            topic = client.topic("tokens", type=str)
            for piece in pieces:
                topic.publish(piece)
                await asyncio.sleep(STREAM_SECONDS / TOKENS)
    return "".join(pieces)


@workflow.defn
class Loop:
    """Model, tool, model, ... so many turns; with `ask` the first tool waits for a person."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.approved: bool | None = None

    @workflow.query
    def conversation(self, after: int) -> list[dict[str, Any]]:
        """A page of messages."""
        page: list[dict[str, Any]] = []
        size = 0
        for message in self.messages[after:]:
            size += len(json.dumps(message))
            if page and size > PAGE:
                break
            page.append(message)
        return page

    @workflow.signal(name="approve_later")
    def on_signal(self, given: dict[str, Any]) -> None:
        """Take a decision."""
        self.approved = given.get("approve") is True

    @workflow.update
    def approve(self, given: dict[str, Any]) -> None:
        """Take a decision and answer."""
        self.approved = given["approve"]

    @approve.validator
    def check(self, given: dict[str, Any]) -> None:
        """Refuse what is no decision, and a second one."""
        if not isinstance(given.get("approve"), bool) or self.approved is not None:
            raise ApplicationError("no decision is waited for")

    @workflow.run
    async def run(self, turns: int, quick: bool = False, ask: bool = False) -> str:
        """The last result."""
        self.messages.append({"role": "user", "content": "hello", "rid": "u0"})
        ref: dict[str, Any] = {"count": 1, "base": "", "tail": self.messages[:]}
        text = ""
        for _ in range(turns):
            reply = await workflow.execute_activity(ask_model, ref, start_to_close_timeout=S60)
            arguments = reply["calls"][0]["arguments"]
            if ask:
                await workflow.wait_condition(lambda: self.approved is not None, timeout=HOUR)
                return await workflow.execute_activity(act_now, arguments, start_to_close_timeout=S60)
            call = workflow.execute_local_activity if quick else workflow.execute_activity
            result = await call(look_up, arguments, start_to_close_timeout=S60)
            base = self.messages[-1]["rid"]
            self.messages += [reply, result]
            ref = {"count": len(self.messages), "base": base, "tail": [reply["rid"], result["rid"]]}
            text = result["content"]
        return text


@workflow.defn
class Streamed:
    """One answer that is streamed through the workflow, the way the SDK offers."""

    @workflow.init
    def __init__(self, live: bool) -> None:
        self.stream = WorkflowStream()

    @workflow.run
    async def run(self, live: bool) -> str:
        """The whole answer; viewers get what they have not read yet before the end."""
        answer: str = await workflow.execute_activity(stream_model, live, start_to_close_timeout=S60)
        if live:
            self.stream.topic("end", type=str).publish("end")
            await workflow.sleep(1)
            self.stream.detach_pollers()
            await workflow.wait_condition(workflow.all_handlers_finished)
        return answer


WORKFLOWS = [Loop, Streamed]
ACTIVITIES: list[Callable[..., Any]] = [ask_model, look_up, act_now, stream_model]
