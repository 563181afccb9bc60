"""A truthful model at a Chat Completions server on loopback: it answers what it is asked, from a table of prompts."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.fake_chat import Answer, FakeChat, fake_chat

KEY = "the-key-of-the-smoke-test"
NAME = "gpt-5-mini"
SAYS: Mapping[str, str | list[str]] = {
    "Say the word: ready": "ready",
    "Say: ok": "ok",
    "Count from 1 to 30 in digits, with commas.": [f"{number}, " for number in range(1, 30)] + ["30"],
    "The capital of Norway?": "Oslo",
}
FILLS: Mapping[str, Mapping[str, Any]] = {"The capital of Norway?": {"capital": "Oslo", "country": "Norway"}}
"""What it fills a schema's properties with."""
CALLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "What is 17 + 25? Use the tool.": ("add", {"a": 17, "b": 25}),
    "How is the weather in Oslo?": ("look_up", {"city": "Oslo"}),
}
COLOURS = {"ff0000": "Red", "00ff00": "Green", "0000ff": "Blue"}


@asynccontextmanager
async def fake_model(key: str = KEY, name: str = NAME) -> AsyncIterator[FakeChat]:
    """Serve the one model `name` to those with the key, which is lower-case."""
    async with fake_chat() as fake:

        def answer(body: dict[str, Any]) -> Answer:
            if fake.headers[-1].get("authorization") != f"bearer {key}":
                return refusal(401, "Incorrect API key provided.", "invalid_api_key")
            if body["model"] != name:
                return refusal(404, f"The model {body['model']!r} does not exist.", "model_not_found")
            words = {"prompt_tokens": len(json.dumps(body)) // 4, "completion_tokens": 10}
            return {**reply_to(body), "usage": words}

        fake.answers.append(answer)
        yield fake


def refusal(status: int, message: str, code: str = "") -> Answer:
    """An error as the vendor words it."""
    return {"status": status, "body": {"error": {"message": message, "code": code}}}


def reply_to(body: Mapping[str, Any]) -> Answer:
    """Text or a call: of a tool that is offered, and in the form that is asked for."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return {"text": f"It is {words_of(last)}."}
    prompt = words_of(last)
    offered = {tool["function"]["name"] for tool in body.get("tools", ())}
    if prompt in CALLS and CALLS[prompt][0] in offered:
        name, arguments = CALLS[prompt]
        return {"calls": [{"tool": name, "arguments": arguments}]}
    if "response_format" in body and prompt in FILLS:
        properties = body["response_format"]["json_schema"]["schema"]["properties"]
        return {"text": json.dumps({field: FILLS[prompt][field] for field in properties})}
    for part in last["content"] if isinstance(last["content"], list) else ():
        if part["type"] == "image_url":
            return {"text": colour_of(part["image_url"]["url"])}
    return {"text": SAYS.get(prompt, "I do not know.")}


def words_of(message: Mapping[str, Any]) -> str:
    """The text of a message."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def colour_of(url: str) -> str:
    """The name of the first pixel's colour in a PNG of three bytes a pixel, given as a data URL."""
    data = base64.b64decode(url.partition(";base64,")[2], validate=True)
    at = data.index(b"IDAT")
    size = int.from_bytes(data[at - 4 : at])
    return COLOURS[zlib.decompress(data[at + 4 : at + 4 + size])[1:4].hex()]
