"""Large texts, arguments and answers: nothing that a run holds is too large for a query, a result or another worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure import Agent, Limits, tool
from perdure.contracts import STRUCTURED_LIMIT
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve
from tests.lab import laboratory

MANY = Limits(tokens=1_000_000_000)


@tool(effect="read", max_result_chars=4_000_000)
def fetch(size: int, char: str = "y") -> str:
    """A text of that many characters."""
    return char * size


@tool(effect="read", max_result_chars=4_000_000, final=True)
def finish(size: int) -> dict[str, str]:
    """A final result of that size."""
    return {"text": "y" * size}


@tool(effect="write", approval=True)
def store(text: str) -> str:
    """Store a text."""
    return f"stored {len(text)}"


@pytest.mark.parametrize(
    ("size", "calls_", "shown"),
    [
        (900_000, 1, ["stored 900000"]),
        (2_500_000, 1, ["arguments of store: the arguments have 2500012 characters"]),
        (400_000, 3, ["stored 400000", "stored 400000", "not executed: the arguments of one reply"]),
    ],
)
async def test_large_arguments(client: Client, data_dir: Path, size: int, calls_: int, shown: list[str]) -> None:
    """What one reply may carry is bounded, so that a worker that has never seen the run can go on with it."""
    together = calls(*[call("store", text="{{tool:c1}}")] * calls_)
    agent = Agent("big", scripted(calls("fetch", size=size), together, reply("ok")), tools=[fetch, store], limits=MANY)
    waiting = sum(text.startswith("stored") for text in shown)
    async with laboratory(client, data_dir, agent) as lab:
        run = await lab.start(agent)
        if waiting:
            await run.asks(waiting)
    async with laboratory(client, data_dir, agent, queue=lab.queue):
        for pending in await run.pending() if waiting else ():
            await run.update("approve", {"call_id": pending["call_id"]})
        assert (await run.result())["output"] == "ok"
        results = list((await run.results()).values())[1:]
        assert [text[: len(begin)] for text, begin in zip(results, shown, strict=True)] == shown


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
