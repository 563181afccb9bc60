"""The loop of model and tools as an algorithm, driven by a runtime in memory."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Limits, tool
from perdure.agent import AgentSpec
from perdure.limits import LimitReached
from perdure.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage, text
from perdure.outcomes import Ending
from perdure.runtime import Ran, Reply
from perdure.strategies.parameters import ToolLoop
from perdure.strategies.tool_loop import EMPTY, MISSING, MOST_PAUSES, tool_loop
from perdure.testing import FakeRuntime, Step, call, calls, reply, scripted


def spec_of(**fields: Any) -> AgentSpec:
    """A spec with these fields."""
    return AgentSpec(name="fake", models=(scripted(),), **fields)


def special(words: str = "", **fields: Any) -> Reply:
    """A reply with what no step can say."""
    return Reply(AssistantMessage(role="assistant", parts=text(words), id="special"), **fields)


async def run(rt: FakeRuntime, **params: Any) -> tuple[str, str | None, str]:
    """Outcome, reason and output of the loop."""
    ending: Ending = await tool_loop(rt, ToolLoop(**params))
    return ending.outcome.value, ending.reason, ending.output


ENDINGS: list[tuple[str, list[Step | Reply], tuple[str, str | None, str]]] = [
    ("answer", [reply("hi")], ("success", None, "hi")),
    ("tool", [calls("echo", x="a"), reply("a")], ("success", None, "a")),
    ("words_beside_a_call", [{**reply("wait"), **calls("echo", x="a")}, reply("a")], ("success", None, "a")),
    ("unknown_tool", [calls("nothing"), reply("oh")], ("success", None, "oh")),
    ("empty_once", [reply(""), reply("hi")], ("success", None, "hi")),
    ("empty_for_ever", [reply(" ")] * 3, ("failed", "empty", " ")),
    ("missing_once", [special("I call", announced=True), reply("hi")], ("success", None, "hi")),
    ("missing_for_ever", [special("I call", announced=True)] * 3, ("failed", "missing_call", "I call")),
    ("length", [reply("half", finish="length")], ("no_solution", "truncated", "half")),
    ("filtered", [reply("", finish="filtered")], ("blocked", "filtered", "")),
    ("refused", [reply("no", finish="refused")], ("no_solution", "refused", "no")),
    ("paused", [reply("wait", finish="paused"), reply("hi")], ("success", None, "hi")),
    ("paused_without_words", [reply("", finish="paused"), reply("hi")], ("success", None, "hi")),
    ("paused_often", [*[reply("wait", finish="paused")] * MOST_PAUSES, reply("hi")], ("success", None, "hi")),
    ("paused_for_ever", [reply("wait", finish="paused")] * (MOST_PAUSES + 1), ("no_solution", "paused", "wait")),
    ("paused_empty_for_ever", [reply("", finish="paused")] * (MOST_PAUSES + 1), ("no_solution", "paused", "")),
    ("paused_with_a_call", [{**calls("echo", x="a"), "finish": "paused"}, reply("a")], ("success", None, "a")),
    ("cut_calls_once", [{**calls("echo", x="a"), "finish": "length"}, reply("a")], ("success", None, "a")),
    ("cut_calls_for_ever", [{**calls("echo", x="a"), "finish": "length"}] * 4, ("failed", "truncated", "")),
    ("misfit_once", [special("x", misfit="no object"), special("{}", structured={})], ("success", None, "{}")),
    ("misfit_twice", [special("x", misfit="no object")] * 2, ("no_solution", "output_schema", "x")),
]


@pytest.mark.parametrize(("replies", "ending"), [e[1:] for e in ENDINGS], ids=[e[0] for e in ENDINGS])
async def test_endings(replies: list[Step | Reply], ending: tuple[str, str | None, str]) -> None:
    """Each sequence of replies ends like this, and every call of the conversation has a result."""
    rt = FakeRuntime(*replies, tools={"echo": lambda x: x})
    assert await run(rt) == ending
    asked = [made.id for m in rt.messages if isinstance(m, AssistantMessage) for made in m.calls]
    assert [m.call for m in rt.messages if isinstance(m, ToolMessage)] == asked


async def test_the_conversation() -> None:
    """Replies and results follow each other in order."""
    both = calls(call("echo", x="a"), call("echo", x="b"))
    rt = FakeRuntime(both, reply("ab"), tools={"echo": lambda x: x})
    await run(rt)
    assert rt.conversation == [("user", "Go."), ("assistant", ""), ("tool", "a"), ("tool", "b"), ("assistant", "ab")]


@pytest.mark.parametrize(
    ("verdicts", "corrections", "ending"),
    [
        ([], 1, ("success", None, "one")),
        (["no"], 1, ("success", None, "two")),
        (["no", "no"], 1, ("no_solution", "verify", "two")),
        (["no"], 0, ("no_solution", "verify", "one")),
        (["no", "no"], 2, ("success", None, "three")),
    ],
)
async def test_verify(verdicts: list[str | None], corrections: int, ending: tuple[str, str | None, str]) -> None:
    """An answer that is not accepted is corrected as often as the agent says."""
    rt = FakeRuntime(*map(reply, ("one", "two", "three")), verdicts=verdicts, spec=spec_of(corrections=corrections))
    assert await run(rt) == ending
    assert rt.told == [("Your answer was not accepted: no", "correction")] * len(
        verdicts[: corrections if ending[0] != "success" else None]
    )


async def test_a_misfit_is_not_verified() -> None:
    """The agent's check sees only answers that fit the schema."""
    rt = FakeRuntime(special("x", misfit="bad"), special("{}", structured={"n": 1}))
    await run(rt)
    assert rt.verified == [("{}", {"n": 1})]


