"""What a run may be started with: agents by name and as data, conversations, schemas, limits; and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RawValue

from perdure import Agent, Limits, tool
from perdure.testing import calls, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import fake_chat

SCRIPT = {"provider": "scripted", "params": {"script": [{"text": "From data."}]}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@tool(effect="read")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def clerk(**options: Any) -> Agent:
    """An agent."""
    return Agent("clerk", scripted(reply("{{user}}")), tools=[add], **options)


def raw(data: bytes, encoding: bytes = b"json/plain") -> RawValue:
    """A payload as a stranger's client may send it."""
    return RawValue(Payload(metadata={"encoding": encoding}, data=data))


INVALID: list[tuple[str, list[Any], str]] = [
    ("nothing", [], "must be one JSON object"),
    ("null", [None], "not nothing"),
    ("text", ["clerk"], "not str"),
    ("list", [[{"agent": "clerk"}]], "not list"),
    ("two", [{"agent": "clerk", "prompt": "x"}, {"x": 1}], "not 2"),
    ("empty", [{}], "agent: Field required"),
    ("no_prompt", [{"agent": "clerk"}], "give either 'prompt' or 'messages'"),
    ("both", [{"agent": "clerk", "prompt": "x", "messages": [{"role": "user", "content": "y"}]}], "give either"),
    ("unknown_field", [{"agent": "clerk", "prompt": "x", "promt": "y"}], "promt"),
    ("empty_agent", [{"agent": "", "prompt": "x"}], "agent: must name an agent"),
    ("agent_of_another_type", [{"agent": 7, "prompt": "x"}], "agent"),
    ("empty_prompt_list", [{"agent": "clerk", "prompt": []}], "prompt"),
    ("prompt_of_another_type", [{"agent": "clerk", "prompt": 5}], "prompt"),
    ("unknown_part", [{"agent": "clerk", "prompt": [{"type": "video", "url": "x"}]}], "prompt"),
    ("empty_messages", [{"agent": "clerk", "messages": []}], "messages"),
    ("unknown_role", [{"agent": "clerk", "messages": [{"role": "tool", "content": "x"}]}], "role"),
    ("negative_limit", [{"agent": "clerk", "prompt": "x", "limits": {"steps": -1}}], "limits.steps"),
    ("unknown_limit", [{"agent": "clerk", "prompt": "x", "limits": {"step": 1}}], "limits.step"),
    ("nan_limit", [{"agent": "clerk", "prompt": "x", "limits": {"cost_usd": "NaN"}}], "cost_usd"),
    ("bad_duration", [{"agent": "clerk", "prompt": "x", "limits": {"deadline": "soon"}}], "deadline"),
    ("empty_tenant", [{"agent": "clerk", "prompt": "x", "tenant": ""}], "tenant"),
    ("long_user", [{"agent": "clerk", "prompt": "x", "user": "u" * 201}], "user"),
    ("metadata_number", [{"agent": "clerk", "prompt": "x", "metadata": {"a": 1}}], "metadata"),
    ("bad_schema", [{"agent": "clerk", "prompt": "x", "output_schema": {"type": "array"}}], "output_schema"),
    ("broken_json", [raw(b"{broken")], "cannot be read"),
    ("unknown_encoding", [raw(b"x", b"binary/what")], "cannot be read"),
    ("bytes", [raw(b"\x00", b"binary/plain")], "not bytes"),
    ("unknown_agent", [{"agent": "clark", "prompt": "x"}], "no agent 'clark'; it has clerk"),
    ("continue_from_nothing", [{"agent": "clerk", "prompt": "x", "continue_from": "no-such"}], "continue_from"),
    ("data_unknown_tool", [{"agent": {"name": "d", "model": SCRIPT, "tools": ["sub"]}, "prompt": "x"}], "'sub'"),
    ("data_unknown_field", [{"agent": {"name": "d", "model": SCRIPT, "tool": []}, "prompt": "x"}], "agent: tool"),
    ("data_no_model", [{"agent": {"name": "d"}, "prompt": "x"}], "agent.model: must be given"),
    ("data_bad_model", [{"agent": {"name": "d", "model": "gpt"}, "prompt": "x"}], "provider:model"),
    ("data_bad_limit", [{"agent": {"name": "d", "model": SCRIPT, "limits": {"steps": 0}}, "prompt": "x"}], "steps"),
    ("data_strategy", [{"agent": {"name": "d", "model": SCRIPT, "strategy": {"name": "X"}}, "prompt": "x"}], "'X'"),
    (
        "data_strategy_parameter",
        [{"agent": {"name": "d", "model": SCRIPT, "strategy": {"name": "ToolLoop", "params": {"y": 1}}}, "prompt": ""}],
        "y",
    ),
    ("data_url", [{"agent": {"name": "d", "model": {"provider": "compatible", "name": "m", "base_url": "http://evil"}},
                   "prompt": "x"}], "does not allow 'http://evil'"),
    ("data_key", [{"agent": {"name": "d", "model": {"provider": "compatible", "name": "m", "api_key_env": "HOME"}},
                   "prompt": "x"}], "does not allow 'HOME'"),
    ("data_header", [{"agent": {"name": "d", "model": {"provider": "compatible", "name": "m",
                                                      "headers": {"x": "${HOME}"}}}, "prompt": "x"}], "headers"),
]  # fmt: skip


