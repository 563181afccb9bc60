"""Large texts, arguments and answers: nothing that a run holds is too large for a query, a result or another worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.stores.base import digest_of
from perdure import Agent, Limits, ToolContext, ToolLoop, allow, ask_human, tool
from perdure.canonical import canonical_json, digest
from perdure.contracts import OFFLOAD_CHARS, STRUCTURED_LIMIT, PolicyCall
from perdure.policy import PolicyDecision
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import fake_chat
from tests.lab import laboratory

MANY = Limits(tokens=1_000_000_000)


@tool(effect="read", max_result_chars=5_000_000)
def fetch(size: int, char: str = "y") -> str:
    """A text of that many characters."""
    return char * size


@tool(effect="read", max_result_chars=4_000_000, final=True)
def finish(size: int) -> dict[str, str]:
    """A final result of that size."""
    return {"text": "y" * size}


@tool(effect="write")
def save(text: str) -> str:
    """Store a text, without asking."""
    return f"stored {len(text)}"


@tool(effect="write", approval=True)
def store(text: str) -> str:
    """Store a text."""
    return f"stored {len(text)}"


@pytest.mark.parametrize(("size", "count"), [(60_000, 3), (900_000, 1), (3_000_000, 1), (400_000, 3)])
async def test_large_arguments(client: Client, data_dir: Path, size: int, count: int) -> None:
    """Arguments of any size run, also where a worker goes on that has never seen the run; the approver sees a part."""
    together = calls(*[call("store", text="{{tool:c1}}")] * count)
    agent = Agent("big", scripted(calls("fetch", size=size), together, reply("ok")), tools=[fetch, store], limits=MANY)
    async with laboratory(client, data_dir, agent) as lab:
        run = await lab.start(agent)
        await run.asks(count)
    async with laboratory(client, data_dir, agent, queue=lab.queue):
        for pending in await run.pending():
            text = pending["arguments"]["text"]
            if size < OFFLOAD_CHARS:
                assert text == "y" * size
            else:
                assert text.startswith(f"{'y' * 1_000}[... {size} characters in all, sha256 ")
                whole = canonical_json({"text": "y" * size}).encode()
                assert pending["whole"] == {"digest": digest_of(whole), "size": len(whole)}
            await run.update("approve", {"call_id": pending["call_id"], "digest": pending["digest"]})
        assert (await run.result())["output"] == "ok"
        assert list((await run.results()).values())[1:] == [f"stored {size}"] * count


async def test_arguments_beyond_all_bounds_are_refused(serve: Serve) -> None:
    """What one call and one reply may carry is bounded; the model is told, and the rest of the reply runs."""
    seven = [call("save", text=f"{{{{tool:c1}}}}{number}") for number in range(7)]
    script = [calls("fetch", size=5_000_000), calls(*seven), calls("save", text="{{tool:c1}}{{tool:c1}}"), reply("ok")]
    agent = Agent("huge", scripted(*script), tools=[fetch, save], limits=MANY)
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["output"] == "ok"
    results = list((await run.results()).values())[1:]
    assert results[:6] == ["stored 5000001"] * 6
    assert results[6].startswith("not executed: the arguments of this reply are too large together")
    assert results[7].startswith("arguments of save: the arguments have 10000012 characters, more than the 8000000")


async def test_an_approver_changes_large_arguments(serve: Serve) -> None:
    """What the approver sends runs instead, small or large, and the model is told what ran."""
    together = calls(*[call("store", text="{{tool:c1}}")] * 2)
    agent = Agent("big", scripted(calls("fetch", size=200_000), together, reply("ok")), tools=[fetch, store])
    lab = await serve(agent)
    run = await lab.start(agent, limits={"tokens": 900_000})
    await run.asks(2)
    await run.update("decide", {"call_id": "c2", "approve": True, "arguments": {"text": "small"}})
    await run.update("decide", {"call_id": "c3", "approve": True, "arguments": {"text": "z" * 150_000}})
    assert (await run.result())["output"] == "ok"
    results = await run.results()
    assert results["c2"] == "[The approver changed the arguments to {'text': 'small'}]\nstored 5"
    assert results["c3"].startswith(f"[The approver changed the arguments to {{'text': '{'z' * 1_000}[... 150000 char")
    assert results["c3"].endswith("stored 150000")


async def test_large_arguments_are_whole_for_code(serve: Serve) -> None:
    """The tool, its idempotency key, the policy and the next model call get all of the arguments."""
    seen: dict[str, Any] = {}

    @tool(effect="write")
    def keep(text: str, ctx: ToolContext) -> str:
        seen["tool"], seen["key"] = text, ctx.idempotency_key
        return "kept"

    def policy(call: PolicyCall) -> PolicyDecision:
        seen["policy"] = dict(call.arguments)
        return allow()

    text = "\u4e2d" * 100_000
    answers: list[Any] = [{"calls": [call("keep", text=text)]}, {"text": "ok"}]
    async with fake_chat(*answers) as server:
        agent = Agent("whole", server.model(), tools=[keep], policy=policy, limits=MANY)
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "ok"
        sent = server.requests[1]["messages"][-2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"text": text}
    assert seen["tool"] == text
    assert seen["policy"]["text"] == text
    assert seen["key"].endswith(f"/c1/{digest({'text': text})[7:23]}")


async def test_what_the_run_itself_reads_is_whole(serve: Serve) -> None:
    """The prompt of an agent that is a tool is never cut; a question to a person is, for they would not read it."""
    child = Agent("child", scripted(calls("save", text="{{user}}"), reply("{{tool:c1}}")), tools=[save], limits=MANY)
    script = [calls("fetch", size=300_000), calls("child", prompt="{{tool:c1}}"), reply("{{tool:c2}}")]
    parent = Agent("parent", scripted(*script), tools=[fetch, child.as_tool()], limits=MANY)
    asker = Agent("asker", scripted(script[0], calls("ask_human", question="{{tool:c1}}"), reply("{{tool:c2}}")),
                  tools=[fetch, ask_human], limits=MANY)  # fmt: skip
    lab = await serve(parent, child, asker)
    assert json.loads((await lab.run(parent))["output"])["output"] == "stored 300000"
    run = await lab.start(asker)
    await run.seen("question")
    [question] = (await run.status())["questions"]
    assert 10_000 < len(question["text"]) < 30_000
    await run.update("answer", {"question_id": question["question_id"], "text": "yes"})
    assert (await run.result())["output"] == "yes"


async def test_large_calls_are_told_apart(serve: Serve) -> None:
    """Large arguments that differ only where they are cut are different calls; equal ones are a repetition."""
    texts = [f"{'x' * 100_000}{end}" for end in "abaaa"]
    script = [*(calls("note", text=text) for text in texts), reply("ok")]

    @tool(effect="write", approval=True)
    def note(text: str) -> str:
        return f"noted {text[-1]}"

    agent = Agent("repeats", scripted(*script), tools=[note], strategy=ToolLoop(max_repeats=3))
    lab = await serve(agent)
    run = await lab.start(agent)
    digests = []
    for number in range(1, 5):
        [pending] = await run.asks()
        digests.append(pending["digest"])
        await run.update("approve", {"call_id": f"c{number}"})
        await run.seen("tool_end", number)
    assert (await run.result())["output"] == "ok"
    assert digests[0] == digests[2] == digests[3] != digests[1]
    results = list((await run.results()).values())
    assert results[:4] == ["noted a", "noted b", "noted a", "noted a"]
    assert results[4].startswith("not executed: you already made this call 3 times")


@pytest.mark.parametrize(("size", "char"), [(100_000, "y"), (399_000, "y"), (399_000, "\u4e2d")])
async def test_long_answers_are_whole(serve: Serve, size: int, char: str) -> None:
    """An answer up to the bound of a result is the output, whole."""
    script = [calls("fetch", size=size, char=char), reply("{{last_tool_text}}")]
    agent = Agent("long", scripted(*script), tools=[fetch], limits=MANY)
    lab = await serve(agent)
    assert (await lab.run(agent))["output"] == char * size


@pytest.mark.parametrize("size", [500_000, 3_000_000])
async def test_longer_answers_are_cut(serve: Serve, size: int) -> None:
    """A longer one is cut, and the run succeeds all the same."""
    script = [calls("fetch", size=size), reply("{{last_tool_text}}")]
    agent = Agent("long", scripted(*script), tools=[fetch], limits=MANY)
    lab = await serve(agent)
    result = await lab.run(agent)
    assert result["outcome"] == "success"
    assert result["output"].startswith("y" * 1_000)
    assert len(json.dumps(result)) < 1_000_000


@pytest.mark.parametrize("size", [100_000, 1_500_000, 3_000_000])
@pytest.mark.parametrize("kind", ["schema", "final"])
async def test_large_objects_end_the_run(serve: Serve, kind: str, size: int) -> None:
    """An answer as an object, however large, ends the run: with the object where it is small enough."""
    script: list[dict[str, Any]] = {
        "schema": [calls("fetch", size=size), reply('{"text": "{{last_tool_text}}"}'), reply('{"text": "small"}')],
        "final": [calls("finish", size=size), calls("finish", size=1)],
    }[kind]
    agent = Agent("object", scripted(*script), tools=[fetch, finish], limits=MANY)
    lab = await serve(agent)
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    result = await lab.run(agent, **({"output_schema": schema} if kind == "schema" else {}))
    assert (result["outcome"], result["reason"]) in {("success", None), ("no_solution", "output_schema")}
    assert len(json.dumps(result)) < 2_000_000
    if size < STRUCTURED_LIMIT:
        assert result["structured"] == {"text": "y" * size}
