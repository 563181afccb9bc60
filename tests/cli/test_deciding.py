"""Decisions from the command line: by whom, how far they reach, with proof, in child runs; limits that are raised."""

from __future__ import annotations

import re
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.decision_tokens import public_key_of, sign_decision
from perdure.embedded import EmbeddedServer
from tests.cli.command_line import CommandLine, make, until

pytestmark = pytest.mark.slow

PRIVATE = "A" * 43
AGENTS = """
from perdure import Agent, Approval, Limits, Model, ask_human, tool

@tool(effect="write", approval=True)
def pay(to: str) -> str:
    return f"paid {to}"

@tool(effect="write", approval=Approval(verified=True, approvers=["ann"]))
def pay_much(to: str) -> str:
    return f"paid {to}"

def scripted(name, *script, **options):
    return Agent(name, Model(provider="scripted", params={"script": list(script)}), **options)

def calling(tool, **arguments):
    return {"calls": [{"tool": tool, "arguments": arguments}]}

END = {"text": "{{last_tool_text}}"}
twice = scripted("twice", *(calling("pay", to=to) for to in ("bob", "bob", "eve")), END, tools=[pay])
much = scripted("much", calling("pay_much", to="bob"), END, tools=[pay_much])
leaf = scripted("leaf", calling("pay", to="bob"), calling("ask_human", question="Why?"), END,
              tools=[pay, ask_human])
middle = scripted("middle", calling("leaf", prompt="p"), END, tools=[leaf])
root = scripted("root", calling("middle", prompt="p"), {"text": "end"}, tools=[middle])
short = scripted("short", calling("pay", to="bob"), {"text": "end"}, tools=[pay], limits=Limits(steps=1),
                 on_limit="pause")
"""


@pytest.fixture(scope="module")
def perdure(cli_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """The command line, with a worker of its own that knows a decision key."""
    path = tmp_path_factory.mktemp("deciding") / "my_agents.py"
    path.write_text(textwrap.dedent(AGENTS))
    made = make(tmp_path_factory.mktemp("cli"), cli_server.address, f"cli-{uuid.uuid4().hex[:8]}")
    worker = made.start("worker", str(path), PERDURE_DECISION_KEYS=public_key_of(PRIVATE))
    assert worker.stdout is not None
    assert "serving" in worker.stdout.readline()
    yield made
    made.close()


def waits(perdure: CommandLine, id: str, *calls: str) -> list[dict[str, str]]:
    """The calls that wait in a run, as soon as they are these."""

    def look() -> list[dict[str, str]] | None:
        found = perdure.json("show", id)["status"]["pending"]
        return found if [c["call_id"] for c in found] == list(calls) else None

    found: list[dict[str, str]] = until(look)
    return found


def test_a_remembered_decision(perdure: CommandLine, new_id: str) -> None:
    """`--remember call` holds for the same call, `--remember tool` for every other too."""
    perdure("run", "twice", "x", "--id", new_id, "--no-follow")
    waits(perdure, new_id, "c1")
    perdure("approve", new_id, "--remember", "call")
    waits(perdure, new_id, "c3")
    assert "denied c3" in perdure("deny", new_id, "--remember", "tool").stdout
    events = perdure("events", new_id, "--follow").stdout
    assert "approval_remembered" in events
    assert perdure("approve", new_id, "--remember", "all", code=2).returncode == 2


def test_a_token_proves_who_decides(perdure: CommandLine, new_id: str, tmp_path: Path) -> None:
    """The token says who it is, not the user's name; it may stand in a file; a wrong one is refused."""
    perdure("run", "much", "x", "--id", new_id, "--no-follow")
    [pending] = waits(perdure, new_id, "c1")
    bound: dict[str, Any] = {"run": new_id, "call_id": "c1", "digest": pending["digest"]}
    assert "signed token" in perdure("approve", new_id, "--by", "ann", code=1).stderr
    wrong = sign_decision("B" * 42 + "A", **bound, by="ann")
    assert "no key that the run knows" in perdure("approve", new_id, "--token", wrong, code=1).stderr
    assert "--token: nowhere cannot be read" in perdure("approve", new_id, "--token", "@nowhere", code=2).stderr
    file = tmp_path / "token.txt"
    file.write_text(sign_decision(PRIVATE, **bound, by="ann") + "\n")
    assert "is not whom" in perdure("approve", new_id, "--token", f"@{file}", "--by", "bob", code=1).stderr
    assert perdure("approve", new_id, "--token", f"@{file}").stdout == f"approved c1 of {new_id}\n"
    assert "by=ann" in perdure("events", new_id, "--follow").stdout


def test_a_child_by_its_path(perdure: CommandLine, new_id: str) -> None:
    """Calls and questions two levels down are decided at the root."""
    perdure("run", "root", "x", "--id", new_id, "--no-follow")
    waits(perdure, new_id, "c1/c1/c1")
    assert perdure("approve", new_id, "c1/c1/c1").stdout == f"approved c1/c1/c1 of {new_id}\n"
    until(lambda: perdure.json("show", new_id)["status"]["questions"])
    perdure("answer", new_id, "c1/c1/q-c2", "because")
    assert perdure("events", new_id, "--follow").stdout.splitlines()[-1].endswith("run_ended outcome=success")


def test_a_paused_run_is_extended(perdure: CommandLine, new_id: str) -> None:
    """Each limit can be raised by so much; the run goes on."""
    perdure("run", "short", "x", "--id", new_id, "--no-follow")
    waits(perdure, new_id, "c1")
    perdure("approve", new_id)
    until(lambda: perdure.json("show", new_id)["status"]["state"] == "waiting_limit")
    shown = perdure("show", new_id).stdout
    assert re.search(rf"^paused    on max_steps until [\w :-]+: perdure extend {new_id} --steps 10$", shown, re.M)
    assert "say by how much" in perdure("extend", new_id, code=2).stderr
    assert "the run has no such limit" in perdure("extend", new_id, "--cost-usd", "1", code=1).stderr
    options = ["--tool-calls", "3", "--tokens", "10", "--deadline", "30m", "--steps", "2"]
    limits = perdure.json("extend", new_id, *options)["limits"]
    assert (limits["steps"], limits["tool_calls"], limits["tokens"], limits["deadline"]) == (3, 203, 1_000_010, 5400)
    assert perdure("events", new_id, "--follow").stdout.splitlines()[-1].endswith("run_ended outcome=success")


def test_a_new_key(bare: CommandLine) -> None:
    """It needs no server, says where each part goes, can be read by a shell, and the parts belong together."""
    made = bare.json("decision-key")
    assert public_key_of(made["private"]) == made["public"]
    done = bare("decision-key")
    assert made["private"] not in done.stdout
    shell = 'eval "$1"; printf "%s %s" "$PERDURE_DECISION_PRIVATE_KEY" "$PERDURE_DECISION_KEYS"'
    told = subprocess.run(["sh", "-euc", shell, "sh", done.stdout], capture_output=True, text=True, check=True).stdout
    private, public = told.split(" ")
    assert public_key_of(private) == public
    assert "the private key is secret" in done.stderr