async def test_invalid_inputs_end_the_run_at_once(serve: Serve) -> None:
    """Each fails as `invalid_input` with a message that names the field, after one workflow task or one step."""
    lab = await serve(clerk())
    for label, payloads, shown in INVALID:
        run = await lab.begin(*payloads)
        result = await run.ended()
        described = await run.handle.describe()
        assert described.status == WorkflowExecutionStatus.FAILED, label
        assert shown in result["message"], label
        if label != "two":
            assert (result["outcome"], (await run.status())["state"]) == ("invalid_input", "closed"), label
        assert described.history_length < 25, label


async def test_an_unknown_workflow_type_fails_at_once(serve: Serve) -> None:
    """It says which type there is."""
    lab = await serve(clerk())
    handle = await lab.client.start_workflow("Agent", {"agent": "clerk"}, id="wrong-type", task_queue=lab.queue)
    with pytest.raises(Exception, match="failed") as failure:
        await handle.result()
    assert "workflow type 'Agent' does not exist here; start 'AgentWorkflow'" in str(failure.value.__cause__)


async def test_an_agent_as_data(serve: Serve) -> None:
    """An agent written in the input runs with tools by name, instructions and limits of its own."""
    lab = await serve(clerk())
    script = [{"calls": [{"tool": "add", "arguments": {"a": 1, "b": 2}}]}, {"text": "It is {{last_tool_text}}."}]
    model = {"provider": "scripted", "params": {"script": script}}
    data = {"name": "guest", "model": model, "tools": ["add"], "instructions": "Add.", "limits": {"steps": 5}}
    run = await lab.start(data, "1+2?")
    result = await run.result()
    assert (result["output"], result["agent"]) == ("It is 3.", "guest")
    spec = (await run.handle.query("spec"))["spec"]
    assert (spec["instructions"], spec["limits"]["steps"]) == ("Add.", 5)


async def test_an_agent_as_data_may_use_an_allowed_address(serve: Serve) -> None:
    """The worker's setting opens an address."""
    async with fake_chat({"text": "allowed"}) as fake:
        lab = await serve(clerk(), allowed_urls=frozenset({fake.base_url}))
        model = {"provider": "compatible", "name": "m", "base_url": fake.base_url}
        assert (await lab.run({"name": "guest", "model": model}))["output"] == "allowed"
        assert (await lab.run({"name": "guest", "model": {**model, "base_url": fake.base_url + "/"}}))["message"]


async def test_a_conversation_as_input(serve: Serve) -> None:
    """`messages` are the beginning of the conversation, `data` follows the last word of the user."""
    async with fake_chat({"text": "ok"}) as fake:
        lab = await serve(Agent("clerk", fake.model(), "Be kind."))
        messages = [
            {"role": "system", "content": "Extra."},
            {"role": "user", "content": "One."},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": [{"type": "text", "text": "Three."}]},
        ]
        run = await lab.start("clerk", None, messages=messages, data={"b": 1, "a": "\ud800"})
        assert (await run.result())["outcome"] == "success"
    words = await run.words()
    assert words[:4] == [("system", "Extra."), ("user", "One."), ("assistant", "Two."), ("user", "Three.")]
    assert words[4] == ("user", 'Data of this run, as JSON:\n{"a":"\ufffd","b":1}')
    sent = json.dumps(fake.requests[0]["messages"])
    assert all(text in sent for text in ("Be kind.", "Extra.", "One.", "Two.", "Three.", "Data of this run"))


