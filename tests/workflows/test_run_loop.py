"""The loop of a run, end to end: steps, tools side by side and in order, corrections, guards, what the user says."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from perdure import Agent, Limits, RetryTool, ToolLoop, tool
from perdure.testing import Step, call, calls, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import fake_chat
from tests.lab import eventually


@tool(effect="read")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="read", quick=True)
def quick_add(a: int, b: int) -> int:
    """Add two numbers quickly."""
    return a + b


async def test_a_plain_answer(serve: Serve) -> None:
    """An answer without tools is one step, and the result has every field."""
    agent = Agent("plain", scripted({**reply("Hello."), "usage": {"input_tokens": 7, "output_tokens": 3}}))
    lab = await serve(agent)
    result = await lab.run(agent, "Hi.")
    assert result.pop("spec_digest").startswith("sha256:")
    assert result == {
        "outcome": "success",
        "output": "Hello.",
        "structured": None,
        "reason": None,
        "steps": 1,
        "tool_calls": 0,
        "usage": {"input_tokens": 7, "cached_tokens": 0, "output_tokens": 3, "reasoning_tokens": 0},
        "cost_usd": "0",
        "agent": "plain",
    }


@pytest.mark.parametrize("name", ["add", "quick_add"])
async def test_a_tool_then_an_answer(serve: Serve, name: str) -> None:
    """The result of a tool, ordinary or quick, is what the next model call sees."""
    agent = Agent("adder", scripted(calls(name, a=1, b=2), reply("It is {{last_tool_text}}.")), tools=[add, quick_add])
    lab = await serve(agent)
    run = await lab.start(agent, "1+2?")
    result = await run.result()
    assert (result["output"], result["steps"], result["tool_calls"]) == ("It is 3.", 2, 1)
    assert await run.words() == [
        ("user", "1+2?"),
        ("assistant", f"{name}(c1)"),
        ("tool", "3"),
        ("assistant", "It is 3."),
    ]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_reads_of_one_reply_run_side_by_side(serve: Serve, kind: str) -> None:
    """Three calls that wait for each other all end, and their results come in call order whoever ends first."""
    barrier = threading.Barrier(3, timeout=20)
    turn = [threading.Event() for _ in range(3)]
    turn[2].set()

    def meet(place: int) -> str:
        barrier.wait()
        turn[place].wait(20)
        if place:
            turn[place - 1].set()
        return f"place {place}"

    async def meet_async(place: int) -> str:
        return await asyncio.to_thread(meet, place)

    waiter = tool(effect="read", name="meet")(meet if kind == "sync" else meet_async)
    together = calls(*(call("meet", place=place) for place in range(3)))
    agent = Agent("meeting", scripted(together, reply("Done.")), tools=[waiter])
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["output"] == "Done."
    assert list((await run.results()).items()) == [("c1", "place 0"), ("c2", "place 1"), ("c3", "place 2")]


async def test_writes_of_one_reply_run_in_order_beside_reads(serve: Serve) -> None:
    """A write begins only after the write before it has ended; a read of the same reply need not wait."""
    log: list[str] = []
    read_ran = threading.Event()

    @tool(effect="write")
    def post(text: str) -> str:
        assert read_ran.wait(20)
        log.append(f"begin {text}")
        log.append(f"end {text}")
        return text

    @tool(effect="read")
    def look() -> str:
        read_ran.set()
        return "seen"

    together = calls(call("post", text="a"), call("post", text="b"), call("post", text="c"), call("look"))
    agent = Agent("writer", scripted(together, reply("Done.")), tools=[post, look])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.result()
    assert log == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]
    assert list((await run.results()).values()) == ["a", "b", "c", "seen"]


async def test_without_parallel_tools_one_call_runs_at_a_time(serve: Serve) -> None:
    """`parallel_tools=False` never has two calls at once."""
    running, most = 0, 0
    lock = threading.Lock()

    @tool(effect="read")
    def work(n: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return n

    agent = Agent(
        "serial",
        scripted(calls(*(call("work", n=n) for n in range(6))), reply("ok")),
        tools=[work],
        parallel_tools=False,
    )
    lab = await serve(agent)
    assert (await lab.run(agent))["tool_calls"] == 6
    assert most == 1


class Check:
    """A `verify` that says what it was told to, and keeps what it saw."""

    def __init__(self, *verdicts: Any) -> None:
        self.verdicts = list(verdicts)
        self.seen: list[Any] = []

    def __call__(self, ctx: Any) -> Any:
        """Judge."""
        self.seen.append(ctx)
        verdict = self.verdicts[min(len(self.seen), len(self.verdicts)) - 1]
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict


@pytest.mark.parametrize(
    ("verdicts", "outcome", "reason", "steps"),
    [
        ([None], "success", None, 1),
        ([""], "success", None, 1),
        (["Shorter."], "no_solution", "verify", 2),
        (["Shorter.", None], "success", None, 2),
        ([ValueError("broken")], "failed", "verify_crashed", 1),
        ([SystemExit(3)], "failed", "verify_crashed", 1),
        ([True], "failed", "verify_crashed", 1),
        ([{"ok": False}], "failed", "verify_crashed", 1),
    ],
)
async def test_verify(serve: Serve, verdicts: list[Any], outcome: str, reason: str | None, steps: int) -> None:
    """None accepts; a text is corrected once, then there is no solution; a check that crashes is never a pass."""
    check = Check(*verdicts)
    agent = Agent("checked", scripted(reply("First."), reply("Second.")), verify=check)
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.ended()
    assert (result["outcome"], result["reason"], result["steps"]) == (outcome, reason, steps)
    assert result["output"] == ("First." if steps == 1 else "Second.")
    if steps == 2:
        assert ("user", "Your answer was not accepted: Shorter.") in await run.words()


async def test_verify_sees_calls_and_surroundings(serve: Serve) -> None:
    """The check sees the answer, the tool calls with results, and who the run is for."""
    check = Check(None)
    agent = Agent("checked", scripted(calls("add", a=1, b=2), reply("3")), tools=[add], verify=check)
    lab = await serve(agent)
    await lab.run(agent, tenant="t", user="u", data={"k": 1}, metadata={"m": "x"})
    [ctx] = check.seen
    assert (ctx.output, ctx.tenant, ctx.user, ctx.data, dict(ctx.metadata)) == ("3", "t", "u", {"k": 1}, {"m": "x"})
    [made] = ctx.tool_calls
    assert (made.call_id, made.tool, dict(made.arguments), made.result, made.error) == (
        "c1", "add", {"a": 1, "b": 2}, "3", False,
    )  # fmt: skip


async def test_the_same_call_again_and_again_ends_the_run(serve: Serve) -> None:
    """After three identical calls in a turn further ones are refused, and soon the run ends with reason `loop`."""
    agent = Agent("stuck", scripted(calls("add", a=1, b=2), repeat=True), tools=[add])
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.result()
    assert (result["outcome"], result["reason"]) == ("no_solution", "loop")
    results = list((await run.results()).values())
    assert results[:3] == ["3", "3", "3"]
    assert all(text.startswith("not executed: you already made this call 3 times") for text in results[3:])
    assert (result["steps"], result["tool_calls"]) == (6, 3)


async def test_a_new_message_of_the_user_begins_a_new_turn(serve: Serve) -> None:
    """What the user says resets the guard: the same calls are a new request then."""
    say = threading.Event()
    went_on = threading.Event()

    @tool(effect="read")
    def look(at: str) -> str:
        if at == "pause":
            say.set()
            assert went_on.wait(20)
        return at

    same = calls("look", at="x")
    script = [same, same, same, calls("look", at="pause"), same, same, same, reply("done")]
    agent = Agent("again", scripted(*script), tools=[look])
    lab = await serve(agent)
    run = await lab.start(agent)
    await eventually(say.is_set)
    await run.update("say", {"text": "Look again."})
    went_on.set()
    assert (await run.result())["output"] == "done"
    assert list((await run.results()).values()).count("x") == 6


@pytest.mark.parametrize(
    ("script", "outcome", "reason", "steps"),
    [
        ([reply(""), reply("Now.")], "success", None, 2),
        ([reply("   "), reply("\n"), reply("Now.")], "success", None, 3),
        ([reply("")], "failed", "empty", 3),
    ],
)
async def test_empty_replies(serve: Serve, script: list[Step], outcome: str, reason: str | None, steps: int) -> None:
    """An empty answer is pointed out, a bounded number of times, and is never a success."""
    agent = Agent("mute", scripted(*script, repeat=True))
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["outcome"], result["reason"], result["steps"]) == (outcome, reason, steps)


async def test_calls_that_are_announced_but_missing(serve: Serve) -> None:
    """A reply that stops for tool calls and has none is pointed out, then the run fails with `missing_call`."""
    async with fake_chat({"text": "I will call.", "finish": "tool_calls"}) as fake:
        agent = Agent("absent", fake.model(), tools=[add])
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], result["steps"]) == ("failed", "missing_call", 3)


async def test_tool_choice_holds_for_the_first_reply_of_a_turn(serve: Serve) -> None:
    """A forced choice is sent once for a turn of the user; after that the model is free, or it could never answer."""
    async with fake_chat({"calls": [call("add", a=1, b=2)]}, {"text": "3"}) as fake:
        agent = Agent("forced", fake.model(), tools=[add], tool_choice="required")
        lab = await serve(agent)
        assert (await lab.run(agent))["outcome"] == "success"
    assert [request.get("tool_choice", "auto") for request in fake.requests] == ["required", "auto"]


@tool(effect="idempotent", final=True)
def submit(answer: str) -> dict[str, Any]:
    """Hand in the answer."""
    return {"answer": answer}


async def test_a_final_tool_ends_the_run(serve: Serve) -> None:
    """The result of a final tool is the result of the run."""
    agent = Agent("judge", scripted(calls("submit", answer="yes")), tools=[submit])
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["outcome"], result["structured"], result["steps"]) == ("success", {"answer": "yes"}, 1)
    assert result["output"] == '{"answer":"yes"}'


async def test_a_final_call_runs_alone(serve: Serve) -> None:
    """Of a reply with a final call nothing else runs, nothing waits for approval, and every call is answered."""
    paid: list[str] = []

    @tool(effect="write", approval=True)
    def pay(to: str) -> str:
        paid.append(to)
        return to

    script = calls(call("pay", to="x"), call("submit", answer="yes"), call("submit", answer="no"))
    agent = Agent("judge", scripted(script), tools=[submit, pay])
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.result()
    assert (result["structured"], paid, await run.pending()) == ({"answer": "yes"}, [], [])
    results = await run.results()
    assert list(results) == ["c1", "c2", "c3"]
    assert results["c1"].startswith("not executed: submit ends the run")
    assert results["c3"].startswith("not executed: submit ends the run")


async def test_of_two_final_calls_the_first_valid_one_counts(serve: Serve) -> None:
    """A final call that cannot run does not end the run; the valid one beside it does."""
    script = calls({"tool": "submit", "arguments": {"wrong": 1}}, call("submit", answer="yes"))
    agent = Agent("judge", scripted(script), tools=[submit])
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["structured"] == {"answer": "yes"}
    assert "wrong" in (await run.results())["c1"]


async def test_a_final_tool_that_fails_does_not_end_the_run(serve: Serve) -> None:
    """An error of a final tool goes back to the model."""

    @tool(effect="read", final=True)
    def finish(answer: str) -> str:
        if answer == "bad":
            raise ValueError("not good enough")
        return answer

    agent = Agent("judge", scripted(calls("finish", answer="bad"), calls("finish", answer="good")), tools=[finish])
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["outcome"], result["output"], result["steps"]) == ("success", "good", 2)


async def test_what_the_user_says_is_taken_in_before_the_next_model_call(serve: Serve) -> None:
    """A message that comes while a tool runs is in the very next request, after the tool's result."""
    began, go = threading.Event(), threading.Event()

    @tool(effect="read")
    def wait() -> str:
        began.set()
        assert go.wait(20)
        return "waited"

    agent = Agent("listener", scripted(calls("wait"), reply("You said: {{user}}")), tools=[wait])
    lab = await serve(agent)
    run = await lab.start(agent)
    await eventually(began.is_set)
    await run.send("say", {"text": "one"})
    await run.send("say", {"text": "two", "message_id": "m2"})
    await run.send("say", {"text": "two again", "message_id": "m2"})
    await eventually(lambda: _said(run, 2))
    go.set()
    assert (await run.result())["output"] == "You said: two"
    assert (await run.words())[2:5] == [("tool", "waited"), ("user", "one"), ("user", "two")]


