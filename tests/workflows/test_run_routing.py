"""Runs whose agent has a router: who is asked what, and that agents as data reach no other address by it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Model, Router, RoutingRule, tool
from perdure.testing import call
from tests.conftest import Serve
from tests.fake_chat import FakeChat, fake_chat
from tests.lab import Run

PICTURE = {"type": "image", "url": "http://127.0.0.1/cat.png"}
LEFT_OUT = "[image left out: this model reads text only]"


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def asked(fake: FakeChat) -> list[str]:
    """The names of the models that were asked, in order."""
    return [request["model"] for request in fake.requests]


def pictures(request: dict[str, Any]) -> int:
    """How many pictures a request shows."""
    return str(request["messages"]).count(PICTURE["url"])


async def talk(serve: Serve, agent: Agent) -> Run:
    """A run that is shown a picture, and one that goes on from it in words."""
    lab = await serve(agent)
    first = await lab.start(agent, [{"type": "text", "text": "What is this?"}, PICTURE])
    await first.result()
    second = await lab.start(agent, "And what does it eat?", continue_from=first.id)
    await second.result()
    return second


async def test_pictures_go_to_the_model_that_reads_them(serve: Serve) -> None:
    """The vision model sees them; the text model that goes on gets a note; the conversation keeps them."""
    async with fake_chat({"text": "A cat."}) as fake:
        router = Router(default=fake.model("words"), vision=fake.model("eyes"))
        run = await talk(serve, Agent("seer", router=router))
    assert asked(fake) == ["eyes", "words"]
    assert [pictures(request) for request in fake.requests] == [1, 0]
    assert LEFT_OUT in str(fake.requests[1]["messages"])
    assert "image" in [part["type"] for m in await run.messages() for part in m["parts"]]
    [event] = await run.events("reply")
    assert event.get("model") is None


@pytest.mark.parametrize(
    ("name", "images", "shown"),
    [
        ("no-such-model-anywhere", None, True),
        ("no-such-model-anywhere", False, False),
        ("deepseek-chat", None, False),
        ("deepseek/deepseek-v4-pro", None, False),
        ("deepseek-chat", True, True),
    ],
)
async def test_what_a_model_is_shown_without_a_router(
    serve: Serve, name: str, images: bool | None, shown: bool
) -> None:
    """A model that is known for text only gets a note; its own word wins."""
    async with fake_chat({"text": "A cat."}) as fake:
        agent = Agent("seer", fake.model(name).model_copy(update={"images": images}))
        await talk(serve, agent)
    assert [pictures(request) for request in fake.requests] == [int(shown)] * 2
    assert all((LEFT_OUT in str(request["messages"])) is not shown for request in fake.requests)


async def test_a_text_model_beside_a_vision_model_may_say_that_it_reads_pictures(serve: Serve) -> None:
    """Then it is shown earlier ones."""
    async with fake_chat({"text": "A cat."}) as fake:
        seeing = fake.model("words").model_copy(update={"images": True})
        await talk(serve, Agent("seer", router=Router(default=seeing, vision=fake.model("eyes"))))
    assert (asked(fake), [pictures(request) for request in fake.requests]) == (["eyes", "words"], [1, 1])


async def test_pictures_in_a_chain(serve: Serve) -> None:
    """Each model of a chain is shown what it reads: the fallback that reads text only gets the note."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return {"status": 401} if body["model"] == "eyes" else {"text": "A cat."}

    async with fake_chat(answer) as fake:
        agent = Agent("seer", [fake.model("eyes"), fake.model("deepseek-chat")])
        lab = await serve(agent)
        result = await lab.run(agent, [{"type": "text", "text": "What is this?"}, PICTURE])
    assert (result["output"], asked(fake)) == ("A cat.", ["eyes", "deepseek-chat"])
    assert [pictures(request) for request in fake.requests] == [1, 0]


