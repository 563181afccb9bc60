"""Answers in a given shape: asked for in every format, found in what models say, repaired, bounded, checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Model, tool
from perdure.testing import call, calls, reply, scripted
from perdure.verify import VerifyContext
from tests.conftest import Serve
from tests.fake_chat import FakeChat, fake_chat

OSLO = {"city": "Oslo", "celsius": 9}
RIGHT = json.dumps(OSLO)
WRONG = '{"city": "Oslo", "celsius": "cold"}'
ASKED = "satisfies this JSON Schema"
REFUSED = {
    "status": 400,
    "body": {"error": {"message": "response_format is not supported", "type": "invalid_request_error", "param": None}},
}


class Weather(BaseModel):
    """A pydantic model."""

    city: str
    celsius: int


@dataclass
class Report:
    """A dataclass."""

    city: str
    celsius: int


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "celsius": {"type": "integer"}},
    "required": ["city", "celsius"],
    "additionalProperties": False,
}


@tool(effect="read")
def look(city: str) -> str:
    """Look."""
    return f"{city}: 9C"


def anthropic(text: str | None) -> dict[str, Any]:
    """A whole reply of that format: a text, or a call of `look`."""
    used = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"city": "Oslo"}}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [used if text is None else {"type": "text", "text": text}],
        "stop_reason": "tool_use" if text is None else "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 5},
    }


def gemini(text: str | None) -> dict[str, Any]:
    """A whole reply of that format: a text, or a call of `look`."""
    part = {"functionCall": {"name": "look", "args": {"city": "Oslo"}}} if text is None else {"text": text}
    return {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 5, "totalTokenCount": 10},
    }


def openai(text: str | None) -> dict[str, Any]:
    """A whole reply of that format: a text, or a call of `look`."""
    said: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [said]}
    used = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "look",
        "arguments": '{"city": "Oslo"}',
        "status": "completed",
    }
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "m",
        "output": [used if text is None else message],
        "usage": {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10},
    }


FORMATS: dict[str, Callable[[str | None], dict[str, Any]]] = {
    "anthropic": anthropic,
    "gemini": gemini,
    "openai": openai,
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's environment has a key."""
    monkeypatch.setenv("TEST_STRUCTURED_KEY", "k")


def model(fake: FakeChat, provider: str) -> Model:
    """A model of a provider at this server."""
    return Model(provider=provider, name="m", base_url=fake.base_url, api_key_env="TEST_STRUCTURED_KEY")


@pytest.mark.parametrize("output", [Weather, Report, SCHEMA], ids=["pydantic", "dataclass", "schema"])
async def test_the_answer_lands_in_the_result(serve: Serve, output: Any) -> None:
    """Whatever says the shape."""
    async with fake_chat({"text": RIGHT}) as fake:
        lab = await serve(Agent("w", fake.model(), output=output))
        result = await lab.run("w")
    assert (result["outcome"], result["structured"], result["steps"]) == ("success", OSLO, 1)


@pytest.mark.parametrize("provider", FORMATS)
@pytest.mark.parametrize("tools", [(), (look,)], ids=["alone", "beside tools"])
async def test_every_format_asks_and_corrects(serve: Serve, provider: str, tools: tuple[Any, ...]) -> None:
    """The schema is told, a wrong answer comes back with what is wrong, and the right one is the result."""
    body = FORMATS[provider]
    said = [*([None] if tools else []), WRONG, f"Sorry:\n```json\n{RIGHT}\n```"]
    async with fake_chat(*({"status": 200, "body": body(text)} for text in said)) as fake:
        lab = await serve(Agent("w", model(fake, provider), output=Weather, tools=list(tools)))
        run = await lab.start("w")
        result = await run.result()
    assert (result["outcome"], result["structured"], result["steps"]) == ("success", OSLO, len(said))
    assert all('"celsius"' in json.dumps(request).replace('\\"', '"') for request in fake.requests)
    assert "celsius: must be integer" in json.dumps(fake.requests[-1])
    [correction] = await run.events("correction")
    assert "celsius: must be integer" in correction["text"]