async def test_a_run_continues_an_earlier_one(serve: Serve) -> None:
    """The earlier conversation comes first, its calls are not repeated, and new calls count on."""
    ran: list[str] = []

    @tool(effect="write")
    def act(n: int) -> str:
        ran.append(f"act {n}")
        return f"did {n}"

    script = [calls("act", n=1), reply("first"), calls("act", n=2), reply("then {{tool:c1}} and {{tool:c2}}")]
    agent = Agent("actor", scripted(*script), tools=[act])
    lab = await serve(agent)
    first = await lab.start(agent, "Do one.")
    await first.result()
    second = await lab.start(agent, "Do two.", continue_from=first.id)
    assert (await second.result())["output"] == "then did 1 and did 2"
    assert ran == ["act 1", "act 2"]
    assert [m["role"] for m in await second.messages()][:5] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize(
    ("script", "outcome", "structured", "steps"),
    [
        ([reply('{"n": 3}')], "success", {"n": 3}, 1),
        ([reply('{"n": "3"}')], "success", {"n": 3}, 1),
        ([reply("```json\n{\"n\": 3}\n```")], "success", {"n": 3}, 1),
        ([reply("three"), reply('{"n": 3}')], "success", {"n": 3}, 2),
        ([reply('{"m": 3}'), reply('{"n": 3}')], "success", {"n": 3}, 2),
        ([reply('{"n": 1.5}'), reply("[]")], "no_solution", None, 2),
    ],
)  # fmt: skip
async def test_output_schemas(serve: Serve, script: Any, outcome: str, structured: Any, steps: int) -> None:
    """An answer that fits comes as an object; one that does not is corrected once; the input's schema counts."""
    agent = Agent("formal", scripted(*script))
    lab = await serve(agent)
    result = await lab.run(agent, output_schema=SCHEMA)
    assert (result["outcome"], result["structured"], result["steps"]) == (outcome, structured, steps)


async def test_limits_are_only_lowered(serve: Serve) -> None:
    """A start may ask for less than the agent's limits and never gets more."""
    agent = clerk(limits=Limits(steps=5, tokens=1000))
    lab = await serve(agent)
    run = await lab.start(agent, limits={"steps": 50, "tokens": 10, "cost_usd": "0.5", "deadline": "2h"})
    await run.ended()
    assert (await run.status())["limits"] == {
        "steps": 5, "tool_calls": 200, "tokens": 10, "cost_usd": "0.5", "deadline": 3600,
    }  # fmt: skip


async def test_the_spec_is_frozen(serve: Serve) -> None:
    """Instructions that are a function are evaluated once, when the run begins."""
    told: list[int] = []

    def instructions() -> str:
        told.append(1)
        return f"Version {len(told)}."

    async with fake_chat({"calls": [{"tool": "add", "arguments": {"a": 1, "b": 1}}]}, {"text": "ok"}) as fake:
        agent = Agent("changing", fake.model(), instructions, tools=[add])
        lab = await serve(agent)
        told.clear()
        await lab.run(agent)
    systems = [request["messages"][0]["content"] for request in fake.requests]
    assert systems == ["Version 1.", "Version 1."]


async def test_surrogates_and_nul_in_the_input(serve: Serve) -> None:
    """What no store can carry becomes U+FFFD, the same everywhere."""
    agent = clerk()
    lab = await serve(agent)
    run = await lab.begin(raw(b'{"agent":"clerk","prompt":"a\\ud83d b\\u0000c","metadata":{"k":"\\udcff"}}'))
    assert (await run.result())["output"] == "a\ufffd b\ufffdc"


async def test_images_reach_the_model(serve: Serve) -> None:
    """Parts of a prompt that are images are sent as such."""
    async with fake_chat({"text": "a cat"}) as fake:
        lab = await serve(Agent("seer", fake.model()))
        parts = [
            {"type": "text", "text": "What is this?"},
            {"type": "image", "base64": "aGk=", "media_type": "image/png"},
        ]
        assert (await lab.run("seer", parts))["output"] == "a cat"
    assert "data:image/png;base64,aGk=" in json.dumps(fake.requests[0])
