"""Everything is checked when it is constructed: each error names the agent or tool, the field and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from perdure import Agent, Approval, ConfigError, Limits, Model, Price, ToolDefaults, ToolLoop, tool
from perdure.agent import AgentSpec, read_agent_data, spec_from_data
from perdure.contracts import RunInput
from perdure.model import PROVIDERS
from perdure.settings import problems_of
from providers import REGISTRY

SECRET = "sk-123abc"


def look(place: str) -> str:
    """Look."""
    return place


def bare(place) -> str:  # type: ignore[no-untyped-def]
    """A tool without annotations."""
    return str(place)


async def later() -> str:
    """Instructions that would have to be awaited."""
    return "Be kind."


def agent(model: Any = "scripted", **fields: Any) -> Callable[[], Any]:
    """An agent `a` that is not made yet."""
    return lambda: Agent("a", model, **fields)


def option(**options: Any) -> Callable[[], Any]:
    """The tool `look` with options, not made yet."""
    return lambda: tool(**options)(look)


def model(**fields: Any) -> Callable[[], Any]:
    """A model not made yet."""
    return lambda: Model(**{"provider": "compatible", "name": "m", **fields})


def by_position(kind: Any, value: Any) -> Callable[[], Any]:
    """Settings that get a value without its name."""
    return lambda: kind(value)


AGENTS: list[tuple[Callable[[], Any], str]] = [
    (agent(None), "agent 'a': model: None is not 'provider:model'"),
    (agent(5), "agent 'a': model: 5 is not 'provider:model'"),
    (agent("gpt"), "agent 'a': model: 'gpt' is not 'provider:model'"),
    (agent([]), "agent 'a': model: must be one model"),
    (agent("nope:x"), "agent 'a': model: provider: must be one of compatible, openai-chat, scripted"),
    (agent("anthropic:x"), "agent 'a': model: provider: must be one of compatible, openai-chat, scripted"),
    (agent("openai-chat:"), "agent 'a': model: name: must say which model"),
    (lambda: Agent("a b", "scripted"), "agent 'a b': name: must be 1 to 64"),
    (agent(tools=look), "agent 'a': tools: must be a list of functions, tools or agents, such as tools=[search]"),
    (agent(tools=tool(look)), "agent 'a': tools: must be a list"),
    (agent(tools=None), "agent 'a': tools: must be a list"),
    (agent(tools=[5]), "agent 'a': tools: must be functions, tools or agents"),
    (agent(tools=[lambda x: x]), "agent 'a': a lambda cannot be a tool"),
    (lambda: Agent("a", "scripted").tool()(5), "agent 'a': tools: must be functions, tools or agents"),
    (lambda: Agent("a", "scripted").tool(attempts=True)(look), "agent 'a': tool 'look': attempts: Input should be"),
    (agent(tools=[look, look]), "agent 'a': tools: two are named 'look'"),
    (agent(instructions=lambda a, b: ""), "agent 'a': instructions: must be a text or a plain function"),
    (agent(instructions=later), "agent 'a': instructions: must be a text or a plain function (not async)"),
    (agent(instructions=5), "agent 'a': instructions: must be a text"),
    (agent(verify=lambda: 1), "agent 'a': verify: must be a function that takes exactly one argument"),
    (agent(policy=lambda: 1), "agent 'a': policy: must be a function that takes exactly one argument"),
    (agent(policy="no"), "agent 'a': policy: must be a function"),
    (agent(parallel_tools="x"), "agent 'a': parallel_tools: must be True or False"),
    (agent(tools=[look], tool_choice="x"), "agent 'a': tool_choice: must be one of auto, required, none, look"),
    (agent(tool_choice=5), "agent 'a': tool_choice: must be one of auto, required, none"),
    (lambda: Agent("a", "scripted", tool_choice="x").spec(), "agent 'a': tool_choice: must be one of auto"),
    (agent(limits=5), "agent 'a': limits: must be Limits(...)"),
    (agent(limits={}), "agent 'a': limits: must be Limits(...)"),
    (agent(strategy=0), "agent 'a': strategy: must be one of ['ToolLoop']"),
    (agent(output=5), "agent 'a': output: must be a pydantic model, a dataclass or a JSON Schema of an object"),
    (agent(output=int), "agent 'a': output: must be a pydantic model, a dataclass or a JSON Schema of an object"),
    (agent(corrections=True), "agent 'a': corrections: must be a number from 0 to 10"),
    (agent(description=5), "agent 'a': description: must be a text"),
    (agent(tool_defaults={}), "agent 'a': tool_defaults: must be ToolDefaults()"),
    (lambda: Agent("a", "scripted").as_tool(attempts=True), "agent 'a' as tool: attempts: Input should be a valid int"),
]

TOOLS: list[tuple[Callable[[], Any], str]] = [
    (option(name=""), "tool '': name: must be 1 to 64 of"),
    (option(name=5), "tool 5: name: Input should be a valid string"),
    (option(approval="yes"), "tool 'look': approval: must be True, False or Approval(...)"),
    (option(approval=5), "tool 'look': approval: must be True, False or Approval(...)"),
    (option(quick="yes"), "tool 'look': quick: Input should be a valid boolean"),
    (option(final="yes"), "tool 'look': final: Input should be a valid boolean"),
    (option(attempts=True), "tool 'look': attempts: Input should be a valid integer"),
    (option(timeout="soon"), "tool 'look': timeout: 'soon' is not a duration; write '10m'"),
    (option(timeout=True), "tool 'look': timeout: True is not a duration"),
    (option(queue="a b\n"), "tool 'look': queue: must be a task queue's name, without spaces"),
    (option(queue="ab\n"), "tool 'look': queue: must be a task queue's name, without spaces"),
    (option(permissions="mail"), "tool 'look': permissions: must be a list of names"),
    (option(heartbeat=100, timeout=10), "tool 'look': heartbeat: must be shorter than the timeout"),
    (option(on_unknown="ask", effect="read"), "tool 'look': on_unknown: 'ask' contradicts effect='read'"),
    (option(on_unknown="ask", effect="idempotent"), "tool 'look': on_unknown: 'ask' contradicts effect='idempotent'"),
    (option(effect="reads"), "tool 'look': effect: Input should be 'read', 'idempotent', 'write' or 'dangerous'"),
    (option(efect="read"), "tool 'look': efect: Extra inputs are not permitted"),
    (lambda: tool(effect="read")(tool(look)), "tool 'look': it is a tool already; remove the second @tool"),
    (lambda: tool(bare), "bare: parameter `place` has no annotation; annotate it, for example `place: str`"),
]

SETTINGS: list[tuple[Callable[[], Any], str]] = [
    (by_position(Limits, 5), "Limits takes keyword arguments such as steps=..."),
    (by_position(Approval, 5), "Approval takes keyword arguments such as approvers=..."),
    (lambda: Limits(steps="5"), "Limits: steps: Input should be a valid integer"),
    (lambda: Limits(steps=True), "Limits: steps: Input should be a valid integer"),
    (lambda: ToolLoop(max_repeats=True), "ToolLoop: max_repeats: Input should be a valid integer"),
    (lambda: ToolDefaults(quick="yes"), "ToolDefaults: quick: Input should be a valid boolean"),
    (lambda: Approval(quorum=True), "Approval: quorum: Input should be a valid integer"),
    (lambda: Approval(quorum=2, approvers=["ann"]), "Approval: quorum: 2 can never be reached with 1 approvers"),
    (lambda: Approval(approvers=("",)), "Approval: approvers: must be a list of names, such as ['ann', 'bob']"),
    (lambda: Approval(approvers="ann"), "Approval: approvers: must be a list of names, such as ['ann', 'bob']"),
    (lambda: Approval(approvers={"ann"}), "Approval: approvers: must be a list of names"),
    (by_position(Model, "compatible"), "Model takes keyword arguments such as provider=..."),
    (lambda: Model(provider="openai-chat"), "Model: name: must say which model of 'openai-chat'"),
    (model(base_url="nope"), "Model: base_url: must begin with http:// or https:// and have a host"),
    (model(base_url="http:///v1"), "Model: base_url: must begin with http:// or https:// and have a host"),
    (model(headers={"x team": "a"}), "Model: headers: names must be letters, digits and hyphens"),
    (model(headers={"x-team": "a\nb: c"}), "Model: headers: the value of 'x-team' must be one line"),
    (model(path="nope"), "Model: path: must begin with /"),
    (model(params={"x": object()}), "Model: params: must be JSON"),
    (model(params={"x": float("nan")}), "Model: params: must be JSON"),
]

CREDENTIALS: list[tuple[Callable[[], Any], str]] = [
    (model(headers={"Authorization": f"Bearer {SECRET}"}), "headers: 'Authorization' holds a credential"),
    (model(headers={"X-API-Key": f"{SECRET}"}), "worker's environment and write ${NAME}"),
    (model(headers={"cookie": f"session={SECRET}"}), "headers: 'cookie' holds a credential"),
    (model(headers={"x-team": SECRET}), "headers: 'x-team' holds a credential"),
    (model(headers={"authorization": f"{SECRET} ${{TEAM}}"}), "headers: 'authorization' holds a credential"),
    (model(params={"extra_headers": {"Authorization": f"Bearer {SECRET}"}}), "params: 'extra_headers.Authorization'"),
    (model(params={"api_key": SECRET}), "params: 'api_key' holds a credential"),
    (model(api_key_env=f"{SECRET} def"), "api_key_env: must be the name of a variable"),
    (model(base_url=f"http://ann:{SECRET}@127.0.0.1/v1"), "base_url: must not hold a user or password"),
]


@pytest.mark.parametrize(("make", "shown"), [*AGENTS, *TOOLS, *SETTINGS])
def test_what_cannot_work_is_refused(make: Callable[[], Any], shown: str) -> None:
    """The error is a ConfigError that names the thing, the field and the fix."""
    with pytest.raises(ConfigError, match=f"^{re.escape(shown)}"):
        make()


@pytest.mark.parametrize(("make", "shown"), CREDENTIALS)
def test_credentials_are_refused_unseen(make: Callable[[], Any], shown: str) -> None:
    """A spec is recorded, so it cannot hold a key, and the error does not repeat it."""
    with pytest.raises(ConfigError, match=re.escape(shown)) as refused:
        make()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "make",
    [
        model(headers={"Authorization": "Bearer ${TOKEN}", "x-team": "task-force one", "cookie": "a=${A}; b=${B}"}),
        model(params={"max_tokens": 5, "token": "end", "tools": [{"api_key": "x"}]}, api_key_env="MY_KEY"),
        model(base_url="https://[::1]:8000/v1/@x"),
        agent(instructions=lambda: "Be kind.", verify=lambda ctx, extra=1: None, policy=print),
        agent(tool_choice="registered_later"),
        agent(tools=[option(effect="read", timeout=5)()], tool_defaults=ToolDefaults(heartbeat=9, on_unknown="ask")),
        option(permissions=["mail"], queue="büro-1", approval=Approval(approvers=["ann", "bob"], quorum=2)),
    ],
)
def test_what_works_is_accepted(make: Callable[[], Any]) -> None:
    """The checks refuse nothing that a worker can use."""
    make()


def test_the_known_providers() -> None:
    """The names that an agent may use are those that a worker knows."""
    assert REGISTRY.keys() == PROVIDERS


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"model": "nope:x"}, "agent.model: provider: must be one of"),
        ({"tool_choice": "x"}, "agent.tool_choice: must be one of auto, required, none"),
        ({"limits": {"steps": "5"}}, "agent.limits: steps: Input should be a valid integer"),
    ],
)
def test_agents_as_data_are_checked_alike(changes: dict[str, Any], shown: str) -> None:
    """What is refused in Python is refused in a run's input."""
    with pytest.raises(ConfigError, match=f"^{re.escape(shown)}"):
        spec_from_data(read_agent_data({"name": "a", "model": "scripted", **changes}), lambda name: None)


