"""The incident desk beside the same job on bare temporalio: the same end, and what each takes in code and history."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import tokenize
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from examples.incident_desk_plain import MISSING
from perdure.embedded import EmbeddedServer
from tests.lab import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AGENTS = EXAMPLES / "incident_desk" / "agents.py"
PLAIN, PLAIN_RUN = EXAMPLES / "incident_desk_plain.py", EXAMPLES / "incident_desk_plain_run.py"
AROUND = "# === from here on"
"""What follows in PLAIN belongs to the program around the job, as run.py does for Perdure."""
CHOICE = ("OPENAI_API_KEY", "COMPATIBLE_BASE_URL", "COMPATIBLE_API_KEY", "COMPATIBLE_MODEL")
PROGRAMS = {"AgentWorkflow": EXAMPLES / "incident_desk" / "run.py", "AgentRun": PLAIN}
"""By the type of their workflows."""
IGNORED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Ended:
    """What both programs left behind: output by type of workflow, and their histories' lengths and runs."""

    output: dict[str, str]
    events: Counter[str]
    runs: Counter[str]
    tickets: int


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Both programs to their end, one after the other, on one server."""
    folder = tmp_path_factory.mktemp("both")
    environment = {name: value for name, value in os.environ.items() if name not in CHOICE}
    environment["PERDURE_DATA_DIR"] = str(folder)
    output = {}
    with EmbeddedServer(folder, headless=True) as server:
        for kind, program in PROGRAMS.items():
            done = subprocess.run(
                [sys.executable, str(program)],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=250,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
            output[kind] = done.stdout
        events, runs = asyncio.run(histories(server.address))
    with closing(sqlite3.connect(folder / "tickets.db")) as db:
        ((tickets,),) = db.execute("SELECT COUNT(*) FROM tickets").fetchall()
    return Ended(output, events, runs, tickets)


async def histories(address: str) -> tuple[Counter[str], Counter[str]]:
    """Events and runs by type of workflow, children included; a list of runs lags behind a little."""
    client = await Client.connect(address)

    async def closed() -> tuple[Counter[str], Counter[str]] | None:
        events: Counter[str] = Counter()
        runs: Counter[str] = Counter()
        async for run in client.list_workflows():
            if run.status is WorkflowExecutionStatus.RUNNING:
                return None
            events[run.workflow_type] += run.history_length
            runs[run.workflow_type] += 1
        return (events, runs) if runs == Counter(dict.fromkeys(PROGRAMS, 3)) else None

    found: tuple[Counter[str], Counter[str]] = await eventually(closed)
    return found


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code: neither blank nor comment nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type not in IGNORED:
            lines |= set(range(token.start[0], token.end[0] + 1))
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= spanned(node)
    return lines


def spanned(node: ast.AST) -> set[int]:
    """Numbers of the lines of a node."""
    assert isinstance(node, ast.stmt | ast.expr)
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def about_agents(source: str) -> set[int]:
    """Lines of agents.py that are Perdure's: imports of it, `@tool(...)`, and the agents. The rest is the tools."""
    tree, found = ast.parse(source), set[int]()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "perdure":
            found |= spanned(node)
        elif isinstance(node, ast.FunctionDef):
            found |= {line for decorator in node.decorator_list for line in spanned(decorator)}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Name) and called.id == "Agent":
                found |= spanned(node)
    return found & code_lines(source)


def rows(output: str) -> dict[str, str]:
    """Name and value of the report's short fields, as either program prints them."""
    plain = re.sub("[│┃]", " ", output)
    names = "gateway_502|failed_payments|matched|severity"
    return dict(re.findall(rf"^\s*({names})\s+(\S+)\s*$", plain, re.MULTILINE))


def test_both_end_the_same(ended: Ended) -> None:
    """Report, tickets and tokens of the job by hand are those of Perdure's."""
    perdure, plain = ended.output["AgentWorkflow"], ended.output["AgentRun"]
    assert rows(perdure) == rows(plain)
    assert rows(plain) == {"gateway_502": "11", "failed_payments": "15", "matched": "10", "severity": "high"}
    assert all("req_2ff9cad3" in text for text in (perdure, plain))
    assert "Outcome   success" in perdure
    assert "Outcome   success" in plain
    assert ended.tickets == 2
    assert ended.runs == Counter(dict.fromkeys(PROGRAMS, 3))


def test_what_each_takes(ended: Ended) -> None:
    """Around the same tools Perdure needs a fifth of the code at most, and a quarter more events at most.

    What is more are its resolve steps and its search attributes.
    """
    plain = PLAIN.read_text()
    by_hand = len(code_lines(plain[: plain.index(AROUND)])) + len(code_lines(PLAIN_RUN.read_text()))
    source = AGENTS.read_text()
    perdure, shared = len(about_agents(source)), len(code_lines(source) - about_agents(source))
    print(f"\n{'':34}{'Perdure':>10}{'by hand':>10}")
    print(f"{'lines of code around the tools':34}{perdure:10}{by_hand:10}")
    print(f"{'lines of code of tools and types':34}{shared:10}{shared:10}")
    print(f"{'events of the three runs':34}{ended.events['AgentWorkflow']:10}{ended.events['AgentRun']:10}")
    print(*(f"by hand: {line}" for line in MISSING), sep="\n")
    assert perdure * 5 <= by_hand
    assert ended.events["AgentWorkflow"] <= ended.events["AgentRun"] * 1.25
