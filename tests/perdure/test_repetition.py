"""Loops in disguise: which replies bring nothing new, and what becomes of a run that gets nowhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.agent import AgentSpec
from perdure.messages import BlobPart, CallPart, ToolMessage, text
from perdure.outcomes import Ending
from perdure.repetition import LOOKED_AT, MOST_SEEN, Repetition, near
from perdure.runtime import Reply
from perdure.strategies.parameters import ToolLoop
from perdure.strategies.tool_loop import IDLE, tool_loop
from perdure.testing import FakeRuntime, Step, calls, reply, scripted


@tool(effect="read")
def look(at: str) -> str:
    """Look."""
    return at


@tool(effect="write")
def post(at: str) -> str:
    """Post."""
    return at


SPEC: AgentSpec = Agent("a", scripted(), tools=[look, post]).spec()

Done = tuple[str, str, str] | tuple[str, str, str, bool]
"""Tool, argument, result, and whether that is an error."""


def idles(*steps: Done | list[Done] | str, repetition: Repetition | None = None) -> list[int]:
    """How many steps in a row brought nothing new, after each of them; a text is a reply without calls."""
    seen = repetition or Repetition()
    counts = []
    for step in steps:
        if isinstance(step, str):
            counts.append(seen.step(SPEC, step, []))
        else:
            counts.append(seen.step(SPEC, "", [made(*done) for done in (step if isinstance(step, list) else [step])]))
    return counts


def made(name: str, at: str, result: str, error: bool = False) -> tuple[CallPart, ToolMessage]:
    """A call with its result."""
    call = CallPart(type="call", id="c1", tool=name, arguments={"at": at})
    return call, ToolMessage(role="tool", call="c1", parts=text(result), error=error)


CASES: list[tuple[str, list[Any], list[int]]] = [
    ("the_same", [("look", "x", "y")] * 4, [0, 1, 2, 3]),
    ("in_turn", [("look", "x", "y"), ("look", "z", "w")] * 3, [0, 0, 1, 2, 3, 4]),
    (
        "case_and_spaces",
        [("look", "Oslo", "Cold."), ("look", " oslo ", "cold ."), ("look", "OSLO", "COLD.")],
        [0, 1, 2],
    ),
    ("an_echo", [("look", f"noop{n}", f"noop{n}") for n in range(4)], [0, 1, 2, 3]),
    ("the_same_answer", [("look", f"job {n}", "pending") for n in range(4)], [0, 1, 2, 3]),
    ("other_failures", [("look", "x", f"failure {n}", True) for n in "abcd"], [0, 1, 2, 3]),
    ("writes_that_fail", [("post", f"n{n}", "no", True) for n in range(3)], [0, 1, 2]),
    ("pages", [("look", f"page={n}", f"row {'abcd'[n]}") for n in range(4)], [0, 0, 0, 0]),
    ("pages_of_numbers", [("look", f"page={n}", f"page {n}: {n * 37 + 11}") for n in range(1, 5)], [0, 0, 0, 0]),
    ("a_price_each", [("look", f"item {n}", f"{n + 90}.50") for n in range(4)], [0, 0, 0, 0]),
    ("polling", [("look", "job", f"{n}0 %") for n in range(5)], [0, 0, 0, 0, 0]),
    ("writes", [("post", f"invoice {n}", f"paid {n}") for n in range(4)], [0, 0, 0, 0]),
    ("first_failures", [("look", at, "no", True) for at in "abc"], [0, 0, 0]),
    ("one_new_of_two", [[("look", "x", "y")], [("look", "x", "y"), ("look", "z", "z")]], [0, 0]),
    ("progress_begins_anew", [("look", "x", "y")] * 3 + [("look", "z", "w"), ("look", "x", "y")], [0, 1, 2, 0, 1]),
    ("words", ["I am done.", "I am  DONE.", "i am done."], [0, 1, 2]),
    ("other_words", ["I am done.", "Here it is.", "Well."], [0, 0, 0]),
    ("empty", ["", "", ""], [0, 1, 2]),
    ("words_and_calls", ["I look.", ("look", "x", "y"), "I look.", ("look", "x", "y")], [0, 0, 1, 2]),
    ("unknown_tool", [("nothing", "x", "no", True)] * 3, [0, 1, 2]),
]


@pytest.mark.parametrize(("steps", "counts"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_steps_that_bring_nothing_new(steps: list[Any], counts: list[int]) -> None:
    """Near repeats with errors or results that were seen count in a row; anything new begins anew."""
    assert idles(*steps) == counts


def test_it_survives_being_carried() -> None:
    """A count goes on in the next run of a chain."""
    first = Repetition()
    assert idles(("look", "x", "y"), ("look", "x", "y"), repetition=first) == [0, 1]
    second = Repetition.model_validate_json(first.model_dump_json())
    assert idles(("look", "x", "y"), repetition=second) == [2]


def test_a_new_turn_begins_anew() -> None:
    """What the user says makes everything new."""
    seen = Repetition()
    idles(("look", "x", "y"), ("look", "x", "y"), repetition=seen)
    seen.clear()
    assert idles(("look", "x", "y"), repetition=seen) == [0]


def test_it_is_bounded() -> None:
    """A long turn forgets what it saw first; what it saw again lately stays."""
    seen = Repetition()
    for n in range(MOST_SEEN):
        idles(("look", "x", "y"), ("look", f"{n + 33:c}{n}", f"{n + 33:c}"), repetition=seen)
    assert len(seen.seen) == MOST_SEEN
    assert idles(("look", "x", "y"), repetition=seen) != [0]
    assert idles(("look", "!0", "!"), repetition=seen) == [0]


def test_long_texts() -> None:
    """They are compared by beginning, length and end, with their digest where they lie in the store."""
    long = "a" * LOOKED_AT
    assert near(long + "x" + long) == near(long + "X" + long)
    assert near(long + long) != near(long + long + "y")
    call = CallPart(type="call", id="c1", tool="look", arguments={"at": "x"})
    blobs = [BlobPart(type="blob", digest=d, size=9, preview="same") for d in ("one", "two", "two")]
    seen = Repetition()
    counts = [
        seen.step(SPEC, "", [(call, ToolMessage(role="tool", call="c1", parts=(blob,)))]) for blob in blobs
    ]  # fmt: skip
    assert counts == [0, 0, 1]


def test_a_result_that_changes() -> None:
    """Of exactly the same call the last result is known: who polls sees a change, a failure is none."""
    seen = Repetition()
    results = [("one", False), ("one", False), ("two", False), ("oops", True), ("three", False), ("three", False)]
    changed = [seen.changed(*made("look", "x", words, error)) for words, error in results]
    assert changed == [False, False, True, False, True, False]


# --- the loop -------------------------------------------------------------------------------------------------------


async def run(*replies: Step | Reply, tools: dict[str, Callable[..., str]] | None = None, **params: Any) -> Any:
    """The ending of the loop and its runtime."""
    rt = FakeRuntime(*replies, spec=SPEC, tools=tools or {"look": lambda at: at})
    ending: Ending = await tool_loop(rt, ToolLoop(**params))
    return ending, rt


async def test_the_model_is_told_once_and_then_the_run_ends() -> None:
    """With a patience of 3: told after 3 idle replies, ended after 3 more; every call has its result."""
    ending, rt = await run(*(calls("look", at=f"noop{n}") for n in range(20)), max_idle=3)
    assert (ending.outcome.value, ending.reason) == ("no_solution", "loop")
    assert "6 replies in a row brought nothing new" in ending.message
    assert (rt.told, len(rt.choices)) == ([(IDLE, "idle")], 7)
    assert [role for role, _ in rt.conversation[-2:]] == ["assistant", "tool"]


async def test_a_model_that_listens_goes_on() -> None:
    """What it does after it was told can still be the answer."""
    script = [calls("look", at=f"noop{n}") for n in range(4)]
    ending, rt = await run(*script, reply("done"), max_idle=3)
    assert (ending.outcome.value, ending.output, len(rt.told)) == ("success", "done", 1)


async def test_words_that_are_refused_again_and_again() -> None:
    """The same answer that does not fit, once more and once more, is a loop before corrections are used up."""
    spec = SPEC.model_copy(update={"corrections": 10})
    rt = FakeRuntime(*(reply("It is done.") for _ in range(9)), spec=spec, verdicts=["no"] * 9)
    ending = await tool_loop(rt, ToolLoop(max_idle=2))
    assert (ending.reason, len(rt.choices)) == ("loop", 5)


async def test_pages_and_polling_are_no_loop() -> None:
    """Forty pages, and a job that gets on, are read to their end with the standard patience."""
    percent = itertools.count()
    tools = {"look": lambda at: f"{next(percent)} %" if at == "job" else f"row {at * 2}"}
    pages = [calls("look", at=f"page {chr(97 + n % 26)}{n}") for n in range(20)]
    ending, rt = await run(*pages, *(calls("look", at="job") for _ in range(20)), reply("done"), tools=tools)
    assert (ending.output, rt.told) == ("done", [])


async def test_waiting_for_what_does_not_change() -> None:
    """A job that is asked for under another number each time may be pending 12 times before the model is told."""
    tools = {"look": lambda at: "pending"}
    script = [calls("look", at=f"try {n}") for n in range(12)]
    ending, rt = await run(*script, reply("done"), tools=tools)
    assert (ending.output, rt.told) == ("done", [])