async def _said(run: Any, count: int) -> bool:
    return bool((await run.status())["said"] == count)


async def test_what_the_user_says_during_the_last_reply_goes_on(serve: Serve) -> None:
    """A message that comes while the model gives its final answer is answered before the run ends."""
    async with fake_chat() as fake:
        hold = asyncio.Event()
        fake.answers = [{"text": "First.", "hold_end": hold}, {"text": "Second."}]
        agent = Agent("listener", fake.model())
        lab = await serve(agent)
        run = await lab.start(agent)
        await eventually(lambda: fake.requests)
        await run.update("say", {"text": "And then?"})
        hold.set()
        assert (await run.result())["output"] == "Second."
    assert [word for word in await run.words() if word[0] == "user"] == [("user", "Go."), ("user", "And then?")]


@pytest.mark.parametrize(("effect", "attempts", "runs"), [("read", 3, 3), ("idempotent", 2, 2), ("write", 1, 1)])
async def test_a_tool_may_ask_for_a_retry(serve: Serve, effect: Any, attempts: int, runs: int) -> None:
    """RetryTool repeats the call within the attempts of its effect; then the model sees the error."""
    seen: list[int] = []

    @tool(effect=effect, attempts=attempts)
    def flaky() -> str:
        seen.append(len(seen) + 1)
        raise RetryTool("try again", delay=0.01)

    agent = Agent("patient", scripted(calls("flaky"), reply("{{last_tool_text}}")), tools=[flaky])
    lab = await serve(agent)
    result = await lab.run(agent)
    assert len(seen) == runs
    assert "try again" in result["output"]


