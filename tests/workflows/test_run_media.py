"""Images and documents in runs: shown by tools and prompts, carried to every format, and told of in words elsewhere."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure import Agent, Document, Image, Limits, Model, Router, ToolContext, tool
from perdure.cli.family_tree import tree_of
from perdure.client import Client as PerdureClient
from perdure.contracts import AGENT_WORKFLOW
from perdure.embedded import EmbeddedServer
from perdure.media import MOST_BYTES
from perdure.testing import calls, reply, scripted
from perdure.verify import VerifyContext
from tests.conftest import Serve
from tests.fake_chat import FakeChat, fake_chat
from tests.lab import Run, eventually, laboratory

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
PDF = b"%PDF-1.7\n" + bytes(range(256)) * 10
NOTE = "[image image/png 10 KB]"
PAPER = "[document application/pdf 3 KB a.pdf]"
MANY = Limits(tokens=1_000_000_000)


def encoded(data: bytes) -> str:
    """As base64."""
    return base64.b64encode(data).decode()


def png(size: int, seed: int = 0) -> bytes:
    """A PNG of that many bytes that does not shrink."""
    return PNG[:8] + random.Random(seed).randbytes(size - 8)


@tool(effect="read")
def shoot() -> Image:
    """Take a picture."""
    return Image(PNG)


@tool(effect="read")
def scan() -> list[Any]:
    """Scan a paper."""
    return ["The paper:", Document(PDF, name="a.pdf"), "and its photo:", Image(PNG), {"pages": 1}]


@tool(effect="write")
def large(size: int, seed: int = 0) -> Image:
    """Take a large picture."""
    return Image(png(size, seed))


@tool(effect="read", quick=True)
def glance(size: int) -> Image:
    """Take a picture at once."""
    return Image(png(size))


@tool(effect="read")
def broken() -> Image:
    """Take no picture."""
    return Image(b"<html>404</html>", media_type="image/png")


def called(name: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """A reply of the Chat Completions server that calls a tool."""
    return {"calls": [{"tool": name, "arguments": arguments or {}}]}


async def test_a_picture_reaches_the_model(serve: Serve) -> None:
    """In the user's name after the result, for a tool message holds text only; the conversation keeps it."""
    async with fake_chat(called("shoot"), {"text": "A cat."}) as fake:
        lab = await serve(Agent("seer", fake.model(), tools=[shoot]))
        run = await lab.start("seer")
        assert (await run.result())["output"] == "A cat."
    result, shown = fake.requests[1]["messages"][-2:]
    assert (result["role"], result["content"]) == ("tool", NOTE)
    assert shown["content"][-1]["image_url"] == {"url": f"data:image/png;base64,{encoded(PNG)}"}
    [message] = [m for m in await run.messages() if m["role"] == "tool"]
    assert message["parts"] == [
        {"type": "text", "text": NOTE},
        {"type": "image", "base64": encoded(PNG), "media_type": "image/png"},
    ]


def anthropic(used: bool) -> dict[str, Any]:
    """A reply of that format: a call of `scan`, or an answer."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "scan", "input": {}}
    content = [call if used else {"type": "text", "text": "Seen."}]
    told = {"stop_reason": "tool_use" if used else "end_turn", "usage": {"input_tokens": 5, "output_tokens": 5}}
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content, **told}


def gemini(used: bool) -> dict[str, Any]:
    """A reply of that format: a call of `scan`, or an answer."""
    part = {"functionCall": {"name": "scan", "args": {}}} if used else {"text": "Seen."}
    return {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}]}


def openai(used: bool) -> dict[str, Any]:
    """A reply of that format: a call of `scan`, or an answer."""
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "scan", "arguments": "{}"}
    said = {"type": "output_text", "text": "Seen.", "annotations": []}
    answer = {"type": "message", "id": "msg_1", "role": "assistant", "content": [said]}
    output = [{**(call if used else answer), "status": "completed"}]
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": output}


FORMATS = {"anthropic": anthropic, "gemini": gemini, "openai": openai}


@pytest.mark.parametrize("provider", FORMATS)
async def test_every_format_carries_what_a_tool_shows(
    serve: Serve, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts, documents and images of a list, with their bytes."""
    monkeypatch.setenv("TEST_MEDIA_KEY", "k")
    body = FORMATS[provider]
    async with fake_chat(*({"status": 200, "body": body(used)} for used in (True, False))) as fake:
        model = Model(provider=provider, name="m", base_url=fake.base_url, api_key_env="TEST_MEDIA_KEY")
        lab = await serve(Agent("seer", model, tools=[scan]))
        run = await lab.start("seer")
        assert (await run.result())["output"] == "Seen."
    sent = json.dumps(fake.requests[1])
    for expected in (encoded(PNG), encoded(PDF), NOTE, PAPER, "The paper:", "and its photo:"):
        assert expected in sent
    assert await run.results() == {"c1": f'The paper: {PAPER}  and its photo: {NOTE}  {{"pages":1}}'}


