"""Everything is checked when it is constructed: each error names the agent or tool, the field and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from perdure import Agent, Approval, ConfigError, Escalation, Limits, Model, Price, ToolDefaults, ToolLoop, local, tool
from perdure.agent import AgentSpec
from perdure.agent_data import read_agent_data, spec_from_data
from perdure.own_providers import PROVIDERS
from perdure.run_input import RunInput
from perdure.settings import problems_of
from perdure.testing import FakeRuntime, call, calls, failure, reply, scripted
from perdure.worker_settings import WorkerSettings
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
    (agent(None), "agent 'a': model: must be given, or a router instead"),
    (agent(5), "agent 'a': model: 5 is not 'provider:model'"),
    (agent("gpt"), "agent 'a': model: 'gpt' is not 'provider:model'"),
    (agent([]), "agent 'a': model: must be a model, such as 'openai:gpt-5-mini', or a list of them"),
    (agent(["scripted"] * 7), "agent 'a': model: must be a model, or a list of 1 to 6"),
    (agent("nope:x"), "agent 'a': model: provider: must be one of anthropic, bifrost,"),
    (agent(["scripted", "nope:x"]), "agent 'a': model: provider: must be one of anthropic, bifrost,"),
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
    (
        agent(output={"type": "array"}),
        "agent 'a': output: must be a pydantic model, a dataclass or a JSON Schema of an object "
        """(the schema has "type": 'array'; it must be "object\"""",
    ),
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

PEOPLE = {"finance": ["fay", "joe"], "board": ["bea"], "nobody": []}


def guarded(**rule: Any) -> Callable[[], Any]:
    """An agent `a` with some groups, whose tool `look` has a rule, not made yet."""
    return lambda: Agent("a", "scripted", tools=[option(approval=Approval(**rule))()], groups=PEOPLE)


def later_stage(**rule: Any) -> Callable[[], Any]:
    """The same, where the rule is that of the third stage."""
    return lambda: guarded(escalate=(Escalation(), Escalation(**rule)))()


APPROVERS: list[tuple[Callable[[], Any], str]] = [
    (
        guarded(approvers=["@nobody"]),
        "agent 'a': tool 'look': approval.approvers: nobody is in the group 'nobody'; name",
    ),
    (guarded(approvers=["ann", "@nobody"]), "agent 'a': tool 'look': approval.approvers: nobody is in the group"),
    (
        guarded(approvers=["@finance", "fay"], quorum=3),
        "agent 'a': tool 'look': approval.quorum: 3 can never be reached with 2 approvers (@finance, fay); lower it",
    ),
    (
        guarded(approvers=["@finance", "@board", "board"], quorum=5),
        "agent 'a': tool 'look': approval.quorum: 5 can never be reached with 4 approvers (@finance, @board, board)",
    ),
    (later_stage(approvers=["@nobody"]), "agent 'a': tool 'look': approval.approvers: nobody is in the group 'nobody'"),
    (
        later_stage(approvers=["@board"], quorum=2),
        "agent 'a': tool 'look': approval.escalate.1.quorum: 2 can never be reached with 1 approvers (@board); lower",
    ),
    (
        lambda: Agent(
            "a",
            "scripted",
            tools=[look],
            groups=PEOPLE,
            tool_defaults=ToolDefaults(approval=Approval(approvers=["@board"], quorum=2)),
        ),
        "agent 'a': tool 'look': approval.quorum: 2 can never be reached with 1 approvers (@board)",
    ),
]

