"""What tools may do and return: whatever it is, the run goes on, its answers are JSON, and the tool knows its run."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Any

import pytest

from perdure import Agent, Limits, RetryTool, ToolContext, ToolDefaults, tool
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve


def raising(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    """A function that raises."""

    def fail() -> Any:
        raise error

    return fail


class Unspeakable(Exception):
    """Its message cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Opaque:
    """No JSON, and no repr either."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Plain:
    """No JSON."""

    def __repr__(self) -> str:
        return "<Plain>"


def counting() -> Iterator[int]:
    """A generator."""
    yield from range(3)


async def counting_async() -> AsyncIterator[int]:
    """An asynchronous generator."""
    yield 1


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int
    on: date


def deep() -> Any:
    """A list inside a list inside a list ..."""
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def circular() -> Any:
    """A list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


RESULTS: list[tuple[str, Callable[[], Any], str | None]] = [
    ("system_exit", raising(SystemExit(3)), "SystemExit: 3"),
    ("keyboard_interrupt", raising(KeyboardInterrupt), "KeyboardInterrupt"),
    ("generator_exit", raising(GeneratorExit), "GeneratorExit"),
    ("stop_iteration", raising(StopIteration(1)), "StopIteration: 1"),
    ("cancelled", raising(asyncio.CancelledError), "CancelledError"),
    ("timeout", raising(TimeoutError()), "TimeoutError"),
    ("key_error", raising(KeyError("k")), "KeyError: 'k'"),
    ("exit", lambda: sys.exit("bye"), "SystemExit: bye"),
    ("recursion", raising(RecursionError("deep")), "RecursionError: deep"),
    ("huge_message", raising(ValueError("x" * 5_000_000)), None),
    ("unspeakable", raising(Unspeakable()), "Unspeakable: (its message cannot be shown)"),
    ("none", lambda: None, "null"),
    ("text", lambda: "text", "text"),
    ("empty", lambda: "", ""),
    ("number", lambda: 1.5, "1.5"),
    ("nan", lambda: math.nan, None),
    ("infinity", lambda: [math.inf], None),
    ("surrogates", lambda: "a\ud83d b\udc97", "a\ufffd b\ufffd"),
    ("nul", lambda: "a\x00b", "a\ufffdb"),
    ("surrogate_in_json", lambda: {"k\udcff": "\ud800"}, None),
    ("bytes", lambda: b"\xff\x00raw", None),
    ("set", lambda: {1}, "[1]"),
    ("tuple", lambda: (1, 2), "[1,2]"),
    ("dataclass", lambda: Point(1, date(2025, 1, 2)), '{"x":1,"on":"2025-01-02"}'),
    ("opaque", Opaque, None),
    ("plain", Plain, None),
    ("opaque_inside", lambda: {"a": Opaque()}, None),
    ("function", lambda: print, None),
    ("generator", counting, None),
    ("async_generator", counting_async, None),
    ("deep", deep, None),
    ("circular", circular, None),
    ("big_number", lambda: 10**400, None),
]


