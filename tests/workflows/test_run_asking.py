"""Questions to people by `ask_human`: their answers, options and ends, in a run and in its children."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure import Agent, Tool, ask_human, human, tool
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve
from tests.lab import Lab, Run, eventually

AGAIN = reply("{{last_tool_text}}")


async def refused(run: Run, name: str, payload: Any) -> str:
    """The reason why an update is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as refusal:
        await run.update(name, payload)
    return str(refusal.value.cause)


async def asked(serve: Serve, tool_: Tool = ask_human, **question: Any) -> tuple[Lab, Run]:
    """A run that asks a person."""
    agent = Agent("asker", scripted(calls(tool_.spec.name, **question), AGAIN), tools=[tool_])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("question")
    return lab, run


@pytest.mark.parametrize("form", ["signal", "update"])
async def test_an_answer(serve: Serve, form: str) -> None:
    """The model gets the answer as the result; the run says meanwhile that it waits for one."""
    _, run = await asked(serve, question="Which account?")
    status = await run.status()
    assert status["state"] == "waiting_answer"
    [question] = status["questions"]
    assert (question["question_id"], question["text"], question["options"]) == ("q-c1", "Which account?", [])
    payload = {"question_id": "q-c1", "text": " The blue one. ", "by": "ann"}
    await (run.send("answer", payload) if form == "signal" else run.update("answer", payload))
    assert (await run.result())["output"] == "The blue one."
    [event] = await run.events("answered")
    assert (event["question_id"], event["by"], event["verified"]) == ("q-c1", "ann", False)
    kinds = [e["type"] for e in await run.events() if e["type"] in {"tool_start", "question", "answered", "tool_end"}]
    assert kinds == ["tool_start", "question", "answered", "tool_end"]


async def test_options(serve: Serve) -> None:
    """Only one of the options is an answer; spaces around either do not matter."""
    _, run = await asked(serve, question="Which?", options=["red", " blue ", "red", ""])
    assert (await run.status())["questions"][0]["options"] == ["red", "blue"]
    for text in ("green", "", "Red", "red blue"):
        assert "answer one of ['red', 'blue']" in await refused(run, "answer", {"question_id": "q-c1", "text": text})
    await run.update("answer", {"question_id": "q-c1", "text": " blue"})
    assert (await run.result())["output"] == "blue"


async def test_bad_answers(serve: Serve) -> None:
    """Each is refused with the reason, and the question stays open."""
    _, run = await asked(serve, question="Which?")
    for payload, reason in (
        ({"question_id": "q-c9", "text": "x"}, "no question 'q-c9' is open; open now: q-c1"),
        ({"text": "x"}, "question_id"),
        ({"question_id": "q-c1"}, "text"),
        ({"question_id": "q-c1", "text": 5}, "text"),
        ({"question_id": "q-c1", "text": "x" * 100_001}, "text"),
        ({"question_id": "q-c1", "text": "x", "approve": True}, "approve"),
        ("q-c1", "an answer is an object"),
    ):
        assert reason in await refused(run, "answer", payload)
    assert await run.state() == "waiting_answer"
    await run.update("answer", {"question_id": "q-c1", "text": "x"})
    await run.result()


async def test_nobody_answers(serve: Serve) -> None:
    """After its time the model is told so; a late answer is refused."""
    agent = Agent("asker", scripted(calls("ask", question="Now?"), calls("ask_human", question="Later?"), AGAIN),
                  tools=[human("ask", timeout=0.3), ask_human])  # fmt: skip
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("question_expired")
    await run.seen("question", 2)
    assert "no question 'q-c1' is open; open now: q-c2" in await refused(
        run, "answer", {"question_id": "q-c1", "text": "x"}
    )
    await run.update("answer", {"question_id": "q-c2", "text": "x"})
    await run.result()
    assert await run.results() == {"c1": "nobody answered in time", "c2": "x"}


async def test_stopped_and_cancelled_while_asking(serve: Serve) -> None:
    """A stop ends the waiting; a cancelled run asks no more."""
    _, run = await asked(serve, question="Which?")
    await run.update("stop", {})
    assert (await run.result())["reason"] == "stopped"
    assert (await run.status())["questions"] == []
    _, run = await asked(serve, question="Which?")
    await run.handle.cancel()
    status = await run.ended()
    assert (status["state"], status["questions"]) == ("closed", [])


async def test_two_questions_and_a_call(serve: Serve) -> None:
    """Questions of one reply wait side by side, and other calls run meanwhile."""

    @tool(effect="read")
    def look() -> str:
        return "seen"

    script = calls(call("ask_human", question="a"), call("ask_human", question="b"), call("look"))
    agent = Agent("asker", scripted(script, reply("ok")), tools=[ask_human, look])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.seen("question", 2)
    [ended] = await run.seen("tool_end")
    assert ended["tool"] == "look"
    await run.update("answer", {"question_id": "q-c2", "text": "second"})
    await run.update("answer", {"question_id": "q-c1", "text": "first"})
    await run.result()
    assert list((await run.results()).values()) == ["first", "second", "seen"]


async def test_a_question_of_a_child(serve: Serve) -> None:
    """It is shown and answered at the root, two levels up, and the clock stands still on all levels."""
    grandchild = Agent("grandchild", scripted(calls("ask_human", question="Why?", options=["so", "no"]), AGAIN),
                       tools=[ask_human])  # fmt: skip
    child = Agent("child", scripted(calls("grandchild", prompt="p"), reply("{{tool:c1.output}}")), tools=[grandchild])
    root = Agent("root", scripted(calls("child", prompt="p"), reply("{{tool:c1.output}}")), tools=[child])
    lab = await serve(root)
    run = await lab.start(root)
    [event] = await run.seen("question")
    assert event["question_id"] == "c1/c1/q-c1"
    status = await run.status()
    assert status["state"] == "waiting_answer"
    assert status["questions"][0]["options"] == ["so", "no"]
    assert "answer one of" in await refused(run, "answer", {"question_id": "c1/c1/q-c1", "text": "perhaps"})
    await run.update("answer", {"question_id": "c1/c1/q-c1", "text": "so"})
    assert (await run.result())["output"] == "so"


async def test_a_childs_question_that_is_answered_there(serve: Serve) -> None:
    """The root shows it no more, and an answer to it there is refused."""
    child = Agent("child", scripted(calls("ask_human", question="Why?"), calls("ask_human", question="And?"), AGAIN),
                  tools=[ask_human])  # fmt: skip
    root = Agent("root", scripted(calls("child", prompt="p"), reply("{{tool:c1.output}}")), tools=[child])
    lab = await serve(root)
    run = await lab.start(root)
    await run.seen("question")
    [started] = await run.events("child_started")
    inner = Run(lab.client.get_workflow_handle(started["workflow_id"]))
    await inner.update("answer", {"question_id": "q-c1", "text": "so"})
    await run.seen("question", 2)

    async def only_the_second() -> bool:
        return [q["question_id"] for q in (await run.status())["questions"]] == ["c1/q-c2"]

    await eventually(only_the_second)
    assert "no question 'c1/q-c1' is open" in await refused(run, "answer", {"question_id": "c1/q-c1", "text": "x"})
    await run.send("answer", {"question_id": "c1/q-c2", "text": "end"})
    assert (await run.result())["output"] == "end"
