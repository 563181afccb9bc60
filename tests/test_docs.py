"""The documents say what is true: links lead somewhere, names exist, examples work."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.registry import Registry, load
from perdure import Limits, Outcome
from perdure.cli import COMMANDS
from perdure.run_input import RunInput
from perdure.tools import Effect, ToolOptions
from perdure.worker_settings import WorkerSettings
from providers import REGISTRY
from tests.checkout import PACKAGES, ROOT, files
from workflows.family import Family
from workflows.inbox import Inbox
from workflows.state import RunState
from workflows.views import Board

README = (ROOT / "README.md").read_text()
DOCUMENTS = files(".md")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
TEMPORAL = {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_API_KEY", "TEMPORAL_PROFILE"}
"""Read by Temporal's own SDK."""


def blocks(language: str, text: str = README) -> list[str]:
    """The fenced blocks of a language."""
    return [body for kind, body in FENCE.findall(text) if kind == language]


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    return FENCE.sub("", text)


def anchors(text: str) -> set[str]:
    """What the headings of a document can be linked by."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(path: Path) -> Iterator[str]:
    """Relative links of a document that lead nowhere."""
    for target in LINK.findall(prose(path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        if not other.exists() or (anchor and anchor not in anchors(other.read_text())):
            yield f"{path.relative_to(ROOT)}: {target}"


def table(header: str) -> list[list[str]]:
    """The code words of each first cell of the README's table whose header begins so."""
    lines = README.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {header} "))
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(re.findall(r"`([^`]+)`", line.split("|")[1]))
    return rows


def words(header: str) -> list[str]:
    """All code words of the first column."""
    return [word for row in table(header) for word in row]


def test_links_lead_somewhere() -> None:
    """Every relative link and anchor in every document exists."""
    assert [link for path in DOCUMENTS for link in dead_links(path)] == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    """The search for dead links finds files and anchors that are missing, and nothing else."""
    text = "# One `two`, three\n[a](#one-two-three) [b](#four) [c](ADR.md) [d](https://example.com)\n```\n[e](no.md)\n```\n"
    targets = [t for t in LINK.findall(prose(text)) if not t.startswith("http")]
    assert targets == ["#one-two-three", "#four", "ADR.md"]
    assert anchors(text) == {"one-two-three"}


def test_agents_guide_is_short() -> None:
    """What every helper reads first has at most 120 lines, and is the same for each of them."""
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 120
    assert (ROOT / "CLAUDE.md").read_text().strip() == "@AGENTS.md"


def test_decisions_are_listed() -> None:
    """The list of decisions names every one of them, numbered without a gap."""
    folder = ROOT / "docs" / "adr"
    names = sorted(p.name for p in folder.glob("[0-9]*.md"))
    assert re.findall(r"\((\d{4}-[^)]+\.md)\)", (folder / "README.md").read_text()) == names
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


@pytest.mark.parametrize("source", blocks("python"), ids=lambda s: s.strip().splitlines()[0][:40])
def test_python_compiles(source: str) -> None:
    """Every Python example of the README is valid Python."""
    compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("source", blocks("json"))
def test_json_is_json(source: str) -> None:
    """Every JSON example of the README is valid JSON."""
    json.loads(source)


RUN, BOARD = RunState(), Board()
MESSAGES = Inbox(RUN, BOARD, Family(RUN, BOARD)).names

AGENT_FILES = [source for source in blocks("python") if re.search(r"^\w+ = Agent\(", source, re.MULTILINE)]


@pytest.mark.parametrize("source", AGENT_FILES, ids=lambda s: s.strip().splitlines()[0][:40])
def test_agents_of_the_readme_load(tmp_path: Path, source: str) -> None:
    """A worker can serve every agents file that the README shows."""
    path = tmp_path / f"agents_of_readme_{abs(hash(source))}.py"
    path.write_text(source)
    registry = Registry()
    load([str(path)], registry)
    assert registry.agents


def test_first_example_is_the_agents_file() -> None:
    """The five-minute start begins with the file that its commands name."""
    assert blocks("python")[0].startswith("# my_agents.py\n")
    assert "perdure dev my_agents.py" in README


def test_commands() -> None:
    """The README names every command, and none that does not exist."""
    named = set(re.findall(r"(?:^|`)perdure ([a-z]+(?:-[a-z]+)*)\b", README, re.MULTILINE))
    assert named == set(COMMANDS)
    listed = {word.split()[1] for word in words("command")}
    assert listed == set(COMMANDS)


def variables_of_the_code() -> set[str]:
    """Environment variables that shipped code reads."""
    paths = [ROOT / "worker.py", *(p for package in PACKAGES for p in files(".py", below=ROOT / package))]
    literal = {
        node.args[0].value
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and re.search(r"environ(ment)?\.get$|getenv$", ast.unparse(node.func))
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }
    settings = {f"PERDURE_{field.upper()}" for field in WorkerSettings.model_fields}
    entries = {name for entry in REGISTRY.values() for name in entry.variables}
    return {name for name in literal if VARIABLE.fullmatch(name)} | settings | entries


def test_environment_variables() -> None:
    """The README names every variable that code reads, and none that it does not."""
    spans = " ".join(re.findall(r"`([^`\n]+)`", prose(README)))
    assert set(VARIABLE.findall(spans)) == (variables_of_the_code() - TEMPORAL) | TEMPORAL
    assert set(words("variable")) == {name for name in variables_of_the_code() if name.startswith("PERDURE_")}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("effect", Effect.__args__),  # type: ignore[attr-defined]
        ("option of", ["name", *ToolOptions.model_fields]),
        ("`Limits(...)`", Limits.model_fields),
        ("field", RunInput.model_fields),
        ("name", MESSAGES),
        ("outcome", [o.value for o in Outcome]),
        ("provider", REGISTRY),
        ("query", ["status", "approvals", "conversation", "events", "usage", "spec"]),
    ],
)
def test_tables(header: str, expected: list[str]) -> None:
    """The README's tables list what there is, all of it and nothing else."""
    assert sorted(words(header)) == sorted(expected)