SETTINGS: list[tuple[Callable[[], Any], str]] = [
    (by_position(Limits, 5), "Limits takes keyword arguments such as steps=..."),
    (by_position(Approval, 5), "Approval takes keyword arguments such as approvers=..."),
    (lambda: Limits(steps="5"), "Limits: steps: Input should be a valid integer"),
    (lambda: Limits(steps=True), "Limits: steps: Input should be a valid integer"),
    (lambda: ToolLoop(max_repeats=True), "ToolLoop: max_repeats: Input should be a valid integer"),
    (lambda: ToolDefaults(quick="yes"), "ToolDefaults: quick: Input should be a valid boolean"),
    (lambda: Approval(quorum=True), "Approval: quorum: Input should be a valid integer"),
    (lambda: Approval(quorum=2, approvers=["ann"]), "Approval: quorum: 2 can never be reached with 1 approvers; lower"),
    (
        lambda: Escalation(quorum=3, approvers=["ann", "bob", "ann"]),
        "Escalation: quorum: 3 can never be reached with 2",
    ),
    (lambda: Approval(approvers=("",)), "Approval: approvers: must be a list of names, such as ['ann', 'bob']"),
    (lambda: Approval(approvers="ann"), "Approval: approvers: must be a list of names, such as ['ann', 'bob']"),
    (lambda: Approval(approvers={"ann"}), "Approval: approvers: must be a list of names"),
    (lambda: Approval(escalate=5), "Approval: escalate: must be a list"),
    (lambda: Approval(escalate=["ann"]), "Approval: escalate.0: must be Escalation(...), or an object with its fields"),
    (lambda: Approval(escalate=[{"timeout": "x"}]), "Approval: escalate.0.timeout: 'x' is not a duration; write '10m'"),
    (lambda: Approval(escalate=[{"foo": 1}]), "Approval: escalate.0.foo: Extra inputs are not permitted"),
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

TESTING: list[tuple[Callable[[], Any], str]] = [
    (by_position(scripted, 5), "perdure.testing: scripted: must be a reply of reply(...), calls(...) or failure(...)"),
    (by_position(scripted, "x"), "perdure.testing: scripted: must be a reply"),
    (lambda: scripted(repeat=True), "perdure.testing: scripted: repeat: must be False without a reply"),
    (by_position(reply, 5), "perdure.testing: reply: must be a text, not 5"),
    (lambda: reply("x", finish=5), "perdure.testing: reply: finish: must be one of stop"),  # type: ignore[arg-type]
    (by_position(call, ""), "perdure.testing: call: must be the name of a tool"),
    (by_position(calls, 5), "perdure.testing: calls: must be the name of a tool, or call(...), not 5"),
    (by_position(calls, {}), "perdure.testing: calls: must be the name of a tool, or call(...), not {}"),
    (by_position(failure, "nope"), "perdure.testing: failure: must be one of invalid_request, authentication"),
    (lambda: failure("server", times=0), "perdure.testing: failure: times: must be a number from 1 on, not 0"),
    (by_position(FakeRuntime, 5), "perdure.testing: FakeRuntime: must be a reply of reply(...)"),
    (by_position(local, 5), "perdure.local: 5 is no Agent, and no name of a file or module"),
    (by_position(local, None), "perdure.local: None is no Agent"),
]

VARIABLES: list[tuple[str, str, str]] = [
    ("PERDURE_MAX_ACTIVITIES", "many", "Input should be a valid integer"),
    ("PERDURE_MAX_ACTIVITIES", "0", "Input should be greater than or equal to 1"),
    ("PERDURE_MAX_CACHED_RUNS", "-1", "Input should be greater than or equal to 0"),
    ("PERDURE_IDLE_FIRST", "soon", "'soon' is not a duration; write '10m'"),
    ("PERDURE_IDLE_BETWEEN", "0", "'0' must be longer than zero"),
    ("PERDURE_TRACE_CONTENT", "perhaps", "Input should be a valid boolean"),
    ("PERDURE_TASK_QUEUE", "q" * 201, "String should have at most 200 characters"),
    ("PERDURE_WORKER_VERSION", "v2", "must be the names of a deployment and a build"),
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


@pytest.mark.parametrize(("make", "shown"), [*AGENTS, *TOOLS, *APPROVERS, *SETTINGS, *TESTING])
def test_what_cannot_work_is_refused(make: Callable[[], Any], shown: str) -> None:
    """The error is a ConfigError that names the thing, the field and the fix."""
    with pytest.raises(ConfigError, match=f"^{re.escape(shown)}"):
        make()


@pytest.mark.parametrize(("variable", "value", "shown"), VARIABLES)
def test_a_setting_of_the_environment_is_named_by_its_variable(variable: str, value: str, shown: str) -> None:
    """What the user has set is named, not the field that it becomes."""
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{variable}: {shown}')}"):
        WorkerSettings.parse({variable: value})


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
        guarded(approvers=["@finance", "@board"], quorum=3),
        guarded(approvers=["@finance", "ann"], quorum=3, escalate=(Escalation(approvers=["@board"]),)),
        guarded(quorum=100),
        guarded(approvers=["@nobody", "@board"], quorum=2, verified=True),
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
        ({"model": 5}, "agent: model: must be 'provider:model' or an object with 'provider' and 'name'"),
        ({"model": [5]}, "agent: model: must be 'provider:model'"),
        ({"output_schema": {"type": "array"}}, 'agent: output_schema: the schema has "type":'),
        ({"limits": {"steps": "5"}}, "agent.limits: steps: Input should be a valid integer"),
        ({"tools": ["look"]}, "agent.groups: look names 'finance', which is not there"),
        (
            {"tools": ["look"], "groups": {"finance": []}},
            "agent.tool 'look': approval.approvers: nobody is in the group",
        ),
        ({"tools": ["look"], "groups": {"finance": ["fay"]}}, "agent.tool 'look': approval.quorum: 2 can never be"),
    ],
)
def test_agents_as_data_are_checked_alike(changes: dict[str, Any], shown: str) -> None:
    """What is refused in Python is refused in a run's input."""
    guarded_look = option(approval=Approval(approvers=["@finance"], quorum=2))()
    with pytest.raises(ConfigError, match=f"^{re.escape(shown)}"):
        spec_from_data(read_agent_data({"name": "a", "model": "scripted", **changes}), lambda name: guarded_look.spec)


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
        ({"prompt": [{"type": "video"}]}, "prompt.0: must be an object whose 'type' is 'text', 'image' or 'document'"),
        ({"prompt": [{"text": "x"}]}, "prompt.0: must be an object whose 'type' is 'text', 'image' or 'document'"),
        ({"prompt": ["x"]}, "prompt.0: must be an object whose 'type' is 'text', 'image' or 'document'"),
        ({"agent": 5, "prompt": "x"}, "agent: must name an agent or describe one"),
        ({"agent": None, "prompt": "x"}, "agent: must name an agent or describe one"),
        ({"prompt": [{"type": "text"}]}, "prompt.0.text: Field required"),
        ({"prompt": [{"type": []}]}, "prompt.0: must be an object whose 'type' is 'text', 'image' or 'document'"),
        ({"prompt": [PIXEL | {"size": 5}]}, "prompt.0.size: Extra inputs are not permitted"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": 5}]}]}, "messages.0.content.0.url: Input"),
        ({"messages": ["x"]}, "messages.0: must be an object"),
        ({"prompt": "x", "limits": 5}, "limits: must be an object"),
        ({"prompt": "x", "output_schema": []}, "output_schema: must be an object"),
        ({"prompt": "x", "output_schema": {"type": "array"}}, 'output_schema: the schema has "type":'),
        ({"prompt": "x", "output_schema": {"$ref": "#/x"}}, "output_schema: the schema refers to '/x'"),
        ({"prompt": [{"type": "image"}]}, "prompt.0: an image needs either 'url' or 'base64'"),
        ({"prompt": [PIXEL | {"url": "http://h/x"}]}, "prompt.0: an image needs either 'url' or 'base64'"),
        ({"prompt": [{"type": "image", "base64": "%%"}]}, "prompt.0: base64: must be its bytes"),
        ({"prompt": [{"type": "image", "base64": ""}]}, "prompt.0: base64: must be its bytes"),
        ({"prompt": [{"type": "image", "url": "file:///x"}]}, "prompt.0: url: must begin with http://"),
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
