"""Cases H: loops end, budgets hold, and nothing is counted twice; what one run and its children can show."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from perdure import Agent, Limits, Price, tool
from perdure.testing import Step, call, calls, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import fake_chat


@tool(effect="read")
def get_weather(city: str, unit: str = "C") -> str:
    """Weather now."""
    return f"{city}: 9{unit}"


@tool(effect="read")
def list_tasks() -> str:
    """All tasks."""
    return ""


@tool(effect="read")
def echo(text: str) -> str:
    """Say it again."""
    return text


FAILURES: list[int] = []


@tool(effect="read")
def always_fails() -> str:
    """Fail with another message every time."""
    FAILURES.append(1)
    raise RuntimeError(f"failure number {len(FAILURES)}")


@tool(effect="read")
def fails(text: str) -> str:
    """Fail in other words every time."""
    raise RuntimeError(f"{text} failed: {'abcdefgh'[len(FAILURES) % 8]}")


SAME: list[tuple[str, list[str], str]] = [
    ("same", ['{"city":"Oslo"}'], "get_weather"),
    ("empty_result", ["{}"], "list_tasks"),
    ("no_arguments", [""], "list_tasks"),
    ("order_of_keys", ['{"city":"Oslo","unit":"F"}', '{"unit":"F","city":"Oslo"}'], "get_weather"),
    ("another_failure_each_time", ["{}"], "always_fails"),
]

BROKEN: list[tuple[str, str, str]] = [
    ("no_json", '{"city":', "get_weather"),
    ("wrong_arguments", '{"town":"Oslo"}', "get_weather"),
    ("unknown_tool", "{}", "get_wether"),
]


@pytest.mark.parametrize(("texts", "name"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
async def test_case_122_the_same_call_for_ever(serve: Serve, texts: list[str], name: str) -> None:
    """It runs three times, is refused three times, and the run ends with `loop`: six requests to the model."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return {"calls": [{"tool": name, "arguments": texts[turn % len(texts)]}]}

    async with fake_chat(answer) as fake:
        agent = Agent("stuck", fake.model(), tools=[get_weather, list_tasks, always_fails])
        lab = await serve(agent)
        run = await lab.start(agent)
        result = await run.result()
        assert (result["outcome"], result["reason"]) == ("no_solution", "loop")
        assert (len(fake.requests), result["steps"], result["tool_calls"]) == (6, 6, 3)
    status = await run.status()
    assert (status["reason"], status["step"]) == ("loop", 6)
    assert "again and again" in status["message"]


