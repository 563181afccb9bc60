"""docs/deploying.md: every command of it is carried out, in its order, as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import yaml

from activities.registry import Registry, load
from perdure.embedded import EmbeddedServer, find_binary
from tests.checkout import ROOT
from tests.cli.command_line import make, pending, until
from tests.test_docs import blocks

TEXT = (ROOT / "docs" / "deploying.md").read_text()
END = """
perdure approve inv-42
temporal workflow result -w inv-42 -o json | grep -q 'Done: paid bob'
"""


def shim(folder: Path, name: str, command: str) -> None:
    """A command of this name."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)


@pytest.mark.slow
def test_every_shell_block(own_server: EmbeddedServer, agents_file: Path, tmp_path: Path) -> None:
    """From the first replay to the run that was moved to the second version and ends there."""
    perdure = make(tmp_path, own_server.address, f"docs-{uuid.uuid4().hex[:8]}")
    (tmp_path / "my_agents.py").write_text(agents_file.read_text())
    shims = tmp_path / "bin"
    shims.mkdir()
    shim(shims, "perdure", f"{sys.executable} -m perdure")
    shim(shims, "temporal", f"{find_binary()} --disable-config-file")
    worker = perdure.start("worker", "my_agents.py")
    try:
        assert worker.stdout is not None
        assert "serving" in worker.stdout.readline()
        perdure("run", "payer", "go", "--id", "inv-42", "--no-follow")
        until(lambda: pending(perdure, "inv-42"))
    finally:
        perdure.close()
    [workflow] = [yaml.safe_load(text) for text in blocks("yaml", TEXT)]
    steps = [step["run"] for step in workflow["jobs"]["replay"]["steps"] if "run" in step]
    assert steps.pop(0) == "pip install -r requirements.txt"
    lines = ["set -eu", "trap 'kill $(jobs -p); wait' EXIT", *blocks("sh", TEXT), *steps, END]
    script = tmp_path / "deploying.sh"
    script.write_text("\n".join(lines))
    done = subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        env={**perdure.environment, "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
    assert "this code replays 1 of 1 run\n" in done.stdout
    assert "drain" in done.stdout.lower()


def test_the_agents_example_loads(tmp_path: Path) -> None:
    """The tool that is kept under its old name is one beside the new."""
    [example] = [text for text in blocks("python", TEXT) if "@tool" in text]
    path = tmp_path / "agents_of_deploying.py"
    path.write_text(f"{example}\nfrom perdure import Agent\npayer = Agent('payer', 'openai-chat:m', tools=[send_money, pay_until_its_runs_have_ended])\n")  # fmt: skip # noqa: E501
    registry = Registry()
    load([str(path)], registry)
    assert set(registry.tools) == {"send_money", "pay"}


def test_python_compiles() -> None:
    """Every Python example is valid."""
    for text in blocks("python", TEXT):
        compile(text, "deploying.md", "exec")