def plainly(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function without the annotations of what it returns, and with a name."""

    def run():  # type: ignore[no-untyped-def]
        return function()

    return run


@pytest.mark.parametrize("effect", ["read", "write", "quick"])
async def test_results_of_any_kind(serve: Serve, effect: Any) -> None:
    """Whatever a tool returns or raises is a text for the model; the run goes on and every answer of it is JSON."""
    options: dict[str, Any] = {"effect": "read", "quick": True} if effect == "quick" else {"effect": effect}
    tools = [tool(name=name, **options)(plainly(function)) for name, function, _ in RESULTS]
    agent = Agent("any", scripted(calls(*(call(name) for name, _, _ in RESULTS)), reply("ok")), tools=tools)
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.result()
    assert (result["outcome"], result["tool_calls"]) == ("success", len(RESULTS))
    messages = [m for m in await run.messages() if m["role"] == "tool"]
    shown = {name: m for (name, _, _), m in zip(RESULTS, messages, strict=True)}
    for name, function, text in RESULTS:
        body = "".join(part["text"] for part in shown[name].get("parts", ()))
        body.encode()
        assert len(body) <= 50_000, name
        if text is not None:
            assert body == text, name
        failed = function.__qualname__.startswith("raising") or name == "exit"
        assert shown[name].get("error", False) is failed, name
    assert json.loads(json.dumps(await run.status()))["outcome"] == "success"


async def test_a_huge_result(serve: Serve) -> None:
    """A result of 3 MB works: model and result see all of it, queries and history stay small and plain JSON."""
    body = "".join(f"{n:07d}\n" for n in range(400_000))

    @tool(effect="read", max_result_chars=4_000_000)
    def fetch() -> str:
        return body

    @tool(effect="read")
    def measure(text: str) -> str:
        return f"{len(text)} {text[-8:-1]}"

    agent = Agent(
        "reader",
        scripted(calls("fetch"), calls("measure", text="{{last_tool_text}}"), reply("{{tool:c1}}")),
        tools=[fetch, measure],
        limits=Limits(tokens=100_000_000),
    )
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.ended()
    assert (result["outcome"], result["output"][:1000]) == ("success", body[:1000])
    assert (await run.results())["c1"] == f"{body[:1000]}\n[... {len(body)} characters in all ...]"
    status = await run.status()
    assert len(json.dumps(status)) < 20_000
    described = await run.handle.describe()
    assert described.raw_info.history_size_bytes < 1_500_000


@pytest.mark.parametrize(("most", "length"), [(100, 100), (1000, 1000)])
async def test_long_results_are_cut_in_the_middle(serve: Serve, most: int, length: int) -> None:
    """A result above `max_result_chars` keeps its beginning and end and says what is missing."""

    @tool(effect="read", max_result_chars=most)
    def fetch() -> str:
        return "a" * 5_000 + "z" * 5_000

    agent = Agent("reader", scripted(calls("fetch"), reply("ok")), tools=[fetch])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.result()
    shown = (await run.results())["c1"]
    assert len(shown) == length
    assert (shown[0], shown[-1]) == ("a", "z")
    assert f"{10_000 - most} characters left out" in shown


async def test_the_context(serve: Serve) -> None:
    """A tool knows its run, call, tenant, user, data, metadata, state of the worker, attempt and key."""
    seen: list[ToolContext] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, int]]:
        yield {"pool": 7}

    @tool(effect="idempotent", attempts=2)
    def act(x: int, ctx: ToolContext) -> str:
        seen.append(ctx)
        ctx.heartbeat({"done": len(seen)})
        if ctx.attempt == 1:
            raise RetryTool(delay=0.01)
        return "acted"

    agent = Agent("actor", scripted(calls("act", x=5), reply("ok")), tools=[act])
    lab = await serve(agent, lifespan=lifespan)
    run = await lab.start(agent, tenant="acme", user="ann", data=[1], metadata={"m": "x"})
    assert (await run.result())["outcome"] == "success"
    first, second = seen
    assert (first.attempt, second.attempt) == (1, 2)
    assert dataclasses.replace(first, attempt=2, heartbeat=second.heartbeat, heartbeat_details=()) == (
        dataclasses.replace(second, heartbeat_details=())
    )
    assert (second.run_id, second.call_id, second.tool, second.agent) == (run.id, "c1", "act", "actor")
    assert (second.tenant, second.user, second.data, dict(second.metadata)) == ("acme", "ann", [1], {"m": "x"})
    assert second.state == {"pool": 7}
    run_id, call_id, digest = second.idempotency_key.split("/")
    described = await run.handle.describe()
    assert (run_id, call_id, len(digest)) == (described.run_id, "c1", 16)


async def test_the_context_without_anything(serve: Serve) -> None:
    """What was not given is None or empty."""
    seen: list[ToolContext] = []

    @tool(effect="read", quick=True)
    def look(ctx: ToolContext) -> str:
        ctx.heartbeat()
        seen.append(ctx)
        return "ok"

    agent = Agent("actor", scripted(calls("look"), reply("ok")), tools=[look])
    lab = await serve(agent)
    await lab.run(agent)
    [ctx] = seen
    assert (ctx.tenant, ctx.user, ctx.data, dict(ctx.metadata), ctx.state) == (None, None, None, {}, None)


async def test_heartbeat_details_reach_the_next_attempt(serve: Serve) -> None:
    """What a tool reported before its attempt failed is there for the next one."""
    seen: list[tuple[Any, ...]] = []

    @tool(effect="read", attempts=2)
    async def work(ctx: ToolContext) -> str:
        seen.append(ctx.heartbeat_details)
        if ctx.attempt == 1:
            ctx.heartbeat("half", 2)
            await asyncio.sleep(0.5)
            raise RetryTool(delay=0.01)
        return "ok"

    agent = Agent("worker", scripted(calls("work"), reply("ok")), tools=[work])
    lab = await serve(agent)
    await lab.run(agent)
    assert seen == [(), ("half", 2)]


async def test_defaults_of_an_agent_and_of_a_tool(serve: Serve) -> None:
    """What a tool says itself wins over its agent's defaults."""

    @tool(effect="read")
    def short() -> str:
        return "x" * 500

    @tool(effect="read", max_result_chars=300)
    def longer() -> str:
        return "x" * 500

    agent = Agent(
        "defaults",
        scripted(calls(call("short"), call("longer")), reply("ok")),
        tools=[short, longer],
        tool_defaults=ToolDefaults(max_result_chars=100),
    )
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.result()
    assert [len(text) for text in (await run.results()).values()] == [100, 300]


async def test_a_blocking_tool_blocks_nobody(serve: Serve) -> None:
    """While one tool blocks its thread and another its loop, other runs of the same worker end."""
    free = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(effect="read", timeout=30)
    def wait() -> str:
        return str(asyncio.run_coroutine_threadsafe(free.wait(), loop).result(20))

    agent = Agent("blocker", scripted(calls(*[call("wait")] * 3), reply("ok")), tools=[wait])
    other = Agent("other", scripted(reply("hi")))
    lab = await serve(agent, other)
    run = await lab.start(agent)
    await run.seen("tool_start", 3)
    assert (await lab.run(other))["output"] == "hi"
    free.set()
    assert (await run.result())["output"] == "ok"


async def test_a_read_that_takes_too_long(serve: Serve) -> None:
    """A read tool beyond its timeout is an error for the model."""

    @tool(effect="read", timeout=0.2)
    async def sleep() -> None:
        await asyncio.sleep(30)

    agent = Agent("sleeper", scripted(calls("sleep"), reply("{{last_tool_text}}")), tools=[sleep])
    lab = await serve(agent)
    assert (await lab.run(agent))["output"] == "sleep did not end within 0.2 s"