async def test_a_retry_that_succeeds(serve: Serve) -> None:
    """The attempt that succeeds gives the result."""
    seen: list[int] = []

    @tool(effect="read")
    def flaky() -> str:
        seen.append(1)
        if len(seen) < 3:
            raise RetryTool(delay=0.01)
        return "at last"

    agent = Agent("patient", scripted(calls("flaky"), reply("{{last_tool_text}}")), tools=[flaky])
    lab = await serve(agent)
    assert (await lab.run(agent))["output"] == "at last"


async def test_unknown_and_broken_calls_are_answered(serve: Serve) -> None:
    """A wrong name, wrong arguments and broken JSON each give an error result; the right call beside them runs."""
    script = calls(
        call("ad", a=1, b=2),
        {"tool": "add", "arguments": {"a": "x", "b": 1}},
        {"tool": "add", "arguments": "{not json"},
        {"tool": "add", "arguments": {"a": "5", "b": 2}},
    )
    agent = Agent("messy", scripted(script, reply("ok")), tools=[add])
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["outcome"] == "success"
    results = await run.results()
    assert "there is no tool 'ad'; you have add" in results["c1"]
    assert results["c2"].startswith("arguments of add")
    assert results["c3"].startswith("arguments of add")
    assert results["c4"] == "7"


async def test_too_many_calls_in_one_reply(serve: Serve) -> None:
    """Of 130 calls in one reply 128 run and the others are told so; results stay in call order."""
    script = calls(*(call("quick_add", a=n, b=0) for n in range(130)))
    agent = Agent("eager", scripted(script, reply("ok")), tools=[quick_add], limits=Limits(tool_calls=500))
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["tool_calls"] == 128
    results = await run.results()
    assert list(results) == [f"c{n}" for n in range(1, 131)]
    assert [results[f"c{n}"] for n in (1, 128)] == ["0", "127"]
    assert "at most 128 calls" in results["c130"]


async def test_parameters_of_the_strategy(serve: Serve) -> None:
    """`max_repeats` of the strategy is the number of identical calls that run."""
    agent = Agent("once", scripted(calls("add", a=1, b=2), repeat=True), tools=[add], strategy=ToolLoop(max_repeats=1))
    lab = await serve(agent)
    result = await lab.run(agent)
    assert (result["reason"], result["tool_calls"]) == ("loop", 1)