@pytest.mark.parametrize(("text", "name"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
async def test_case_122_the_same_broken_call_for_ever(serve: Serve, text: str, name: str) -> None:
    """A call that can never run is pointed out three times, then it counts as a repetition and the run ends."""
    async with fake_chat({"calls": [{"tool": name, "arguments": text}]}) as fake:
        agent = Agent("stuck", fake.model(), tools=[get_weather])
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["reason"], len(fake.requests), result["tool_calls"]) == ("loop", 6, 0)


DISGUISED: list[tuple[str, list[Step], Limits, str]] = [
    (
        "in_turn",
        [calls("get_weather", city=c) for c in "AB"] * 8,
        Limits(),
        "loop",
    ),
    ("other_arguments", [calls("echo", text=f"noop{n}") for n in range(30)], Limits(steps=8), "max_steps"),
    ("nothing_new", [calls("echo", text=f"noop{n}") for n in range(40)], Limits(), "loop"),
    ("other_failures", [calls("fails", text=f"try {n}") for n in range(40)], Limits(), "loop"),
    ("tool_calls", [calls("echo", text=f"noop{n}") for n in range(30)], Limits(tool_calls=5), "max_tool_calls"),
    ("tokens", [calls("echo", text=f"noop{n}") for n in range(30)], Limits(tokens=60), "max_tokens"),
    ("money", [calls("echo", text=f"noop{n}") for n in range(30)], Limits(cost_usd=Decimal("0.0001")), "max_cost"),
    (
        "time",
        [{**calls("echo", text=f"noop{n}"), "delay_ms": 50} for n in range(90)],
        Limits(deadline=1.0, steps=90),
        "deadline",
    ),
]


@pytest.mark.parametrize(("script", "limits", "reason"), [d[1:] for d in DISGUISED], ids=[d[0] for d in DISGUISED])
async def test_case_123_loops_in_disguise(serve: Serve, script: list[Step], limits: Limits, reason: str) -> None:
    """Each is stopped, by a limit or because nothing new came of it, and every call has its result."""
    price = Price(input=Decimal(1), output=Decimal(1))
    agent = Agent("turning", scripted(*script, price=price), tools=[get_weather, echo, fails], limits=limits)
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.result()
    assert result["reason"] == reason
    asked = [part["id"] for m in await run.messages() for part in m.get("parts", ()) if part["type"] == "call"]
    assert list(await run.results()) == asked


async def test_case_123_agents_that_hand_over_to_each_other(serve: Serve) -> None:
    """What one hands to the other comes out of one account, so the circle ends."""
    used = {"usage": {"input_tokens": 90, "output_tokens": 10}}
    one = Agent(
        "one",
        scripted({**calls("two", prompt="you do it"), **used}, {**reply("done"), **used}),
        limits=Limits(tokens=1000),
    )
    two = Agent(
        "two", scripted({**calls("one", prompt="no, you"), **used}, {**reply("done"), **used}), tools=[one],
        limits=Limits(tokens=1000),
    )  # fmt: skip
    one.tools.append(two.as_tool())
    lab = await serve(two)
    result = await lab.run("one")
    assert result["outcome"] in {"success", "budget_exceeded"}
    assert result["usage"]["input_tokens"] + result["usage"]["output_tokens"] <= 1100


async def test_case_125_a_budget_under_parallel_load(serve: Serve) -> None:
    """Five children that start at once share the parent's money: together they never spend more than there is."""
    price = Price(input=Decimal(0), output=Decimal(1000))

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        system = json.dumps(body["messages"][0])
        if "child" not in system:
            done = any(message["role"] == "tool" for message in body["messages"])
            made: dict[str, Any] = {"text": "ok"} if done else {"calls": [call("child", prompt=p) for p in "abcde"]}
            return {**made, "usage": {"prompt_tokens": 1, "completion_tokens": 0}}
        most = min(40, body["max_tokens"])
        return {
            "calls": [call("echo", text=str(len(fake.requests)))],
            "usage": {"prompt_tokens": 1, "completion_tokens": most},
        }

    async with fake_chat(answer) as fake:
        child = Agent("child", fake.model(price=price), "You are a child.", tools=[echo])
        parent = Agent(
            "parent",
            fake.model(price=price),
            "You are the boss.",
            tools=[child],
            limits=Limits(cost_usd=Decimal("0.10")),
        )
        lab = await serve(parent)
        run = await lab.start(parent)
        result = await run.result()
        texts = await run.results()
    assert Decimal(result["cost_usd"]) <= Decimal("0.10")
    assert all("budget_exceeded (max_cost)" in text for text in texts.values())
    sent = [r["max_tokens"] for r in fake.requests if "child" in json.dumps(r["messages"][0])]
    assert len(sent) == 5
    assert all(most <= 20 for most in sent)


async def test_case_125_calls_of_one_run(serve: Serve) -> None:
    """Each call is cut to what is left; when that buys nothing, none is sent and the run ends `max_cost`."""
    price = Price(input=Decimal(0), output=Decimal(1000))

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        usage = {"prompt_tokens": 1, "completion_tokens": min(40, body["max_tokens"])}
        return {"calls": [call("echo", text=str(len(fake.requests)))], "usage": usage}

    async with fake_chat(answer) as fake:
        agent = Agent("spender", fake.model(price=price), tools=[echo], limits=Limits(cost_usd=Decimal("0.10")))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"]) == ("budget_exceeded", "max_cost")
    assert [r["max_tokens"] for r in fake.requests] == [100, 60, 20]
    assert Decimal(result["cost_usd"]) == Decimal("0.10")


async def test_case_127_what_is_counted_already(serve: Serve) -> None:
    """Cached input is part of the input and reasoning part of the output; each is charged once."""
    usage = {
        "prompt_tokens": 1100,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 1000},
        "completion_tokens_details": {"reasoning_tokens": 8},
    }
    price = Price(input=Decimal(1), cached=Decimal("0.1"), output=Decimal(10))
    async with fake_chat({"text": "hi", "usage": usage}) as fake:
        agent = Agent("counted", fake.model(price=price))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert result["usage"] == {
        "input_tokens": 1100, "cached_tokens": 1000, "output_tokens": 10, "reasoning_tokens": 8,
    }  # fmt: skip
    assert result["cost_usd"] == "0.0003"


async def test_case_130_a_limit_right_after_calls(serve: Serve) -> None:
    """The calls of the last reply are carried out and answered; a continuation repeats none of them."""
    ran: list[str] = []

    @tool(effect="write")
    def act(what: str) -> str:
        ran.append(what)
        return f"did {what}"

    both = {**reply("I do both."), **calls(call("act", what="a"), call("act", what="b"))}
    agent = Agent("actor", scripted(both, reply("{{tool:c1}}, {{tool:c2}}")), tools=[act])
    lab = await serve(agent)
    run = await lab.start(agent, limits={"steps": 1})
    result = await run.result()
    assert (result["outcome"], result["reason"], result["output"]) == ("budget_exceeded", "max_steps", "I do both.")
    assert await run.results() == {"c1": "did a", "c2": "did b"}
    again = await lab.run(agent, "Go on.", continue_from=run.id)
    assert (again["output"], ran) == ("did a, did b", ["a", "b"])


async def test_case_130_a_limit_while_an_approval_waits(serve: Serve) -> None:
    """A limit on calls that is reached beside a waiting approval ends the run once it is decided."""
    paid: list[str] = []

    @tool(effect="write", approval=True)
    def pay(to: str) -> str:
        paid.append(to)
        return f"paid {to}"

    script = [calls(call("pay", to="a"), call("pay", to="b")), reply("never")]
    agent = Agent("payer", scripted(*script), tools=[pay], limits=Limits(tool_calls=1))
    lab = await serve(agent)
    run = await lab.start(agent)
    assert [p["call_id"] for p in await run.asks()] == ["c1"]
    await run.update("approve", {})
    result = await run.result()
    assert (result["outcome"], result["reason"], paid) == ("budget_exceeded", "max_tool_calls", ["a"])
    assert (await run.pending(), len(await run.results())) == ([], 2)


async def test_case_130_a_limit_in_the_middle_of_a_stream(serve: Serve) -> None:
    """The deadline cuts a streamed answer: the run ends `timeout` with what was said before."""
    async with fake_chat(
        {"text": "Before.", "calls": [call("echo", text="x")]}, {"text": "During", "hold_end": asyncio.Event()}
    ) as fake:
        agent = Agent("talker", fake.model(), tools=[echo], limits=Limits(deadline=1.0))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], result["output"]) == ("timeout", "deadline", "Before.")
