"""The command line as users run it: in processes of its own, against a real server, with one worker a test process."""

from __future__ import annotations

import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.embedded import EmbeddedServer
from tests.cli.command_line import CommandLine, make

AGENTS = """
from perdure import Agent, Approval, Model, ask_human, tool

@tool(effect="read")
def look(city: str) -> str:
    "Look."
    return f"{city} [bold]9C[/bold] \\x1b[31mred"

@tool(effect="write", approval=Approval(timeout="10m"))
def pay(to: str) -> str:
    "Pay."
    return f"paid {to}"

@tool(effect="write", approval=Approval(approvers=["ann", "bea"]))
def pay_much(to: str) -> str:
    "Pay."
    return f"paid {to}"

def scripted(name, *script, tools=()):
    return Agent(name, Model(provider="scripted", params={"script": list(script)}), tools=list(tools))

reader = scripted("reader", {"text": "[red]looking", "calls": [{"tool": "look", "arguments": {"city": "Oslo"}}]},
    {"text": "It is {{last_tool_text}}"}, tools=[look])
payer = scripted("payer", {"calls": [{"tool": "pay", "arguments": {"to": "bob"}}]},
    {"text": "Done: {{last_tool_text}}"}, tools=[pay])
twice = scripted("twice", {"calls": [{"tool": "pay", "arguments": {"to": n}} for n in ("ann", "bob")]},
    {"text": "Done: {{tool:c1}}, {{tool:c2}}"}, tools=[pay])
broken = scripted("broken", {"error": {"kind": "invalid_request", "message": "no such thing"}})
ODD = "\\x1b[31mred\\x07 \\u202eevil\\r\\n\\u597d\\U0001f600 tail " + "long" * 100
odd = scripted("odd", {"text": ODD, "chunks": 40, "delay_ms": 1000})
slow = scripted("slow", {"text": " ".join(f"w{n}" for n in range(400)), "chunks": 400, "delay_ms": 8000})
guarded = scripted("guarded", {"calls": [{"tool": "pay_much", "arguments": {"to": "bob"}}]},
    {"text": "Done: {{last_tool_text}}"}, tools=[pay_much])
asker = scripted("asker", {"calls": [{"tool": "ask_human", "arguments": {"question": "Did it happen?", "options": o}}
    for o in ([], ["it did", "no"])]}, {"text": "Heard: {{tool:c1}}, {{tool:c2}}"}, tools=[ask_human])
flaky = scripted("flaky", {"text": "at last", "error": {"kind": "rate_limit", "message": "too busy", "times": 2}})
"""


@pytest.fixture(scope="session")
def agents_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents with scripted models."""
    path = tmp_path_factory.mktemp("agents") / "my_agents.py"
    path.write_text(textwrap.dedent(AGENTS))
    return path


@pytest.fixture(scope="session")
def cli_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server without the runs of other tests: the inbox tells of every run that cannot be asked."""
    with EmbeddedServer(tmp_path_factory.mktemp("temporal-cli"), headless=True) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server of one test, whose search attributes may be changed, and whose runs are this test's alone."""
    with EmbeddedServer(tmp_path / "server", headless=True) as server:
        yield server


@pytest.fixture(scope="session")
def perdure(
    cli_server: EmbeddedServer, agents_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CommandLine]:
    """The command line, with a worker that serves the agents on a queue of this test process."""
    made = make(tmp_path_factory.mktemp("cli"), cli_server.address, f"cli-{uuid.uuid4().hex[:8]}")
    worker = made.start("worker", str(agents_file))
    assert worker.stdout is not None
    assert "serving reader, payer, twice, broken" in worker.stdout.readline()
    yield made
    made.close()
    assert worker.returncode == 0


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[CommandLine]:
    """The command line without a server: nothing listens at its address."""
    made = make(tmp_path, "127.0.0.1:1", "nobody")
    yield made
    made.close()


@pytest.fixture
def new_id() -> str:
    """A workflow id that no other test uses."""
    return f"run-{uuid.uuid4().hex[:12]}"
