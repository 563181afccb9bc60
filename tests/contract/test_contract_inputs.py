"""Every bad input ends a run at once as Failed, with the field named; none leaves a workflow task retrying."""

from __future__ import annotations

import json
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue

from tests.contract.conftest import GARBAGE, Desk

pytestmark = pytest.mark.slow

WHOLE: dict[str, Any] = {"agent": "echo", "prompt": "hi"}


def changed(**fields: Any) -> str:
    """A good input with some fields changed; None removes one."""
    merged = WHOLE | fields
    return json.dumps({name: value for name, value in merged.items() if value is not None})


BAD: list[tuple[str, tuple[str, ...], str]] = [
    ("unknown field", (changed(promt="hi"),), "promt"),
    ("no agent", ('{"prompt":"hi"}',), "agent"),
    ("unknown agent", (changed(agent="ecko"),), "agent: this worker has no agent 'ecko'; it has echo"),
    ("empty agent", (changed(agent=""),), "agent"),
    ("empty agent as data", (changed(agent={}),), "agent"),
    ("agent of a wrong type", (changed(agent=7),), "agent: must name an agent or describe one"),
    ("agent as data without a model", (changed(agent={"name": "x"}),), "agent.model"),
    ("agent as data, unknown field", (changed(agent={"name": "x", "model": "scripted", "tool": []}),), "agent: tool"),
    ("agent as data, no such tool", (changed(agent={"name": "x", "model": "scripted", "tools": ["rm"]}),), "'rm'"),
    ("agent as data, bad model", (changed(agent={"name": "x", "model": "gpt"}),), "model"),
    ("agent as data, bad name", (changed(agent={"name": "", "model": "scripted"}),), "agent: name"),
    (
        "agent as data, an address that is not allowed",
        (
            changed(
                agent={
                    "name": "x",
                    "model": {"provider": "compatible", "name": "m", "base_url": "http://127.0.0.1:1/v1"},
                }
            ),
        ),
        "base_url",
    ),
    (
        "agent as data, a key that is not allowed",
        (changed(agent={"name": "x", "model": {"provider": "compatible", "name": "m", "api_key_env": "HOME"}}),),
        "api_key_env",
    ),
    (
        "agent as data, bad strategy",
        (changed(agent={"name": "x", "model": "scripted", "strategy": {"n": 1}}),),
        "agent.strategy: name",
    ),
    (
        "agent as data, bad limits",
        (changed(agent={"name": "x", "model": "scripted", "limits": {"steps": 0}}),),
        "agent.limits: steps",
    ),
    ("agent as data, a field called self", (changed(agent={"name": "x", "model": {"self": 1}}),), "self"),
    ("a list", ("[]",), "not list"),
    ("null", ("null",), "not nothing"),
    ("a string", ('"echo"',), "not str"),
    ("a number", ("7",), "not int"),
    ("no input", (), "not nothing"),
    ("two inputs", (changed(), changed()), "not 2"),
    ("prompt and messages", (changed(messages=[{"role": "user", "content": "hi"}]),), "prompt"),
    ("neither prompt nor messages", ('{"agent":"echo"}',), "prompt"),
    ("empty prompt", (changed(prompt=""),), "prompt"),
    ("blank prompt", (changed(prompt=" \n"),), "prompt"),
    ("empty text", (changed(prompt=[{"type": "text", "text": ""}]),), "prompt"),
    ("empty list of parts", (changed(prompt=[]),), "prompt"),
    ("prompt of a wrong type", (changed(prompt=7),), "prompt"),
    ("unknown kind of part", (changed(prompt=[{"type": "sound"}]),), "prompt"),
    ("no messages", (changed(prompt=None, messages=[]),), "messages"),
    ("messages of a wrong type", (changed(prompt=None, messages="hi"),), "messages"),
    ("unknown role", (changed(prompt=None, messages=[{"role": "tool", "content": "hi"}]),), "messages.0.role"),
    ("message without content", (changed(prompt=None, messages=[{"role": "user"}]),), "messages.0.content"),
    ("empty message", (changed(prompt=None, messages=[{"role": "user", "content": ""}]),), "messages.0.content"),
    ("output_schema of a wrong type", (changed(output_schema=[]),), "output_schema"),
    ("output_schema that is none", (changed(output_schema={"type": "objekt"}),), "output_schema: the schema has"),
    ("tenant of a wrong type", (changed(tenant=7),), "tenant"),
    ("empty tenant", (changed(tenant=""),), "tenant"),
    ("user of a wrong type", (changed(user=["ann"]),), "user"),
    ("limits of a wrong type", (changed(limits=7),), "limits"),
    ("unknown limit", (changed(limits={"step": 1}),), "limits.step"),
    ("no steps", (changed(limits={"steps": 0}),), "limits.steps"),
    ("negative tokens", (changed(limits={"tokens": -1}),), "limits.tokens"),
    ("cost that is no number", (changed(limits={"cost_usd": "much"}),), "limits.cost_usd"),
    ("cost that is infinite", (changed(limits={"cost_usd": "inf"}),), "limits.cost_usd"),
    ("deadline that is none", (changed(limits={"deadline": "soon"}),), "limits.deadline"),
    ("deadline of nothing", (changed(limits={"deadline": 0}),), "limits.deadline"),
    ("metadata of a wrong type", (changed(metadata=["a"]),), "metadata"),
    ("metadata that is no text", (changed(metadata={"a": 1}),), "metadata.a"),
    ("continue_from of a wrong type", (changed(continue_from=1),), "continue_from"),
    ("continue_from of no run", (changed(continue_from="never-started"),), "continue_from"),
]