async def test_documents_of_tools_in_chat_completions(serve: Serve) -> None:
    """A PDF follows as a file, beside the picture."""
    async with fake_chat(called("scan"), {"text": "Seen."}) as fake:
        lab = await serve(Agent("seer", fake.model(), tools=[scan]))
        assert (await lab.run("seer"))["output"] == "Seen."
    shown = fake.requests[1]["messages"][-1]["content"]
    assert [part["type"] for part in shown] == ["text", "file", "image_url"]
    assert shown[1]["file"] == {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{encoded(PDF)}"}


@pytest.mark.parametrize("name", ["large", "glance"])
@pytest.mark.parametrize("size", [20_000, 200_000, pytest.param(MOST_BYTES, marks=pytest.mark.slow)])
async def test_large_pictures_stay_readable(client: Client, data_dir: Path, name: str, size: int) -> None:
    """By query, page by page, and by a worker that has never seen the run; history does not grow with them."""
    ask = {"calls": [{"tool": name, "arguments": {"size": size}}] * 2}
    async with fake_chat(ask, {"text": "Seen."}, {"text": "Seen again."}) as fake:
        agent = Agent("seer", fake.model(), tools=[large, glance], limits=MANY)
        async with laboratory(client, data_dir, agent) as lab:
            run = await lab.start(agent)
            assert (await run.result())["output"] == "Seen."
        async with laboratory(client, data_dir, agent, queue=lab.queue) as later:
            shown = [part for m in await run.messages() for part in m["parts"] if part["type"] == "image"]
            assert [part["base64"] for part in shown] == [encoded(png(size))] * 2
            going_on = await later.start(agent, "Again.", continue_from=run.id)
            assert (await going_on.result())["output"] == "Seen again."
    assert [json.dumps(request).count(encoded(png(size))) for request in fake.requests] == [0, 2, 2]
    history = await run.handle.fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 150_000


@tool(effect="read", max_result_chars=5_000_000)
def album(size: int) -> list[Any]:
    """Take a large picture and say much about it."""
    return [Image(png(size)), *["\u4e2d" * 60_000] * 5]


async def test_texts_beside_a_large_picture_stay_readable(serve: Serve) -> None:
    """However much a tool says, the message fits a query's answer."""
    lab = await serve(Agent("seer", scripted(calls("album", size=MOST_BYTES), reply("ok")), tools=[album], limits=MANY))
    run = await lab.start("seer")
    assert (await run.result())["output"] == "ok"
    text = (await run.results())["c1"]
    assert text.startswith("[image image/png 1.2 MB]")
    assert 10_000 < text.count("\u4e2d") <= 50_000


async def test_a_result_that_is_too_large_is_an_error_for_the_model(serve: Serve) -> None:
    """It says that the tool was executed, how large it is, and how large it may be."""
    script = scripted(calls("large", size=MOST_BYTES + 1_000), reply("{{last_tool_text}}"))
    lab = await serve(Agent("seer", script, tools=[large]))
    run = await lab.start("seer")
    output = (await run.result())["output"]
    assert output.startswith("large was executed, but what it returned is too large: [image image/png 1.2 MB]: 1.2 MB")
    [message] = [m for m in await run.messages() if m["role"] == "tool"]
    assert (message["error"], [part["type"] for part in message["parts"]]) == (True, ["text"])


async def test_a_picture_that_is_none_is_an_error_for_the_model(serve: Serve) -> None:
    """A page that says 404 never reaches a vendor, who would refuse the conversation from then on."""
    lab = await serve(Agent("seer", scripted(calls("broken"), reply("{{last_tool_text}}")), tools=[broken]))
    assert (await lab.run("seer"))["output"].startswith("ValueError: Image: these bytes are no PNG")


async def test_only_words_are_shown_to_people(serve: Serve, client: Client, tmp_path: Path) -> None:
    """`perdure show`, events, traces and the answer of a final tool have no bytes."""
    seen: list[Any] = []

    @tool(effect="read", final=True)
    def finish(ctx: ToolContext) -> Image:
        return Image(PNG)

    traces, events = tmp_path / "traces.jsonl", tmp_path / "events.jsonl"
    agent = Agent("seer", scripted(calls("shoot"), calls("finish")), tools=[shoot, finish])
    lab = await serve(
        agent, traces_file=traces, events_file=events, trace_content=True, on_event=lambda event: seen.append(event)
    )
    run = await lab.start(agent)
    result = await run.result()
    assert (result["output"], result["structured"]) == (NOTE, NOTE)
    tree = await tree_of(PerdureClient(client), run.id)
    await eventually(
        lambda: traces.exists() and "run_ended" in events.read_text() and "invoke_agent" in traces.read_text()
    )
    shown = [repr(tree), str(await run.events()), traces.read_text(), events.read_text(), str(seen)]
    assert NOTE in repr(tree)
    assert NOTE in traces.read_text()
    assert not any(encoded(PNG)[:100] in text for text in shown)


async def test_checks_see_the_words(serve: Serve) -> None:
    """The record of a call has a text for its picture."""
    seen: list[str] = []

    def look(ctx: VerifyContext) -> str | None:
        seen.extend(record.result for record in ctx.tool_calls)
        return None

    lab = await serve(Agent("seer", scripted(calls("shoot"), reply("ok")), tools=[shoot], verify=look))
    assert (await lab.run("seer"))["outcome"] == "success"
    assert seen == [NOTE]


async def test_text_models_of_a_router_get_a_note(serve: Serve) -> None:
    """A picture of a tool is left out for them; the vision model is for what the user shows."""
    async with fake_chat(called("shoot"), {"text": "A cat."}) as fake:
        router = Router(default=fake.model("words"), vision=fake.model("eyes"))
        lab = await serve(Agent("seer", router=router, tools=[shoot]))
        await lab.run("seer")
        parts = [{"type": "text", "text": "This?"}, {"type": "image", "base64": encoded(PNG)}]
        assert (await lab.run("seer", parts))["output"] == "A cat."
    assert [request["model"] for request in fake.requests] == ["words", "words", "eyes"]
    assert "image left out: this model reads text only" in fake.requests[1]["messages"][-1]["content"]
    assert encoded(PNG) not in json.dumps(fake.requests[1])
    assert f"data:image/png;base64,{encoded(PNG)}" in json.dumps(fake.requests[2])


# --- prompts ----------------------------------------------------------------------------------------------------------


def parts(*shown: dict[str, Any]) -> list[dict[str, Any]]:
    """A prompt that shows something."""
    return [{"type": "text", "text": "What is this?"}, *shown]


@pytest.mark.parametrize(
    ("shown", "problem"),
    [
        ({"type": "image", "base64": encoded(png(MOST_BYTES + 1_000))}, "prompt: [image image/png 1.2 MB]: 1.2 MB"),
        ({"type": "image", "base64": "no base64!"}, "prompt.1: base64: must be its bytes in base64"),
        ({"type": "image", "base64": encoded(PDF)}, "prompt.1: base64: these are the bytes of application/pdf"),
        ({"type": "document", "base64": encoded(PNG)}, "prompt.1: base64: these are the bytes of image/png"),
        ({"type": "image", "base64": "aGk=", "media_type": "text/html"}, "prompt.1: media_type: that of an image"),
        ({"type": "image", "url": "file:///etc/passwd"}, "prompt.1: url: must begin with http://"),
    ],
)
async def test_prompts_that_cannot_be_shown(serve: Serve, shown: dict[str, Any], problem: str) -> None:
    """The run closes at once, with the part and the fix named, and no model is asked."""
    async with fake_chat({"text": "?"}) as fake:
        lab = await serve(Agent("seer", fake.model()))
        ended = await lab.run("seer", parts(shown))
    assert (ended["outcome"], fake.requests) == ("invalid_input", [])
    assert problem in ended["message"]


async def test_a_prompt_of_the_largest_picture(client: Client, data_dir: Path) -> None:
    """It is stored, shown and read by a worker that has never seen the run; its media type is seen in its bytes."""
    picture = encoded(png(MOST_BYTES - 1_000))
    async with fake_chat({"text": "A cat."}, {"text": "Still a cat."}) as fake:
        agent = Agent("seer", fake.model(), limits=MANY)
        async with laboratory(client, data_dir, agent) as lab:
            run = await lab.start(agent, parts({"type": "image", "base64": picture, "media_type": "image/jpeg"}))
            assert (await run.result())["output"] == "A cat."
        async with laboratory(client, data_dir, agent, queue=lab.queue) as later:
            [message, _] = await run.messages()
            assert message["parts"][1] == {"type": "image", "base64": picture, "media_type": "image/png"}
            going_on = await later.start(agent, "Sure?", continue_from=run.id)
            assert (await going_on.result())["output"] == "Still a cat."
    assert all(f"data:image/png;base64,{picture}" in json.dumps(request) for request in fake.requests)


async def test_a_prompt_from_temporals_own_tools(serve: Serve, temporal_server: EmbeddedServer) -> None:
    """A client that knows nothing of Perdure starts with the largest picture and a document, and reads them back."""
    plain = await Client.connect(temporal_server.address)
    shown = [
        {"type": "image", "base64": encoded(png(MOST_BYTES - len(PDF)))},
        {"type": "document", "base64": encoded(PDF), "name": "a.pdf"},
    ]
    async with fake_chat({"text": "Seen."}) as fake:
        lab = await serve(Agent("seer", fake.model(), limits=MANY))
        asked = {"agent": "seer", "prompt": parts(*shown)}
        run = Run(await plain.start_workflow(AGENT_WORKFLOW, asked, id=f"m-{lab.queue}", task_queue=lab.queue))
        assert (await run.result())["output"] == "Seen."
        [message, _] = await run.messages()
    read = [{name: part[name] for name in given} for part, given in zip(message["parts"][1:], shown, strict=True)]
    assert read == shown
    assert [part["media_type"] for part in message["parts"][1:]] == ["image/png", "application/pdf"]
    assert encoded(PDF) in json.dumps(fake.requests[0])


def address_of(fake: FakeChat, provider: str) -> Model:
    """A model of a provider at this server."""
    return Model(provider=provider, name="m", base_url=fake.base_url, api_key_env="TEST_MEDIA_KEY")


@pytest.mark.parametrize(
    ("provider", "kind", "taken"),
    [
        ("openai-chat", "image", True),
        ("openai-chat", "document", False),
        ("anthropic", "image", True),
        ("anthropic", "document", True),
        ("openai", "image", True),
        ("openai", "document", True),
        ("gemini", "image", True),
        ("gemini", "document", True),
    ],
)
async def test_addresses_are_for_vendors_that_fetch_them(
    serve: Serve, provider: str, kind: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one does not, the run ends and says what it needs instead."""
    monkeypatch.setenv("TEST_MEDIA_KEY", "k")
    url = f"https://example.org/a.{'png' if kind == 'image' else 'pdf'}"
    answer = {"status": 200, "body": FORMATS[provider](False)} if provider in FORMATS else {"text": "Seen."}
    async with fake_chat(answer) as fake:
        lab = await serve(Agent("seer", address_of(fake, provider)))
        ended = await lab.run("seer", parts({"type": kind, "url": url}))
    assert ended["outcome"] == ("success" if taken else "failed")
    assert (url in json.dumps(fake.requests)) is taken
    assert taken or "a document must be base64 data" in ended["message"]