@pytest.mark.parametrize("tools", [(), (look,)], ids=["alone", "beside tools"])
async def test_a_server_that_refuses_the_format_is_asked_in_words(serve: Serve, tools: tuple[Any, ...]) -> None:
    """It is refused once, and not sent again: neither in this run nor in the next one on the same worker."""
    look_first = [{"calls": [call("look", city="Oslo")]}] if tools else []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        if "response_format" in body:
            return REFUSED
        asked = body["messages"][-1]["role"] == "user"
        return look_first[0] if look_first and asked else {"text": f"Here: {RIGHT}"}

    async with fake_chat(answer) as fake:
        lab = await serve(Agent("w", fake.model(), output=Weather, tools=list(tools)))
        results = [await lab.run("w") for _ in range(2)]
    assert [result["structured"] for result in results] == [OSLO] * 2
    assert ["response_format" in request for request in fake.requests].count(True) == 1
    assert all(ASKED in request["messages"][0]["content"] for request in fake.requests)


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{RIGHT}\n```",
        f"Here you are: {RIGHT} Anything else?",
        json.dumps(RIGHT),
        f"<think>{{}}</think>{RIGHT}",
    ],
    ids=["fence", "sentences", "encoded twice", "reasoning"],
)
async def test_an_answer_is_found_in_what_was_said(serve: Serve, text: str) -> None:
    """Without another turn."""
    lab = await serve(Agent("w", scripted(reply(text)), output=Weather))
    result = await lab.run("w")
    assert (result["structured"], result["output"], result["steps"]) == (OSLO, text, 1)


@pytest.mark.parametrize(
    "text", ["It is cold.", f"{RIGHT}{RIGHT}", f"[{RIGHT}]", RIGHT[:-1], f"Here: {RIGHT[:-4]}", WRONG, "null"]
)
async def test_what_is_no_single_fitting_object_is_corrected(serve: Serve, text: str) -> None:
    """The model is told, and tries again."""
    lab = await serve(Agent("w", scripted(reply(text), reply(RIGHT)), output=Weather))
    run = await lab.start("w")
    result = await run.result()
    assert (result["structured"], result["steps"]) == (OSLO, 2)
    assert len(await run.events("correction")) == 1


async def test_an_answer_that_was_cut_is_never_the_result(serve: Serve) -> None:
    """A whole object in a reply that hit the limit of output may not be what the model meant."""
    async with fake_chat({"text": f"{RIGHT} or rather", "finish": "length"}) as fake:
        lab = await serve(Agent("w", fake.model(), output=Weather))
        result = await lab.run("w")
    assert (result["outcome"], result["reason"], result["structured"]) == ("no_solution", "truncated", None)


@pytest.mark.parametrize("corrections", [0, 1, 3])
async def test_corrections_are_bounded(serve: Serve, corrections: int) -> None:
    """After the last one the run ends without a structured answer, and says why."""
    async with fake_chat({"text": WRONG}) as fake:
        lab = await serve(Agent("w", fake.model(), output=Weather, corrections=corrections))
        run = await lab.start("w")
        result = await run.result()
    assert (result["outcome"], result["reason"]) == ("no_solution", "output_schema")
    assert (result["structured"], result["output"]) == (None, WRONG)
    assert len(fake.requests) == corrections + 1
    assert "celsius: must be integer" in (await run.status())["message"]


async def test_a_check_sees_the_structured_answer(serve: Serve) -> None:
    """After the schema and before the end; what it finds is another correction."""
    seen: list[Any] = []

    def warm(ctx: VerifyContext) -> str | None:
        seen.append(ctx.structured)
        return None if ctx.structured["celsius"] > 10 else "too cold"

    said = [reply(WRONG), reply(f"So: {RIGHT}"), reply(json.dumps(OSLO | {"celsius": 20}))]
    lab = await serve(Agent("w", scripted(*said), output=Weather, verify=warm, corrections=2))
    result = await lab.run("w")
    assert (result["outcome"], result["structured"]) == ("success", OSLO | {"celsius": 20})
    assert seen == [OSLO, OSLO | {"celsius": 20}]


async def test_words_beside_a_call_are_no_answer(serve: Serve) -> None:
    """An object that a model says while it calls a tool is not checked, and the answer comes after."""
    lab = await serve(
        Agent("w", scripted({"text": WRONG, **calls("look", city="Oslo")}, reply(RIGHT)), output=Weather, tools=[look])
    )
    result = await lab.run("w")
    assert (result["structured"], result["steps"]) == (OSLO, 2)


async def test_a_schema_that_comes_with_the_run(serve: Serve) -> None:
    """`output_schema` of the input asks as `output=` does."""
    async with fake_chat({"text": f"```\n{RIGHT}\n```"}) as fake:
        lab = await serve(Agent("w", fake.model()))
        result = await lab.run("w", output_schema=SCHEMA)
    assert result["structured"] == OSLO
    assert fake.requests[0]["response_format"]["json_schema"]["schema"] == SCHEMA