@pytest.mark.parametrize(("nudges", "words"), [(0, []), (1, [EMPTY]), (3, [EMPTY, MISSING, EMPTY])])
async def test_nudges(nudges: int, words: list[str]) -> None:
    """Empty and missing replies share one patience."""
    rt = FakeRuntime(reply(""), special("I call", announced=True), reply(""), reply(""))
    outcome, _, _ = await run(rt, max_nudges=nudges)
    assert (outcome, [said for said, _ in rt.told]) == ("failed", words)


@pytest.mark.parametrize(
    ("choice", "choices"), [("auto", ["auto", "auto", "auto"]), ("required", ["required", "auto", "required"])]
)
async def test_tool_choice(choice: str, choices: list[str]) -> None:
    """The agent's choice holds for the first reply after each word of the user."""

    def echo(x: str) -> str:
        return x

    def listen() -> str:
        rt.say("more")
        return "ok"

    rt = FakeRuntime(
        calls("echo", x="a"), calls("listen"), reply("done"),
        tools={"echo": echo, "listen": listen}, spec=spec_of(tool_choice=choice),
    )  # fmt: skip
    await run(rt)
    assert rt.choices == choices


async def test_a_paused_turn_goes_on_by_itself() -> None:
    """Nothing is told to the model, the choice of tools is not forced again, and only pauses in a row are counted."""
    wait, working = reply("wait", finish="paused"), {**calls("echo", x="a"), "finish": "paused"}
    row = [wait] * MOST_PAUSES
    rt = FakeRuntime(
        *row, working, *row, reply("hi"), tools={"echo": lambda x: x}, spec=spec_of(tool_choice="required")
    )
    assert await run(rt) == ("success", None, "hi")
    assert rt.told == []
    assert rt.choices == ["required", *["auto"] * (2 * MOST_PAUSES + 1)]
    assert [words for role, words in rt.conversation if role == "user"] == ["Go."]


async def test_pauses_are_steps() -> None:
    """The limit on steps counts them."""
    rt = FakeRuntime(reply("wait", finish="paused"), reply("hi"), spec=spec_of(limits=Limits(steps=1)))
    with pytest.raises(LimitReached, match="max_steps"):
        await run(rt)


class Interrupted(FakeRuntime):
    """Its user says something while the model gives its first answer."""

    async def model(self, *, tool_choice: str = "auto") -> Reply:
        """Answer, and be spoken over."""
        made = await super().model(tool_choice=tool_choice)
        if made.text == "one":
            self.say("and?")
        return made


async def test_what_is_said_during_the_answer_goes_on() -> None:
    """An answer that the user has already spoken over is not the last one."""
    rt = Interrupted(calls("echo"), reply("one"), reply("two"), tools={"echo": lambda: "x"})
    assert await run(rt) == ("success", None, "two")
    assert ("user", "and?") in rt.conversation


async def test_what_is_said_during_a_pause_waits_for_the_end_of_the_turn() -> None:
    """The server finishes what it does before it hears of it."""
    rt = Interrupted(reply("one", finish="paused"), reply("more"), reply("two"))
    assert await run(rt) == ("success", None, "two")
    said = ["Go.", "one", "more", "and?", "two"]
    assert [words for _, words in rt.conversation] == said