async def test_rules_choose_for_each_call(serve: Serve) -> None:
    """A run may begin with one model and go on with another; a rule has a chain of its own."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        if body["model"] == "broken":
            return {"status": 404}
        seen = any(message["role"] == "tool" for message in body["messages"])
        return {"text": "hi"} if seen else {"calls": [call("look", n=1)]}

    async with fake_chat(answer) as fake:
        late = RoutingRule(model=[fake.model("broken"), fake.model("late")], after_steps=1)
        never = RoutingRule(model=fake.model("never"), contains="sql")
        agent = Agent("router", router=Router(default=fake.model("early"), rules=[never, late]), tools=[look])
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "hi"
    assert asked(fake) == ["early", "broken", "late"]
    assert [event.get("model") for event in await run.events("reply")] == [None, "compatible:late"]


def places(model: dict[str, Any]) -> list[dict[str, Any]]:
    """Every place of an agent as data where a model can stand, in which this one stands."""
    plain = {"provider": "scripted"}
    return [
        {"model": model},
        {"model": [plain, model]},
        {"router": {"default": model}},
        {"router": {"default": [plain, model]}},
        {"router": {"default": plain, "vision": model}},
        {"router": {"default": plain, "vision": [plain, model]}},
        {"router": {"default": plain, "rules": [{"model": model, "contains": "x"}]}},
        {"router": {"default": plain, "rules": [{"model": plain}, {"model": [plain, model], "after_steps": 99}]}},
    ]


SMUGGLED: list[tuple[dict[str, Any], str]] = [
    ({"base_url": "http://127.0.0.1:9/evil"}, "PERDURE_ALLOWED_URLS"),
    ({"api_key_env": "SOMEBODYS_KEY"}, "PERDURE_ALLOWED_KEYS"),
    ({"headers": {"x-data": "${SOMEBODYS_NAME}"}}, "variables of the worker"),
]


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize(("fields", "words"), SMUGGLED, ids=["address", "key", "header"])
async def test_agents_as_data_reach_only_what_the_worker_allows(
    serve: Serve, place: int, fields: dict[str, Any], words: str
) -> None:
    """Wherever a model stands, also where it would never be asked, its address, key and headers are checked."""
    async with fake_chat({"text": "never"}) as fake:
        model = {"provider": "compatible", "name": "m", "base_url": fake.base_url, **fields}
        lab = await serve(Agent("other", "scripted"), allowed_urls=frozenset({fake.base_url}))
        result = await lab.run({"name": "stranger", **places(model)[place]})
    assert (result["outcome"], fake.requests) == ("invalid_input", [])
    assert words in result["message"]


async def test_an_agent_as_data_has_a_router(serve: Serve) -> None:
    """Its models may be at the addresses that the worker allows."""
    async with fake_chat({"text": "hi"}) as fake:
        plain, ruled = ({"provider": "compatible", "name": n, "base_url": fake.base_url} for n in ("plain", "ruled"))
        lab = await serve(Agent("other", "scripted"), allowed_urls=frozenset({fake.base_url}))
        data = {"name": "given", "router": {"default": plain, "rules": [{"model": ruled, "contains": "sql"}]}}
        results = [await lab.run(data, words) for words in ("Go.", "Some SQL")]
    assert [result["output"] for result in results] == ["hi", "hi"]
    assert asked(fake) == ["plain", "ruled"]


async def test_a_spec_is_frozen_with_its_router(serve: Serve) -> None:
    """The spec that a run keeps has every model of the router, and reads back as it was."""
    router = Router(
        default="scripted", vision="scripted:eyes", rules=[RoutingRule(model="scripted:late", contains="x")]
    )
    agent = Agent("frozen", router=router)
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.ended()
    spec = (await run.handle.query("spec"))["spec"]
    assert [model["name"] for model in spec["router"]["vision"]] == ["eyes"]
    assert Router(**spec["router"]) == router
    assert Model(**spec["models"][0]) == Model(provider="scripted")