def test_a_recorded_spec_is_read_back() -> None:
    """Strict checks of what authors write do not stand in the way of JSON, with every field written."""
    spec = Agent(
        "a",
        Model(provider="compatible", name="m", headers={"x": "${X}"}, price=Price(input=Decimal("0.1"), output=2)),
        tools=[tool(timeout="10m", approval=Approval(approvers=["ann"]), permissions=["mail"], queue="q")(look)],
        limits=Limits(cost_usd=Decimal("0.5"), deadline="1h30m"),
        strategy=ToolLoop(max_repeats=2),
        output={"type": "object"},
    ).spec()
    assert AgentSpec.model_validate_json(spec.model_dump_json()) == spec
    assert TypeAdapter(AgentSpec).validate_python(spec.model_dump(mode="json")) == spec


PIXEL = {"type": "image", "base64": "aGVsbG8="}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"prompt": 5}, "prompt: must be a text or a list of parts"),
        ({}, "prompt: give either 'prompt' or 'messages'"),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt: give either"),
        ({"prompt": [{"type": "video"}]}, "prompt.0: must be an object whose 'type' is 'text' or 'image'"),
        ({"prompt": [{"text": "x"}]}, "prompt.0: must be an object whose 'type' is 'text' or 'image'"),
        ({"prompt": ["x"]}, "prompt.0: must be an object whose 'type' is 'text' or 'image'"),
        ({"prompt": [{"type": "image"}]}, "prompt.0.image: an image needs either 'url' or 'base64'"),
        ({"prompt": [PIXEL | {"url": "http://h/x"}]}, "prompt.0.image: an image needs either 'url' or 'base64'"),
        ({"prompt": [{"type": "image", "base64": "%%"}]}, "prompt.0.image: base64: must be the image's bytes"),
        ({"prompt": [{"type": "image", "base64": ""}]}, "prompt.0.image: base64: must be the image's bytes"),
        ({"prompt": [{"type": "image", "url": "file:///x"}]}, "prompt.0.image: url: must begin with http://"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content: must be a text or a list of parts"),
    ],
)
def test_inputs_are_refused_with_the_fix(fields: dict[str, Any], shown: str) -> None:
    """A run's input says which field is wrong and what it must be."""
    with pytest.raises(ValidationError) as refused:
        RunInput.model_validate({"agent": "a", **fields})
    assert problems_of(refused.value).startswith(shown)


@pytest.mark.parametrize(
    "part", [PIXEL, {"type": "image", "url": "https://h/x.png"}, {"type": "image", "url": "data:image/png;base64,aGk="}]
)
def test_images_are_accepted(part: dict[str, Any]) -> None:
    """An image comes by address or as base64."""
    assert RunInput.model_validate({"agent": "a", "prompt": [part]}).prompt