@pytest.mark.parametrize(("inputs", "named"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_fails_at_once_and_names_the_field(desk: Desk, inputs: tuple[str, ...], named: str) -> None:
    """A bad input closes the run as Failed with type invalid_input, the field in the message, no task retried."""
    workflow_id = desk.start(*inputs)
    failure = desk.failure(workflow_id)
    assert failure["applicationFailureInfo"]["type"] == "invalid_input"
    assert named in failure["message"]
    assert len(failure["message"]) < 1_000
    desk.assert_never_stuck(workflow_id)


def test_an_unknown_workflow_type_fails_and_says_which_exist(desk: Desk) -> None:
    """A workflow type that nobody wrote fails at once and names the one to start."""
    command = desk.starting("unknown-type", changed())
    command[command.index("AgentWorkflow")] = "AgentWorkflw"
    desk.cli.json(*command)
    failure = desk.failure("unknown-type")
    assert failure["applicationFailureInfo"]["type"] == "invalid_input"
    assert "AgentWorkflw" in failure["message"]
    assert "'AgentWorkflow'" in failure["message"]
    desk.assert_never_stuck("unknown-type")


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_payload_that_cannot_be_read_fails_the_run(desk: Desk, payload: Payload) -> None:
    """A start by an SDK with a damaged payload ends as invalid_input too."""
    client = await Client.connect(desk.address)
    workflow_id = f"garbage-{abs(hash(payload.SerializeToString(deterministic=True)))}"
    await client.start_workflow("AgentWorkflow", RawValue(payload), id=workflow_id, task_queue=desk.queue)
    failure = desk.failure(workflow_id)
    assert failure["applicationFailureInfo"]["type"] == "invalid_input"
    assert failure["message"].startswith("input: ")
    desk.assert_never_stuck(workflow_id)


def test_a_child_s_second_argument_is_not_taken_from_outside(desk: Desk) -> None:
    """What only a parent gives (a share of its time, its key) is refused from anybody else."""
    workflow_id = desk.start(changed(), '{"key_prefix":"mine/","seconds_left":9}')
    assert desk.failure(workflow_id)["applicationFailureInfo"]["type"] == "invalid_input"
