"""Calls of models that a worker has recorded, played again: the same run without the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure import Agent, Model, tool
from perdure.testing import calls, reply, scripted
from tests.lab import Failed, laboratory

KEY = "sk-proj-0123456789abcdefghij"


@tool(effect="read")
def look(city: str) -> str:
    """Look."""
    return f"{city}: 9C, key {KEY}"


def agent(model: Model, **options: Any) -> Agent:
    """The agent that is recorded and played."""
    return Agent("weather", model, tools=[look], **{"instructions": "Be brief.", **options})


def played(match: str | None = None, name: str = "friday") -> Model:
    """The recording as a model."""
    return Model(provider="recorded", name=name, params={"match": match} if match else {})


@pytest.fixture
async def recording(client: Client, tmp_path: Path) -> Path:
    """The data folder of a worker that has recorded one run."""
    model = scripted(calls("look", city="Oslo"), reply("cold"))
    async with laboratory(client, tmp_path, agent(model), recording="friday") as lab:
        run = await lab.start(agent(model), prompt="How is Oslo?")
        assert (await run.result())["output"] == "cold"
    return tmp_path


async def run_of(client: Client, folder: Path, one: Agent, prompt: str = "How is Oslo?") -> dict[str, Any]:
    """The result of a run of an agent on a worker with this data folder."""
    async with laboratory(client, folder, one) as lab:
        return await (await lab.start(one, prompt=prompt)).ended()


async def test_it_is_played_again(client: Client, recording: Path) -> None:
    """The same agent gives the same answer with the same usage, and its tool runs."""
    result = await run_of(client, recording, agent(played()))
    assert (result["outcome"], result["output"], result["tool_calls"]) == ("success", "cold", 1)
    lines = [json.loads(line) for line in (recording / "recordings" / "friday.jsonl").read_text().splitlines()]
    spent = [line["reply"]["usage"] for line in lines]
    assert result["usage"]["input_tokens"] == sum(usage["input_tokens"] for usage in spent)


async def test_no_credential_is_recorded(recording: Path) -> None:
    """What a tool says is recorded as it is shown elsewhere: without keys."""
    text = (recording / "recordings" / "friday.jsonl").read_text()
    assert KEY not in text
    assert "Oslo: 9C" in text


@pytest.mark.parametrize(
    ("changes", "prompt", "why"),
    [
        ({"instructions": "Be long."}, "How is Oslo?", "no recorded call has these instructions"),
        ({}, "How is Rome?", "no recorded call has this message 1 (user)"),
        ({"tool_choice": "required"}, "How is Oslo?", "no recorded call has these tool_choice"),
    ],
)
async def test_another_request_has_no_reply(
    client: Client, recording: Path, changes: dict[str, Any], prompt: str, why: str
) -> None:
    """The failure says what differs; by position it is answered all the same."""
    result = await run_of(client, recording, agent(played(), **changes), prompt)
    assert (result["outcome"], result["reason"]) == ("failed", "provider_error")
    assert f"recorded:friday: {why}" in result["message"]
    by_position = await run_of(client, recording, agent(played("position"), **changes), prompt)
    assert by_position["output"] == "cold"


async def test_more_steps_than_were_recorded(client: Client, recording: Path) -> None:
    """A recording ends; what would come after it is a failure, never an empty answer."""
    file = recording / "recordings" / "friday.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    result = await run_of(client, recording, agent(played("position")))
    assert (result["outcome"], result["output"]) == ("failed", "")
    assert "no call at step 2 is recorded" in result["message"]


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        (None, "absent", "the recording cannot be read"),
        ("{", "friday", "the recording cannot be read"),
        ("[]\n", "friday", "line 1 is no recorded call"),
        (None, "../friday", "is no name of a recording"),
    ],
)
async def test_broken_recordings(client: Client, recording: Path, text: str | None, name: str, why: str) -> None:
    """A recording that cannot be played fails the run with the reason."""
    if text is not None:
        (recording / "recordings" / "friday.jsonl").write_text(text)
    result = await run_of(client, recording, agent(played(name=name)))
    assert (result["outcome"], result["reason"]) == ("failed", "configuration")
    assert why in result["message"]


async def test_a_recording_that_cannot_be_written(client: Client, tmp_path: Path) -> None:
    """The run goes on."""
    (tmp_path / "recordings").write_text("a file is in the way")
    model = scripted(reply("ok"))
    async with laboratory(client, tmp_path, agent(model), recording="friday") as lab:
        try:
            result = await (await lab.start(agent(model))).result()
        except Failed as failed:
            pytest.fail(failed.message)
    assert result["output"] == "ok"