async def test_a_final_tool_ends_the_loop() -> None:
    """Its result is the output, and the model is not asked again."""

    @tool(effect="read", final=True)
    def submit(answer: str) -> str:
        return answer

    spec = Agent("judge", scripted(), tools=[submit]).spec()
    rt = FakeRuntime(calls("submit", answer="yes"), spec=spec, tools={"submit": submit})
    assert await run(rt) == ("success", None, "yes")


async def test_a_final_tool_that_fails_goes_on() -> None:
    """An error is no end."""

    @tool(effect="read", final=True)
    def submit(answer: str) -> str:
        raise ValueError("no")

    spec = Agent("judge", scripted(), tools=[submit]).spec()
    rt = FakeRuntime(calls("submit", answer="yes"), reply("sorry"), spec=spec, tools={"submit": submit})
    assert await run(rt) == ("success", None, "sorry")


async def test_calls_that_were_left_open_run_first() -> None:
    """A conversation that ends with unanswered calls goes on with them: nothing is asked twice."""
    asked = CallPart(type="call", id="c1", tool="echo", arguments={"x": "a"})
    messages: list[Message] = [
        UserMessage(role="user", parts=text("Go."), id="m0"),
        AssistantMessage(role="assistant", parts=(asked,), id="m1"),
    ]
    rt = FakeRuntime(reply("done"), messages=messages, tools={"echo": lambda x: x})
    assert await run(rt) == ("success", None, "done")
    assert [role for role, _ in rt.conversation] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("limits", "reason"), [(Limits(steps=1), "max_steps"), (Limits(tool_calls=1), "max_tool_calls")]
)
async def test_limits_pass_through(limits: Limits, reason: str) -> None:
    """The loop leaves limits to its runtime."""
    rt = FakeRuntime(calls("echo"), calls("echo"), tools={"echo": lambda: "x"}, spec=spec_of(limits=limits))
    with pytest.raises(LimitReached, match=reason):
        await run(rt)


async def test_the_fake_runtime_says_when_a_reply_is_missing() -> None:
    """A test that forgot a reply is told so."""
    with pytest.raises(AssertionError, match="reply 2, which nobody wrote"):
        await run(FakeRuntime(calls("echo"), tools={"echo": lambda: "x"}))


async def test_tools_of_the_fake_runtime() -> None:
    """They may be asynchronous, give a Ran of their own, or fail; the clock only goes on."""

    async def later(x: str) -> str:
        return x

    def own() -> Ran:
        return Ran(ToolMessage(role="tool", call="c2", parts=text("own"), id="x"), final=True, structured={"a": 1})

    def fail() -> str:
        raise ValueError("broken")

    rt = FakeRuntime(
        calls(call("later", x="a"), call("fail"), call("own")), tools={"later": later, "fail": fail, "own": own}
    )
    ending = await tool_loop(rt, ToolLoop())
    assert (ending.output, ending.structured) == ("own", {"a": 1})
    assert [words for role, words in rt.conversation if role == "tool"] == ["a", "ValueError: broken", "own"]
    assert rt.now() < rt.now()


@pytest.mark.parametrize(
    ("made", "step"),
    [
        (reply("hi"), {"text": "hi"}),
        (reply("hi", finish="length"), {"text": "hi", "finish": "length"}),
        (calls("a"), {"calls": [{"tool": "a", "arguments": {}}]}),
        (calls("a", x=1), {"calls": [{"tool": "a", "arguments": {"x": 1}}]}),
        (calls(call("a", x=1), "b"), {"calls": [{"tool": "a", "arguments": {"x": 1}}, {"tool": "b", "arguments": {}}]}),
    ],
)
def test_builders(made: Step, step: Step) -> None:
    """Steps are what the provider `scripted` takes."""
    assert made == step


def test_arguments_belong_to_one_tool() -> None:
    """Arguments beside several calls would be ambiguous."""
    with pytest.raises(TypeError, match="name of one tool"):
        calls("a", "b", x=1)


def test_scripted_copies_its_steps() -> None:
    """`repeat` marks the last step of this model only."""
    step = reply("hi")
    model = scripted(step, repeat=True)
    assert (step, model.params["script"]) == ({"text": "hi"}, [{"text": "hi", "repeat": True}])
